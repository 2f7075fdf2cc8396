"""The child that asks the outside: its findings, its time limit, and how it may break."""

import json
import sys
import time

import pytest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.validation import child as check_main
from cdcworker.worker.validation import connector_of_config
from cdcworker.worker.validation.validate import check_keys, check_live, read_findings, run_checks

SINK = {"connector.class": "spark", "topics": "t", "warehouse.path": "/etc/lake"}
FINDING = CheckFinding("host", "error", "postgres.unreachable", "nobody listens", "Start it.")
LINE = json.dumps({"key": "host", "severity": "error", "code": "x.y", "message": "m", "hint": "h"})


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Puts a script in the place of the child."""

    def become(script):
        path = tmp_path / "child"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return become


def test_findings_come_back(child):
    child(f"cat >/dev/null; echo '{LINE}'; echo '{{\"done\":true}}'")
    assert run_checks({"a": "b"}) == [CheckFinding("host", "error", "x.y", "m", "h")]


def test_what_came_before_the_time_limit_counts(child):
    child(f"cat >/dev/null; echo '{LINE}'; echo '{{\"key\":\"torn'; sleep 60 & sleep 60")
    before = time.monotonic()
    found = run_checks({}, timeout_s=0.5)
    assert time.monotonic() - before < 10
    assert [finding.code for finding in found] == ["x.y", "check.incomplete"]
    assert found[1].severity == "note"
    assert "within 0.5 s" in found[1].message


@pytest.mark.parametrize("script", ["exit 3", "cat >/dev/null; kill -9 $$", "cat >/dev/null; echo garbage"])
def test_a_child_that_dies_gives_a_note_and_no_error(child, script):
    child(script)
    assert [(finding.severity, finding.code) for finding in run_checks({})] == [("note", "check.incomplete")]


def test_the_config_goes_through_the_pipe_and_not_through_arguments(child, tmp_path):
    child(f'cat > {tmp_path}/stdin; echo "$@" > {tmp_path}/args; echo \'{{"done":true}}\'')
    run_checks({"password": "s3cr3t"}, providers={"p": "q"})
    assert json.loads((tmp_path / "stdin").read_text()) == {"config": {"password": "s3cr3t"}, "providers": {"p": "q"}}
    assert "s3cr3t" not in (tmp_path / "args").read_text()


def test_the_real_child_names_an_unknown_class():
    found = run_checks({"connector.class": "nope"}, timeout_s=60)
    assert [(finding.severity, finding.code) for finding in found] == [("error", "config.unknown_connector")]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"connector.class": "file", "file": "/etc/hostname", "topic": "t"}, "file"),
        ({"connector.class": "file-sink", "file": "/etc/hostname", "topics": "t"}, "file"),
        *(({**SINK, "warehouse": kind}, "warehouse.path") for kind in ("parquet", "iceberg", "delta")),
    ],
)
def test_a_place_that_the_worker_does_not_open_is_refused_before_anything_starts(config, key):
    (found,) = check_main.findings(config, {"file.connector.paths": "/srv/open"})
    assert (found.key, found.severity, found.code) == (key, "error", "file.path_not_allowed")
    assert found.message == f"{key} lies in none of the folders that this worker opens to connectors: /srv/open"
    assert list(check_main.findings(config, {"file.connector.paths": "/"})) == []


def test_torn_output_is_not_complete():
    assert read_findings(b"") == ([], False)
    assert read_findings(LINE.encode() + b"\n{")[1] is False


class Connector:
    config_def = ConfigDef([ConfigKey("host"), ConfigKey("password", "PASSWORD")])
    answer: object = None

    def __init__(self, config):
        self.config = config

    def check(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        yield from self.answer(self.config)


@pytest.fixture
def checked(monkeypatch):
    def run(answer, config, providers=None):
        plugin = type(
            "P",
            (),
            {
                "load": lambda self: type(
                    "C", (Connector,), {"answer": staticmethod(answer) if callable(answer) else answer}
                )
            },
        )
        monkeypatch.setattr(connector_of_config, "lookup", lambda name: plugin())
        return list(check_main.findings(config, providers or {}))

    return run


def test_checks_get_references_resolved_and_tell_no_secret(checked, monkeypatch):
    monkeypatch.setenv("CDC_SECRET_DB", "hunter22")

    def check(config):
        yield CheckFinding("host", "error", "a.b", f"password {config['password']} refused", config["password"])

    found = checked(check, {"password": "${env:CDC_SECRET_DB}"})
    assert (found[0].message, found[0].hint) == ("password **** refused", "****")


def test_a_reference_that_leads_nowhere_is_an_error_of_its_key(checked):
    found = checked(lambda config: [], {"password": "${env:CDC_SECRET_NONE}"})
    assert [(item.key, item.severity, item.code) for item in found] == [
        ("password", "error", "config.reference_unresolved")
    ]


def test_a_cdc_error_of_a_check_is_a_finding(checked):
    found = checked(CdcError("config.invalid", "no", where={"key": "host"}, hint="do"), {})
    assert found == [CheckFinding("host", "error", "config.invalid", "no", "do")]


def test_a_check_that_breaks_is_a_note_without_its_text(checked):
    found = checked(ValueError("row value 42"), {})
    assert [(item.severity, item.code) for item in found] == [("note", "check.crashed")]
    assert "42" not in found[0].message


def test_findings_before_a_break_are_kept(checked):
    def check(config):
        yield FINDING
        raise ValueError("x")

    assert [item.code for item in checked(check, {})] == ["postgres.unreachable", "check.crashed"]


def test_a_flood_of_findings_is_bounded():
    from types import SimpleNamespace

    plugin = SimpleNamespace(name="p", kind="source")
    catalog = SimpleNamespace(plugin_of=lambda config: plugin, definition=lambda plugin: Connector.config_def)
    report = check_live(check_keys(catalog, {"host": "x"}), {"host": "x"}, lambda config, timeout: [FINDING] * 5000)
    assert len(report.findings) == 200
