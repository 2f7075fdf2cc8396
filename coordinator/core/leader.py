"""The leader: claims, writes one batch at a time, answers requests after reading it back, and steps down."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core.events import (
    AnswerRequest,
    Claim,
    Claimed,
    ClaimFailed,
    RequestArrived,
    TermChanged,
    WriteFailed,
    WriteLog,
)
from cdcworker.coordinator.core.herd_state import AwaitingReadBack, QueuedRequest, StateTransition
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.core.write_batch import WriteBatch, record_size
from cdcworker.coordinator.log import leader_claim
from cdcworker.coordinator.log.config_fold import (
    LEADER,
    TASK_EPOCH_BITS,
    leader_record,
    record_epoch,
    task_epoch,
)
from cdcworker.coordinator.model import Leader, Reply

logger = logging.getLogger(__name__)

REQUESTS_PER_WRITE_MAX = 500
"""The most requests that one write decides; the rest of the queue waits for the next one (INV-10)."""


# --- claim ----------------------------------------------------------------------------------------------------------


def on_term(transition: StateTransition, event: TermChanged) -> None:
    """Takes the new term. A refreshed proof of the same term changes nothing; losing the term ends the lead at once, and
    so does another place in the election: the `leader` record has to name the one by which others can take it out."""
    former = transition.lead.term
    transition.lead = replace(transition.lead, term=event.term)
    if event.term is None or (former is not None and former.member != event.term.member):
        step_down(transition, "the group took the term")
        transition.lead = replace(transition.lead, claim_due=transition.mono, claim_failures=0)


def claim_if_due(transition: StateTransition) -> None:
    """Claims the lead while this worker has a term and the back-off after a failed claim is over."""
    lead = transition.lead
    if (
        lead.role == "follower"
        and lead.term is not None
        and transition.mono >= lead.claim_due
        and _may_claim(transition)
    ):
        transition.lead = replace(lead, role="claiming")
        transition.emit(Claim())


def _may_claim(transition: StateTransition) -> bool:
    """Tells whether a claim could succeed. Otherwise none is made: opening its writer would fence the present
    leader."""
    lead, settings = transition.lead, transition.settings
    assert lead.term is not None
    reason = leader_claim.reason_not_to_claim(
        transition.cluster, lead.term, settings.identity, settings.accepted_identity
    )
    if reason is None:
        return True
    logger.error("the lead is not claimed error=%s", reason)
    _claim_later(transition)
    return False


def on_claim_failed(transition: StateTransition, event: ClaimFailed) -> None:
    """Schedules the next claim, with back-off."""
    if transition.lead.role != "claiming":
        return
    logger.warning("claim failed reason=%s", event.reason)
    _claim_later(transition)


def _claim_later(transition: StateTransition) -> None:
    lead = transition.lead
    delay = min(0.5 * 2**lead.claim_failures, 10.0)
    failures = min(lead.claim_failures + 1, 8)
    transition.lead = replace(lead, role="follower", claim_due=transition.mono + delay, claim_failures=failures)


def on_claimed(transition: StateTransition, _event: Claimed) -> None:
    """Writes the claim. The log was read after the new writer fenced its predecessors, so none of them can add to
    it."""
    lead = transition.lead
    if lead.role != "claiming" or lead.term is None or not _may_claim(transition):
        return
    epoch = _next_epoch(transition)
    _refuse_superseded(transition, epoch)
    # Fences in flight are kept: until they are done, nobody may be assigned the tasks that they fence.
    transition.lead = replace(transition.lead, role="claimed", epoch=epoch, counter=0, planned=())
    transition.lead = replace(transition.lead, plan_jobs={}, tombstones_sent={})
    if leader_claim.needs_claim(lead.term):
        batch = WriteBatch(transition, transition.cluster)
        batch.add(leader_claim.claim_record(lead.term, epoch, transition.me))
        send_batch(transition, batch)
    else:
        _write_leader(transition)


def _write_leader(transition: StateTransition) -> None:
    lead, me = transition.lead, transition.me
    assert lead.term is not None
    batch = WriteBatch(transition, transition.cluster)
    batch.add(leader_record(Leader(lead.epoch, me.worker_id, me.boot_id, me.url, lead.term.hint, lead.term.member)))
    for record in leader_claim.new_leader_records(transition.cluster, lead.term, transition.settings.identity):
        batch.add(record)
    send_batch(transition, batch)


def _is_recorded(transition: StateTransition) -> bool:
    known = transition.cluster.leader
    return known is not None and (known.epoch, known.boot_id) == (transition.lead.epoch, transition.me.boot_id)


def _confirm_claim(transition: StateTransition) -> None:
    """Leads after the claim of a term without proof was read back, provided that no newer claim is in the log."""
    lead = transition.lead
    if lead.term is not None and leader_claim.is_newest_claim(transition.cluster, lead.term, lead.epoch, transition.me):
        _write_leader(transition)
    else:
        step_down(transition, "the log holds a newer claim")
        _claim_later(transition)


def _next_epoch(transition: StateTransition) -> int:
    """Returns an epoch above those of the config log and of the status log, which may outlive a recreated config
    log."""
    reported = max((status.task_epoch for status in transition.status.tasks.values()), default=0)
    return max(transition.cluster.epoch, reported >> TASK_EPOCH_BITS) + 1


def step_down(transition: StateTransition, why: str) -> None:
    """Stops deciding. Queued requests are refused; what became of written ones will show in the log."""
    lead = transition.lead
    if lead.role in ("claimed", "leading"):
        logger.info("stepping down epoch=%d reason=%s", lead.epoch, why)
    for queued in lead.queue:
        transition.emit(AnswerRequest(queued.arrived.id, Reply("no_leader", detail=why)))
    transition.lead = replace(lead, role="follower", inflight=None, queue=(), plan_jobs={}, planned=())


# --- write and read back --------------------------------------------------------------------------------------------


def send_batch(transition: StateTransition, batch: WriteBatch) -> None:
    """Sends the batch as one transaction; answers its requests at once if there is nothing to write."""
    lead, known = transition.lead, transition.cluster.leader
    if known is not None and not batch.records and any(w.reply.outcome != "no_leader" for w in batch.replies.values()):
        # Replies such as "already so", "not found" and "version mismatch" rest on this worker's view of the cluster:
        # only a write proves that it still leads (INV-6).
        batch.add(leader_record(known))
    if not batch.records:
        _answer(transition, {request_id: waiting.reply for request_id, waiting in batch.replies.items()})
        return
    write_id = f"{transition.me.boot_id}:{lead.writes + 1}"
    records = [replace(record, headers={**record.headers, "b": write_id}) for record in batch.records]
    records[-1] = replace(records[-1], headers={**records[-1].headers, "z": "1"})
    # Replies without records wait too: they may depend on what this very write changes.
    waiting = {i: replace(w, write_id=write_id) for i, w in batch.replies.items()}
    transition.lead = replace(lead, writes=lead.writes + 1, inflight=write_id, waiting={**lead.waiting, **waiting})
    transition.emit(WriteLog(write_id, tuple(records)))


def on_write_failed(transition: StateTransition, event: WriteFailed) -> None:
    """Steps down. If the write certainly did not happen, its requests are refused; otherwise the log will tell."""
    lead = transition.lead
    if event.reason != "unknown":  # it did not happen, so clients may repeat its requests
        refusal = Reply("no_leader", detail=f"the write was refused: {event.reason}")
        _answer(transition, {i: refusal for i, waiting in lead.waiting.items() if waiting.write_id == event.write_id})
    if lead.role in ("claimed", "leading") and lead.inflight == event.write_id:
        step_down(transition, f"write {event.reason}")
        _claim_later(transition)


def on_accepted_records(transition: StateTransition, accepted: Sequence[LogRecord]) -> None:
    """Looks through the accepted records: the last one of an own write completes it, a newer claim ends the lead."""
    for record in accepted:
        if "z" in record.headers:
            _read_back(transition, record.headers.get("b", ""))
        if record.key == LEADER and record.value is not None:
            _on_claim_record(transition, record)


def _read_back(transition: StateTransition, write_id: str) -> None:
    _answer(
        transition, {i: waiting.reply for i, waiting in transition.lead.waiting.items() if waiting.write_id == write_id}
    )
    lead = transition.lead
    if lead.inflight != write_id:
        return
    if lead.role == "claimed" and not _is_recorded(transition):
        _confirm_claim(transition)
        return
    role = "leading" if lead.role == "claimed" else lead.role
    failures = 0 if role == "leading" else lead.claim_failures
    transition.lead = replace(lead, inflight=None, role=role, claim_failures=failures)


def _on_claim_record(transition: StateTransition, record: LogRecord) -> None:
    epoch = record_epoch(record)
    if (record.value or {}).get("boot_id") == transition.me.boot_id:
        return
    _refuse_superseded(transition, epoch)
    if transition.lead.role in ("claimed", "leading") and epoch > transition.lead.epoch:
        step_down(transition, f"epoch {epoch} was claimed")
        _claim_later(transition)


def _refuse_superseded(transition: StateTransition, epoch: int) -> None:
    """Refuses written requests of epochs below `epoch`, which was claimed: they are not in the log and never will
    be."""
    refusal = Reply("no_leader", detail="the leader changed")
    _answer(transition, {i: refusal for i, waiting in transition.lead.waiting.items() if waiting.epoch < epoch})


def _answer(transition: StateTransition, replies: Mapping[str, Reply]) -> None:
    if not replies:
        return
    transition.lead = replace(
        transition.lead, waiting={i: w for i, w in transition.lead.waiting.items() if i not in replies}
    )
    for request_id, reply in replies.items():
        transition.emit(AnswerRequest(request_id, reply))


# --- requests -------------------------------------------------------------------------------------------------------


def on_request(transition: StateTransition, event: RequestArrived) -> None:
    """Queues a request, or answers at once that this worker does not lead or has too many requests."""
    lead, refusal = transition.lead, _refusal(transition)
    if refusal is not None:
        transition.emit(AnswerRequest(event.id, refusal))
        return
    queued = QueuedRequest(event, transition.mono + transition.settings.request_timeout_s)
    transition.lead = replace(lead, queue=(*lead.queue, queued))


def _refusal(transition: StateTransition) -> Reply | None:
    lead, known = transition.lead, transition.cluster.leader
    if lead.role == "leading":
        return (
            Reply("no_leader", detail="too many requests wait")
            if len(lead.queue) >= transition.settings.queue_max
            else None
        )
    if known is None or known.boot_id == transition.me.boot_id or lead.term is not None:
        return Reply("no_leader", detail="no leader has claimed")
    presence = transition.live_workers().get(known.worker_id)
    if presence is None or presence.boot_id != known.boot_id:
        return Reply("no_leader", detail="the leader's lease has lapsed")
    return Reply("not_leader", leader_url=known.url, leader_epoch=known.epoch)


def expire_requests(transition: StateTransition) -> None:
    """Answers expired requests with `timeout`. An expired queued request is dropped and will not be carried out
    later."""
    queue, waiting = transition.lead.queue, transition.lead.waiting
    late = [queued.arrived.id for queued in takewhile(lambda queued: transition.mono >= queued.due, queue)]
    if late:
        transition.lead = replace(transition.lead, queue=queue[len(late) :])
    late += [request_id for request_id, _ in takewhile(lambda item: transition.mono >= item[1].due, waiting.items())]
    _answer(transition, dict.fromkeys(late, Reply("timeout")))


def decide_requests(transition: StateTransition, batch: WriteBatch) -> None:
    """Decides the queued requests in order, each on the state that the previous ones lead to."""
    lead, settings, decided, size = transition.lead, transition.settings, 0, 0
    for queued in lead.queue[:REQUESTS_PER_WRITE_MAX]:
        if size >= settings.batch_bytes_max:
            break
        decided += 1
        request_id = queued.arrived.id
        last_epoch = task_epoch(lead.epoch, lead.counter)
        pending = PendingRequest(
            request_id, queued.arrived.request, transition.now.wall_ms, settings.command_ttl_s, last_epoch
        )
        decision = decide(batch.draft, pending)
        largest = max(map(record_size, decision.records), default=0)
        if largest > settings.record_bytes_max:
            text = f"the record would have {largest} bytes, {settings.record_bytes_max} are possible"
            batch.replies[request_id] = AwaitingReadBack("", lead.epoch, Reply("too_large", detail=text), queued.due)
            continue
        batch.replies[request_id] = AwaitingReadBack("", lead.epoch, decision.reply, queued.due)
        for record in decision.records:
            batch.add(record, request_id)
            size += largest
    transition.lead = replace(lead, queue=lead.queue[decided:])


def has_used_up_task_epochs(transition: StateTransition) -> bool:
    """Tells whether the task epochs of this leader epoch are nearly used up; a new claim starts a new counter."""
    return transition.lead.counter > (1 << TASK_EPOCH_BITS) // 2
