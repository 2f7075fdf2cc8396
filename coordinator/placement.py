"""The leader's round: task sets that fit their connectors, tasks on live workers, and the sweeping up after both."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cdcworker.coordinator.assign import assign
from cdcworker.coordinator.events import FenceIds, FencesDone, PlanTasks, TasksPlanned
from cdcworker.coordinator.herd_state import Fence, PlanJob, Turn
from cdcworker.coordinator.leader import Batch
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, Presence, TaskId, TaskSet
from cdcworker.coordinator.state import (
    assignment_record,
    config_version,
    current_record,
    is_wanted,
    task_set_of,
    task_set_record,
    tombstone,
)
from cdcworker.coordinator.status import task_key, topics_key

logger = logging.getLogger(__name__)

SWEEP_AGAIN_S = 5.0
"""A tombstone that has not shown its effect after this is appended again."""
_UNPLANNED = 0
"""The config version of a task set that no split has made: a stopped connector's, or one that could not be split yet."""


# --- task sets ------------------------------------------------------------------------------------------------------


def on_planned(turn: Turn, event: TasksPlanned) -> None:
    """Keep the answer of a split that was asked for, or another split of the same config (topics came or went)."""
    job = turn.lead.jobs.get(event.connector)
    expected = (job.incarnation, job.config_version) == (event.incarnation, event.config_version) if job else None
    if expected or (expected is None and event.error is None):
        turn.lead = replace(turn.lead, planned={**turn.lead.planned, event.connector: event})


def plan_task_sets(turn: Turn, batch: Batch) -> None:
    """Bring every connector's task set in line with its config and target state, or ask for the split it needs."""
    for name, connector in sorted(batch.draft.connectors.items()):
        tasks = task_set_of(batch.draft, name)
        if connector.target_state == "STOPPED":
            if tasks is None or tasks.tasks or tasks.error or tasks.config_version != _UNPLANNED:
                _write_set(batch, connector, TaskSet(connector.incarnation, _UNPLANNED, ()))
        elif tasks is None or tasks.config_version != config_version(connector):
            _split(turn, batch, connector, tasks)
        elif name in turn.lead.planned:
            _take_other_split(turn, batch, connector, tasks)
    for name in sorted(batch.draft.task_sets.keys() - batch.draft.connectors.keys()):
        batch.add(tombstone(f"tasks/{name}"))
    _forget_jobs(turn, batch)


def _split(turn: Turn, batch: Batch, connector: Connector, tasks: TaskSet | None) -> None:
    name, version = connector.name, config_version(connector)
    job = turn.lead.jobs.get(name)
    if job and (job.incarnation, job.config_version) != (connector.incarnation, version):
        job = None
    answer = turn.lead.planned.get(name) if job else None
    if job and answer:
        _take_answer(turn, batch, connector, tasks)
    elif job is None or turn.mono >= job.due or (tasks is None and not job.asked):
        due, failures = turn.mono + turn.settings.plan_timeout_s, job.failures if job else 0
        _set_job(turn, name, PlanJob(connector.incarnation, version, due, failures))
        turn.emit(PlanTasks(connector, version))


def _take_answer(turn: Turn, batch: Batch, connector: Connector, tasks: TaskSet | None) -> None:
    name, version = connector.name, config_version(connector)
    job, answer = turn.lead.jobs[name], turn.lead.planned[name]
    turn.lead = replace(turn.lead, planned={n: p for n, p in turn.lead.planned.items() if n != name})
    if answer.error is None:
        _write_set(batch, connector, TaskSet(connector.incarnation, version, answer.tasks))
    elif answer.error.get("kind") != "transient":
        _write_set(batch, connector, TaskSet(connector.incarnation, version, (), answer.error))
    else:
        delay = min(turn.settings.backoff_min_s * 2**job.failures, turn.settings.backoff_max_s)
        retry = replace(job, due=turn.mono + delay, failures=min(job.failures + 1, 16), asked=False)
        _set_job(turn, name, retry)
        kept = tasks or TaskSet(connector.incarnation, _UNPLANNED, ())
        if kept.error is None or kept.error.get("code") != answer.error.get("code"):
            batch.add(task_set_record(name, replace(kept, error=answer.error)))


def _take_other_split(turn: Turn, batch: Batch, connector: Connector, tasks: TaskSet) -> None:
    answer = turn.lead.planned[connector.name]
    turn.lead = replace(turn.lead, planned={n: p for n, p in turn.lead.planned.items() if n != connector.name})
    is_current = (answer.incarnation, answer.config_version) == (tasks.incarnation, tasks.config_version)
    if is_current and answer.error is None and (answer.tasks != tasks.tasks or tasks.error is not None):
        _write_set(batch, connector, TaskSet(connector.incarnation, answer.config_version, answer.tasks))


