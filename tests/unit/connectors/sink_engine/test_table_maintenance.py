"""Maintenance beside a task's batches: when it runs, what it reports, and that its errors end nothing."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.sink_engine import table_maintenance
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.table_maintenance import MaintenanceThread
from cdcworker.connectors.sink_errors import TARGET_BROKEN, TARGET_UNREACHABLE
from cdcworker.schemas.errors import CdcError

from tests.waiting import pause

WAIT_S_MAX = 60.0


def eventually(condition, what):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < WAIT_S_MAX, f"not in time: {what}"
        pause(began)


DONE = {
    "took_s": 0.5,
    "rewritten": {"files": 6, "bytes": 600},
    "written": {"files": 1, "bytes": 500},
    "expired_snapshots": 2,
    "removed_files": 3,
    "conflicts": 1,
    "before": {"files": 6, "bytes": 600, "deletes": 1},
    "after": {"files": 1, "bytes": 500, "deletes": 0},
    "tables": {"public.orders": {"files": 1, "bytes": 500, "deletes": 0}},
    "errors": {},
    "whole": True,
}


class Maintenance:
    def __init__(self, interval_s=0.0, *results):
        self.interval_s = interval_s
        self.results = list(results)
        self.calls = []

    def maintain(self, stopping, *, at_once=False):
        self.calls.append(at_once)
        result = self.results.pop(0) if self.results else DONE
        if isinstance(result, Exception):
            raise result
        return result


class Task:
    """A task and the jobs that it is told of."""

    def __init__(self):
        self.jobs = []
        self.stopped = threading.Event()
        self.metrics = SinkMetrics()
        self.context = TaskContext("lake", 0, 1, "i", "", stopping=self.stopped.is_set, jobs=lambda: self.jobs)

    def runs(self, maintenance):
        return MaintenanceThread(maintenance, self.metrics, self.context)

    @property
    def numbers(self):
        return self.metrics.maintenance.numbers()

    def states(self):
        return [(job["id"], job["state"]) for job in self.numbers.get("jobs", ())]


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setattr(table_maintenance, "POLL_S", 0.001)
    return Task()


class Looks(list):
    """Counts how often somebody looks for jobs."""

    count = 0

    def __iter__(self):
        self.count += 1
        return super().__iter__()


def job(id, wanted="RUNNING", kind="maintenance"):
    return {"id": id, "kind": kind, "wanted": wanted, "spec": {}, "own": True}


def test_runs_begin_with_the_first_batch_and_their_sums_are_reported(task):
    maintenance = Maintenance(0.001)
    with task.runs(maintenance):
        assert task.numbers == {}
        task.metrics.batches = 1
        eventually(lambda: task.numbers.get("maintenance_runs", 0) >= 2, "two runs")
    numbers = task.numbers
    runs = numbers["maintenance_runs"]
    assert numbers["maintenance_rewritten_bytes"] == 600 * runs
    assert numbers["maintenance_expired_snapshots"] == 2 * runs
    assert numbers["table_files"] == {"public.orders": 1}
    assert "tables" not in numbers["maintenance"]
    assert not any(maintenance.calls)


def test_what_goes_wrong_is_counted_and_the_next_run_comes(task):
    refused = CdcError(TARGET_UNREACHABLE, "the catalog is away")
    partly = {**DONE, "errors": {"public.orders": TARGET_BROKEN}}
    task.metrics.batches = 1
    with task.runs(Maintenance(0.001, refused, OSError("row value"), partly)):
        eventually(lambda: task.numbers.get("maintenance_runs", 0) >= 2, "runs after the errors")
    assert task.numbers["maintenance_failures"] == {
        TARGET_UNREACHABLE: 1,
        "spark.maintenance_failed": 1,
        TARGET_BROKEN: 1,
    }


def test_a_run_that_is_asked_for_comes_at_once_and_once(task):
    maintenance = Maintenance()
    task.jobs = [job("a"), job("s", kind="snapshot"), job("c", "CANCELLED")]
    with task.runs(maintenance):
        eventually(lambda: task.states() == [("a", "COMPLETED"), ("c", "CANCELLED")], "the run")
        task.jobs = [*task.jobs, job("b")]
        eventually(lambda: ("b", "COMPLETED") in task.states(), "the second run")
        task.jobs = []
        eventually(lambda: not task.states(), "jobs that were recorded")
    assert maintenance.calls == [True, True]


def test_a_run_that_is_asked_for_waits_for_the_tables_and_tells_its_error(task):
    partly = {**DONE, "errors": {"public.orders": TARGET_BROKEN}}
    maintenance = Maintenance(0.0, None, {**DONE, "whole": False}, partly)
    task.jobs = [job("a")]
    with task.runs(maintenance):
        eventually(lambda: task.states() == [("a", "FAILED")], "the run")
    assert maintenance.calls == [True, True, True]
    assert task.numbers["jobs"][0]["error"]["code"] == TARGET_BROKEN


def test_a_run_that_is_due_outside_of_its_window_comes_as_soon_as_that_begins(task, monkeypatch):
    day = 86_400.0
    clock = iter([0.0])
    hours = SimpleNamespace(monotonic=lambda: next(clock, day), time_ns=time.time_ns)
    monkeypatch.setattr(table_maintenance, "time", hours)
    task.metrics.batches = 1
    maintenance = Maintenance(day, None, None)
    with task.runs(maintenance):
        eventually(lambda: task.numbers.get("maintenance_runs"), "the run")
    assert maintenance.calls == [False] * 3


def test_without_an_interval_and_without_a_question_nothing_runs(task):
    maintenance = Maintenance()
    task.metrics.batches = 1
    task.jobs = Looks()
    with task.runs(maintenance):
        eventually(lambda: task.jobs.count > 3, "some looks")
    assert maintenance.calls == []


def test_a_task_that_stops_ends_its_run_and_tells_no_error(task):
    class Waits(Maintenance):
        def maintain(self, stopping, *, at_once=False):
            eventually(stopping, "the stop")
            raise CdcError(TARGET_UNREACHABLE, "Spark has ended")

    task.metrics.batches = 1
    with task.runs(Waits(0.001)):
        task.stopped.set()
    assert task.numbers == {}
