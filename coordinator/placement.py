"""The leader's decision about tasks: who is to run what, in one write with why and with the fences it takes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from cdcworker.coordinator import fences, journal, lost
from cdcworker.coordinator.assign import Facts, assign
from cdcworker.coordinator.crew import may_level, mustered
from cdcworker.coordinator.herd_state import Turn
from cdcworker.coordinator.holdings import Holdings, count_living
from cdcworker.coordinator.leader import Batch
from cdcworker.coordinator.load import weight
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Connector,
    Move,
    Presence,
    TaskId,
)
from cdcworker.coordinator.state import assignment_record, task_set_of, tombstone

logger = logging.getLogger(__name__)

CLASS = "connector.class"
ENTRY_BYTES = 128
"""What a task takes in its worker's record beside its connector's name; the record's own fields take no more."""


def place_tasks(turn: Turn, batch: Batch) -> None:
    """Write the assignments that differ: lost tasks move at once, a task that has to change hands is revoked first."""
    have = Holdings(turn.live())
    count_living(turn, batch.draft, have)
    lost.settle_lost(turn, batch, have)
    fences.work_off(turn, batch, have)
    wanted = _wanted(batch.draft)
    _hold_back_paused(batch, have)
    targets = _targets(turn, batch.draft, have, wanted)
    plan = _Plan(batch, have, fenced=fences.pending_of(turn.cluster))
    plan.give(wanted, targets)
    plan.write_assignments()
    plan.leave_to_fences(set(wanted))
    journal.record_moves(batch, plan.moves)


def able_workers(connector: Connector, workers: Mapping[str, Presence]) -> Collection[str] | None:
    """Workers that have the connector's plugin; None: all. One that does not say what it has is taken to have it."""
    name = connector.config.get(CLASS, "").strip()
    if not name or all(not presence.plugins or name in presence.plugins for presence in workers.values()):
        return None
    return frozenset(w for w, presence in workers.items() if not presence.plugins or name in presence.plugins)


def _wanted(state: ClusterState) -> list[TaskId]:
    return [
        TaskId(name, n)
        for name, connector in sorted(state.connectors.items())
        if connector.target_state != "STOPPED" and (tasks := task_set_of(state, name)) is not None
        for n in range(len(tasks.tasks))
    ]


def _hold_back_paused(batch: Batch, have: Holdings) -> None:
    """A paused source opens nothing, so its start fences nobody: its lost tasks are fenced before they move."""
    for task_id in (*have.lost, *have.unclean):
        connector = batch.draft.connectors.get(task_id.connector)
        if connector is not None and connector.kind == "source" and connector.target_state == "PAUSED":
            have.blocked.add(task_id)


def _targets(turn: Turn, state: ClusterState, have: Holdings, wanted: list[TaskId]) -> dict[TaskId, str]:
    workers = {w: presence for w, presence in have.workers.items() if not presence.draining}
    loads, weights, allowed = turn.status.loads, {}, {}
    for name, connector in state.connectors.items():
        able = able_workers(connector, workers)
        if able is not None:
            allowed[name] = able
    for task_id in wanted:
        weights[task_id] = weight(state.connectors[task_id.connector].kind, loads.get(task_id))
    capacity = {w: presence.capacity for w, presence in workers.items()}
    free = [task_id for task_id in wanted if task_id not in have.waiting]
    prepared = {w for w, presence in workers.items() if presence.prepared}
    sinks = {name for name, connector in state.connectors.items() if connector.kind == "sink"}
    facts = Facts(capacity, weights, allowed, prepared, sinks, level=_may_level(turn, workers))
    return assign(free, {**have.prefer, **have.holders}, list(workers), facts)


def _may_level(turn: Turn, workers: Mapping[str, Presence]) -> bool:
    members = [(w, presence.boot_id) for w, presence in workers.items()]
    crew = mustered(turn.lead.crew, members, turn.mono)
    turn.lead = replace(turn.lead, crew=crew)
    return may_level(crew, turn.settings.level_delay_s, turn.mono)