def _write_set(batch: Batch, connector: Connector, tasks: TaskSet) -> None:
    batch.add(task_set_record(connector.name, replace(tasks, task_epoch=batch.next_task_epoch())))


def _set_job(turn: Turn, name: str, job: PlanJob) -> None:
    planned = {n: p for n, p in turn.lead.planned.items() if n != name}
    turn.lead = replace(turn.lead, jobs={**turn.lead.jobs, name: job}, planned=planned)


def _forget_jobs(turn: Turn, batch: Batch) -> None:
    """Jobs whose connector is gone, stopped or done."""
    kept = {}
    for name, job in turn.lead.jobs.items():
        connector, tasks = batch.draft.connectors.get(name), task_set_of(batch.draft, name)
        done = tasks is not None and tasks.config_version == job.config_version
        if connector is not None and connector.target_state != "STOPPED" and not done:
            kept[name] = job
    turn.lead = replace(turn.lead, jobs=kept)


# --- assignment -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Holdings:
    """Who has what, from the assignments of live workers."""

    workers: Mapping[str, Presence]
    holders: dict[TaskId, str] = field(default_factory=dict)
    held: dict[TaskId, AssignedTask] = field(default_factory=dict)
    revoked: dict[str, list[AssignedTask]] = field(default_factory=dict)
    blocked: set[TaskId] = field(default_factory=set)
    """Tasks that somebody may still run: given to nobody until reported stopped, or fenced."""
    closed: set[str] = field(default_factory=set)
    """Workers whose assignment still is that of a dead process with fences outstanding."""


def place_tasks(turn: Turn, batch: Batch) -> None:
    """Write the assignments that differ: lost tasks move, a task that has to change hands is revoked first."""
    live = turn.live()
    have = _Holdings(live)
    _bury_the_dead(turn, batch, have)
    for worker_id, assignment in sorted(batch.draft.assignments.items()):
        if worker_id in live and worker_id not in have.closed:
            _count(turn, batch, have, worker_id, assignment)
    wanted = [
        TaskId(name, n)
        for name, connector in batch.draft.connectors.items()
        if connector.target_state != "STOPPED" and (tasks := task_set_of(batch.draft, name)) is not None
        for n in range(len(tasks.tasks))
    ]
    targets = assign(wanted, have.holders, [w for w, presence in live.items() if not presence.draining])
    _write_assignments(batch, have, _give(batch, have, wanted, targets))


def _bury_the_dead(turn: Turn, batch: Batch, have: _Holdings) -> None:
    """Fence what dead processes ran, all at once; their assignments go when that is done or took too long."""
    lost: dict[str, list[TaskId]] = {}
    for worker_id, assignment in batch.draft.assignments.items():
        presence = have.workers.get(worker_id)
        if presence is None or presence.boot_id != assignment.boot_id:
            entries = (*assignment.tasks, *assignment.revoke)
            lost[worker_id] = sorted({e.id for e in entries if not _is_released(turn, e)})
    ids = {task_id for held in lost.values() for task_id in held if not _is_sink(batch, task_id)}
    fences = {task_id: fence for task_id, fence in turn.lead.fences.items() if task_id in ids}
    fresh = sorted(ids - fences.keys())
    if fresh:
        logger.info("fencing lost tasks count=%d workers=%s", len(fresh), ",".join(sorted(lost)))
        turn.emit(FenceIds(tuple(fresh)))
        fences |= {task_id: Fence(turn.mono) for task_id in fresh}
    turn.lead = replace(turn.lead, fences=fences)
    for worker_id, held in sorted(lost.items()):
        if all(_is_fenced(turn, task_id) for task_id in held if task_id in ids):
            batch.add(tombstone(f"assignment/{worker_id}"))
        else:
            have.closed.add(worker_id)
            have.blocked.update(held)


def on_fences_done(turn: Turn, event: FencesDone) -> None:
    fences = {i: replace(f, done=True) if i in event.tasks else f for i, f in turn.lead.fences.items()}
    turn.lead = replace(turn.lead, fences=fences)


def _is_fenced(turn: Turn, task_id: TaskId) -> bool:
    fence = turn.lead.fences[task_id]
    return fence.done or turn.mono - fence.asked >= turn.settings.fence_wait_s


def _is_sink(batch: Batch, task_id: TaskId) -> bool:
    """Sinks have no transactional id; a connector that is gone may have been a source."""
    connector = batch.draft.connectors.get(task_id.connector)
    return connector is not None and connector.kind == "sink"


