"""The small parts of a task's process: policy, control, reports, references, logs, the specification."""

from __future__ import annotations

import io
import json
import logging
import os
import re

import pytest
from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.connectors.formats.registry_keys import registry_of
from cdcworker.coordinator.kafka import errors as kafka_errors
from cdcworker.schemas.errors import INTERNAL, CdcError, declare
from cdcworker.worker.config.config_providers import ENV_PATTERN_KEY, FILE_PATHS_KEY, resolve
from cdcworker.worker.logs import redaction
from cdcworker.worker.logs import setup as logs
from cdcworker.worker.protocol.control import TaskControl, TaskReporter
from cdcworker.worker.protocol.task_spec import TRANSACTIONAL_IDS, ClusterTopics, TaskSpec, transactional_id
from cdcworker.worker.source.error_policy import RETRIES_MAX, RETRY_DELAY_S_MAX, backoff, decide, unexpected
from cdcworker.worker.task import main as task_main

KINDS = {
    kind: declare(f"test.{kind}", kind, "a title", "a hint")
    for kind in ("transient", "config", "data", "fenced", "environment", "internal")
}


def spec(**changes) -> TaskSpec:
    values = {
        "kind": "source",
        "connector": "shop",
        "task": 0,
        "incarnation": "i",
        "task_epoch": 7,
        "attempt": 1,
        "worker_id": "w",
        "boot_id": "b",
        "paused": False,
        "config": {"database.password": "hunter2"},
        "kafka": {"bootstrap.servers": "k:1", "sasl.password": "hunter2"},
        "group_id": "g",
        "topics": ClusterTopics("c", "o", "s", "sc"),
        "offsets_partitions": 25,
        "session_timeout_s": 10.0,
        "state_dir": "/tmp",
    }
    return TaskSpec(**{**values, **changes})


# policy


@pytest.mark.parametrize(
    ("kind", "where", "attempt", "action"),
    [
        ("transient", {}, 0, "retry"),
        ("transient", {}, RETRIES_MAX, "restart"),
        ("config", {}, 0, "halt"),
        ("data", {}, 0, "halt"),
        ("data", {"table": "public.t"}, 0, "quarantine"),
        ("fenced", {}, 0, "yield"),
        ("environment", {}, 0, "halt"),
        ("internal", {}, 0, "halt"),
    ],
)
def test_each_kind_has_its_action(kind, where, attempt, action):
    assert decide(CdcError(KINDS[kind], "m", where=where), attempt).kind == action


def test_a_broker_that_cannot_be_reached_passes_for_a_running_task():
    assert decide(CdcError(kafka_errors.UNREACHABLE, "m")).kind == "retry"


def test_pauses_double_within_their_bounds_and_differ():
    for attempt in range(30):
        delay = backoff(attempt)
        assert 0 < delay <= RETRY_DELAY_S_MAX
    assert backoff(4) > backoff(0)
    assert len({backoff(3) for _ in range(8)}) > 1


def test_an_unforeseen_error_is_told_without_its_text():
    with pytest.raises(re.error) as caught:
        resolve({"a": "${env:A_PASSWORD}"}, {ENV_PATTERN_KEY: "("})
    error = unexpected(caught.value)
    assert error.code == INTERNAL
    assert "config_providers" in str(error.where["at"])
    assert error.message.startswith("unexpected ")


# control


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_runs_out_and_is_renewed():
    clock = Clock()
    control = TaskControl(6.0, clock=clock)
    assert control.leased()
    clock.now += 6.0
    assert not control.leased()
    control.apply({"type": "lease", "valid_s": 5})
    assert not control.may_alternate()
    clock.now += 4.9
    assert control.leased()


def test_a_lease_that_is_taken_back_is_gone_until_the_next_one():
    clock = Clock()
    control = TaskControl(6.0, clock=clock)
    control.apply({"type": "lease", "valid_s": 5, "until": clock.now + 5})
    control.apply({"type": "lease", "valid_s": 0, "until": clock.now})
    assert not control.leased()
    control.apply({"type": "lease", "valid_s": 5, "until": clock.now + 5})
    assert control.leased()


def test_a_lease_is_worth_no_more_for_having_waited_in_the_pipe():
    clock = Clock()
    control = TaskControl(0.0, clock=clock)
    message = {"type": "lease", "valid_s": 5, "until": clock.now + 5}
    clock.now += 20.0
    control.apply(message)
    assert not control.leased()


def test_wishes_are_kept_until_taken_back():
    control = TaskControl(1.0, paused=True)
    assert control.interrupted()
    control.apply({"type": "resume"})
    assert not control.interrupted()
    control.apply({"type": "something newer"})
    control.apply({"type": "stop"})
    assert control.stopping
    control.wait(60.0)


