"""Task sets that fit their connectors: asked for, written, tried again when a source could not be split."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator import fences
from cdcworker.coordinator.errors import RECORD_TOO_LARGE
from cdcworker.coordinator.events import PlanTasks, TasksPlanned
from cdcworker.coordinator.herd_state import PlanJob, Turn
from cdcworker.coordinator.leader import Batch, size_of
from cdcworker.coordinator.model import Connector, JsonObject, TaskId, TaskSet
from cdcworker.coordinator.state import config_version, task_set_of, task_set_record, tombstone
from cdcworker.schemas.errors import CdcError

_UNPLANNED = 0
"""The config version of a task set that no split has made: a stopped connector's, or one that could not be split yet."""


def on_planned(turn: Turn, event: TasksPlanned) -> None:
    """Keep the answer of a split that was asked for, or another split of the same config (topics came or went)."""
    job = turn.lead.jobs.get(event.connector)
    expected = (job.incarnation, job.config_version) == (event.incarnation, event.config_version) if job else None
    if expected or (expected is None and event.error is None):
        turn.lead = replace(turn.lead, planned=(*turn.lead.planned, event))


def plan_task_sets(turn: Turn, batch: Batch) -> None:
    """Bring every connector's task set in line with its config and target state, or ask for the split it needs."""
    planning = _Planning(turn, batch)
    for name, connector in sorted(batch.draft.connectors.items()):
        planning.look_at(name, connector)
    for name in sorted(batch.draft.task_sets.keys() - batch.draft.connectors.keys()):
        batch.add(tombstone(f"tasks/{name}"))
    planning.keep_jobs()


def next_due(turn: Turn) -> float:
    """When a split is asked for again."""
    return min((job.due for job in turn.lead.jobs.values()), default=float("inf"))


class _Planning:
    """One round over all connectors; the tables of jobs and answers are copied once."""

    def __init__(self, turn: Turn, batch: Batch) -> None:
        self.turn = turn
        self.batch = batch
        self.jobs = dict(turn.lead.jobs)
        self.planned = {answer.connector: answer for answer in turn.lead.planned}

    def look_at(self, name: str, connector: Connector) -> None:
        tasks = task_set_of(self.batch.draft, name)
        if connector.target_state == "STOPPED":
            if tasks is None or tasks.tasks or tasks.error or tasks.config_version != _UNPLANNED:
                self._write(connector, TaskSet(connector.incarnation, _UNPLANNED, ()))
        elif tasks is None or tasks.config_version != config_version(connector):
            self._split(connector, tasks)
        elif name in self.planned:
            self._take_other_split(connector, tasks)

    def _split(self, connector: Connector, tasks: TaskSet | None) -> None:
        name, version = connector.name, config_version(connector)
        job = self.jobs.get(name)
        if job and (job.incarnation, job.config_version) != (connector.incarnation, version):
            job = None
        answer = self.planned.pop(name, None) if job else None
        if job and answer:
            self._take_answer(connector, tasks, job, answer)
        elif job is None or self.turn.mono >= job.due or (tasks is None and not job.asked):
            due = self.turn.mono + self.turn.settings.plan_timeout_s
            self.jobs[name] = PlanJob(connector.incarnation, version, due, job.failures if job else 0)
            self.planned.pop(name, None)
            self.turn.emit(PlanTasks(connector, version))

    def _take_answer(self, connector: Connector, tasks: TaskSet | None, job: PlanJob, answer: TasksPlanned) -> None:
        turn, version = self.turn, config_version(connector)
        if answer.error is None:
            self._write(connector, TaskSet(connector.incarnation, version, answer.tasks))
        elif answer.error.get("kind") != "transient":
            self._write(connector, TaskSet(connector.incarnation, version, (), answer.error))
        else:
            delay = min(turn.settings.backoff_min_s * 2**job.failures, turn.settings.backoff_max_s)
            retry = replace(job, due=turn.mono + delay, failures=min(job.failures + 1, 16), asked=False)
            self.jobs[connector.name] = retry
            kept = tasks or TaskSet(connector.incarnation, _UNPLANNED, ())
            if kept.error is None or kept.error.get("code") != answer.error.get("code"):
                self.batch.add(task_set_record(connector.name, replace(kept, error=answer.error)))

    def _take_other_split(self, connector: Connector, tasks: TaskSet) -> None:
        answer = self.planned.pop(connector.name)
        is_current = (answer.incarnation, answer.config_version) == (tasks.incarnation, tasks.config_version)
        if is_current and answer.error is None and (answer.tasks != tasks.tasks or tasks.error is not None):
            self._write(connector, TaskSet(connector.incarnation, answer.config_version, answer.tasks))

    def _write(self, connector: Connector, tasks: TaskSet) -> None:
        """The whole set in one record; ids that it no longer has are to be fenced when their tasks have stopped."""
        batch, name = self.batch, connector.name
        old = task_set_of(batch.draft, name)
        new = replace(tasks, task_epoch=batch.next_task_epoch(), extra=old.extra if old else {})
        bytes_max = self.turn.settings.record_bytes_max
        if size_of(task_set_record(name, new)) > bytes_max:
            new = replace(new, tasks=(), error=_too_large(name, len(tasks.tasks), bytes_max))
        surplus = range(len(new.tasks), len(old.tasks) if old else 0)
        batch.add(task_set_record(name, new))
        if surplus and connector.kind == "source":
            fences.to_do(batch, [TaskId(name, number) for number in surplus])

    def keep_jobs(self) -> None:
        """Without those whose connector is gone, stopped or done."""
        kept = {}
        for name, job in self.jobs.items():
            connector, tasks = self.batch.draft.connectors.get(name), task_set_of(self.batch.draft, name)
            done = tasks is not None and tasks.config_version == job.config_version
            if connector is not None and connector.target_state != "STOPPED" and not done:
                kept[name] = job
        self.turn.lead = replace(self.turn.lead, jobs=kept, planned=tuple(self.planned.values()))


def _too_large(name: str, tasks: int, bytes_max: int) -> JsonObject:
    text = f"{tasks} tasks do not fit into one record of {bytes_max} bytes"
    return CdcError(RECORD_TOO_LARGE, text, where={"connector": name}).to_dict()
