"""What a reference leads to is told to nobody: where it would stand, the reference does, whatever its key is called."""

from __future__ import annotations

import io
import json
import logging
import os

import pytest
from cdcworker.connectors.capture.tables.table_quarantine import TableQuarantine
from cdcworker.connectors.checks import CheckResult, DoctorCheck, ExaminedTarget, Repair
from cdcworker.connectors.postgres.decode.decoder import HEADER, PgoutputDecoder
from cdcworker.connectors.registry.names import lookup
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.dead_letters import child as dead_letters_child
from cdcworker.worker.diagnostics import doctor, doctor_child, explain_child, verify_child
from cdcworker.worker.diagnostics.row_search import FoundChange
from cdcworker.worker.logs import redaction
from cdcworker.worker.logs.setup import set_up
from cdcworker.worker.offsets import child as offsets_child
from cdcworker.worker.protocol.control import TaskReporter
from cdcworker.worker.source.table_quarantine import QuarantinedTables
from cdcworker.worker.validation import child as validation_child
from cdcworker.worker.validation import connector_of_config

VALUES = {"HOST": "127.0.0.1", "USER": "canary-user", "DB": "canary-db", "PASSWORD": "canary-password", "SHORT": "ab"}
REFERENCES = {name: f"${{env:CDC_SECRET_{name}}}" for name in VALUES}
OURS = declare("test.reference", "data", "For tests", "No hint.")
SOURCE = {
    "connector.class": "postgres",
    "topic.prefix": "p",
    "database.hostname": REFERENCES["HOST"],
    # Nobody listens there: libpq's message names the host.
    "database.port": "1",
    "database.user": REFERENCES["USER"],
    "database.dbname": REFERENCES["DB"],
    "database.password": REFERENCES["PASSWORD"],
}
SINK = {
    "connector.class": "spark",
    "topics": "t",
    "warehouse": "postgres",
    "warehouse.hostname": REFERENCES["HOST"],
    "warehouse.port": "1",
    "warehouse.user": REFERENCES["USER"],
    "warehouse.dbname": REFERENCES["DB"],
    "warehouse.password": REFERENCES["PASSWORD"],
}


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name, value in VALUES.items():
        monkeypatch.setenv(f"CDC_SECRET_{name}", value)
    yield
    redaction.forget()


def hidden(said):
    """Checks that none of the values is in what was said; returns it."""
    text = said if isinstance(said, str) else json.dumps(said, default=str)
    assert [name for name, value in VALUES.items() if value in text and len(value) > 2] == []
    return text


class Refusing:
    """A connector whose target says everything that it was told."""

    config_def = None

    def __init__(self, config):
        self.config = config

    def said(self):
        return CdcError(
            OURS,
            f"no role {self.config['database.user']} at {self.config['database.hostname']}",
            where={"database": self.config["database.dbname"]},
            hint=f"create {self.config['database.user']}",
        )

    def examine(self, positions, *, deep):
        user = self.config["database.user"]
        check = DoctorCheck("login.role", "Why.", lambda _: ())
        fix = Repair((f'alter role "{user}" replication',), f"as {user}", True)
        yield ExaminedTarget(check, CheckResult("error", user, f"{user} may not", hint=user, fix=fix), 0.1)

    def repair(self, fix, administrator):
        self.repaired = fix


def test_the_doctor_shows_the_reference_of_a_user_that_it_examined():
    question = {"connector": "c", "config": SOURCE, "providers": {}, "offsets": [], "deep": False, "checks": []}
    found = list(doctor_child.findings(question))
    assert any(item["severity"] == "error" for item in found)
    hidden(found)


def test_a_repair_that_is_shown_with_a_reference_is_run_with_its_value(monkeypatch):
    config = resolve(SOURCE)
    connector = Refusing(config)
    monkeypatch.setattr(doctor, "Examined", Refusing)
    target = doctor.DoctorTarget("c", config, (), connector)
    (shown,) = target.examine(deep=False)
    assert shown.result.message == f"{REFERENCES['USER']} may not"
    assert shown.result.hint == shown.result.measured == REFERENCES["USER"]
    assert shown.result.fix.statements == (f'alter role "{REFERENCES["USER"]}" replication',)
    target.repair(shown.result.fix, None)
    assert connector.repaired.statements == ('alter role "canary-user" replication',)


def test_the_doctor_that_cannot_look_says_why_without_the_value(monkeypatch):
    def target(*_):
        raise Refusing(resolve(SOURCE)).said()

    monkeypatch.setattr(doctor, "target", target)
    question = {"connector": "c", "config": SOURCE, "providers": {}, "offsets": [], "deep": False, "checks": []}
    (found,) = doctor_child.findings(question)
    assert REFERENCES["USER"] in hidden(found)


def test_validation_shows_the_reference():
    for config in (SOURCE, SINK):
        found = [(item.message, item.hint) for item in validation_child.findings(config, {})]
        assert found
        hidden(found)