# reports


def test_reports_are_whole_lines_and_topics_are_told_once():
    reader, writer = os.pipe()
    reporter = TaskReporter(writer, lambda: None)
    reporter.status("RUNNING")
    reporter.status("FAILED", CdcError(KINDS["config"], "wrong", where={"key": "a"}))
    reporter.metrics({"records": 3, "type": "no"})
    reporter.topics(["b", "a"])
    reporter.topics(["a"])
    os.close(writer)
    with os.fdopen(reader) as lines:
        found = [json.loads(line) for line in lines]
    assert [line["type"] for line in found] == ["status", "status", "metrics", "topics"]
    assert found[1]["error"]["code"] == KINDS["config"]
    assert found[3]["topics"] == ["a", "b"]


def test_topics_in_use_are_told_again_after_a_while():
    reader, writer = os.pipe()
    now = [100.0]
    reporter = TaskReporter(writer, lambda: None, lambda: now[0])
    for now[0], names in ((100.0, "a"), (119.0, "ab"), (120.0, "ab"), (138.0, "b"), (139.0, "ab")):
        reporter.topics(names)
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert [json.loads(line)["topics"] for line in lines] == [["a"], ["b"], ["a"], ["b"]]


def test_topics_in_use_are_told_at_once_after_a_reset():
    reader, writer = os.pipe()
    reporter = TaskReporter(writer, lambda: None, lambda: 100.0)
    stdin = io.BytesIO(b'{"type": "topics"}\n')
    reporter.topics("ab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_main, "end_process_group", lambda: None)
        task_main._read_commands(stdin, TaskControl(10.0), reporter)
    reporter.topics("b")
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert [json.loads(line)["topics"] for line in lines] == [["a", "b"], ["b"]]


def test_a_worker_that_is_gone_is_noticed_at_the_next_report():
    reader, writer = os.pipe()
    os.close(reader)
    gone = []
    TaskReporter(writer, lambda: gone.append(True)).status("RUNNING")
    os.close(writer)
    assert gone == [True]


# specification


def test_the_specification_survives_the_pipe_and_ignores_what_it_does_not_know():
    before = spec(providers={"config.providers": "env"})
    line = before.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert TaskSpec.from_json({**json.loads(line), "newer": 1}) == before


def test_the_specification_does_not_print_secrets():
    assert "hunter2" not in repr(spec())


def test_transactional_ids_are_unambiguous():
    assert transactional_id("g", "a:1", 2) != transactional_id("g:a", "1", 2)
    assert transactional_id("g", "a b/ü", 0) == "g:a%20b%2F%C3%BC:0"
    assert [make("g", "c", 1) for make in TRANSACTIONAL_IDS] == ["g:c:1", "g:c:1:other", "g:c:1:schema"]


# references


def test_references_are_replaced_inside_of_values(monkeypatch):
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    monkeypatch.setenv("CDC_SECRET_HOST", "db")
    config = {"password": "${env:SHOP_PASSWORD}", "host": "x-${env:CDC_SECRET_HOST}-y", "plain": "$ {a} ${b}"}
    assert resolve(config) == {"password": "hunter2", "host": "x-db-y", "plain": "$ {a} ${b}"}


def test_what_a_variable_holds_is_not_resolved_again(monkeypatch):
    monkeypatch.setenv("A_PASSWORD", "${env:B_PASSWORD}")
    monkeypatch.setenv("B_PASSWORD", "deep")
    assert resolve({"a": "${env:A_PASSWORD}"}) == {"a": "${env:B_PASSWORD}"}


def test_files_within_the_allowed_folders_are_read_whole_or_by_key(tmp_path):
    (tmp_path / "pw").write_text("hunter2\n")
    (tmp_path / "db.properties").write_text("# user=no\nuser = shop\npassword=a=b\n")
    allowed = {FILE_PATHS_KEY: f"/nowhere, {tmp_path}"}
    config = {"a": f"${{file:{tmp_path}/pw}}", "b": f"${{file:{tmp_path}/db.properties:password}}"}
    assert resolve(config, allowed) == {"a": "hunter2", "b": "a=b"}


@pytest.mark.parametrize(
    "reference",
    [
        "${env:PATH}",
        "${env:AWS_SECRET_ACCESS_KEY}",
        "${env:UNSET_PASSWORD}",
        "${env:A_PASSWORD\n}",
        "${vault:x}",
        "${file:/etc/passwd}",
        "${file:/proc/self/environ}",
        "${file:ROOT/../secret}",
        "${file:ROOT/link}",
        "${file:ROOT/none}",
        "${file:ROOT}",
        "${file:ROOT/fifo}",
        "${file:ROOT/pw:none}",
        "${file:ROOT/pw\0}",
        "${file:relative}",
    ],
)
def test_what_is_not_allowed_is_refused_by_key_and_without_content(tmp_path, monkeypatch, reference):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("hunter2")
    (root / "pw").write_text("hunter2")
    (root / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "fifo")
    with pytest.raises(CdcError) as caught:
        resolve({"some.key": reference.replace("ROOT", str(root))}, {FILE_PATHS_KEY: str(root)})
    assert caught.value.code == "config.reference_unresolved"
    assert caught.value.where == {"key": "some.key"}
    assert "hunter2" not in str(caught.value)


# logs


@pytest.fixture
def logged():
    """(logger, text so far) with a format; the root logger is as before afterwards."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.raiseExceptions)

    def make(form):
        stream = io.StringIO()
        logs.set_up("INFO", form, stream)
        return logging.getLogger("cdcworker.test"), stream.getvalue

    yield make
    root.handlers[:], logging.raiseExceptions = before[0], before[2]
    root.setLevel(before[1])


@pytest.mark.parametrize("form", ["text", "json", "auto"])
def test_a_record_is_one_line_whatever_it_holds(logged, form):
    logger, text = logged(form)
    logger.info("table=%s", 'a\nINFO forged\r\x1b[31m\u0085"')
    assert len(text().splitlines()) == 1
    assert "\x1b" not in text()


def test_a_json_line_says_of_which_worker_task_and_position_it_is(logged, monkeypatch):
    monkeypatch.setattr(logs, "_bound", {})
    logs.bind(worker="w1")
    logger, text = logged("json")
    logger.info("plain")
    logger.info("bound", extra={"connector": "shop", "task": 0, "position": {"commit_lsn": 7}})
    plain, bound = map(json.loads, text().splitlines())
    assert (plain["worker"], "connector" in plain, "position" in plain) == ("w1", False, False)
    assert (bound["worker"], bound["connector"], bound["task"], bound["position"]) == (
        "w1",
        "shop",
        0,
        {"commit_lsn": 7},
    )


def test_logs_are_json_where_nobody_sits_before_a_terminal(logged):
    logger, text = logged("auto")
    logger.warning("x")
    assert json.loads(text())["level"] == "WARNING"


def test_secrets_that_were_resolved_are_cut_out_of_every_form(logged):
    redaction.remember(["hunter2-long"])
    try:
        for form in ("text", "json"):
            logger, text = logged(form)
            logger.error("refused for password=%s", "hunter2-long")
            assert "hunter2" not in text()
            assert "refused for password=" in text()
    finally:
        redaction.forget()


def test_an_exceptions_text_is_not_logged_and_its_place_is(logged):
    for form in ("text", "json"):
        logger, text = logged(form)
        try:
            try:
                raise ValueError("hunter2")
            except ValueError as exc:
                raise KeyError("hunter3") from exc
        except KeyError:
            logger.exception("it failed")
        assert "hunter" not in text()
        assert "KeyError at" in text()
        assert "ValueError at" in text()
        assert len(text().splitlines()) == 1


def test_json_lines_carry_the_context(logged):
    logger, text = logged("json")
    logger.warning("x", extra={"connector": "shop", "task": 1})
    item = json.loads(text())
    assert (item["level"], item["connector"], item["task"], item["message"]) == ("WARNING", "shop", 1, "x")


def test_a_reference_of_a_key_without_effect_need_not_lead_anywhere():
    config = {
        "connector.class": "postgres", "database.hostname": "db", "value.converter.basic.auth.user.info": "${env:SR_LOGIN}",
    }  # fmt: skip
    assert resolve(config) == config
    for key in ("database.user", "topic.creation.default.retention.ms"):
        with pytest.raises(CdcError) as caught:
            resolve({**config, key: "${env:SR_LOGIN}"})
        assert caught.value.where == {"key": key}
    with pytest.raises(CdcError):
        resolve({**config, "connector.class": "nothing"})


def test_a_login_of_a_registry_that_leads_nowhere_counts_once_the_registry_is_asked():
    at = "value.converter."
    config = {
        "connector.class": "postgres", f"{at}schema.registry.url": "http://127.0.0.1:1", f"{at}basic.auth.user.info": "${env:SR_LOGIN}",
    }  # fmt: skip
    settings = registry_of(resolve(config), "value")
    with pytest.raises(CdcError) as caught:
        RegistryClient(settings).by_id(1)
    assert (caught.value.code, caught.value.where) == ("registry.refused", {"key": f"{at}basic.auth.user.info"})
