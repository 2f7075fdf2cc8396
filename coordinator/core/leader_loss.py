"""The loss of the leader: when a follower takes a leader whose process is gone out of the election.

A dead leader keeps its place in the election until its session ends, and nobody leads so long. A follower ends that
place earlier when two signs that share no path both say that the process is gone:

1. The log: its lease has not advanced for three intervals, or another process has announced itself under its worker id.
2. Its address: a connection was refused twice, or another process answered.

A leader that is stopped or slow misses the second sign, one that a single follower cannot reach the first. Both signs
may still be wrong at the same time. That costs a change of leader and nothing else: to the broker a place that was
ended is like a session that ended, so the proof of a leader that was taken out is refused (INV-6).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cdcworker.coordinator.core.events import ProbeWorker, RemoveLeader, WorkerProbed
from cdcworker.coordinator.core.herd_state import LeaderLoss, StateTransition, Suspect
from cdcworker.coordinator.model import Leader

logger = logging.getLogger(__name__)

ASKS_MAX = 3
"""How often one worker asks for the end of one leader's place; after that the session ends it (INV-10)."""
ASK_AGAIN_S = 1.0
"""The pause before the second time; it doubles."""
TURN_S = 0.5
"""The pause between the followers: one asks, and the next one only if that did not help."""
TURNS_MAX = 4
DOUBLINGS_MAX = 6
"""How often the pause after a mistake doubles: from one session to 64."""


def watch(transition: StateTransition) -> None:
    """Asks for the end of the leader's place when both signs say that its process is gone."""
    loss = _reviewed(transition, _changed(transition, transition.work.leader_loss))
    leader = _watched_leader(transition)
    if leader is not None:
        loss = _probe_replaced(transition, _observed(transition, loss, leader), leader)
        if _is_silent(transition, loss, leader) and _is_unreachable(transition, loss, leader):
            loss = _ask_if_due(transition, _judged(transition, loss, leader), leader)
    if loss != transition.work.leader_loss:
        transition.work = replace(transition.work, leader_loss=loss)


def on_probed(transition: StateTransition, event: WorkerProbed) -> None:
    """Takes the verdict about a leader that another process has replaced under its worker id, and judges at once."""
    leader, loss = transition.cluster.leader, transition.work.leader_loss
    is_leader = leader is not None and (leader.worker_id, leader.boot_id) == (event.worker_id, event.boot_id)
    if event.verdict == "gone" and is_leader and loss.probed == event.boot_id:
        transition.work = replace(transition.work, leader_loss=replace(loss, replaced=event.boot_id))
    watch(transition)


# --- the signs ------------------------------------------------------------------------------------------------------


def _watched_leader(transition: StateTransition) -> Leader | None:
    """Returns the leader that this worker may judge; None if there is none, or if this worker is itself in doubt.

    A worker that does not read its own lease back may be the one that is cut off.
    """
    leader, own = transition.cluster.leader, transition.status.own_seen_mono
    is_connected = own is not None and transition.mono - own < transition.settings.probe_after_s
    if leader is None or not leader.member or leader.boot_id == transition.me.boot_id or not is_connected:
        return None
    return leader if transition.lead.term is None else None


def _observed(transition: StateTransition, loss: LeaderLoss, leader: Leader) -> LeaderLoss:
    """Notes since when this worker sees the same lease. It begins anew after a pause of its own: what a worker reads when
    it wakes makes all others look silent."""
    lease, now = transition.status.leases.get(leader.worker_id), transition.mono
    is_the_same = lease == loss.watched and now - loss.watched_at < transition.settings.lease_interval_s
    return replace(loss, watched=lease, watched_since=loss.watched_since if is_the_same else now, watched_at=now)


def _is_silent(transition: StateTransition, loss: LeaderLoss, leader: Leader) -> bool:
    """The first sign, by the log. The clock runs only while this worker's own lease advances in the same partition."""
    settings, lease = transition.settings, transition.status.leases.get(leader.worker_id)
    if lease is None:
        return False  # it has left by itself
    if lease.boot_id != leader.boot_id:
        return True
    age_s, seen_s = transition.status.lease_clock_s - lease.seen_s, transition.mono - loss.watched_since
    is_recent = age_s <= settings.session_timeout_s  # later its session has ended without this
    return (
        is_recent and age_s >= settings.probe_after_s and seen_s >= settings.probe_after_s - settings.lease_interval_s
    )


def _is_unreachable(transition: StateTransition, loss: LeaderLoss, leader: Leader) -> bool:
    """The second sign, by its address: this worker's own verdict, which no advance of the lease has overtaken."""
    lease = transition.status.leases[leader.worker_id]
    if lease.boot_id != leader.boot_id:
        return loss.replaced == leader.boot_id
    return transition.status.probed_gone.get(leader.worker_id) == lease


