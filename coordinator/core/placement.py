"""The leader's rebalance decision: which worker runs which task, written together with its journal and fences."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cdcworker.coordinator.core import fences, lost_workers, rebalance_journal
from cdcworker.coordinator.core.assign import PlacementFacts, assign
from cdcworker.coordinator.core.herd_state import StateTransition
from cdcworker.coordinator.core.ownership import Ownership, collect_held_tasks
from cdcworker.coordinator.core.write_batch import WriteBatch
from cdcworker.coordinator.log.config_fold import assignment_record, task_set_of, tombstone
from cdcworker.coordinator.log.connections import connection_name
from cdcworker.coordinator.log.task_weight import weight
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Connector,
    Presence,
    TaskId,
    TaskMove,
)
from cdcworker.coordinator.versions import may_write

logger = logging.getLogger(__name__)

CONNECTOR_CLASS = "connector.class"
TRANSFORM: Final = "transform:"
"""Stands before the names of transforms in what a worker lists."""
CONVERTER: Final = "converter:"
"""Stands before the names of converters there."""
INSTALLED: Final = "=="
"""Stands between a distribution and its version where a plugin does not ship with the worker."""
_CONVERTERS: Final = frozenset(("key.converter", "value.converter"))
_TRANSFORM_TYPE: Final = re.compile(r"transforms\.[^.]+\.type")
ENTRY_BYTES = 128
"""The most bytes that a task takes in an assignment record besides its connector's name; also those of the record
itself."""


def place_tasks(transition: StateTransition, batch: WriteBatch) -> None:
    """Writes the assignments that change. Tasks of lost workers move at once; a running task is revoked before it
    moves."""
    ownership = Ownership(transition.live_workers())
    collect_held_tasks(transition, batch.draft, ownership)
    lost_workers.handle_lost_workers(transition, batch, ownership)
    fences.run_pending_fences(transition, batch, ownership)
    task_ids = _tasks_to_run(batch.draft)
    _block_lost_paused_sources(batch, ownership)
    targets = _targets(transition, batch.draft, ownership, task_ids)
    plan = _PlacementPlan(batch, ownership, fenced=fences.pending_fences(transition.cluster))
    plan.place(task_ids, targets)
    plan.write_assignments()
    plan.fence_unowned(set(task_ids))
    rebalance_journal.record_moves(batch, plan.moves)


def workers_with_plugin(connector: Connector, workers: Mapping[str, Presence]) -> Collection[str] | None:
    """Returns the workers that have the connector's plugin and those of its transforms, None for all. A worker that lists no plugins
    has all that ship with it. One of a version without connections has nothing for a connector that names one."""
    needed = _needed_plugins(connector.config, workers)
    able = {w for w, presence in workers.items() if all(_has(presence, *each) for each in needed.items())}
    if connection_name(connector.config):
        able = {w for w in able if may_write("connection", [workers[w]])}
    return None if len(able) == len(workers) else frozenset(able)


def _needed_plugins(config: Mapping[str, str], workers: Mapping[str, Presence]) -> Mapping[str, bool]:
    """Returns the names under which workers list what a config names, and whether each is of another distribution. Of transforms
    workers list only those."""
    name = config.get(CONNECTOR_CLASS, "").strip()
    needed = {name: _is_installed(name, workers)} if name else {}
    for key, value in config.items():
        kind = TRANSFORM if _TRANSFORM_TYPE.fullmatch(key) else CONVERTER if key in _CONVERTERS else ""
        if kind and _is_installed(named := kind + value.strip(), workers):
            needed[named] = True
    return needed


def _is_installed(name: str, workers: Mapping[str, Presence]) -> bool:
    return any(INSTALLED in presence.plugins.get(name, "") for presence in workers.values())


def _has(presence: Presence, name: str, is_installed: bool) -> bool:
    return name in presence.plugins or not (presence.plugins or is_installed)


def _tasks_to_run(state: ClusterState) -> list[TaskId]:
    return [
        TaskId(name, n)
        for name, connector in sorted(state.connectors.items())
        if connector.target_state != "STOPPED" and (tasks := task_set_of(state, name)) is not None
        for n in range(len(tasks.tasks))
    ]


def _block_lost_paused_sources(batch: WriteBatch, ownership: Ownership) -> None:
    """Blocks lost tasks of paused sources until they are fenced: a paused source opens no producer that would fence."""
    for task_id in (*ownership.lost, *ownership.unclean):
        connector = batch.draft.connectors.get(task_id.connector)
        if connector is not None and connector.kind == "source" and connector.target_state == "PAUSED":
            ownership.blocked.add(task_id)


def _targets(
    transition: StateTransition, state: ClusterState, ownership: Ownership, task_ids: list[TaskId]
) -> dict[TaskId, str]:
    workers = {w: presence for w, presence in ownership.workers.items() if not presence.draining}
    measured, weights, allowed = transition.status.weights, {}, {}
    for name, connector in state.connectors.items():
        able = workers_with_plugin(connector, workers)
        if able is not None:
            allowed[name] = able
    for task_id in task_ids:
        weights[task_id] = weight(state.connectors[task_id.connector].kind, measured.get(task_id))
    capacity = {w: presence.capacity for w, presence in workers.items()}
    free = [task_id for task_id in task_ids if task_id not in ownership.waiting]
    prepared = {w for w, presence in workers.items() if presence.prepared}
    sinks = {name for name, connector in state.connectors.items() if connector.kind == "sink"}
    facts = PlacementFacts(capacity, weights, allowed, prepared, sinks, may_balance=_may_balance(transition, workers))
    return assign(free, {**ownership.preferred, **ownership.holders}, list(workers), facts)


def _may_balance(transition: StateTransition, workers: Mapping[str, Presence]) -> bool:
    boots = [(worker_id, presence.boot_id) for worker_id, presence in workers.items()]
    members = transition.lead.members.updated(boots, transition.mono)
    transition.lead = replace(transition.lead, members=members)
    return members.may_balance(transition.settings.balance_delay_s, transition.mono)


@dataclass(slots=True)
class _PlacementPlan:
    """The new assignments and the moves for the journal."""

    batch: WriteBatch
    ownership: Ownership
    assigned: dict[str, list[AssignedTask]] = field(default_factory=dict)
    moves: list[TaskMove] = field(default_factory=list)
    fenced: set[TaskId] = field(default_factory=set)
    """Tasks whose fence was pending before this decision: that is why they had no owner."""
    sizes: dict[str, int] = field(default_factory=dict)
    """An upper bound for the bytes of each worker's assignment record."""

    def place(self, task_ids: list[TaskId], targets: Mapping[TaskId, str]) -> None:
        """Assigns each task to its target; one that runs elsewhere is revoked there first."""
        ownership = self.ownership
        for task_id in task_ids:
            holder, target = ownership.holders.get(task_id), targets.get(task_id)
            if holder is not None and holder != target:
                ownership.revoke(holder, ownership.held[task_id], self._revoke_cause(holder, task_id))
                if target is None:
                    self._journal_move(task_id, "", ownership.causes[task_id], holder)
            elif target is not None and task_id not in ownership.blocked:
                self._place_task(task_id, target)
            elif holder is not None:
                self._keep(holder, ownership.held[task_id])

    def _place_task(self, task_id: TaskId, target: str) -> None:
        entry = self.ownership.held.get(task_id)
        if entry is not None and task_id not in self.ownership.outdated:
            self._keep(target, entry)
            return
        if self.sizes.get(target, 0) >= self.batch.transition.settings.record_bytes_max:
            logger.error(
                "task stays unassigned, its worker's assignment record is full task=%s worker=%s", task_id, target
            )
            return
        incarnation = self.batch.draft.connectors[task_id.connector].incarnation
        new = AssignedTask(task_id.connector, incarnation, task_id.task, self.batch.next_task_epoch())
        self._keep(target, new)
        source, why = self._previous_owner(task_id, entry is not None, target)
        self._journal_move(task_id, target, why, source)

    def _keep(self, worker_id: str, entry: AssignedTask) -> None:
        self.assigned.setdefault(worker_id, []).append(entry)
        self.sizes[worker_id] = self.sizes.get(worker_id, ENTRY_BYTES) + ENTRY_BYTES + len(entry.connector.encode())

    def _previous_owner(self, task_id: TaskId, runs_there: bool, target: str) -> tuple[str, str]:
        """Returns the previous owner of a task and why it changes hands now."""
        if runs_there:
            return target, rebalance_journal.NEW_SET
        if task_id in self.ownership.previous:
            return self.ownership.previous[task_id]
        status = self.batch.transition.status.tasks.get(task_id)
        why = rebalance_journal.FENCED if task_id in self.fenced else rebalance_journal.UNASSIGNED
        return (status.worker_id, why) if status else ("", rebalance_journal.NEW_TASK)

    def _revoke_cause(self, holder: str, task_id: TaskId) -> str:
        presence = self.ownership.workers[holder]
        if presence.draining:
            return (
                rebalance_journal.RESTART
                if presence.returns and task_id in self.ownership.waiting
                else rebalance_journal.DRAIN
            )
        return self.ownership.waiting.get(task_id, rebalance_journal.BALANCE)

    def _journal_move(self, task_id: TaskId, target: str, why: str, source: str) -> None:
        self.moves.append(TaskMove(task_id.connector, task_id.task, source, target, why))

    def write_assignments(self) -> None:
        """Adds the assignments that have changed to the batch."""
        batch, ownership = self.batch, self.ownership
        for worker_id, presence in ownership.workers.items():
            old = batch.draft.assignments.get(worker_id)
            tasks = tuple(self.assigned.get(worker_id, ()))
            revoke = tuple(sorted(ownership.revoked.get(worker_id, ())))
            if not tasks and not revoke:
                if old is not None:
                    batch.add(tombstone(f"assignment/{worker_id}"))
            elif old is None or (old.boot_id, old.tasks, old.revoke) != (presence.boot_id, tasks, revoke):
                reason = "drain" if presence.draining else "balance" if revoke else "placed"
                causes = {str(entry.id): ownership.causes[entry.id] for entry in revoke}
                extra = old.extra if old is not None and old.boot_id == presence.boot_id else {}
                new = Assignment(presence.boot_id, tasks, revoke, reason, causes, extra)
                self._journal_dropped(old, new, worker_id)
                batch.add(assignment_record(worker_id, new))

    def _journal_dropped(self, old: Assignment | None, new: Assignment, worker_id: str) -> None:
        """Journals tasks that are stopped for good: no next owner will."""
        known = {*old.revoke} if old else set()
        for entry in new.revoke:
            if entry not in known and self.ownership.causes[entry.id] == rebalance_journal.NO_LONGER_WANTED:
                self._journal_move(entry.id, "", rebalance_journal.NO_LONGER_WANTED, worker_id)

    def fence_unowned(self, task_ids: set[TaskId]) -> None:
        """Records fences for lost tasks that get no new owner: their open transactions would block read_committed
        readers."""
        batch, ownership = self.batch, self.ownership
        if not ownership.lost and not ownership.unclean:
            return
        owned = {entry.id for tasks in self.assigned.values() for entry in tasks} | ownership.tasks_being_revoked()
        left_open = {*ownership.lost, *ownership.unclean}
        without_owner = {i for i in left_open if i not in owned and not fences.is_sink(batch.draft, i.connector)}
        unfenced = without_owner - fences.pending_fences(batch.draft)
        if unfenced:
            fences.record_fences(batch, unfenced)
        # Tasks that ended uncleanly would be journaled with their next owner, which they do not get now.
        awaited = (ownership.unclean & task_ids & ownership.previous.keys()) - ownership.waiting.keys()
        for task_id in sorted({i for i in (*ownership.lost, *awaited) if i not in owned}):
            source, why = ownership.previous[task_id]
            self._journal_move(task_id, "", why if task_id in task_ids else rebalance_journal.NO_LONGER_WANTED, source)
