"""Changes that a task hands on in this process have the form of those that are read from topics."""

from __future__ import annotations

import pytest
from cdcworker.schemas.change import Change, Column, Position, Table
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.main import cli
from cdcworker.worker.cli.render.tail import lines
from cdcworker.worker.diagnostics.watch import ChangeForm, require_watched
from click.testing import CliRunner

DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
ITEM = Table(
    ("public", "item"),
    7,
    (Column("id", "int", optional=False), Column("day", DATE), Column("text", "string")),
    (0,),
    {},
)


def changed(op, **rows):
    source = {"name": "dev", "schema": "public", "table": "item", "ts_ms": 1_000}
    return ChangeForm().change(Change(op, ITEM, Position(1, 0, 0), source, **rows))


def test_values_are_shown_as_people_read_them():
    found = changed("c", after=(1, 0, None))
    assert (found["op"], found["table"], found["key"]) == ("create", "public.item", {"id": 1})
    assert found["after"] == {"id": 1, "day": "1970-01-01", "text": None}


def test_a_value_that_was_not_sent_is_none_that_changed():
    found = changed("u", before=(1, 0, "a"), after=(1, 1, ""), unchanged=(2,))
    assert (found["changed"], found["unknown"]) == (["day"], ["text"])
    assert [text for _, text in lines(found)] == [
        "00:00:01.000  UPDATE    public.item  id=1",
        "  ~ day   1970-01-01 → 1970-01-02",
    ]


def test_a_row_that_is_gone_has_its_key():
    found = changed("d", before=(1, None, None))
    assert (found["op"], found["key"], found["after"]) == ("delete", {"id": 1}, None)


def test_what_names_no_database_that_can_be_looked_at_is_refused(monkeypatch):
    monkeypatch.setenv("DEV_DSN", "mysql://root:pw-0815@localhost/shop")
    run = CliRunner().invoke
    for options, text in (
        ((), "name one database"),
        (("--source", "postgres://a", "--dsn-env", "DEV_DSN"), "name one database"),
        (("--dsn-env", "NO_SUCH"), "is not set"),
    ):
        found = run(cli, ["dev", *options])
        assert (found.exit_code, text in found.output) == (2, True), found.output
    found = run(cli, ["dev", "--source", "oracle://me:pw-0815@h/x"])
    assert "config.invalid" in str(found.exception.error if hasattr(found.exception, "error") else found.output)
    assert "pw-0815" not in found.output
    with pytest.raises(CdcError, match="cannot be looked at") as caught:
        require_watched(False, "a.plugins.Source")
    assert caught.value.code == "dev.not_watched"
