"""Running a sink task: what it is given, how it is stopped, paused and how its end is judged."""

from __future__ import annotations

import os

import pytest
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.protocol.control import TaskControl
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from cdcworker.worker.task import sink_runner
from cdcworker.worker.task.sink_runner import SinkMachine, run_sink

MACHINE = SinkMachine("/java", ("/jars/a.jar",))


class Sink:
    """Remembers each run and does what the test says in it."""

    jars = "spark"

    def __init__(self, during) -> None:
        self.specs: list = []
        self.contexts: list = []
        self._during = list(during)

    def run(self, spec, context) -> None:
        self.specs.append(spec)
        self.contexts.append(context)
        self._during.pop(0)(context)


class Reports:
    def __init__(self) -> None:
        self.states: list[str] = []
        self.names: list[str] = []
        self.numbers: list[dict] = []

    def status(self, state, error=None) -> None:
        self.states.append(state)

    def topics(self, names) -> None:
        self.names += names

    def metrics(self, numbers) -> None:
        self.numbers.append(numbers)


SPEC = TaskSpec(
    kind="sink",
    connector="wh",
    task=1,
    incarnation="i",
    task_epoch=9,
    attempt=2,
    worker_id="w",
    boot_id="b",
    paused=False,
    config={},
    kafka={"bootstrap.servers": "k:1"},
    group_id="g",
    topics=ClusterTopics("c", "o", "s", "sc"),
    offsets_partitions=25,
    session_timeout_s=10.0,
    state_dir="/state",
)
CONFIG = {"connector.class": "spark", "topics": "a, b"}


@pytest.fixture
def play(monkeypatch):
    """Run a sink that does these things in its runs: (exit code, sink, reports, control)."""
    monkeypatch.setenv("JAVA_HOME", "/before")

    def run(*during, config=CONFIG, paused=False, on_wait=None):
        control, reports = TaskControl(60.0, paused=paused), Reports()
        sink = Sink([lambda context, step=step: step(control, context) for step in during])
        plugin = Plugin("spark", "sink", "none:none")
        monkeypatch.setattr(sink_runner, "lookup", lambda name: plugin)
        monkeypatch.setattr(Plugin, "load", lambda self: lambda config: sink)
        if on_wait:
            control.wait = lambda timeout_s, until=None: on_wait(control)
        return run_sink(SPEC, config, control, reports, lambda jars: MACHINE), sink, reports

    return run


def stop(control, context) -> None:
    control.apply({"type": "stop"})


def test_a_sink_gets_its_share_the_machine_and_its_epoch(play):
    code, sink, reports = play(stop)
    assert code == 0
    spec = sink.specs[0]
    assert spec.topics == ("a", "b")
    assert spec.epoch == (9, 2)
    assert (spec.java_home, spec.jars, spec.schema_topic) == ("/java", ("/jars/a.jar",), "sc")
    assert os.environ["JAVA_HOME"] == "/java"
    assert reports.states == ["RUNNING", "STOPPED"]
    assert reports.names == ["a", "b"]


def test_a_sink_that_needs_no_java_gets_none_and_reads_with_a_consumer_of_committed_records(play, monkeypatch):
    monkeypatch.setattr(Sink, "jars", "")
    _, sink, _ = play(stop)
    spec = sink.specs[0]
    assert (spec.java_home, spec.jars) == ("", ())
    assert os.environ["JAVA_HOME"] == "/before"
    assert spec.consumer["isolation.level"] == "read_committed"
    assert spec.consumer["auto.offset.reset"] == "error"


def test_pause_ends_the_query_and_resume_starts_it_again(play):
    def pause(control, context) -> None:
        control.apply({"type": "pause"})
        assert context.stopping()

    code, sink, reports = play(pause, stop, on_wait=lambda control: control.apply({"type": "resume"}))
    assert code == 0
    assert reports.states == ["RUNNING", "PAUSED", "RUNNING", "STOPPED"]
    assert len(sink.specs) == 2


def test_started_paused_no_driver_is_started(play):
    code, sink, reports = play(paused=True, on_wait=lambda control: control.apply({"type": "stop"}))
    assert code == 0
    assert sink.specs == []
    assert reports.states == ["PAUSED", "STOPPED"]


def test_a_query_that_ends_by_itself_is_a_passing_error(play):
    with pytest.raises(CdcError) as caught:
        play(lambda control, context: None)
    assert caught.value.code == "sink.ended"
    assert caught.value.retriable


def test_a_task_without_topics_is_a_config_error(play):
    with pytest.raises(CdcError) as caught:
        play(stop, config={"connector.class": "spark", "topics": " "})
    assert caught.value.kind == "config"


def test_what_the_sink_reports_reaches_the_worker(play):
    def work(control, context) -> None:
        context.report({"rows": 5})
        stop(control, context)

    _, _, reports = play(work)
    assert reports.numbers == [{"rows": 5}]
