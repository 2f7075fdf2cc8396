"""Who owns which task: derived from the assignments in the log and the reports of live workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcworker.coordinator.core import rebalance_journal
from cdcworker.coordinator.core.herd_state import StateTransition
from cdcworker.coordinator.log.config_fold import task_set_of
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Presence,
    TaskId,
    TaskSet,
    TaskStatus,
)


@dataclass(slots=True)
class Ownership:
    """Who owns which task, as the basis of one rebalance decision."""

    workers: Mapping[str, Presence]
    """The live workers by id."""
    holders: dict[TaskId, str] = field(default_factory=dict)
    """The worker that runs each task, and was not told to stop it."""
    held: dict[TaskId, AssignedTask] = field(default_factory=dict)
    """The assignment of each of these tasks."""
    outdated: set[TaskId] = field(default_factory=set)
    """Held tasks of an older task set: they are assigned anew where they run."""
    preferred: dict[TaskId, str] = field(default_factory=dict)
    """The worker that had the task before and is back: it is the first choice, though the task does not run there."""
    revoked: dict[str, list[AssignedTask]] = field(default_factory=dict)
    """The tasks that each live worker has to stop."""
    causes: dict[TaskId, str] = field(default_factory=dict)
    """The cause of each revocation, by task."""
    previous: dict[TaskId, tuple[str, str]] = field(default_factory=dict)
    """The last owner of each task without one, and why it owns it no longer."""
    blocked: set[TaskId] = field(default_factory=set)
    """Tasks that somebody may still run, or whose fence is in flight: nobody gets them in this decision."""
    waiting: dict[TaskId, str] = field(default_factory=dict)
    """Tasks that wait for their worker to return, with the cause."""
    lost: list[TaskId] = field(default_factory=list)
    """Tasks of lost workers that were not reported stopped."""
    unclean: set[TaskId] = field(default_factory=set)
    """Tasks released by processes that ended with an error: a transaction may be open."""

    def tasks_being_revoked(self) -> set[TaskId]:
        """Returns the tasks that live workers have to stop and have not reported stopped."""
        return {entry.id for entries in self.revoked.values() for entry in entries}

    def revoke(self, worker_id: str, entry: AssignedTask, why: str) -> None:
        """Has a live worker stop a task; until it reports that, the task is blocked."""
        self.revoked.setdefault(worker_id, []).append(entry)
        self.causes.setdefault(entry.id, why)
        self.blocked.add(entry.id)


def is_released(transition: StateTransition, entry: AssignedTask) -> bool:
    """Tells whether the task was reported stopped under this task epoch, or a later owner has reported."""
    return _is_over(transition.status.tasks.get(entry.id), entry.task_epoch)


def _is_over(status: TaskStatus | None, epoch: int) -> bool:
    if status is None or status.task_epoch < epoch:
        return False
    return status.task_epoch > epoch or status.state == "STOPPED"


def note_unclean_end(transition: StateTransition, ownership: Ownership, entry: AssignedTask) -> None:
    """Notes a task whose last process ended with an error, unless a later owner has fenced it anyway."""
    status = transition.status.tasks.get(entry.id)
    if status is not None and status.task_epoch == entry.task_epoch and status.error is not None:
        ownership.unclean.add(entry.id)


def is_made_for(presence: Presence | None, assignment: Assignment) -> bool:
    """Tells whether the assignment was made for this boot of the worker."""
    return presence is not None and presence.boot_id == assignment.boot_id


def collect_held_tasks(transition: StateTransition, state: ClusterState, ownership: Ownership) -> None:
    """Collects the tasks that live workers run, and those that they still have to stop."""
    sets = {name: task_set_of(state, name) for name in state.connectors}
    for worker_id, assignment in sorted(state.assignments.items()):
        if is_made_for(ownership.workers.get(worker_id), assignment):
            for entry in assignment.revoke:
                _collect_revoked(transition, ownership, worker_id, assignment, entry)
            for entry in assignment.tasks:
                _collect_assigned(transition, ownership, worker_id, entry, sets.get(entry.connector))


def _collect_revoked(
    transition: StateTransition, ownership: Ownership, worker_id: str, assignment: Assignment, entry: AssignedTask
) -> None:
    why = assignment.causes.get(str(entry.id), rebalance_journal.BALANCE)
    if is_released(transition, entry):
        ownership.previous[entry.id] = (worker_id, why)
        note_unclean_end(transition, ownership, entry)
    else:
        ownership.revoke(worker_id, entry, why)


def _collect_assigned(
    transition: StateTransition, ownership: Ownership, worker_id: str, entry: AssignedTask, tasks: TaskSet | None
) -> None:
    task_id = entry.id
    exists = tasks is not None and entry.task < len(tasks.tasks)
    if _is_over(transition.status.tasks.get(task_id), entry.task_epoch):
        ownership.previous[task_id] = (
            worker_id,
            rebalance_journal.UNASSIGNED if exists else rebalance_journal.NO_LONGER_WANTED,
        )
        note_unclean_end(transition, ownership, entry)
    elif tasks is None or not exists or task_id in ownership.held:
        ownership.revoke(worker_id, entry, rebalance_journal.NO_LONGER_WANTED)
    else:
        ownership.holders[task_id], ownership.held[task_id] = worker_id, entry
        if entry.incarnation != tasks.incarnation or entry.task_epoch < tasks.task_epoch:
            ownership.outdated.add(task_id)