@pytest.mark.parametrize("child", [offsets_child, dead_letters_child])
def test_a_child_that_fails_says_why_without_the_value(child, monkeypatch):
    def refuse(question, secrets):
        raise Refusing(resolve(SOURCE)).said()

    monkeypatch.setattr(child, "_done", refuse)
    error = child.answer({})["error"]
    assert REFERENCES["USER"] in error["hint"]
    assert error["where"] == {"database": REFERENCES["DB"]}
    hidden(error)


def test_a_comparison_that_fails_says_why_without_the_value(monkeypatch):
    def refuse(question, say):
        raise Refusing(resolve(SOURCE)).said()

    said = []
    monkeypatch.setattr(verify_child, "compare", refuse)
    verify_child.answer({}, said.append)
    assert REFERENCES["USER"] in hidden(said)


def test_a_row_that_is_followed_into_a_sink_that_is_away_is_told_without_the_value(monkeypatch):
    class Sink(Refusing):
        config_def = lookup("spark").load().config_def

        def __init__(self, config):
            raise Refusing({name.replace("warehouse", "database"): value for name, value in config.items()}).said()

    class Plugin:
        def load(self):
            return Sink

    monkeypatch.setattr(connector_of_config, "lookup", lambda name: Plugin())
    stage = explain_child._sink({"providers": {}}, {"name": "s", "config": SINK}, FoundChange)
    assert REFERENCES["USER"] in hidden(stage)


def reported(report):
    read, write = os.pipe()
    report(TaskReporter(write, lambda: None))
    os.close(write)
    with os.fdopen(read) as file:
        return json.loads(file.read())


def test_a_task_reports_its_error_and_its_paused_tables_without_the_value():
    error = Refusing(resolve(SOURCE)).said()
    told = reported(lambda reporter: reporter.status("FAILED", error))
    assert told["error"]["where"] == {"database": REFERENCES["DB"]}
    hidden(told)
    numbers = {"paused": {"t": error.to_dict()}, "tables": {"canary-db.t": 1}, "retrying": {"error": str(error)}}
    told = reported(lambda reporter: reporter.metrics(numbers))
    assert told["tables"] == {"canary-db.t": 1}, "names of topics and tables are no part of a config"
    hidden([told["paused"], told["retrying"]])


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_shows_the_reference(form):
    config = resolve({**SOURCE, "x": REFERENCES["SHORT"]})
    root, out = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level, logging.raiseExceptions
    set_up("INFO", form, out)
    logging.getLogger("x").info("user=%s option=%s about=about", config["database.user"], config["x"])
    root.handlers[:], logging.raiseExceptions = before[0], before[2]
    root.setLevel(before[1])
    line = f"user={REFERENCES['USER']} option={REFERENCES['SHORT']} about=about"
    assert line in hidden(out.getvalue())


def test_a_reference_that_is_shown_is_not_cut_up_by_another_value(monkeypatch):
    monkeypatch.setenv("CDC_SECRET_A", "env:CDC_SECRET")
    resolve({"a": "${env:CDC_SECRET_A}", "b": REFERENCES["USER"], "c.password": "PASSWORD-x"})
    assert redaction.clean("canary-user env:CDC_SECRET PASSWORD-x") == (
        f"{REFERENCES['USER']} ${{env:CDC_SECRET_A}} ****"
    )


class Holding:
    """A source that stores why it leaves out a table, as the PostgreSQL source does in its position."""

    def __init__(self):
        self.quarantine = TableQuarantine(None, {}, lambda: ())

    def open(self, position): ...

    def poll(self): ...

    def commit(self, position): ...

    def close(self): ...

    def holds(self, error):
        return True

    def hold(self, tables):
        self.quarantine.hold(tables)


def test_a_stored_position_says_without_values_why_a_table_is_held_back():
    resolve(SOURCE)
    source, tables = Holding(), QuarantinedTables()
    tables.tell(source)
    text = f"refused by {VALUES['HOST']} for {VALUES['USER']}"
    error = CdcError(OURS, text, where={"table": "public.t", "lsn": "0/1", "login": VALUES["PASSWORD"]}, hint=text)
    assert tables.take(error)
    tables.tell(source)
    (stored,) = source.quarantine.to_json().values()
    assert REFERENCES["HOST"] in hidden(stored)
    assert stored["lsn"] == "0/1"


def test_reports_say_without_values_why_tables_are_held_back():
    resolve(SOURCE)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as out:
        report = {"quarantine": [{"table": "t", "message": f"for {VALUES['USER']}"}], "records": 1}
        TaskReporter(write_end, lambda: None).metrics(report)
        os.close(write_end)
        assert REFERENCES["USER"] in hidden(out.read())


def test_a_message_that_cannot_be_decoded_is_told_without_what_was_looked_for():
    decoder = PgoutputDecoder.__new__(PgoutputDecoder)
    decoder.bytes, decoder._plans = 0, {}

    def fails(data):
        raise KeyError("a value of a row")

    decoder._handlers = {data[HEADER]: fails for data in (b"I" * 64,)}
    with pytest.raises(CdcError) as raised:
        decoder.feed(b"I" * 64)
    assert "value of a row" not in str(raised.value)
