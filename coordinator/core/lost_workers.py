"""Tasks of workers that are lost or restart: they are freed at once, or wait a limited time for the worker to
return."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core import rebalance_journal
from cdcworker.coordinator.core.herd_state import SeenDeadline, StateTransition
from cdcworker.coordinator.core.ownership import Ownership, is_made_for, is_released, note_unclean_end
from cdcworker.coordinator.core.write_batch import WriteBatch
from cdcworker.coordinator.log.config_fold import deadline_record, should_run, tombstone
from cdcworker.coordinator.model import AssignedTask, Assignment, ClusterState, ReturnDeadline, TaskId
from cdcworker.coordinator.versions import may_write

logger = logging.getLogger(__name__)

_WORKER = "worker/"


# --- return deadlines -----------------------------------------------------------------------------------------------


def track_deadlines(transition: StateTransition, accepted: Sequence[LogRecord] | None = None) -> None:
    """Notes when each return deadline was first read, by the own monotonic clock (INV-12). More tasks do not restart
    it."""
    if accepted is not None and not any(record.key.startswith("deadline/") for record in accepted):
        return
    seen = {}
    for key, deadline in transition.cluster.deadlines.items():
        known = transition.lead.deadlines_seen.get(key)
        is_known = known is not None and (known.boot_id, known.cause) == (deadline.boot_id, deadline.cause)
        seen[key] = known if known and is_known else SeenDeadline(deadline.boot_id, deadline.cause, transition.mono)
    transition.lead = replace(transition.lead, deadlines_seen=seen)


def deadline_end(transition: StateTransition, key: str, deadline: ReturnDeadline) -> float:
    """Returns the monotonic time at which a deadline ends; the delay begins when the record is read back."""
    seen = transition.lead.deadlines_seen.get(key)
    return (seen.read_at if seen else transition.mono) + deadline.delay_ms / 1000


def waiting_tasks(state: ClusterState) -> dict[TaskId, str]:
    """Returns the tasks that wait for a worker to return, with its id."""
    return {
        entry.id: key.removeprefix(_WORKER)
        for key, deadline in state.deadlines.items()
        for entry in deadline.tasks
        if should_run(state, entry)
    }


# --- decisions ------------------------------------------------------------------------------------------------------


def handle_lost_workers(transition: StateTransition, batch: WriteBatch, ownership: Ownership) -> None:
    """Frees the tasks of lost workers, opens return deadlines, and closes those that were met or missed."""
    may_wait = may_write("deadline", ownership.workers.values())
    for worker_id, assignment in sorted(batch.draft.assignments.items()):
        if not is_made_for(ownership.workers.get(worker_id), assignment):
            _free_tasks_of(transition, batch, ownership, worker_id, assignment)
    if may_wait:
        _reserve_for_restarts(transition, batch, ownership)
    for key, deadline in sorted(batch.draft.deadlines.items()):
        _resolve_deadline(transition, batch, ownership, key, deadline)


def _free_tasks_of(
    transition: StateTransition, batch: WriteBatch, ownership: Ownership, worker_id: str, assignment: Assignment
) -> None:
    """Frees the tasks of a lost worker: a new owner's start fences them (INV-5). With a crash delay they wait for a
    return."""
    why = _loss_cause(transition, ownership, worker_id, assignment)
    lost = [entry for entry in (*assignment.tasks, *assignment.revoke) if not is_released(transition, entry)]
    for entry in (*assignment.tasks, *assignment.revoke):
        if is_released(transition, entry):
            note_unclean_end(transition, ownership, entry)
    logger.info("worker lost worker=%s cause=%s tasks=%d", worker_id, why, len(lost))
    for entry in lost:
        ownership.lost.append(entry.id)
        ownership.previous[entry.id] = (worker_id, why)
    presence = ownership.workers.get(worker_id)
    if presence is not None and not presence.draining:
        ownership.preferred.update((entry.id, worker_id) for entry in assignment.tasks)
        return  # its new assignment replaces this one
    batch.add(tombstone(f"assignment/{worker_id}"))
    delay_s = transition.settings.crash_delay_s
    if f"{_WORKER}{worker_id}" in batch.draft.deadlines:
        _open_deadline(batch, worker_id, assignment.boot_id, "", assignment.tasks)
    elif (
        delay_s > 0
        and presence is None
        and why != rebalance_journal.LEFT
        and may_write("deadline", ownership.workers.values())
    ):
        _open_deadline(batch, worker_id, assignment.boot_id, rebalance_journal.CRASH, assignment.tasks, delay_s)


def _loss_cause(transition: StateTransition, ownership: Ownership, worker_id: str, assignment: Assignment) -> str:
    presence, lease = transition.status.presence.get(worker_id), transition.status.leases.get(worker_id)
    if presence is None:
        return rebalance_journal.LEFT
    if presence.boot_id != assignment.boot_id:
        return rebalance_journal.REBOOTED
    return (
        rebalance_journal.PROBED_GONE
        if transition.status.probed_gone.get(worker_id) == lease
        else rebalance_journal.LEASE_LAPSED
    )


def _reserve_for_restarts(transition: StateTransition, batch: WriteBatch, ownership: Ownership) -> None:
    """Opens return deadlines for workers that drain for a restart."""
    delay_s = transition.settings.restart_delay_s
    for worker_id, presence in ownership.workers.items():
        assignment = batch.draft.assignments.get(worker_id)
        if delay_s > 0 and presence.draining and presence.returns and assignment and is_made_for(presence, assignment):
            kept = [entry for entry in assignment.tasks if ownership.holders.get(entry.id) == worker_id]
            if kept:
                _open_deadline(batch, worker_id, presence.boot_id, rebalance_journal.RESTART, kept, delay_s)


def _open_deadline(
    batch: WriteBatch, worker_id: str, boot_id: str, cause: str, entries: Iterable[AssignedTask], delay_s: float = 0.0
) -> None:
    """Opens a return deadline, or adds tasks to the one that is open."""
    key = f"{_WORKER}{worker_id}"
    known = batch.draft.deadlines.get(key)
    kept = [entry for entry in entries if should_run(batch.draft, entry)]
    if known is not None and known.boot_id == boot_id:
        tasks = tuple(sorted({*known.tasks, *kept}))
        after = replace(known, tasks=tasks)
    elif cause:
        after = ReturnDeadline(boot_id, cause, round(delay_s * 1000), tuple(sorted(kept)))
    else:
        return
    if after != known and after.tasks:
        logger.info("tasks wait for their worker worker=%s cause=%s tasks=%d", worker_id, after.cause, len(after.tasks))
        batch.add(deadline_record(key, after))


def _resolve_deadline(
    transition: StateTransition, batch: WriteBatch, ownership: Ownership, key: str, deadline: ReturnDeadline
) -> None:
    worker_id = key.removeprefix(_WORKER)
    entries = [entry for entry in deadline.tasks if should_run(batch.draft, entry)]
    presence = ownership.workers.get(worker_id)
    if presence is not None and not presence.draining:
        ownership.preferred.update((entry.id, worker_id) for entry in entries)
        ownership.previous.update((entry.id, (worker_id, rebalance_journal.RETURNED)) for entry in entries)
    elif entries and transition.mono < deadline_end(transition, key, deadline):
        ownership.waiting.update((entry.id, deadline.cause) for entry in entries)
        return
    else:
        ownership.previous.update((entry.id, (worker_id, rebalance_journal.NOT_BACK)) for entry in entries)
    batch.add(tombstone(f"deadline/{key}"))
