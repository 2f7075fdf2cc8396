"""The herd core: one pure function from (state, event, now) to (state, commands), and the view of a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cdcworker.coordinator import events as ev
from cdcworker.coordinator import (
    fences,
    jobs,
    leader,
    lost,
    membership,
    placement,
    probing,
    reports,
    supervisor,
    sweep,
    task_sets,
)
from cdcworker.coordinator.herd_state import HerdSettings, HerdState, Turn
from cdcworker.coordinator.model import ClusterState, Presence
from cdcworker.coordinator.picture import view
from cdcworker.coordinator.state import fold_taken

__all__ = ["HerdSettings", "HerdState", "initial", "step", "view"]


def initial(me: Presence, settings: HerdSettings | None = None) -> HerdState:
    """The state of a worker that has read nothing yet. `me` carries a boot id that is new for this process."""
    return HerdState(me, settings or HerdSettings())


def step(state: HerdState, event: ev.Event, now: ev.Now) -> tuple[HerdState, tuple[ev.HerdCommand, ...]]:
    """Take one event. Driver's order at start: ConfigRecords(replay), StatusRecords, Started, then events as they come.

    After the command Leave nothing is answered or started any more.
    """
    if state.left:
        return state, ()
    turn = Turn(state, now)
    _HANDLERS[type(event)](turn, event)
    if turn.started and not turn.left:
        if type(event) not in _LOCAL:
            _lead(turn, _is_news(turn, event))
        if isinstance(event, ev.TaskExited):
            supervisor.reconcile_one(turn, event.task.id)
            membership.leave_if_drained(turn)
        elif type(event) in _WORKER:
            _work(turn)
    return turn.finish()


# --- events ---------------------------------------------------------------------------------------------------------


def _on_config(turn: Turn, event: ev.ConfigRecords) -> None:
    base = ClusterState() if event.reset else turn.cluster
    turn.cluster, taken = fold_taken(base, event.records)
    leader.on_taken(turn, taken)
    lost.note_deadlines(turn, None if event.reset else taken)
    if turn.started and not event.replay and not event.reset:
        supervisor.execute_commands(turn, taken)


def _on_status(turn: Turn, event: ev.StatusRecords) -> None:
    membership.on_status(turn, event.records, reset=event.reset)
    reports.confirm_reports(turn, event.records)


def _on_started(turn: Turn, _event: ev.Started) -> None:
    turn.started = True


def _nothing(_turn: Turn, _event: ev.Event) -> None:
    """The passes after each event do all there is to do."""


_HANDLERS: dict[type[Any], Callable[[Turn, Any], None]] = {
    ev.ConfigRecords: _on_config,
    ev.StatusRecords: _on_status,
    ev.Started: _on_started,
    ev.TermChanged: leader.on_term,
    ev.Claimed: leader.on_claimed,
    ev.ClaimFailed: leader.on_claim_failed,
    ev.WriteDone: _nothing,
    ev.WriteFailed: leader.on_write_failed,
    ev.RequestArrived: leader.on_request,
    ev.TasksPlanned: task_sets.on_planned,
    ev.TaskReport: supervisor.on_report,
    ev.TaskTopics: supervisor.on_topics,
    ev.TaskExited: supervisor.on_exited,
    ev.LeaseAcked: membership.on_lease_acked,
    ev.FencesDone: fences.on_fences_done,
    ev.WorkerProbed: probing.on_probed,
    ev.DrainRequested: membership.on_drain,
    ev.StandbyChanged: membership.on_standby,
    ev.Tick: _nothing,
}
_LOCAL = (ev.TaskReport, ev.TaskTopics, ev.TaskExited, ev.LeaseAcked, ev.StandbyChanged)
"""Events about the own tasks: the leader hears of them through the status log, as it hears of everybody's."""
_WORKER = (ev.ConfigRecords, ev.Started, ev.LeaseAcked, ev.DrainRequested, ev.Tick)
"""Events that may change what this worker runs; the others leave it to the next tick."""


# --- passes ---------------------------------------------------------------------------------------------------------


def _is_news(turn: Turn, event: ev.Event) -> bool:
    """Whether a round of the leader may find something new; most events are ticks, leases and numbers."""
    if isinstance(event, ev.Tick | ev.WorkerProbed):
        return turn.mono >= turn.lead.rest_until or turn.live() != turn.lead.rest_live
    if isinstance(event, ev.StatusRecords):
        return any(r.key.startswith("worker/") or (r.value or {}).get("state") == "STOPPED" for r in event.records)
    return True


def _lead(turn: Turn, is_news: bool) -> None:
    leader.expire_requests(turn)
    leader.claim_if_due(turn)
    if not is_news:
        return
    turn.lead = replace(turn.lead, rest_until=min(turn.lead.rest_until, turn.mono))
    if turn.lead.role != "leading" or turn.lead.inflight is not None:
        return
    if leader.is_worn_out(turn):
        leader.step_down(turn, "task epochs used up")
        leader.claim_if_due(turn)
        return
    late_s = turn.mono - turn.lead.round_due + turn.settings.rounds_ahead * _gap(turn)
    if late_s < 0.0 and not turn.lead.queue:
        return
    batch = leader.Batch(turn, turn.cluster)
    leader.take_requests(turn, batch)
    if late_s >= (turn.settings.round_late_s if turn.lead.queue else 0.0):
        _round(turn, batch)
    else:  # a round looks at every task: answers do not wait for it, and what is still asked for is taken along
        leader.send(turn, batch)


def _round(turn: Turn, batch: leader.Batch) -> None:
    task_sets.plan_task_sets(turn, batch)
    placement.place_tasks(turn, batch)
    jobs.settle(turn, batch)
    sweep.sweep_config(turn, batch)
    leader.send(turn, batch)
    sweep.sweep_status(turn)
    _rest(turn, wrote=bool(batch.records))


def _rest(turn: Turn, *, wrote: bool) -> None:
    """When the next round is due without news: at once after a write, else when time alone changes something."""
    settings, until = turn.settings, turn.mono
    if not wrote:
        until = min(turn.mono + settings.idle_s, max(_next_due(turn), turn.mono + settings.rest_s))
    due = max(turn.lead.round_due, turn.mono) + _gap(turn)
    turn.lead = replace(turn.lead, rest_until=until, rest_live=turn.live(), round_due=due)


def _gap(turn: Turn) -> float:
    """Between two rounds in the long run."""
    settings, cluster = turn.settings, turn.cluster
    size = len(cluster.connectors) + sum(len(held.tasks) for held in cluster.assignments.values())
    return settings.round_s_per_task * size if size > settings.small_cluster else 0.0


def _next_due(turn: Turn) -> float:
    deadlines = (lost.ends_at(turn, what, deadline) for what, deadline in turn.cluster.deadlines.items())
    again = (at + sweep.SWEEP_AGAIN_S for at in turn.lead.sweeps.values())
    return min((task_sets.next_due(turn), fences.next_due(turn), *deadlines, *again))


def _work(turn: Turn) -> None:
    membership.announce(turn)
    if turn.left:
        return
    membership.renew(turn)
    membership.watch_lease(turn)
    probing.probe_silent(turn)
    supervisor.reconcile(turn)
    reports.report_numbers(turn)
    reports.resend_reports(turn)
    membership.leave_if_drained(turn)
