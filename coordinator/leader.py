"""The leader's pen: claim, one write at a time, answers after reading back, stepping down."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import takewhile

from cdcworker.coordinator import claim
from cdcworker.coordinator.api import Record
from cdcworker.coordinator.events import (
    Answer,
    Claim,
    Claimed,
    ClaimFailed,
    RequestArrived,
    TermChanged,
    WriteFailed,
    WriteLog,
)
from cdcworker.coordinator.herd_state import Queued, Turn, Waiting
from cdcworker.coordinator.model import ClusterState, Leader, Reply
from cdcworker.coordinator.requests import Asked, decide
from cdcworker.coordinator.state import (
    FORMAT,
    LEADER,
    TASK_EPOCH_BITS,
    Draft,
    leader_record,
    record_epoch,
    task_epoch,
)

logger = logging.getLogger(__name__)

REQUESTS_PER_WRITE_MAX = 500
"""Bounds one transaction; the rest of the queue goes into the next one."""


@dataclass(slots=True)
class Batch:
    """The records of one write in the making, and the state as it will be once they are read back."""

    turn: Turn
    base: InitVar[ClusterState]
    records: list[Record] = field(default_factory=list)
    replies: dict[str, Waiting] = field(default_factory=dict)
    """Of the requests that were taken; their write gets its name when it is sent."""
    work: Draft = field(init=False)

    def __post_init__(self, base: ClusterState) -> None:
        self.work = Draft(base)

    @property
    def draft(self) -> ClusterState:
        return self.work.state

    def add(self, record: Record, request_id: str = "") -> None:
        headers = {"e": str(self.turn.lead.epoch), **self.turn.stamp(), "v": FORMAT}
        if request_id:
            headers["d"] = request_id
        record = replace(record, headers=headers)
        self.records.append(record)
        self.work.add(record)

    def next_task_epoch(self) -> int:
        lead = self.turn.lead
        self.turn.lead = replace(lead, counter=lead.counter + 1)
        return task_epoch(lead.epoch, lead.counter + 1)


# --- claim ----------------------------------------------------------------------------------------------------------


def on_term(turn: Turn, event: TermChanged) -> None:
    """A refreshed proof of the same term changes nothing; a lost one ends the claim at once."""
    turn.lead = replace(turn.lead, term=event.term)
    if event.term is None:
        step_down(turn, "the group took the term")
        turn.lead = replace(turn.lead, claim_due=turn.mono, claim_failures=0)


def claim_if_due(turn: Turn) -> None:
    lead = turn.lead
    if lead.role == "follower" and lead.term is not None and turn.mono >= lead.claim_due and _may_claim(turn):
        turn.lead = replace(lead, role="claiming")
        turn.emit(Claim())


def _may_claim(turn: Turn) -> bool:
    """A claim that cannot lead is not even tried: its writer would fence the leader's."""
    lead, settings = turn.lead, turn.settings
    assert lead.term is not None
    reason = claim.obstacle(turn.cluster, lead.term, settings.identity, settings.accepted_identity)
    if reason is None:
        return True
    logger.error("no claim is made error=%s", reason)
    _claim_later(turn)
    return False


def on_claim_failed(turn: Turn, event: ClaimFailed) -> None:
    if turn.lead.role != "claiming":
        return
    logger.warning("claim failed reason=%s", event.reason)
    _claim_later(turn)


def _claim_later(turn: Turn) -> None:
    lead = turn.lead
    delay = min(0.5 * 2**lead.claim_failures, 10.0)
    failures = min(lead.claim_failures + 1, 8)
    turn.lead = replace(lead, role="follower", claim_due=turn.mono + delay, claim_failures=failures)


def on_claimed(turn: Turn, _event: Claimed) -> None:
    """The log has been read after the writer fenced its predecessor: what is not in it will never be."""
    lead = turn.lead
    if lead.role != "claiming" or lead.term is None or not _may_claim(turn):
        return
    epoch = _next_epoch(turn)
    _refuse_lost(turn, epoch)
    # Fences under way stay in mind: until they are done, nobody may be given what they fence.
    turn.lead = replace(turn.lead, role="claimed", epoch=epoch, counter=0, jobs={}, planned=(), sweeps={})
    if claim.needs_claim(lead.term):
        batch = Batch(turn, turn.cluster)
        batch.add(claim.claim_record(lead.term, epoch, turn.me))
        send(turn, batch)
    else:
        _write_leader(turn)


