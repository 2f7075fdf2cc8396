"""Task sets: connectors are split into tasks when their config changes, and splits that failed are retried."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator.core import fences
from cdcworker.coordinator.core.events import PlanTasks, TasksPlanned
from cdcworker.coordinator.core.herd_state import PlanJob, StateTransition
from cdcworker.coordinator.core.write_batch import WriteBatch, record_size
from cdcworker.coordinator.errors import CONNECTION_MISSING, RECORD_TOO_LARGE
from cdcworker.coordinator.log.config_fold import config_version, task_set_of, task_set_record, tombstone
from cdcworker.coordinator.log.connections import MISSING, as_run, connection_name, own_shares, stamp
from cdcworker.coordinator.model import Connector, JsonObject, TaskId, TaskSet
from cdcworker.schemas.errors import CdcError

_UNPLANNED = 0
"""The config version of a task set that comes from no split: the connector is stopped, or could not be split yet."""


def on_planned(transition: StateTransition, event: TasksPlanned) -> None:
    """Keeps the answer to a split in flight, or an unasked new split of the same config (topics came or went)."""
    job = transition.lead.plan_jobs.get(event.connector)
    expected = _basis(job) == _basis(event) if job else None
    if expected or (expected is None and event.error is None):
        transition.lead = replace(transition.lead, planned=(*transition.lead.planned, event))


def _basis(made: PlanJob | TasksPlanned | TaskSet) -> tuple[str, int, str]:
    """Returns what a split rests on: the connector's incarnation, the version of its config, and its connection."""
    return made.incarnation, made.config_version, made.connection


def plan_task_sets(transition: StateTransition, batch: WriteBatch) -> None:
    """Brings each connector's task set in line with its config and target state, or starts the split that it needs."""
    planning = _Planning(transition, batch)
    for name, connector in sorted(batch.draft.connectors.items()):
        planning.check_connector(name, connector)
    for name in sorted(batch.draft.task_sets.keys() - batch.draft.connectors.keys()):
        batch.add(tombstone(f"tasks/{name}"))
    planning.keep_open_plans()


def next_due(transition: StateTransition) -> float:
    """Returns the monotonic time at which the next split is retried."""
    return min((job.due for job in transition.lead.plan_jobs.values()), default=float("inf"))


