"""Fences that the leader itself sets: for tasks that were let go and have no new owner whose start would fence them.

What is to be fenced stands in the log (`fenced/<name>`) before it is done, in the write that makes the task nobody's.
So a leader that comes between knows it, and an id that is to be fenced is never assigned, nor the other way round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from cdcworker.coordinator.events import FenceIds, FencesDone
from cdcworker.coordinator.herd_state import Fence, Turn
from cdcworker.coordinator.holdings import Holdings
from cdcworker.coordinator.leader import Batch
from cdcworker.coordinator.model import ClusterState, Fenced, TaskId
from cdcworker.coordinator.state import fenced_record, task_set_of, tombstone
from cdcworker.coordinator.versions import may_write

logger = logging.getLogger(__name__)


def pending_of(state: ClusterState) -> set[TaskId]:
    return {TaskId(name, number) for name, fenced in state.fenced.items() for number in fenced.pending}


def on_fences_done(turn: Turn, event: FencesDone) -> None:
    known, settings = dict(turn.lead.fences), turn.settings
    failed = frozenset(event.failed)
    for task_id in known.keys() & set(event.tasks):
        fence = known[task_id]
        if task_id in failed and fence.tries < settings.fence_tries_max:
            delay = min(settings.backoff_min_s * 2.0 ** (fence.tries - 1), settings.backoff_max_s)
            known[task_id] = replace(fence, again=turn.mono + delay)
        else:
            known[task_id] = replace(fence, done=True)
            if task_id in failed:
                logger.error("fence given up task=%s tries=%d", task_id, fence.tries)
    turn.lead = replace(turn.lead, fences=known)


def next_due(turn: Turn) -> float:
    """When a fence that failed is asked for again."""
    return min((f.again for f in turn.lead.fences.values() if f.again is not None), default=float("inf"))


def work_off(turn: Turn, batch: Batch, have: Holdings) -> None:
    """Ask for fences that stand in the log and are not asked for; strike off what is done."""
    pending, fences = pending_of(batch.draft), dict(turn.lead.fences)
    done = {i for i in pending if i in have.held or (i in fences and _is_over(turn, batch.draft, i, fences[i]))}
    if done:
        to_do(batch, (), done)
    # Only what was read back, which proves the lead; and a living owner stops first, so that nothing is done twice.
    fresh = (pending & pending_of(turn.cluster)) - done - fences.keys() - have.blocked
    again = {i for i, f in fences.items() if i in pending - done and f.again is not None and turn.mono >= f.again}
    if fresh or again:
        logger.info("fencing tasks without an owner count=%d again=%d", len(fresh), len(again))
        turn.emit(FenceIds(tuple(sorted(fresh | again))))
        fences |= {i: Fence(turn.mono) for i in fresh}
        fences |= {i: Fence(turn.mono, tries=fences[i].tries + 1) for i in again}
    # One under way stays in mind although it is no longer to be done: until it is, nobody may start with that id.
    kept = {i: f for i, f in fences.items() if i not in done and (i in pending or _is_under_way(turn, f))}
    have.blocked.update(kept, pending - done)
    turn.lead = replace(turn.lead, fences=kept)


def _is_under_way(turn: Turn, fence: Fence) -> bool:
    return not fence.done and fence.again is None and turn.mono - fence.asked < turn.settings.fence_wait_s


def _is_over(turn: Turn, state: ClusterState, task_id: TaskId, fence: Fence) -> bool:
    """Done, or failed and of no use any more: the task is to run, and its start fences it."""
    if fence.again is not None and not fence.done:
        connector, tasks = state.connectors.get(task_id.connector), task_set_of(state, task_id.connector)
        is_wanted = connector is not None and connector.target_state != "STOPPED"
        return is_wanted and tasks is not None and task_id.task < len(tasks.tasks)
    return not _is_under_way(turn, fence)


def to_do(batch: Batch, more: Iterable[TaskId], done: Iterable[TaskId] = ()) -> None:
    """Write down what is to be fenced and what has been. The ids of sinks' tasks do not exist."""
    changes: dict[str, tuple[set[int], set[int]]] = {}
    for task_id in more:
        changes.setdefault(task_id.connector, (set(), set()))[0].add(task_id.task)
    for task_id in done:
        changes.setdefault(task_id.connector, (set(), set()))[1].add(task_id.task)
    if not may_write("fenced", batch.turn.live().values()):
        return
    for name, (added, struck) in sorted(changes.items()):
        connector, tasks = batch.draft.connectors.get(name), task_set_of(batch.draft, name)
        known = batch.draft.fenced.get(name, Fenced(0))
        pending = tuple(sorted(({*known.pending, *added}) - struck))
        if connector is None and not pending:
            batch.add(tombstone(f"fenced/{name}"))
            continue
        if tasks is not None:
            known = replace(known, count=len(tasks.tasks), incarnation=tasks.incarnation, task_epoch=tasks.task_epoch)
        batch.add(fenced_record(name, replace(known, pending=pending)))


def is_sink(state: ClusterState, name: str) -> bool:
    """A connector that is gone may have been a source."""
    connector = state.connectors.get(name)
    return connector is not None and connector.kind == "sink"


def sweep_fenced(batch: Batch) -> None:
    """Records of connectors that are no more, once nothing is left to do."""
    for name, fenced in sorted(batch.draft.fenced.items()):
        if name not in batch.draft.connectors and not fenced.pending:
            batch.add(tombstone(f"fenced/{name}"))
