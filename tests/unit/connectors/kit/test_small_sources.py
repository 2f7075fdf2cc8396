"""A small source as a connector: its cursor, its rows, and what its author may get wrong."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.kit import (
    ConfigKey,
    Misconfigured,
    SinkPlugin,
    SourceField,
    SourcePage,
    SourcePlugin,
    SourceRecord,
    SourceTable,
    Unavailable,
)
from cdcworker.connectors.kit.connector_classes import sink_class, source_class
from cdcworker.connectors.kit.rows import TableShape
from cdcworker.connectors.kit.source_task import SmallSourceTask, SourceIdentity
from cdcworker.schemas.errors import CODES, CdcError

ROWS = SourceTable("rows", [SourceField("id", "int64"), SourceField("text")], key=["id"])
IDENTITY = SourceIdentity("my-api", "1.0", "p")


class Numbers:
    """Rows by number; `answers` are given, or raised, before."""

    def __init__(self, *answers) -> None:
        self.answers, self.cursors, self.closed = list(answers), [], 0

    def tables(self):
        return [ROWS]

    def read(self, cursor):
        self.cursors.append(cursor)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        n = cursor["n"] + 1 if cursor else 0
        return SourcePage([SourceRecord("rows", {"id": n, "text": "x"})], {"n": n}, more=True)

    def close(self):
        self.closed += 1


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def task_of(source, reports=None, time=None):
    time = time or Time()
    context = TaskContext("c", 0, 1, "i", "", report=(reports if reports is not None else []).append)
    return SmallSourceTask(lambda: source, IDENTITY, 1.0, context, time, time.sleep)


def opened(source, position=None, **more):
    task = task_of(source, **more)
    task.open(position)
    return task


def test_rows_come_with_rising_positions_and_the_cursor_that_comes_back():
    source = Numbers()
    task = opened(source)
    batches = [task.poll() for _ in range(3)]
    assert [batch.position["cursor"] for batch in batches] == [{"n": n} for n in range(3)]
    numbers = [batch.position["commit"] for batch in batches]
    assert numbers == sorted(set(numbers))
    (change,) = batches[1].changes
    assert (change.after, change.op, change.table.path) == ((1, "x"), "u", ("my_api", "rows"))
    assert change.source["commit_lsn"] == change.position.commit == numbers[1]


def test_what_is_read_again_after_a_reset_is_newer_than_before():
    before = opened(Numbers()).poll()
    again = opened(Numbers()).poll()
    assert again.changes[0].position >= before.changes[0].position
    ahead = {"v": 1, "commit": before.position["commit"] + 10_000_000_000, "cursor": {"n": 1}}
    assert opened(Numbers(), ahead).poll().position["commit"] == ahead["commit"] + 1


def test_a_plugin_may_change_the_cursor_that_it_is_given():
    class Greedy(Numbers):
        def read(self, cursor):
            page = super().read(cursor)
            if cursor:
                cursor["n"] = 99
            return page

    task = opened(Greedy())
    assert [task.poll().position["cursor"]["n"] for _ in range(3)] == [0, 1, 2]


def test_nothing_new_stores_nothing_and_waits_for_the_interval():
    time = Time()
    source = Numbers(SourcePage([], {"n": 5}), SourcePage([], {"n": 5}))
    task = opened(source, {"v": 1, "commit": 7, "cursor": {"n": 5}}, time=time)
    batch = task.poll()
    assert (batch.changes, batch.position, batch.idle) == ([], None, True)
    began = time.now
    while len(source.cursors) == 1:
        assert task.poll().position is None
    assert 1.0 <= time.now - began < 1.3


def test_a_source_that_says_when_is_asked_then_and_the_lag_grows():
    reports, time = [], Time()
    source = Numbers(SourcePage([], {"n": 0}), Unavailable("429", retry_after_s=3.0))
    task = opened(source, reports=reports, time=time)
    mark = task.poll().watermark
    time.now += 1.0
    assert task.poll().watermark == mark
    assert reports[-1]["retrying"]["code"] == "plugin.unavailable"
    began = time.now
    while len(source.cursors) == 2:
        task.poll()
    assert 3.0 <= time.now - began < 3.3
    assert reports[-1]["retrying"] is None
    with pytest.raises(Unavailable):
        opened(Numbers(Unavailable("down"))).poll()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (KeyError("a secret value"), "plugin.failed"),
        (Misconfigured("the address is wrong", key="url"), "plugin.misconfigured"),
        ([], "plugin.failed"),
        (SourcePage([], "cursor"), "plugin.failed"),
        (SourcePage([], {1: 2}), "plugin.failed"),
        (SourcePage([], {"at": float("nan")}), "plugin.failed"),
        (SourcePage([], {"at": "x" * 200_000}), "plugin.failed"),
        (SourcePage("records", {}), "plugin.failed"),
        (SourcePage([SourceRecord("other", {"id": 1})], {}), "plugin.record_refused"),
        (SourcePage([SourceRecord("rows", {"id": 1, "secret": 2})], {}), "plugin.record_refused"),
        (SourcePage([SourceRecord("rows", {"id": None})], {}), "plugin.record_refused"),
        (SourcePage([SourceRecord("rows", {"id": 1}, op="x")], {}), "plugin.record_refused"),
    ],
)
def test_what_an_author_gets_wrong_is_told_by_code_and_without_values(answer, code):
    with pytest.raises(CdcError) as caught:
        opened(Numbers(answer)).poll()
    assert caught.value.code == code
    assert "secret" not in str(caught.value)


def test_an_unexpected_error_names_its_place():
    with pytest.raises(CdcError) as caught:
        opened(Numbers(KeyError("x"))).poll()
    assert __name__.rpartition(".")[2] in caught.value.where["at"]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("string", "a\0ü😀", "a\0ü😀"), ("string", 1, None), ("string", "\ud800", None),
        ("int64", -(1 << 63), -(1 << 63)), ("int64", 1 << 63, None), ("int64", True, None), ("int64", "1", None),
        ("float64", 1, 1.0), ("float64", "1", None), ("boolean", False, False), ("boolean", 0, None),
        ("bytes", bytearray(b"x"), b"x"), ("bytes", "x", None),
        ("timestamp", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), "2024-02-29T01:02:03.000000Z"),
        ("timestamp", datetime(2024, 2, 29), None), ("timestamp", "now", None),
        ("json", {"a": [1, None]}, '{"a":[1,null]}'), ("json", float("nan"), None), ("json", {1}, None),
    ],
)  # fmt: skip
def test_values_are_written_as_their_type_or_refused_by_field(kind, value, written):
    shape = TableShape("n", SourceTable("t", [SourceField("f", kind)]))
    if written is not None:
        assert shape.row({"f": value}) == (written,)
        assert shape.row({}) == (None,)
        return
    with pytest.raises(CdcError) as caught:
        shape.row({"f": value})
    assert caught.value.where == {"table": "n.t", "field": "f"}


def test_numbers_of_columns_follow_from_names_so_that_fields_may_be_added_and_moved():
    before = TableShape("n", SourceTable("t", [SourceField("a"), SourceField("b")])).table
    after = TableShape("n", SourceTable("t", [SourceField("new"), SourceField("b"), SourceField("a")])).table
    ids = {column.name: column.column_id for column in after.columns}
    assert {column.name: column.column_id for column in before.columns}.items() <= ids.items()
    assert len(set(ids.values())) == 3


@pytest.mark.parametrize(
    "table",
    [
        SourceTable("a b", [SourceField("x")]),
        SourceTable("t", []),
        SourceTable("t", [SourceField("x"), SourceField("x")]),
        SourceTable("t", [SourceField("x")], key=["y"]),
        SourceTable("t", [SourceField("x", "decimal")]),
    ],
)
def test_tables_that_cannot_be_are_refused(table):
    with pytest.raises(CdcError) as caught:
        TableShape("n", table)
    assert caught.value.code == "plugin.failed"


def test_a_deleted_row_needs_a_key_and_no_more():
    assert TableShape("n", ROWS).gone({"id": 1}) == (1, None)
    with pytest.raises(CdcError):
        TableShape("n", SourceTable("t", [SourceField("x")])).gone({"x": "1"})


def test_a_task_closes_what_it_opened_once_and_however_that_goes():
    class Bad(Numbers):
        def close(self):
            super().close()
            raise OSError("gone")

    source = Bad()
    task = opened(source)
    task.close()
    task.close()
    assert source.closed == 1


def test_a_connector_has_the_plugins_keys_and_the_engines():
    plugin = SourcePlugin(lambda place: Numbers(), keys=(ConfigKey("api.url", required=True, connects=True),))
    made = source_class("my-api", "1.0", plugin)
    config = {"name": "c", "connector.class": "my-api", "topic.prefix": "p", "api.url": "http://x"}
    connector = made(config)
    assert connector.split(9) == [config]
    made.config_def.require_valid(config)
    assert {"poll.interval.ms", "transforms", "delivery", "api.url"} <= set(made.config_def.keys)
    with pytest.raises(CdcError):
        connector.task({"topic.prefix": "p"}, TaskContext("c", 0, 1, "i", ""))
    with pytest.raises(ValueError, match="twice"):
        source_class("x", "1", SourcePlugin(lambda place: Numbers(), keys=(ConfigKey("topic.prefix"),)))


def _wrong_validator(value):
    raise RuntimeError(f"not {value}")


def _wrong_check(config):
    raise KeyError(config["shop.pin"].reveal())


@pytest.mark.parametrize(
    "more",
    [
        {"keys": (ConfigKey("shop.pin", "PASSWORD"), ConfigKey("shop.area", validator=_wrong_validator))},
        {"keys": (ConfigKey("shop.pin", "PASSWORD"), ConfigKey("shop.area")), "check": _wrong_check},
        {"keys": (ConfigKey("shop.pin", "PASSWORD"), ConfigKey("shop.area")), "check": lambda config: [config["shop.area"]]},
    ],
    ids=["validator", "check", "an answer that is none"],
)  # fmt: skip
def test_a_judgement_that_fails_is_an_error_without_the_values_that_it_looked_at(more):
    config = {"topic.prefix": "p", "topics": "t", "shop.pin": "s3cret-pin", "shop.area": "s3cret-area"}
    for made in (
        source_class("my-api", "1.0", SourcePlugin(lambda place: Numbers(), **more)),
        sink_class("my-sink", SinkPlugin(lambda place: None, **more)),
    ):
        with pytest.raises(CdcError) as caught:
            made.config_def.validate(config)
        assert caught.value.code == "plugin.failed"
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "position", [{}, {"v": 1}, {"v": 1, "commit": -1, "cursor": {}}, {"v": 1, "commit": 0, "cursor": 1}]
)
def test_a_position_of_another_source_is_refused(position):
    with pytest.raises(CdcError) as caught:
        opened(Numbers(), position)
    assert caught.value.code == "plugin.position_invalid"
    assert CODES[caught.value.code].kind == "config"


def test_whoever_may_not_see_rows_sees_no_cursor():
    made = source_class("my-api", "1.0", SourcePlugin(lambda place: Numbers()))({})
    hidden = made.without_keys({"v": 1, "commit": 3, "cursor": {"last": "Jane"}})
    assert hidden == {"v": 1, "commit": 3, "cursor": None}
    with pytest.raises(CdcError):
        made.check_position(hidden)
