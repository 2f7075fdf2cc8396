"""The herder's state machine: a pure function from (state, event, now) to (state, commands)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cdcworker.coordinator.core import (
    cleanup,
    events,
    fences,
    jobs,
    leader,
    leader_loss,
    lost_workers,
    membership,
    placement,
    status_reports,
    supervisor,
    task_sets,
)
from cdcworker.coordinator.core.herd_state import HerdSettings, HerdState, StateTransition
from cdcworker.coordinator.core.view import view
from cdcworker.coordinator.core.write_batch import WriteBatch
from cdcworker.coordinator.log.config_fold import fold_accepted
from cdcworker.coordinator.model import ClusterState, Presence

__all__ = ["HerdSettings", "HerdState", "initial", "step", "view"]


def initial(me: Presence, settings: HerdSettings | None = None) -> HerdState:
    """Returns the state of a worker that has read nothing yet. `me` carries a boot id that is unique to this
    process."""
    return HerdState(me, settings or HerdSettings())


def step(state: HerdState, event: events.Event, now: events.Now) -> tuple[HerdState, tuple[events.HerdCommand, ...]]:
    """Takes one event. At its start a driver sends ConfigRecords(replay), StatusRecords, Started, then events as they
    come.

    After the command Leave no request is answered and no task is started any more.
    """
    if state.left:
        return state, ()
    transition = StateTransition(state, now)
    _HANDLERS[type(event)](transition, event)
    if transition.started and not transition.left:
        if type(event) not in _OWN_TASK_EVENTS:
            _run_leader(transition, _needs_round(transition, event))
        if isinstance(event, events.TaskExited):
            supervisor.reconcile_one(transition, event.task.id)
            membership.leave_if_drained(transition)
        elif type(event) in _RECONCILING_EVENTS:
            _run_worker(transition)
    return transition.finish()


# --- events ---------------------------------------------------------------------------------------------------------


def _on_config(transition: StateTransition, event: events.ConfigRecords) -> None:
    base = ClusterState() if event.reset else transition.cluster
    transition.cluster, accepted = fold_accepted(base, event.records)
    leader.on_accepted_records(transition, accepted)
    lost_workers.track_deadlines(transition, None if event.reset else accepted)
    if transition.started and not event.replay and not event.reset:
        supervisor.execute_commands(transition, accepted)


def _on_status(transition: StateTransition, event: events.StatusRecords) -> None:
    membership.on_status(transition, event.records, reset=event.reset)
    status_reports.confirm_reports(transition, event.records)


def _on_started(transition: StateTransition, _event: events.Started) -> None:
    transition.started = True


def _on_probed(transition: StateTransition, event: events.WorkerProbed) -> None:
    membership.on_probed(transition, event)
    if transition.started:
        leader_loss.on_probed(transition, event)


def _on_nothing(_transition: StateTransition, _event: events.Event) -> None:
    """Does nothing: what follows from the event is done by the leader's and the worker's part."""


_HANDLERS: dict[type[Any], Callable[[StateTransition, Any], None]] = {
    events.ConfigRecords: _on_config,
    events.StatusRecords: _on_status,
    events.Started: _on_started,
    events.TermChanged: leader.on_term,
    events.Claimed: leader.on_claimed,
    events.ClaimFailed: leader.on_claim_failed,
    events.WriteDone: _on_nothing,
    events.WriteFailed: leader.on_write_failed,
    events.RequestArrived: leader.on_request,
    events.TasksPlanned: task_sets.on_planned,
    events.TaskReport: supervisor.on_report,
    events.TaskMeasured: supervisor.on_measured,
    events.TaskTopics: supervisor.on_topics,
    events.TaskExited: supervisor.on_exited,
    events.LeaseAcked: membership.on_lease_acked,
    events.FencesDone: fences.on_fences_done,
    events.WorkerProbed: _on_probed,
    events.DrainRequested: membership.on_drain,
    events.StandbyChanged: membership.on_standby,
    events.Tick: _on_nothing,
}
_OWN_TASK_EVENTS = (
    events.TaskReport,
    events.TaskMeasured,
    events.TaskTopics,
    events.TaskExited,
    events.LeaseAcked,
    events.StandbyChanged,
)
"""Events about own tasks. The leader's part learns of them through the status log, as for all workers' tasks."""
_RECONCILING_EVENTS = (events.ConfigRecords, events.Started, events.LeaseAcked, events.DrainRequested, events.Tick)
"""Events that may change what this worker runs; after all others the next tick reconciles."""


# --- the leader's and the worker's part -----------------------------------------------------------------------------


def _needs_round(transition: StateTransition, event: events.Event) -> bool:
    """Tells whether the leader needs a new round. Most events need none: ticks, leases and metrics."""
    if isinstance(event, events.Tick | events.WorkerProbed):
        return (
            transition.mono >= transition.lead.quiet_until or transition.live_workers() != transition.lead.quiet_workers
        )
    if isinstance(event, events.StatusRecords):
        return any(r.key.startswith("worker/") or (r.value or {}).get("state") == "STOPPED" for r in event.records)
    return True


def _run_leader(transition: StateTransition, needs_round: bool) -> None:
    leader.expire_requests(transition)
    leader.claim_if_due(transition)
    if not needs_round:
        return
    transition.lead = replace(transition.lead, quiet_until=min(transition.lead.quiet_until, transition.mono))
    if transition.lead.role != "leading" or transition.lead.inflight is not None:
        return
    if leader.has_used_up_task_epochs(transition):
        leader.step_down(transition, "task epochs used up")
        leader.claim_if_due(transition)
        return
    late_s = (
        transition.mono - transition.lead.round_due + transition.settings.burst_rounds * _round_interval_s(transition)
    )
    if late_s < 0.0 and not transition.lead.queue:
        return
    batch = WriteBatch(transition, transition.cluster)
    leader.decide_requests(transition, batch)
    if late_s >= (transition.settings.round_overdue_s if transition.lead.queue else 0.0):
        _run_round(transition, batch)
    else:  # a round checks every task: replies do not wait for it, and it follows once the queue is empty
        leader.send_batch(transition, batch)


def _run_round(transition: StateTransition, batch: WriteBatch) -> None:
    task_sets.plan_task_sets(transition, batch)
    placement.place_tasks(transition, batch)
    jobs.record_outcomes(transition, batch)
    cleanup.clean_config_log(transition, batch)
    leader.send_batch(transition, batch)
    cleanup.clean_status_log(transition)
    _schedule_next_round(transition, wrote=bool(batch.records))


def _schedule_next_round(transition: StateTransition, *, wrote: bool) -> None:
    """Sets when the next round is due if nothing changes: at once after a write, else when the next retry or expiry
    is."""
    settings, until = transition.settings, transition.mono
    if not wrote:
        until = min(
            transition.mono + settings.idle_round_pause_s,
            max(_next_due(transition), transition.mono + settings.round_pause_s),
        )
    due = max(transition.lead.round_due, transition.mono) + _round_interval_s(transition)
    transition.lead = replace(
        transition.lead, quiet_until=until, quiet_workers=transition.live_workers(), round_due=due
    )


def _round_interval_s(transition: StateTransition) -> float:
    """Returns the least average interval between two rounds; 0 in a small cluster."""
    settings, cluster = transition.settings, transition.cluster
    size = len(cluster.connectors) + sum(len(assignment.tasks) for assignment in cluster.assignments.values())
    return settings.round_s_per_task * size if size > settings.small_cluster else 0.0


def _next_due(transition: StateTransition) -> float:
    deadlines = (
        lost_workers.deadline_end(transition, key, deadline) for key, deadline in transition.cluster.deadlines.items()
    )
    resends = (at + cleanup.TOMBSTONE_RESEND_S for at in transition.lead.tombstones_sent.values())
    return min((task_sets.next_due(transition), fences.next_due(transition), *deadlines, *resends))


def _run_worker(transition: StateTransition) -> None:
    membership.announce(transition)
    if transition.left:
        return
    membership.renew(transition)
    membership.watch_lease(transition)
    membership.probe_silent(transition)
    leader_loss.watch(transition)
    supervisor.reconcile(transition)
    status_reports.report_metrics(transition)
    status_reports.resend_reports(transition)
    membership.leave_if_drained(transition)