def _probe_replaced(transition: StateTransition, loss: LeaderLoss, leader: Leader) -> LeaderLoss:
    """Probes the address of a leader that another process has replaced: the lease under its worker id is the other's,
    so nobody else probes it."""
    lease = transition.status.leases.get(leader.worker_id)
    is_due = loss.probed != leader.boot_id or transition.mono >= loss.probe_due
    if lease is None or lease.boot_id == leader.boot_id or loss.replaced == leader.boot_id or not is_due:
        return loss
    transition.emit(ProbeWorker(leader.worker_id, leader.boot_id, leader.url))
    return replace(loss, probed=leader.boot_id, probe_due=transition.mono + transition.settings.probe_answer_s)


# --- the decision ---------------------------------------------------------------------------------------------------


def _judged(transition: StateTransition, loss: LeaderLoss, leader: Leader) -> LeaderLoss:
    """Notes on which lease the judgement rests. The followers ask in turn, in the order of their ids."""
    lease = transition.status.leases[leader.worker_id]
    judged = (leader.boot_id, lease.count if lease.boot_id == leader.boot_id else -1)
    if loss.judged == judged:
        return loss
    logger.warning("leader is gone worker=%s boot=%s epoch=%d", leader.worker_id, leader.boot_id, leader.epoch)
    others = {i for i, one in transition.live_workers().items() if not one.draining} - {leader.worker_id}
    earlier = sum(i < transition.me.worker_id for i in others)
    due = transition.mono + TURN_S * min(earlier, TURNS_MAX)
    return replace(loss, judged=judged, asks=0, due=due, suspect=_suspect(transition, leader))


def _ask_if_due(transition: StateTransition, loss: LeaderLoss, leader: Leader) -> LeaderLoss:
    if loss.asks >= ASKS_MAX or transition.mono < max(loss.due, loss.held_until):
        return loss
    transition.emit(RemoveLeader(leader))
    return replace(loss, asks=loss.asks + 1, due=transition.mono + ASK_AGAIN_S * 2**loss.asks)


# --- mistakes -------------------------------------------------------------------------------------------------------


def _changed(transition: StateTransition, loss: LeaderLoss) -> LeaderLoss:
    """Suspects a leader that another worker has followed, whoever had it taken out: so all workers see a mistake."""
    leader, former = transition.cluster.leader, loss.leader
    if leader == former:
        return loss
    loss = replace(loss, leader=leader)
    is_followed = former is not None and leader is not None and former.boot_id != leader.boot_id
    if not is_followed or former is None or (loss.suspect is not None and loss.suspect.boot_id == former.boot_id):
        return loss
    return replace(loss, suspect=_suspect(transition, former))


def _suspect(transition: StateTransition, leader: Leader) -> Suspect | None:
    """Returns the leader as a suspect; None for one that has left, drains, or was replaced by another process."""
    status = transition.status
    lease, presence = status.leases.get(leader.worker_id), status.presence.get(leader.worker_id)
    if lease is None or presence is None or presence.draining or lease.boot_id != leader.boot_id:
        return None
    return Suspect(leader.worker_id, leader.boot_id, leader.epoch, lease)


def _reviewed(transition: StateTransition, loss: LeaderLoss) -> LeaderLoss:
    """Holds back after a suspect has shown that it lives: its lease advances, or it leads again. The more of these there
    were, the longer. So a network that flaps moves the lead a bounded number of times."""
    suspect, leader = loss.suspect, transition.cluster.leader
    if suspect is None:
        return loss
    lease = transition.status.leases.get(suspect.worker_id)
    leads_again = leader is not None and leader.boot_id == suspect.boot_id and leader.epoch > suspect.epoch
    if not leads_again and lease in (None, suspect.lease):
        return loss  # the next leader deletes the lease of a worker that is gone: that is no sign of anything
    if not leads_again and lease is not None and lease.boot_id != suspect.boot_id:
        return replace(loss, suspect=None)
    pause_s = transition.settings.session_timeout_s * 2**DOUBLINGS_MAX
    is_forgotten = transition.mono > loss.held_until + pause_s
    mistakes = 1 if is_forgotten else min(loss.mistakes + 1, DOUBLINGS_MAX + 1)
    pause_s = transition.settings.session_timeout_s * 2 ** (mistakes - 1)
    logger.warning("leader was not gone worker=%s holding_back=%.0fs", suspect.worker_id, pause_s)
    return replace(loss, suspect=None, mistakes=mistakes, held_until=transition.mono + pause_s)