def _write_leader(turn: Turn) -> None:
    lead, me = turn.lead, turn.me
    assert lead.term is not None
    batch = Batch(turn, turn.cluster)
    batch.add(leader_record(Leader(lead.epoch, me.worker_id, me.boot_id, me.url, lead.term.hint)))
    for record in claim.records_of_lead(turn.cluster, lead.term, turn.settings.identity):
        batch.add(record)
    send(turn, batch)


def _is_recorded(turn: Turn) -> bool:
    known = turn.cluster.leader
    return known is not None and (known.epoch, known.boot_id) == (turn.lead.epoch, turn.me.boot_id)


def _confirm_claim(turn: Turn) -> None:
    """The claim of a term without proof came back: decisions may follow only when it is the newest of all."""
    lead = turn.lead
    if lead.term is not None and claim.is_mine(turn.cluster, lead.term, lead.epoch, turn.me):
        _write_leader(turn)
    else:
        step_down(turn, "a newer claim stands in the log")
        _claim_later(turn)


def _next_epoch(turn: Turn) -> int:
    """One above the log's; also above the status log's, which may outlive a config log that was made anew."""
    reported = max((status.task_epoch for status in turn.status.tasks.values()), default=0)
    return max(turn.cluster.epoch, reported >> TASK_EPOCH_BITS) + 1


def step_down(turn: Turn, why: str) -> None:
    """Decide nothing more. Requests not yet written are refused; the fate of written ones shows in the log."""
    lead = turn.lead
    if lead.role in ("claimed", "leading"):
        logger.info("stepping down epoch=%d reason=%s", lead.epoch, why)
    for queued in lead.queue:
        turn.emit(Answer(queued.asked.id, Reply("no_leader", detail=why)))
    turn.lead = replace(lead, role="follower", inflight=None, queue=(), jobs={}, planned=())


# --- write and read back --------------------------------------------------------------------------------------------


def send(turn: Turn, batch: Batch) -> None:
    """One transaction for everything that was decided in this turn."""
    lead, known = turn.lead, turn.cluster.leader
    if known is not None and not batch.records and any(w.reply.outcome != "no_leader" for w in batch.replies.values()):
        # "It is so already", "there is none", "another version" rest on this worker's picture: only a write proves
        # that it still leads (INV-6).
        batch.add(leader_record(known))
    if not batch.records:
        _answer(turn, {request_id: waiting.reply for request_id, waiting in batch.replies.items()})
        return
    write_id = f"{turn.me.boot_id}:{lead.writes + 1}"
    records = [replace(record, headers={**record.headers, "b": write_id}) for record in batch.records]
    records[-1] = replace(records[-1], headers={**records[-1].headers, "z": "1"})
    # Replies without records of their own wait too: they may rest on what this very write changes.
    waiting = {i: replace(w, write_id=write_id) for i, w in batch.replies.items()}
    turn.lead = replace(lead, writes=lead.writes + 1, inflight=write_id, waiting={**lead.waiting, **waiting})
    turn.emit(WriteLog(write_id, tuple(records)))


def on_write_failed(turn: Turn, event: WriteFailed) -> None:
    lead = turn.lead
    if event.reason != "unknown":  # it did not happen, so its requests may be asked again
        refusal = Reply("no_leader", detail=f"the write was refused: {event.reason}")
        _answer(turn, {i: refusal for i, waiting in lead.waiting.items() if waiting.write_id == event.write_id})
    if lead.role in ("claimed", "leading") and lead.inflight == event.write_id:
        step_down(turn, f"write {event.reason}")
        _claim_later(turn)


def on_taken(turn: Turn, taken: Sequence[Record]) -> None:
    """Records that counted: the own write's last one completes it, another's claim ends the own."""
    for record in taken:
        if "z" in record.headers:
            _read_back(turn, record.headers.get("b", ""))
        if record.key == LEADER and record.value is not None:
            _other_claim(turn, record)


def _read_back(turn: Turn, write_id: str) -> None:
    _answer(turn, {i: waiting.reply for i, waiting in turn.lead.waiting.items() if waiting.write_id == write_id})
    lead = turn.lead
    if lead.inflight != write_id:
        return
    if lead.role == "claimed" and not _is_recorded(turn):
        _confirm_claim(turn)
        return
    role = "leading" if lead.role == "claimed" else lead.role
    failures = 0 if role == "leading" else lead.claim_failures
    turn.lead = replace(lead, inflight=None, role=role, claim_failures=failures)