def _is_released(turn: Turn, entry: AssignedTask) -> bool:
    """Its worker reported it stopped, or a later owner exists."""
    status = turn.status.tasks.get(entry.id)
    if status is None:
        return False
    return status.task_epoch > entry.task_epoch or (status.task_epoch == entry.task_epoch and status.state == "STOPPED")


def _count(turn: Turn, batch: Batch, have: _Holdings, worker_id: str, assignment: Assignment) -> None:
    revoked = have.revoked.setdefault(worker_id, [])
    for entry in (*assignment.tasks, *assignment.revoke):
        if _is_released(turn, entry):
            continue
        tasks = task_set_of(batch.draft, entry.connector)
        is_held = entry in assignment.tasks and tasks is not None and entry.task < len(tasks.tasks)
        other = have.held.get(entry.id)
        if is_held and other is None:
            have.holders[entry.id], have.held[entry.id] = worker_id, entry
        else:
            revoked.append(entry)
            have.blocked.add(entry.id)


def _give(
    batch: Batch, have: _Holdings, wanted: list[TaskId], targets: Mapping[TaskId, str]
) -> dict[str, list[AssignedTask]]:
    given: dict[str, list[AssignedTask]] = {}
    for task_id in sorted(wanted):
        holder, target = have.holders.get(task_id), targets.get(task_id)
        if holder is not None and holder != target:
            have.revoked[holder].append(have.held[task_id])
        elif target is not None and task_id not in have.blocked and target not in have.closed:
            entry = have.held.get(task_id)
            if entry is None or not is_wanted(batch.draft, entry):
                entry = _new_entry(batch, task_id)
            given.setdefault(target, []).append(entry)
        elif holder is not None:
            given.setdefault(holder, []).append(have.held[task_id])
    return given


def _new_entry(batch: Batch, task_id: TaskId) -> AssignedTask:
    incarnation = batch.draft.connectors[task_id.connector].incarnation
    return AssignedTask(task_id.connector, incarnation, task_id.task, batch.next_task_epoch())


def _write_assignments(batch: Batch, have: _Holdings, given: Mapping[str, list[AssignedTask]]) -> None:
    for worker_id, presence in have.workers.items():
        if worker_id in have.closed:
            continue
        old = batch.draft.assignments.get(worker_id)
        tasks, revoke = tuple(given.get(worker_id, ())), tuple(sorted(have.revoked.get(worker_id, ())))
        if not tasks and not revoke:
            if old is not None:
                batch.add(tombstone(f"assignment/{worker_id}"))
        elif old is None or (old.boot_id, old.tasks, old.revoke) != (presence.boot_id, tasks, revoke):
            reason = "drain" if presence.draining else "balance" if revoke else "placed"
            batch.add(assignment_record(worker_id, Assignment(presence.boot_id, tasks, revoke, reason)))


# --- sweeping -------------------------------------------------------------------------------------------------------


def sweep_config(turn: Turn, batch: Batch) -> None:
    """Rewrite keys at which a stale record was seen, drop expired commands."""
    for key in sorted(batch.draft.stale_keys):
        batch.add(current_record(batch.draft, key))
    for command in sorted(batch.draft.commands.values(), key=lambda c: c.id):
        if command.expires_ms < turn.now.wall_ms:
            batch.add(tombstone(f"command/{command.id}"))


def sweep_status(turn: Turn) -> None:
    """Delete presence of workers whose lease lapsed and whose work has moved, and reports of tasks that are no more."""
    keys = _dead_workers(turn) | _gone_tasks(turn)
    due = {key for key in keys if turn.mono - turn.lead.sweeps.get(key, -SWEEP_AGAIN_S) >= SWEEP_AGAIN_S}
    sweeps = {key: turn.mono if key in due else turn.lead.sweeps[key] for key in keys}
    turn.lead = replace(turn.lead, sweeps=sweeps)
    for key in sorted(due):
        turn.append(tombstone(key))


def _dead_workers(turn: Turn) -> set[str]:
    gone = turn.status.presence.keys() - turn.live().keys() - turn.cluster.assignments.keys()
    return {f"worker/{worker_id}" for worker_id in gone if worker_id != turn.me.worker_id}


def _gone_tasks(turn: Turn) -> set[str]:
    assigned = {e.id for a in turn.cluster.assignments.values() for e in (*a.tasks, *a.revoke)}
    keys = set()
    for task_id in turn.status.tasks:
        if task_id not in assigned and not _exists(turn, task_id):
            keys.add(task_key(task_id))
    for task_id in turn.status.topics:
        if task_id.connector not in turn.cluster.connectors:
            keys.add(topics_key(task_id))
    return keys


def _exists(turn: Turn, task_id: TaskId) -> bool:
    tasks = task_set_of(turn.cluster, task_id.connector)
    return tasks is not None and task_id.task < len(tasks.tasks)
