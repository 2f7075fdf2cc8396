"""Work whose worker is gone or goes for a moment: who is dead, what waits for a return, and for how long."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cdcworker.coordinator import journal
from cdcworker.coordinator.api import Record
from cdcworker.coordinator.herd_state import Seen, Turn
from cdcworker.coordinator.holdings import Holdings, is_of, is_released, note_end
from cdcworker.coordinator.leader import Batch
from cdcworker.coordinator.model import AssignedTask, Assignment, ClusterState, Deadline, TaskId
from cdcworker.coordinator.state import deadline_record, is_wanted, tombstone
from cdcworker.coordinator.versions import may_write

logger = logging.getLogger(__name__)

_WORKER = "worker/"


# --- ages -----------------------------------------------------------------------------------------------------------


def note_deadlines(turn: Turn, taken: Sequence[Record] | None = None) -> None:
    """Every worker ages every deadline by its own clock from when it read it; a change of its tasks is no new one."""
    if taken is not None and not any(record.key.startswith("deadline/") for record in taken):
        return
    seen = {}
    for what, deadline in turn.cluster.deadlines.items():
        known = turn.lead.seen.get(what)
        is_known = known is not None and (known.boot_id, known.cause) == (deadline.boot_id, deadline.cause)
        seen[what] = known if known and is_known else Seen(deadline.boot_id, deadline.cause, turn.mono)
    turn.lead = replace(turn.lead, seen=seen)


def ends_at(turn: Turn, what: str, deadline: Deadline) -> float:
    """By the own clock; one that has not been read back begins when it is."""
    seen = turn.lead.seen.get(what)
    return (seen.mono if seen else turn.mono) + deadline.delay_ms / 1000


def waiting_of(state: ClusterState) -> dict[TaskId, str]:
    """Tasks that wait, with the worker that they wait for."""
    return {
        entry.id: what.removeprefix(_WORKER)
        for what, deadline in state.deadlines.items()
        for entry in deadline.tasks
        if is_wanted(state, entry)
    }


# --- decisions ------------------------------------------------------------------------------------------------------


def settle_lost(turn: Turn, batch: Batch, have: Holdings) -> None:
    """Bury the dead, open deadlines for those who come back, close those that are met or missed."""
    may_wait = may_write("deadline", have.workers.values())
    for worker_id, assignment in sorted(batch.draft.assignments.items()):
        if not is_of(have.workers.get(worker_id), assignment):
            _bury(turn, batch, have, worker_id, assignment)
    if may_wait:
        _await_restarts(turn, batch, have)
    for what, deadline in sorted(batch.draft.deadlines.items()):
        _judge(turn, batch, have, what, deadline)


def _bury(turn: Turn, batch: Batch, have: Holdings, worker_id: str, assignment: Assignment) -> None:
    """Its tasks are free at once: a new owner's start fences them. Unless it is worth while to wait for a return."""
    why = _cause_of_death(turn, have, worker_id, assignment)
    lost = [entry for entry in (*assignment.tasks, *assignment.revoke) if not is_released(turn, entry)]
    for entry in (*assignment.tasks, *assignment.revoke):
        if is_released(turn, entry):
            note_end(turn, have, entry)
    logger.info("worker lost worker=%s cause=%s tasks=%d", worker_id, why, len(lost))
    for entry in lost:
        have.lost.append(entry.id)
        have.before[entry.id] = (worker_id, why)
    presence = have.workers.get(worker_id)
    if presence is not None and not presence.draining:
        have.prefer.update((entry.id, worker_id) for entry in assignment.tasks)
        return  # its new assignment replaces this one
    batch.add(tombstone(f"assignment/{worker_id}"))
    delay_s = turn.settings.crash_delay_s
    if f"{_WORKER}{worker_id}" in batch.draft.deadlines:
        _open(batch, worker_id, assignment.boot_id, "", assignment.tasks)
    elif delay_s > 0 and presence is None and why != journal.LEFT and may_write("deadline", have.workers.values()):
        _open(batch, worker_id, assignment.boot_id, journal.CRASH, assignment.tasks, delay_s)


def _cause_of_death(turn: Turn, have: Holdings, worker_id: str, assignment: Assignment) -> str:
    presence, lease = turn.status.presence.get(worker_id), turn.status.leases.get(worker_id)
    if presence is None:
        return journal.LEFT
    if presence.boot_id != assignment.boot_id:
        return journal.REBOOTED
    return journal.PROBED_GONE if turn.status.gone.get(worker_id) == lease else journal.LEASE_LAPSED


def _await_restarts(turn: Turn, batch: Batch, have: Holdings) -> None:
    """A worker that announced its return keeps its tasks reserved from the moment on in which it begins to drain."""
    delay_s = turn.settings.restart_delay_s
    for worker_id, presence in have.workers.items():
        assignment = batch.draft.assignments.get(worker_id)
        if delay_s > 0 and presence.draining and presence.returns and assignment and is_of(presence, assignment):
            kept = [entry for entry in assignment.tasks if have.holders.get(entry.id) == worker_id]
            if kept:
                _open(batch, worker_id, presence.boot_id, journal.RESTART, kept, delay_s)


def _open(
    batch: Batch, worker_id: str, boot_id: str, cause: str, entries: Iterable[AssignedTask], delay_s: float = 0.0
) -> None:
    """A new deadline, or more tasks for the one that is open."""
    what = f"{_WORKER}{worker_id}"
    known = batch.draft.deadlines.get(what)
    kept = [entry for entry in entries if is_wanted(batch.draft, entry)]
    if known is not None and known.boot_id == boot_id:
        tasks = tuple(sorted({*known.tasks, *kept}))
        after = replace(known, tasks=tasks)
    elif cause:
        after = Deadline(boot_id, cause, round(delay_s * 1000), tuple(sorted(kept)))
    else:
        return
    if after != known and after.tasks:
        logger.info("tasks wait for their worker worker=%s cause=%s tasks=%d", worker_id, after.cause, len(after.tasks))
        batch.add(deadline_record(what, after))


def _judge(turn: Turn, batch: Batch, have: Holdings, what: str, deadline: Deadline) -> None:
    worker_id = what.removeprefix(_WORKER)
    wanted = [entry for entry in deadline.tasks if is_wanted(batch.draft, entry)]
    presence = have.workers.get(worker_id)
    if presence is not None and not presence.draining:
        have.prefer.update((entry.id, worker_id) for entry in wanted)
        have.before.update((entry.id, (worker_id, journal.RETURNED)) for entry in wanted)
    elif wanted and turn.mono < ends_at(turn, what, deadline):
        have.waiting.update((entry.id, deadline.cause) for entry in wanted)
        return
    else:
        have.before.update((entry.id, (worker_id, journal.NOT_BACK)) for entry in wanted)
    batch.add(tombstone(f"deadline/{what}"))
