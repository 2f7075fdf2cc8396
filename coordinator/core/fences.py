"""Fencing by the leader, for source tasks that were released and have no new owner whose start would fence them
(INV-5).

The write that leaves a task without an owner also records the pending fence (`fenced/<name>`). So the next leader knows
of it, and a task is never assigned while its fence is pending, nor fenced while it is assigned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from cdcworker.coordinator.core.events import FenceIds, FencesDone
from cdcworker.coordinator.core.herd_state import FenceAttempt, StateTransition
from cdcworker.coordinator.core.ownership import Ownership
from cdcworker.coordinator.core.write_batch import WriteBatch
from cdcworker.coordinator.log.config_fold import fenced_record, task_set_of, tombstone
from cdcworker.coordinator.model import ClusterState, FencedTasks, TaskId
from cdcworker.coordinator.versions import may_write

logger = logging.getLogger(__name__)


def pending_fences(state: ClusterState) -> set[TaskId]:
    """Returns the tasks whose ids are to be fenced."""
    return {TaskId(name, number) for name, fenced in state.fenced.items() for number in fenced.pending}


def on_fences_done(transition: StateTransition, event: FencesDone) -> None:
    """Marks fences as done; schedules failed ones again, with back-off and up to `fence_tries_max` times."""
    known, settings = dict(transition.lead.fences), transition.settings
    failed = frozenset(event.failed)
    for task_id in known.keys() & set(event.tasks):
        fence = known[task_id]
        if task_id in failed and fence.tries < settings.fence_tries_max:
            delay = min(settings.backoff_min_s * 2.0 ** (fence.tries - 1), settings.backoff_max_s)
            known[task_id] = replace(fence, retry_at=transition.mono + delay)
        else:
            known[task_id] = replace(fence, done=True)
            if task_id in failed:
                logger.error("fence abandoned task=%s tries=%d", task_id, fence.tries)
    transition.lead = replace(transition.lead, fences=known)


def next_due(transition: StateTransition) -> float:
    """Returns the monotonic time at which the next failed fence is retried."""
    return min((f.retry_at for f in transition.lead.fences.values() if f.retry_at is not None), default=float("inf"))


def run_pending_fences(transition: StateTransition, batch: WriteBatch, ownership: Ownership) -> None:
    """Starts the recorded fences that are not in flight, removes those that are done, and blocks tasks of all
    others."""
    pending, fences = pending_fences(batch.draft), dict(transition.lead.fences)
    done = {
        i for i in pending if i in ownership.held or (i in fences and _is_over(transition, batch.draft, i, fences[i]))
    }
    if done:
        record_fences(batch, (), done)
    # Only fences that were read back, which proves the lead; and only once a live owner has stopped.
    new = (pending & pending_fences(transition.cluster)) - done - fences.keys() - ownership.blocked
    retries = {
        i for i, f in fences.items() if i in pending - done and f.retry_at is not None and transition.mono >= f.retry_at
    }
    if new or retries:
        logger.info("fencing tasks without an owner count=%d retries=%d", len(new), len(retries))
        transition.emit(FenceIds(tuple(sorted(new | retries))))
        fences |= {i: FenceAttempt(transition.mono) for i in new}
        fences |= {i: FenceAttempt(transition.mono, tries=fences[i].tries + 1) for i in retries}
    # A fence in flight is kept although it is no longer needed: until it is done, nobody may start with that id.
    kept = {i: f for i, f in fences.items() if i not in done and (i in pending or _is_in_flight(transition, f))}
    ownership.blocked.update(kept, pending - done)
    transition.lead = replace(transition.lead, fences=kept)


def _is_in_flight(transition: StateTransition, fence: FenceAttempt) -> bool:
    return (
        not fence.done and fence.retry_at is None and transition.mono - fence.started < transition.settings.fence_wait_s
    )


def _is_over(transition: StateTransition, state: ClusterState, task_id: TaskId, fence: FenceAttempt) -> bool:
    """Tells whether a fence is done, or failed and not needed any more: the task is to run, and its start fences it."""
    if fence.retry_at is not None and not fence.done:
        connector, tasks = state.connectors.get(task_id.connector), task_set_of(state, task_id.connector)
        is_wanted = connector is not None and connector.target_state != "STOPPED"
        return is_wanted and tasks is not None and task_id.task < len(tasks.tasks)
    return not _is_in_flight(transition, fence)


def record_fences(batch: WriteBatch, more: Iterable[TaskId], done: Iterable[TaskId] = ()) -> None:
    """Records which tasks are to be fenced (`more`) and which need it no longer (`done`). Sink tasks have no id to
    fence."""
    changes: dict[str, tuple[set[int], set[int]]] = {}
    for task_id in more:
        changes.setdefault(task_id.connector, (set(), set()))[0].add(task_id.task)
    for task_id in done:
        changes.setdefault(task_id.connector, (set(), set()))[1].add(task_id.task)
    if not may_write("fenced", batch.transition.live_workers().values()):
        return
    for name, (added, removed) in sorted(changes.items()):
        connector, tasks = batch.draft.connectors.get(name), task_set_of(batch.draft, name)
        known = batch.draft.fenced.get(name, FencedTasks(0))
        pending = tuple(sorted(({*known.pending, *added}) - removed))
        if connector is None and not pending:
            batch.add(tombstone(f"fenced/{name}"))
            continue
        if tasks is not None:
            known = replace(known, count=len(tasks.tasks), incarnation=tasks.incarnation, task_epoch=tasks.task_epoch)
        batch.add(fenced_record(name, replace(known, pending=pending)))


def is_sink(state: ClusterState, name: str) -> bool:
    """Tells whether the connector is a sink; a deleted one counts as a source, which it may have been."""
    connector = state.connectors.get(name)
    return connector is not None and connector.kind == "sink"


def remove_finished(batch: WriteBatch) -> None:
    """Removes the fence records of deleted connectors once no fence is pending."""
    for name, fenced in sorted(batch.draft.fenced.items()):
        if name not in batch.draft.connectors and not fenced.pending:
            batch.add(tombstone(f"fenced/{name}"))