class _Planning:
    """One round over all connectors; the maps of splits in flight and of answers are copied once."""

    def __init__(self, transition: StateTransition, batch: WriteBatch) -> None:
        self.transition = transition
        self.batch = batch
        self.plan_jobs = dict(transition.lead.plan_jobs)
        self.planned = {answer.connector: answer for answer in transition.lead.planned}

    def check_connector(self, name: str, connector: Connector) -> None:
        """Starts, applies or drops the split of one connector."""
        tasks = task_set_of(self.batch.draft, name)
        if connector.target_state == "STOPPED":
            if tasks is None or tasks.tasks or tasks.error or tasks.config_version != _UNPLANNED:
                self._write(connector, TaskSet(connector.incarnation, _UNPLANNED, ()))
        elif _waits_for_resume(connector, tasks):
            return
        elif tasks is None or _basis(tasks) != self._wanted(connector):
            self._split(connector, tasks)
        elif name in self.planned:
            self._apply_new_split(connector, tasks)

    def _wanted(self, connector: Connector) -> tuple[str, int, str]:
        return connector.incarnation, config_version(connector), stamp(self.batch.draft, connector)

    def _split(self, connector: Connector, tasks: TaskSet | None) -> None:
        name, wanted = connector.name, self._wanted(connector)
        if wanted[2] == MISSING:
            self._write(connector, TaskSet(*wanted[:2], (), _missing(connector), connection=MISSING))
            return
        job = self.plan_jobs.get(name)
        if job and _basis(job) != wanted:
            job = None
        answer = self.planned.pop(name, None) if job else None
        if job and answer:
            self._apply_answer(connector, tasks, job, answer)
        elif job is None or self.transition.mono >= job.due or (tasks is None and not job.in_flight):
            due = self.transition.mono + self.transition.settings.plan_timeout_s
            failures = job.failures if job else 0
            self.plan_jobs[name] = PlanJob(*wanted[:2], due, failures, connection=wanted[2])
            self.planned.pop(name, None)
            self.transition.emit(PlanTasks(as_run(self.batch.draft, connector), *wanted[1:]))

    def _apply_answer(self, connector: Connector, tasks: TaskSet | None, job: PlanJob, answer: TasksPlanned) -> None:
        transition, (incarnation, version, connection) = self.transition, _basis(job)
        if answer.error is None:
            tasks_of_own = own_shares(self.batch.draft, connector, answer.tasks)
            self._write(connector, TaskSet(incarnation, version, tasks_of_own, connection=connection))
        elif answer.error.get("kind") != "transient":
            self._write(connector, TaskSet(incarnation, version, (), answer.error, connection=connection))
        else:
            delay = min(transition.settings.backoff_min_s * 2**job.failures, transition.settings.backoff_max_s)
            retry = replace(job, due=transition.mono + delay, failures=min(job.failures + 1, 16), in_flight=False)
            self.plan_jobs[connector.name] = retry
            kept = tasks or TaskSet(connector.incarnation, _UNPLANNED, ())
            if kept.error is None or kept.error.get("code") != answer.error.get("code"):
                self.batch.add(task_set_record(connector.name, replace(kept, error=answer.error)))

    def _apply_new_split(self, connector: Connector, tasks: TaskSet) -> None:
        answer = self.planned.pop(connector.name)
        shares = own_shares(self.batch.draft, connector, answer.tasks)
        is_current = _basis(answer) == _basis(tasks)
        if is_current and answer.error is None and (shares != tasks.tasks or tasks.error is not None):
            self._write(connector, replace(tasks, tasks=shares, error=None))

    def _write(self, connector: Connector, tasks: TaskSet) -> None:
        """Writes a task set as one record. Tasks that it no longer has are to be fenced once they have stopped."""
        batch, name = self.batch, connector.name
        old = task_set_of(batch.draft, name)
        new = replace(tasks, task_epoch=batch.next_task_epoch(), extra=old.extra if old else {})
        bytes_max = self.transition.settings.record_bytes_max
        if record_size(task_set_record(name, new)) > bytes_max:
            new = replace(new, tasks=(), error=_too_large(name, len(tasks.tasks), bytes_max))
        surplus = range(len(new.tasks), len(old.tasks) if old else 0)
        batch.add(task_set_record(name, new))
        if surplus and connector.kind == "source":
            fences.record_fences(batch, [TaskId(name, number) for number in surplus])

    def keep_open_plans(self) -> None:
        """Keeps the splits in flight, without those whose connector is deleted, stopped or has its task set."""
        kept = {}
        for name, job in self.plan_jobs.items():
            connector, tasks = self.batch.draft.connectors.get(name), task_set_of(self.batch.draft, name)
            is_split = tasks is not None and _basis(tasks)[1:] == _basis(job)[1:]
            if connector is None or connector.target_state == "STOPPED" or _waits_for_resume(connector, tasks):
                continue
            if not is_split:
                kept[name] = job
        self.transition.lead = replace(self.transition.lead, plan_jobs=kept, planned=tuple(self.planned.values()))


def _waits_for_resume(connector: Connector, tasks: TaskSet | None) -> bool:
    """Returns whether a connector has no tasks until it is resumed, as in Kafka Connect: it was created paused, or is paused
    from having been stopped."""
    return connector.target_state == "PAUSED" and (tasks is None or tasks.config_version == _UNPLANNED)


def _missing(connector: Connector) -> JsonObject:
    text = f"there is no connection {connection_name(connector.config)}"
    return CdcError(CONNECTION_MISSING, text, where={"connector": connector.name}).to_dict()


def _too_large(name: str, tasks: int, bytes_max: int) -> JsonObject:
    text = f"{tasks} tasks do not fit into one record of {bytes_max} bytes"
    return CdcError(RECORD_TOO_LARGE, text, where={"connector": name}).to_dict()
