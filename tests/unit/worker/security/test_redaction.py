"""Secrets that a process has resolved are cut out of its logs, its errors and its findings."""

import io
import json
import logging
import os

import pytest
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.logs import redaction
from cdcworker.worker.logs.setup import set_up
from cdcworker.worker.protocol.control import TaskReporter
from cdcworker.worker.validation.child import findings
from cdcworker.worker.validation.validate import NAMES, ConnectorCatalog, check_keys, telling

SECRET = "hunter2-from-the-environment"
OURS = declare("test.redact", "data", "For tests", "No hint.")


@pytest.fixture(autouse=True)
def _resolved(monkeypatch):
    monkeypatch.setenv("CDC_SECRET_A", SECRET)
    resolve({"database.dbname": "x-${env:CDC_SECRET_A}", "database.password": "literal-secret", "short": "ab"})
    yield
    redaction.forget()


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_do_not_tell_them(form):
    root, out = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level, logging.raiseExceptions
    set_up("INFO", form, out)
    logging.getLogger("x").info("database=%s password=%s name=abab", f"x-{SECRET}", "literal-secret")
    root.handlers[:], logging.raiseExceptions = before[0], before[2]
    root.setLevel(before[1])
    assert SECRET not in out.getvalue()
    assert "literal-secret" not in out.getvalue()
    assert "database=x-${env:CDC_SECRET_A} password=**** name=abab" in out.getvalue()


def test_errors_that_go_to_the_worker_do_not_tell_them():
    read, write = os.pipe()
    error = CdcError(OURS, f"no database {SECRET}", where={"database": SECRET, "n": 1}, hint=f"create {SECRET}")
    TaskReporter(write, lambda: None).status("FAILED", error)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    assert SECRET not in text
    assert json.loads(text)["error"]["where"] == {"database": "${env:CDC_SECRET_A}", "n": 1}


def test_findings_of_live_checks_do_not_tell_them():
    config = {"connector.class": "file", "file": f"/nowhere/{SECRET}", "topic": "t"}
    found = list(findings(config, {}))
    assert SECRET not in repr(found)


def test_names_that_everybody_sees_hold_no_reference():
    base = {"connector.class": "postgres", "name": "n", "database.hostname": "db", "database.user": "u"}
    base |= {"database.dbname": "d", "topic.prefix": "t"}
    for key in ("name", "topic.prefix", "slot.name", "publication.name"):
        assert key in NAMES
        found = check_keys(ConnectorCatalog(), {**base, key: "${env:CDC_SECRET_A}"}).errors
        assert any("must not hold a reference" in finding.message for finding in found)
    assert not check_keys(ConnectorCatalog(), {**base, "database.dbname": "${env:CDC_SECRET_A}"}).errors


def test_a_password_that_is_the_users_name_too_does_not_cut_up_what_is_said_about_the_user(monkeypatch):
    monkeypatch.setenv("CDC_SECRET_B", "b-secret")
    config = {"database.user": "shop", "database.password": "shop", "other.password": "o-secret", "third": "ab"}
    assert sorted(
        telling({**config, "third.password": "ab"}, {*config, "third.password"} - {"database.user", "third"})
    ) == ["o-secret"]
    resolve({**config, "third.password": "${env:CDC_SECRET_B}"})
    text = "GRANT SELECT ON t TO shop; o-secret b-secret"
    assert redaction.clean(text) == "GRANT SELECT ON t TO shop; **** ${env:CDC_SECRET_B}"
