"""Sweeping up: keys at which a stale record was seen, what expired, what the status log says of those who are gone."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator import fences
from cdcworker.coordinator.herd_state import Turn
from cdcworker.coordinator.leader import Batch
from cdcworker.coordinator.state import current_record, task_set_of, tombstone
from cdcworker.coordinator.status import task_key, topics_key

SWEEP_AGAIN_S = 5.0
"""A tombstone that has not shown its effect after this is appended again."""


def sweep_config(turn: Turn, batch: Batch) -> None:
    """Rewrite keys at which a stale record was seen, drop expired commands."""
    for key in sorted(batch.draft.stale_keys):
        batch.add(current_record(batch.draft, key))
    for command in sorted(batch.draft.commands.values(), key=lambda c: c.id):
        if command.expires_ms < turn.now.wall_ms:
            batch.add(tombstone(f"command/{command.id}"))
    fences.sweep_fenced(batch)


def sweep_status(turn: Turn) -> None:
    """Delete presence of workers whose lease lapsed and whose work has moved, and reports of tasks that are no more."""
    keys = _dead_workers(turn) | _gone_tasks(turn)
    due = {key for key in keys if turn.mono - turn.lead.sweeps.get(key, -SWEEP_AGAIN_S) >= SWEEP_AGAIN_S}
    sweeps = {key: turn.mono if key in due else turn.lead.sweeps[key] for key in keys}
    turn.lead = replace(turn.lead, sweeps=sweeps)
    for key in sorted(due):
        turn.append(tombstone(key))


def _dead_workers(turn: Turn) -> set[str]:
    status, me = turn.status, turn.me.worker_id
    gone = status.presence.keys() - turn.live().keys() - turn.cluster.assignments.keys()
    # A lease without a presence: of one that starts, unless it has lapsed. Ids that never come back would fill the log.
    lapsed = {
        worker_id
        for worker_id in status.leases.keys() - status.presence.keys()
        if status.clock_s - status.leases[worker_id].seen_s > turn.settings.session_timeout_s
    }
    return {f"worker/{i}" for i in gone if i != me} | {f"lease/{i}" for i in (gone | lapsed) if i != me}


def _gone_tasks(turn: Turn) -> set[str]:
    assigned = {e.id for a in turn.cluster.assignments.values() for e in (*a.tasks, *a.revoke)}
    keys = set()
    counts: dict[str, int] = {}
    for task_id in turn.status.tasks:
        name = task_id.connector
        if name not in counts:
            tasks = task_set_of(turn.cluster, name)
            counts[name] = len(tasks.tasks) if tasks else 0
        if task_id.task >= counts[name] and task_id not in assigned:
            keys.add(task_key(task_id))
    for task_id in turn.status.topics:
        if task_id.connector not in turn.cluster.connectors:
            keys.add(topics_key(task_id))
    return keys
