"""Garbage collection by the leader: stale and expired records of the config log, lost workers' and tasks' statuses."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator.core import fences
from cdcworker.coordinator.core.herd_state import StateTransition
from cdcworker.coordinator.core.write_batch import WriteBatch
from cdcworker.coordinator.log.config_fold import current_record, task_set_of, tombstone
from cdcworker.coordinator.log.status_fold import former_topics_key, task_key, topics_key

TOMBSTONE_RESEND_S = 5.0
"""A tombstone of the status log that was not read back after this is appended again."""


def clean_config_log(transition: StateTransition, batch: WriteBatch) -> None:
    """Rewrites keys that hold a record of an older leader epoch, and removes expired commands."""
    for key in sorted(batch.draft.stale_keys):
        batch.add(current_record(batch.draft, key))
    for command in sorted(batch.draft.commands.values(), key=lambda c: c.id):
        if command.expires_ms < transition.now.wall_ms:
            batch.add(tombstone(f"command/{command.id}"))
    fences.remove_finished(batch)


def clean_status_log(transition: StateTransition) -> None:
    """Deletes the presence of lost workers whose tasks have moved, and the statuses of tasks that no longer exist."""
    keys = _lapsed_workers(transition) | _deleted_tasks(transition)
    due = {
        key
        for key in keys
        if transition.mono - transition.lead.tombstones_sent.get(key, -TOMBSTONE_RESEND_S) >= TOMBSTONE_RESEND_S
    }
    tombstones_sent = {key: transition.mono if key in due else transition.lead.tombstones_sent[key] for key in keys}
    transition.lead = replace(transition.lead, tombstones_sent=tombstones_sent)
    for key in sorted(due):
        transition.append(tombstone(key))


def _lapsed_workers(transition: StateTransition) -> set[str]:
    status, me = transition.status, transition.me.worker_id
    gone = status.presence.keys() - transition.live_workers().keys() - transition.cluster.assignments.keys()
    # A lease without a presence belongs to a starting worker, unless it has lapsed. Old ids would fill the log.
    lapsed = {
        worker_id
        for worker_id in status.leases.keys() - status.presence.keys()
        if status.lease_clock_s - status.leases[worker_id].seen_s > transition.settings.session_timeout_s
    }
    return {f"worker/{i}" for i in gone if i != me} | {f"lease/{i}" for i in (gone | lapsed) if i != me}


def _deleted_tasks(transition: StateTransition) -> set[str]:
    assigned = {e.id for a in transition.cluster.assignments.values() for e in (*a.tasks, *a.revoke)}
    keys = set()
    counts: dict[str, int] = {}
    for task_id in transition.status.tasks:
        name = task_id.connector
        if name not in counts:
            tasks = task_set_of(transition.cluster, name)
            counts[name] = len(tasks.tasks) if tasks else 0
        if task_id.task >= counts[name] and task_id not in assigned:
            keys.add(task_key(task_id))
    status, connectors = transition.status, transition.cluster.connectors
    keys |= {topics_key(task_id) for task_id in status.topics if task_id.connector not in connectors}
    keys |= {former_topics_key(task_id) for task_id in status.former_topics if task_id.connector not in connectors}
    return keys