def _other_claim(turn: Turn, record: Record) -> None:
    epoch = record_epoch(record)
    if (record.value or {}).get("boot_id") == turn.me.boot_id:
        return
    _refuse_lost(turn, epoch)
    if turn.lead.role in ("claimed", "leading") and epoch > turn.lead.epoch:
        step_down(turn, f"epoch {epoch} was claimed")
        _claim_later(turn)


def _refuse_lost(turn: Turn, epoch: int) -> None:
    """A claim of `epoch` is certain: written requests of older epochs that are not in the log never will be."""
    refusal = Reply("no_leader", detail="the leader changed")
    _answer(turn, {i: refusal for i, waiting in turn.lead.waiting.items() if waiting.epoch < epoch})


def _answer(turn: Turn, replies: Mapping[str, Reply]) -> None:
    if not replies:
        return
    turn.lead = replace(turn.lead, waiting={i: w for i, w in turn.lead.waiting.items() if i not in replies})
    for request_id, reply in replies.items():
        turn.emit(Answer(request_id, reply))


# --- requests -------------------------------------------------------------------------------------------------------


def on_request(turn: Turn, event: RequestArrived) -> None:
    lead, refusal = turn.lead, _refusal(turn)
    if refusal is not None:
        turn.emit(Answer(event.id, refusal))
        return
    queued = Queued(event, turn.mono + turn.settings.request_timeout_s)
    turn.lead = replace(lead, queue=(*lead.queue, queued))


def _refusal(turn: Turn) -> Reply | None:
    lead, known = turn.lead, turn.cluster.leader
    if lead.role == "leading":
        return (
            Reply("no_leader", detail="too many requests wait") if len(lead.queue) >= turn.settings.queue_max else None
        )
    if known is None or known.boot_id == turn.me.boot_id or lead.term is not None:
        return Reply("no_leader", detail="no leader has claimed")
    present = turn.live().get(known.worker_id)
    if present is None or present.boot_id != known.boot_id:
        return Reply("no_leader", detail="the leader's lease has lapsed")
    return Reply("not_leader", leader_url=known.url, leader_epoch=known.epoch)


def expire_requests(turn: Turn) -> None:
    """A queued request that expires is dropped with its answer: it will not happen later."""
    queue, waiting = turn.lead.queue, turn.lead.waiting
    late = [queued.asked.id for queued in takewhile(lambda queued: turn.mono >= queued.due, queue)]
    if late:
        turn.lead = replace(turn.lead, queue=queue[len(late) :])
    late += [request_id for request_id, _ in takewhile(lambda item: turn.mono >= item[1].due, waiting.items())]
    _answer(turn, dict.fromkeys(late, Reply("timeout")))


def take_requests(turn: Turn, batch: Batch) -> None:
    """Decide the queue in order, each on what the ones before it made."""
    lead, settings, taken, size = turn.lead, turn.settings, 0, 0
    for queued in lead.queue[:REQUESTS_PER_WRITE_MAX]:
        if size >= settings.batch_bytes_max:
            break
        taken += 1
        request_id = queued.asked.id
        given = task_epoch(lead.epoch, lead.counter)
        asked = Asked(request_id, queued.asked.request, turn.now.wall_ms, settings.command_ttl_s, given)
        decision = decide(batch.draft, asked)
        largest = max(map(size_of, decision.records), default=0)
        if largest > settings.record_bytes_max:
            text = f"the record would have {largest} bytes, {settings.record_bytes_max} are possible"
            batch.replies[request_id] = Waiting("", lead.epoch, Reply("too_large", detail=text), queued.due)
            continue
        batch.replies[request_id] = Waiting("", lead.epoch, decision.reply, queued.due)
        for record in decision.records:
            batch.add(record, request_id)
            size += largest
    turn.lead = replace(lead, queue=lead.queue[taken:])


def size_of(record: Record) -> int:
    """Bytes of a record as Kafka stores it, about."""
    if record.value is None:
        return len(record.key)
    return len(record.key) + len(
        json.dumps(record.value, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")
    )


def is_worn_out(turn: Turn) -> bool:
    """The task epochs of this claim are nearly used up: a new claim has a fresh counter."""
    return turn.lead.counter > (1 << TASK_EPOCH_BITS) // 2
