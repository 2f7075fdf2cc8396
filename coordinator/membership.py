"""The worker's place in the cluster: presence, lease, what happens without one, drain and leave."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.events import (
    Answer,
    DrainRequested,
    LeaseAcked,
    Leave,
    RenewLease,
    StandbyChanged,
    StopProducing,
)
from cdcworker.coordinator.herd_state import Turn
from cdcworker.coordinator.leader import step_down
from cdcworker.coordinator.model import Reply, TaskId
from cdcworker.coordinator.state import tombstone
from cdcworker.coordinator.status import Judge, fold_status, forget, lease_record, presence_record, settle, topics_key
from cdcworker.coordinator.supervisor import is_drain_over, kill, own_assignment
from cdcworker.coordinator.versions import clash
from cdcworker.schemas.errors import CdcError

logger = logging.getLogger(__name__)


def on_status(turn: Turn, records: Sequence[Record], *, reset: bool = False) -> None:
    """Fold, and look whether another process announced itself under the own worker id."""
    me, settings = turn.me, turn.settings
    judge = Judge(me.worker_id, me.boot_id, turn.mono, 3 * settings.lease_interval_s)
    folded = fold_status(forget(turn.status) if reset else turn.status, records, judge)
    turn.status = settle(folded) if reset else folded
    turn.work = replace(turn.work, topics=_not_reset(turn.work.topics, records))
    own_key = f"worker/{me.worker_id}"
    if any(r.key == own_key and r.value is not None and r.value.get("boot_id") == me.boot_id for r in records):
        turn.work = replace(turn.work, seen=True)
    present = turn.status.presence.get(me.worker_id)
    if turn.work.seen and present is not None and present.boot_id != me.boot_id:
        logger.error("another process runs under this worker id worker=%s", me.worker_id)
        _kill_all(turn)
        _leave(turn, "superseded")


def _not_reset(topics: Mapping[TaskId, frozenset[str]], records: Sequence[Record]) -> Mapping[TaskId, frozenset[str]]:
    """Topics that own tasks have reported, without those whose record somebody has removed since."""
    gone = {record.key for record in records if record.value is None}
    return {i: names for i, names in topics.items() if topics_key(i) not in gone} if gone else topics


def announce(turn: Turn) -> None:
    """Write the own presence unless the log shows it; a lapsed worker that comes back announces itself again."""
    work = turn.work
    if turn.status.presence.get(turn.me.worker_id) == turn.me or not _may_join(turn):
        return
    if work.announced is None or turn.mono - work.announced >= turn.settings.resend_s:
        turn.work = replace(work, announced=turn.mono)
        turn.append(presence_record(turn.me))


def _may_join(turn: Turn) -> bool:
    """Before the first announcement: versions that cannot share a cluster are told apart by who is really there.

    A presence may be of a worker that died long ago: its lease advances, or lapses.
    """
    if turn.work.announced is not None:
        return True
    for other in turn.live().values():
        error = clash(turn.me, other) if other.worker_id != turn.me.worker_id else None
        if error is None:
            continue
        lease = turn.status.leases[other.worker_id]
        if lease.seen_s > 0.0:  # it advanced since this process read the log
            logger.error("this version does not fit error=%s", error)
            _leave(turn, "version", error)
        return False
    return True


def renew(turn: Turn) -> None:
    work = turn.work
    if turn.mono < work.lease_due:
        return
    count = work.leases + 1
    turn.work = replace(work, leases=count, lease_due=turn.mono + turn.settings.lease_interval_s)
    record = lease_record(turn.me.worker_id, turn.me.boot_id, count)
    turn.emit(RenewLease(replace(record, headers=turn.stamp())))


def on_lease_acked(turn: Turn, event: LeaseAcked) -> None:
    acked = event.sent_mono if turn.work.acked is None else max(turn.work.acked, event.sent_mono)
    turn.work = replace(turn.work, acked=acked, muted=False)


def watch_lease(turn: Turn) -> None:
    """Without an acknowledged lease the leader soon gives our tasks to others: be silent first, then be gone."""
    acked = turn.work.acked
    if acked is None:
        return
    age = turn.mono - acked
    if age >= turn.settings.mute_after_s and not turn.work.muted:
        logger.warning("no acknowledged lease, tasks stop producing age_s=%.1f", age)
        turn.work = replace(turn.work, muted=True)
        turn.emit(StopProducing())
    if age >= turn.settings.kill_after_s:
        _kill_all(turn)


def _kill_all(turn: Turn) -> None:
    for _, local in sorted(turn.work.local.items()):
        if local.has_process and not local.killed:
            kill(turn, local)


# --- drain ----------------------------------------------------------------------------------------------------------


def on_drain(turn: Turn, event: DrainRequested) -> None:
    if turn.work.drain_until is not None:
        return
    turn.me = replace(turn.me, draining=True, returns=event.returns)
    turn.work = replace(turn.work, drain_until=turn.mono + turn.settings.drain_timeout_s, announced=turn.mono)
    if turn.started:
        turn.append(presence_record(turn.me))


def on_standby(turn: Turn, event: StandbyChanged) -> None:
    """Tells the leader, which gives sinks to whoever has one ready."""
    turn.me = replace(turn.me, prepared=event.ready)


def leave_if_drained(turn: Turn) -> None:
    """Leave when all tasks are handed over, or when the time for that is up and no process is left."""
    if turn.work.drain_until is None or any(local.has_process for local in turn.work.local.values()):
        return
    assignment = own_assignment(turn)
    is_empty = assignment is None or not (assignment.tasks or assignment.revoke)
    if is_drain_over(turn) or (is_empty and turn.lead.inflight is None):
        for key in ("worker", "lease"):
            turn.append(tombstone(f"{key}/{turn.me.worker_id}"))
        _leave(turn, "drained")


def _leave(turn: Turn, reason: str, error: CdcError | None = None) -> None:
    step_down(turn, reason)
    for request_id in turn.lead.waiting:
        turn.emit(Answer(request_id, Reply("timeout", detail=reason)))
    turn.lead = replace(turn.lead, waiting={})
    turn.left = True
    turn.emit(Leave(reason, error.to_dict() if error else None))
