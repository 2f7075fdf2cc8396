"""Who has what, from the assignments in the log and the reports of those who are alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcworker.coordinator import journal
from cdcworker.coordinator.herd_state import Turn
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Presence,
    TaskId,
    TaskSet,
    TaskStatus,
)
from cdcworker.coordinator.state import task_set_of


@dataclass(slots=True)
class Holdings:
    """The picture that one decision about tasks rests on."""

    workers: Mapping[str, Presence]
    """Those who are alive."""
    holders: dict[TaskId, str] = field(default_factory=dict)
    held: dict[TaskId, AssignedTask] = field(default_factory=dict)
    outdated: set[TaskId] = field(default_factory=set)
    """Held tasks of an older set: to be given anew where they run."""
    prefer: dict[TaskId, str] = field(default_factory=dict)
    """Who had the task and is back: the first choice, though it does not run there."""
    revoked: dict[str, list[AssignedTask]] = field(default_factory=dict)
    causes: dict[TaskId, str] = field(default_factory=dict)
    """Why an entry of `revoked` has to go."""
    before: dict[TaskId, tuple[str, str]] = field(default_factory=dict)
    """Who had the task last, and why not any more."""
    blocked: set[TaskId] = field(default_factory=set)
    """Tasks that somebody may still run, or whose fence is under way: given to nobody for now."""
    waiting: dict[TaskId, str] = field(default_factory=dict)
    """Tasks that wait for a worker, with the cause."""
    lost: list[TaskId] = field(default_factory=list)
    """Tasks of dead processes, not reported stopped."""
    unclean: set[TaskId] = field(default_factory=set)
    """Tasks that were let go by processes that ended badly: a transaction may have stayed open."""

    def blocked_by_living(self) -> set[TaskId]:
        return {entry.id for entries in self.revoked.values() for entry in entries}

    def revoke(self, worker_id: str, entry: AssignedTask, why: str) -> None:
        self.revoked.setdefault(worker_id, []).append(entry)
        self.causes.setdefault(entry.id, why)
        self.blocked.add(entry.id)


def is_released(turn: Turn, entry: AssignedTask) -> bool:
    """Its worker reported it stopped, or a later owner exists."""
    return _is_over(turn.status.tasks.get(entry.id), entry.task_epoch)


def _is_over(status: TaskStatus | None, epoch: int) -> bool:
    if status is None or status.task_epoch < epoch:
        return False
    return status.task_epoch > epoch or status.state == "STOPPED"


def note_end(turn: Turn, have: Holdings, entry: AssignedTask) -> None:
    """How its process ended, if no later owner has fenced it anyway."""
    status = turn.status.tasks.get(entry.id)
    if status is not None and status.task_epoch == entry.task_epoch and status.error is not None:
        have.unclean.add(entry.id)


def is_of(presence: Presence | None, assignment: Assignment) -> bool:
    """The assignment was made for this very process."""
    return presence is not None and presence.boot_id == assignment.boot_id


def count_living(turn: Turn, state: ClusterState, have: Holdings) -> None:
    """What the assignments of living processes hold, and what these have still to let go."""
    sets = {name: task_set_of(state, name) for name in state.connectors}
    for worker_id, assignment in sorted(state.assignments.items()):
        if is_of(have.workers.get(worker_id), assignment):
            for entry in assignment.revoke:
                _count_revoked(turn, have, worker_id, assignment, entry)
            for entry in assignment.tasks:
                _count_task(turn, have, worker_id, entry, sets.get(entry.connector))


def _count_revoked(turn: Turn, have: Holdings, worker_id: str, assignment: Assignment, entry: AssignedTask) -> None:
    why = assignment.causes.get(str(entry.id), journal.BALANCE)
    if is_released(turn, entry):
        have.before[entry.id] = (worker_id, why)
        note_end(turn, have, entry)
    else:
        have.revoke(worker_id, entry, why)


def _count_task(turn: Turn, have: Holdings, worker_id: str, entry: AssignedTask, tasks: TaskSet | None) -> None:
    task_id = entry.id
    exists = tasks is not None and entry.task < len(tasks.tasks)
    if _is_over(turn.status.tasks.get(task_id), entry.task_epoch):
        have.before[task_id] = (worker_id, journal.UNASSIGNED if exists else journal.NO_LONGER_WANTED)
        note_end(turn, have, entry)
    elif tasks is None or not exists or task_id in have.held:
        have.revoke(worker_id, entry, journal.NO_LONGER_WANTED)
    else:
        have.holders[task_id], have.held[task_id] = worker_id, entry
        if entry.incarnation != tasks.incarnation or entry.task_epoch < tasks.task_epoch:
            have.outdated.add(task_id)