@dataclass(slots=True)
class _Plan:
    """What is given to whom, and the journal's lines about it."""

    batch: Batch
    have: Holdings
    given: dict[str, list[AssignedTask]] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    fenced: set[TaskId] = field(default_factory=set)
    """What was to be fenced before this decision: whoever gets it now was kept waiting by that."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes that each worker's tasks take in its one record, at most."""

    def give(self, wanted: list[TaskId], targets: Mapping[TaskId, str]) -> None:
        have = self.have
        for task_id in wanted:
            holder, target = have.holders.get(task_id), targets.get(task_id)
            if holder is not None and holder != target:
                have.revoke(holder, have.held[task_id], self._why_not(holder, task_id))
                if target is None:
                    self._move(task_id, "", have.causes[task_id], holder)
            elif target is not None and task_id not in have.blocked:
                self._give_one(task_id, target)
            elif holder is not None:
                self._keep(holder, have.held[task_id])

    def _give_one(self, task_id: TaskId, target: str) -> None:
        entry = self.have.held.get(task_id)
        if entry is not None and task_id not in self.have.outdated:
            self._keep(target, entry)
            return
        if self.sizes.get(target, 0) >= self.batch.turn.settings.record_bytes_max:
            logger.error("task waits for room in its worker's record task=%s worker=%s", task_id, target)
            return
        incarnation = self.batch.draft.connectors[task_id.connector].incarnation
        new = AssignedTask(task_id.connector, incarnation, task_id.task, self.batch.next_task_epoch())
        self._keep(target, new)
        source, why = self._history(task_id, entry is not None, target)
        self._move(task_id, target, why, source)

    def _keep(self, worker_id: str, entry: AssignedTask) -> None:
        self.given.setdefault(worker_id, []).append(entry)
        self.sizes[worker_id] = self.sizes.get(worker_id, ENTRY_BYTES) + ENTRY_BYTES + len(entry.connector.encode())

    def _history(self, task_id: TaskId, runs_there: bool, target: str) -> tuple[str, str]:
        """Who had it, and why it is given now."""
        if runs_there:
            return target, journal.NEW_SET
        if task_id in self.have.before:
            return self.have.before[task_id]
        status = self.batch.turn.status.tasks.get(task_id)
        why = journal.FENCED if task_id in self.fenced else journal.UNASSIGNED
        return (status.worker_id, why) if status else ("", journal.NEW_TASK)

    def _why_not(self, holder: str, task_id: TaskId) -> str:
        presence = self.have.workers[holder]
        if presence.draining:
            return journal.RESTART if presence.returns and task_id in self.have.waiting else journal.DRAIN
        return self.have.waiting.get(task_id, journal.BALANCE)

    def _move(self, task_id: TaskId, target: str, why: str, source: str) -> None:
        self.moves.append(Move(task_id.connector, task_id.task, source, target, why))

    def write_assignments(self) -> None:
        batch, have = self.batch, self.have
        for worker_id, presence in have.workers.items():
            old = batch.draft.assignments.get(worker_id)
            tasks = tuple(self.given.get(worker_id, ()))
            revoke = tuple(sorted(have.revoked.get(worker_id, ())))
            if not tasks and not revoke:
                if old is not None:
                    batch.add(tombstone(f"assignment/{worker_id}"))
            elif old is None or (old.boot_id, old.tasks, old.revoke) != (presence.boot_id, tasks, revoke):
                reason = "drain" if presence.draining else "balance" if revoke else "placed"
                causes = {str(entry.id): have.causes[entry.id] for entry in revoke}
                extra = old.extra if old is not None and old.boot_id == presence.boot_id else {}
                new = Assignment(presence.boot_id, tasks, revoke, reason, causes, extra)
                self._note_dropped(old, new, worker_id)
                batch.add(assignment_record(worker_id, new))

    def _note_dropped(self, old: Assignment | None, new: Assignment, worker_id: str) -> None:
        """Tasks that end for good have no next owner to write their line."""
        known = {*old.revoke} if old else set()
        for entry in new.revoke:
            if entry not in known and self.have.causes[entry.id] == journal.NO_LONGER_WANTED:
                self._move(entry.id, "", journal.NO_LONGER_WANTED, worker_id)

    def leave_to_fences(self, wanted: set[TaskId]) -> None:
        """Lost tasks that nobody gets now: what they left open would hold back readers, so it is ended."""
        batch, have = self.batch, self.have
        if not have.lost and not have.unclean:
            return
        owned = {entry.id for tasks in self.given.values() for entry in tasks} | have.blocked_by_living()
        left_open = {*have.lost, *have.unclean}
        nobody = {i for i in left_open if i not in owned and not fences.is_sink(batch.draft, i.connector)}
        fresh = nobody - fences.pending_of(batch.draft)
        if fresh:
            fences.to_do(batch, fresh)
        # Of these the line was to be the next owner's; of a dead worker's, who let them go, nothing more is known.
        awaited = (have.unclean & wanted & have.before.keys()) - have.waiting.keys()
        for task_id in sorted({i for i in (*have.lost, *awaited) if i not in owned}):
            source, why = have.before[task_id]
            self._move(task_id, "", why if task_id in wanted else journal.NO_LONGER_WANTED, source)
