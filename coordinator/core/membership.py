"""Membership: a worker's presence and lease, probes of silent workers, drain and leave."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core.events import (
    AnswerRequest,
    DrainRequested,
    LeaseAcked,
    Leave,
    ProbeWorker,
    RenewLease,
    RepeatTopics,
    StandbyChanged,
    StopProducing,
    WorkerProbed,
)
from cdcworker.coordinator.core.herd_state import StateTransition, WorkerProbe
from cdcworker.coordinator.core.leader import step_down
from cdcworker.coordinator.core.supervisor import is_drain_over, kill, own_assignment
from cdcworker.coordinator.log.config_fold import tombstone
from cdcworker.coordinator.log.status_fold import (
    LeaseReader,
    drop_absent_leases,
    fold_status,
    forget_statuses,
    lease_record,
    presence_record,
    silent_workers,
    topics_key,
)
from cdcworker.coordinator.model import Reply
from cdcworker.coordinator.versions import version_conflict
from cdcworker.schemas.errors import CdcError

logger = logging.getLogger(__name__)


def on_status(transition: StateTransition, records: Sequence[LogRecord], *, reset: bool = False) -> None:
    """Folds status records, and leaves when another process has announced itself under the own worker id."""
    me, settings = transition.me, transition.settings
    reader = LeaseReader(me.worker_id, me.boot_id, transition.mono, 3 * settings.lease_interval_s)
    status = fold_status(forget_statuses(transition.status) if reset else transition.status, records, reader)
    transition.status = drop_absent_leases(status) if reset else status
    _reset_topics(transition, records)
    own_key = f"worker/{me.worker_id}"
    if any(r.key == own_key and r.value is not None and r.value.get("boot_id") == me.boot_id for r in records):
        transition.work = replace(transition.work, presence_seen=True)
    present = transition.status.presence.get(me.worker_id)
    if transition.work.presence_seen and present is not None and present.boot_id != me.boot_id:
        logger.error("another process runs under this worker id, leaving worker=%s", me.worker_id)
        _kill_all(transition)
        _leave(transition, "superseded")


def _reset_topics(transition: StateTransition, records: Sequence[LogRecord]) -> None:
    """Forgets the topics that own tasks have reported and an operator has reset, and has the tasks name them again."""
    gone = {record.key for record in records if record.value is None}
    if not gone:
        return
    kept = {i: names for i, names in transition.work.topics.items() if topics_key(i) not in gone}
    transition.work = replace(transition.work, topics=kept)
    for i, local in transition.work.local.items():
        if topics_key(i) in gone and local.has_process:
            transition.emit(RepeatTopics(local.task))


def announce(transition: StateTransition) -> None:
    """Appends the own presence unless the log has it; a lapsed worker that comes back announces itself again."""
    work = transition.work
    if transition.status.presence.get(transition.me.worker_id) == transition.me or not _may_join(transition):
        return
    if work.announced_at is None or transition.mono - work.announced_at >= transition.settings.resend_s:
        transition.work = replace(work, announced_at=transition.mono)
        transition.append(presence_record(transition.me))


def _may_join(transition: StateTransition) -> bool:
    """Tells whether this version may join; called before the first announcement. Leaves when a live worker's cannot.

    A presence may belong to a worker that died long ago: only when its lease advances is it alive.
    """
    if transition.work.announced_at is not None:
        return True
    for other in transition.live_workers().values():
        error = version_conflict(transition.me, other) if other.worker_id != transition.me.worker_id else None
        if error is None:
            continue
        lease = transition.status.leases[other.worker_id]
        if lease.seen_s > 0.0:  # it has advanced since this process read the log
            logger.error("this version cannot join the cluster error=%s", error)
            _leave(transition, "version", error)
        return False
    return True


def renew(transition: StateTransition) -> None:
    """Renews the lease when it is due."""
    work = transition.work
    if transition.mono < work.lease_due:
        return
    count = work.lease_count + 1
    transition.work = replace(work, lease_count=count, lease_due=transition.mono + transition.settings.lease_interval_s)
    record = lease_record(transition.me.worker_id, transition.me.boot_id, count)
    transition.emit(RenewLease(replace(record, headers=transition.record_headers())))


def on_lease_acked(transition: StateTransition, event: LeaseAcked) -> None:
    """Takes the acknowledgement of a lease; tasks may produce again."""
    lease_acked = (
        event.sent_mono if transition.work.lease_acked is None else max(transition.work.lease_acked, event.sent_mono)
    )
    transition.work = replace(transition.work, lease_acked=lease_acked, producing_stopped=False)


def watch_lease(transition: StateTransition) -> None:
    """Stops own tasks from producing, then kills them, when no lease was acknowledged: the leader soon reassigns
    them."""
    acked = transition.work.lease_acked
    if acked is None:
        return
    age = transition.mono - acked
    if age >= transition.settings.stop_producing_after_s and not transition.work.producing_stopped:
        logger.warning("no acknowledged lease, tasks stop producing age_s=%.1f", age)
        transition.work = replace(transition.work, producing_stopped=True)
        transition.emit(StopProducing())
    if age >= transition.settings.kill_after_s:
        _kill_all(transition)


def _kill_all(transition: StateTransition) -> None:
    for _, local in sorted(transition.work.local.items()):
        if local.has_process and not local.killed:
            kill(transition, local)


# --- silent workers -------------------------------------------------------------------------------------------------


def probe_silent(transition: StateTransition) -> None:
    """Probes workers whose lease stopped advancing. Every worker does, so that the next leader knows the verdicts.

    A verdict only saves time. If a worker is falsely found gone, its tasks are fenced by their new owners (INV-5).
    """
    silent = silent_workers(transition.status, transition.settings.probe_after_s)
    probes = transition.work.probes
    if not silent and not probes:
        return
    probes_kept = {}
    for worker_id, presence in silent.items():
        lease = transition.status.leases[worker_id]
        if (
            worker_id == transition.me.worker_id
            or transition.status.lease_clock_s - lease.seen_s > transition.settings.session_timeout_s
        ):
            continue
        probe = probes.get(worker_id)
        if probe is None or probe.lease != lease or transition.mono >= probe.due:
            probe = WorkerProbe(lease, transition.mono + transition.settings.probe_answer_s)
            transition.emit(ProbeWorker(worker_id, presence.boot_id, presence.url))
        probes_kept[worker_id] = probe
    if probes_kept != probes:
        transition.work = replace(transition.work, probes=probes_kept)


def on_probed(transition: StateTransition, event: WorkerProbed) -> None:
    """Takes the verdict of a probe, unless the lease has advanced since: that is a newer sign of life."""
    probe, lease = transition.work.probes.get(event.worker_id), transition.status.leases.get(event.worker_id)
    if probe is None or lease is None or lease != probe.lease or lease.boot_id != event.boot_id:
        return
    if event.verdict == "gone":
        logger.warning("worker probed gone worker=%s boot=%s", event.worker_id, event.boot_id)
        transition.status = replace(
            transition.status, probed_gone={**transition.status.probed_gone, event.worker_id: lease}
        )
    probe = replace(probe, due=transition.mono + transition.settings.probe_every_s)
    transition.work = replace(transition.work, probes={**transition.work.probes, event.worker_id: probe})


# --- drain ----------------------------------------------------------------------------------------------------------


def on_drain(transition: StateTransition, event: DrainRequested) -> None:
    """Announces the drain, so that the leader moves this worker's tasks."""
    if transition.work.drain_until is not None:
        return
    transition.me = replace(transition.me, draining=True, returns=event.returns)
    transition.work = replace(
        transition.work, drain_until=transition.mono + transition.settings.drain_timeout_s, announced_at=transition.mono
    )
    if transition.started:
        transition.append(presence_record(transition.me))


def on_standby(transition: StateTransition, event: StandbyChanged) -> None:
    """Announces whether a warm standby is ready: the leader prefers such workers for sink tasks."""
    transition.me = replace(transition.me, prepared=event.ready)


def leave_if_drained(transition: StateTransition) -> None:
    """Leaves when all tasks are handed over, or when the time for the drain is up and no process is left."""
    if transition.work.drain_until is None or any(local.has_process for local in transition.work.local.values()):
        return
    assignment = own_assignment(transition)
    is_empty = assignment is None or not (assignment.tasks or assignment.revoke)
    if is_drain_over(transition) or (is_empty and transition.lead.inflight is None):
        for kind in ("worker", "lease"):
            transition.append(tombstone(f"{kind}/{transition.me.worker_id}"))
        _leave(transition, "drained")


def _leave(transition: StateTransition, reason: str, error: CdcError | None = None) -> None:
    step_down(transition, reason)
    for request_id in transition.lead.waiting:
        transition.emit(AnswerRequest(request_id, Reply("timeout", detail=reason)))
    transition.lead = replace(transition.lead, waiting={})
    transition.left = True
    transition.emit(Leave(reason, error.to_dict() if error else None))
