"""The herder's way to the cluster: both logs, the election, claims and writes on a thread of their own, lease records."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from cdcworker.coordinator.api import Ends, Fenced, Record, Stale, Term, Unknown, Writer
from cdcworker.coordinator.claim import CLUSTER, Identity, identity_of, refused
from cdcworker.coordinator.events import (
    Claimed,
    ClaimFailed,
    ConfigRecords,
    Event,
    FencesDone,
    LeaseAcked,
    StatusRecords,
    TermChanged,
    WriteDone,
    WriteFailed,
    WriteLog,
)
from cdcworker.coordinator.model import TaskId
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.backends import make_backend
from cdcworker.worker.log_tail import LogTail
from cdcworker.worker.pen import Pen
from cdcworker.worker.taskspec import TRANSACTIONAL_IDS

if TYPE_CHECKING:
    from cdcworker.worker.herder import HerderConfig

log = logging.getLogger(__name__)

READ_S = 20.0
HANGS_S = 12.0
"""A transactional call that has not returned by then is not waited for: the client can exceed its own time-outs."""
CLAIM_S = 25.0
FENCINGS_MAX = 2
"""Each has threads and clients of its own. Two: the leader's does not wait for one of this worker's that is slow."""
FENCED_AT_ONCE_MAX = 100
"""What has been fenced is told soon, however much there is to do."""
REFUSED_TERM_S = 5.0
"""How long a claim waits for the group to sync after its proof was refused."""

Job = Callable[[], None]


class HerdKafka:
    """All methods are called by the herder's thread; `post` hands results of other threads to it."""

    def __init__(self, config: HerderConfig, post: Callable[[Job], None]) -> None:
        self._config = config
        self._post = post
        self._events: list[Event] = []
        self._backend = make_backend(config)
        self._writer: Writer | None = None
        self._pen: Pen | None = None
        self._claim: _Claim | None = None
        self._term: Term | None = None
        self._refused: Term | None = None
        self._lease_sent: float | None = None
        self._lease_waiting: Record | None = None
        self._writing: _Writing | None = None
        self._to_fence: dict[TaskId, None] = {}
        self._fencing: list[tuple[TaskId, ...]] = []

    # --- start ------------------------------------------------------------------------------------------------------

    def open(self) -> tuple[Sequence[Record], Sequence[Record]]:
        """Reach the servers, check what is there, read both logs to their ends, then take part in the election."""
        backend = self._backend
        backend.open()
        self._configs, self._status = backend.configs(), backend.status()
        configs, status = self._configs.read_to_end(READ_S), self._status.read_to_end(READ_S)
        self._config_tail = LogTail(self._configs, "configs", self._post)
        self._status_tail = LogTail(self._status, "status", self._post)
        self._check_identity(configs)
        self._leadership = backend.join()
        return configs, status

    def _check_identity(self, records: Sequence[Record]) -> None:
        """Two clusters that share topics or a group id would fence each other: the later one does not start."""
        error = refused(_identity_in(records), self._backend.identity, self._config.accepted_identity)
        if error is not None:
            raise error
        self._note_identity(records)

    def _note_identity(self, records: Sequence[Record]) -> None:
        """Also what the first leader writes while we run: who does not fit it later must not keep others from leading."""
        known, mine = _identity_in(records), self._backend.identity
        if known is not None and (known == mine or mine.fingerprint != self._config.accepted_identity):
            self._backend.recorded(known)

    @property
    def identity(self) -> Identity:
        return self._backend.identity

    @property
    def cluster_id(self) -> str:
        return self._backend.cluster_id

    @property
    def partitions(self) -> Mapping[str, int]:
        return self._backend.partitions

    # --- each turn --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._claim is not None

    def turn(self) -> Iterator[Event]:
        """Serve all clients once without waiting; gives what happened, in the order in which it may be taken."""
        self._leadership.tick(0)
        yield from self._term_events()
        if tailed := self._config_tail.poll():
            self._note_identity(tailed.records)
            yield ConfigRecords(tailed.records, replay=tailed.reset, reset=tailed.reset)
        if tailed := self._status_tail.poll():
            yield StatusRecords(tailed.records, reset=tailed.reset)
        self._status.serve()
        self._configs.serve()
        yield from self._claim_events()
        self._give_up_hanging_write()
        events, self._events = self._events, []
        yield from events

    def _term_events(self) -> Iterator[Event]:
        term = self._leadership.term()
        if term == self._term:
            return
        self._term = term
        if term is None:
            self._drop_writer()
        yield TermChanged(term)

    # --- claims and writes ------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Poll once more: a worker that was asleep learns here that it has lost. Then open the pen elsewhere."""
        self._drop_writer()
        self._leadership.tick(0)
        if self._claim is not None:
            self._claim.drop()
        self._claim = _Claim(time.monotonic())

    def _claim_events(self) -> Iterator[Event]:
        claim, term = self._claim, self._leadership.term()
        if claim is None:
            return
        age_s = time.monotonic() - claim.since
        if term is None:
            self._fail_claim(claim, "not the owner")
        elif not claim.opening:
            if term != self._refused:
                claim.opening = True
                claim.pen.do(lambda: self._open_writer(claim))
            elif age_s > REFUSED_TERM_S:
                self._refused = None
                self._fail_claim(claim, "the group has not synced since the proof was refused")
        elif claim.ends is not None and self._config_tail.whole and self._configs.reached(claim.ends):
            # Reading after init_transactions and before the first write leaves no room for a predecessor (INV-6).
            self._claim, self._writer, self._pen = None, claim.writer, claim.pen
            yield Claimed()
        elif age_s > CLAIM_S and claim.ends is None:
            self._fail_claim(claim, "no writer in time")
        elif age_s > CLAIM_S:
            self._configs.reconnect()
            self._fail_claim(claim, "the config log was not read in time")

    def _open_writer(self, claim: _Claim) -> None:
        """Runs on the pen's thread."""
        try:
            writer = self._backend.claim()
            ends = self._configs.ends(READ_S)
        except CdcError as exc:
            failure = f"{exc} hint={exc.hint}"
            self._post(lambda: self._fail_claim(claim, failure))
            return
        self._post(lambda: claim.opened(writer, ends))

    def _fail_claim(self, claim: _Claim, reason: str) -> None:
        if self._claim is claim:
            self._claim = None
            self._events.append(ClaimFailed(reason))
        claim.drop()

    def _drop_writer(self) -> None:
        writer, pen = self._writer, self._pen
        self._writer = self._pen = self._writing = None
        if writer is not None and pen is not None:
            pen.do(writer.close)
            pen.end()

    def write(self, command: WriteLog) -> None:
        writer, pen, term = self._writer, self._pen, self._leadership.term()
        if writer is None or pen is None or term is None:
            self._events.append(WriteFailed(command.write_id, "stale"))
            return
        writing = self._writing = _Writing(command, writer, term, time.monotonic())
        pen.do(lambda: self._write(writing))

    def _write(self, writing: _Writing) -> None:
        """Runs on the pen's thread."""
        outcome: WriteDone | WriteFailed
        write_id = writing.command.write_id
        try:
            writing.writer.write(writing.command.records, writing.term)
            outcome = WriteDone(write_id)
        except Stale:
            outcome = WriteFailed(write_id, "stale")
        except Fenced:
            outcome = WriteFailed(write_id, "fenced")
        except Unknown:
            outcome = WriteFailed(write_id, "unknown")
        self._post(lambda: self._written(writing, outcome))

    def _written(self, writing: _Writing, outcome: WriteDone | WriteFailed) -> None:
        """Also for a write whose writer was dropped meanwhile: the core may still wait for its answer."""
        if writing.given_up:
            return
        if self._writing is writing:
            self._writing = None
        if isinstance(outcome, WriteFailed):
            if outcome.reason == "stale":
                self._refused = writing.term
            if self._writer is writing.writer:
                self._drop_writer()
        self._events.append(outcome)

    def _give_up_hanging_write(self) -> None:
        writing = self._writing
        if writing is None or time.monotonic() - writing.since < HANGS_S:
            return
        log.error("write given up write=%s error=the client does not return", writing.command.write_id)
        writing.given_up = True
        self._drop_writer()
        self._events.append(WriteFailed(writing.command.write_id, "unknown"))

    # --- status log -------------------------------------------------------------------------------------------------

    def append_status(self, records: Sequence[Record]) -> None:
        def done(error: CdcError | None) -> None:
            if error is not None:
                log.warning("status not stored records=%d error=%s", len(records), error)

        self._status.send(records, done)

    def renew_lease(self, record: Record) -> None:
        """One under way at a time; while Kafka does not answer, only the newest waits."""
        if self._lease_sent is not None:
            self._lease_waiting = record
            return
        self._lease_sent = time.monotonic()
        self._status.send([record], self._lease_done)

    def _lease_done(self, error: CdcError | None) -> None:
        sent, self._lease_sent = self._lease_sent, None
        if error is not None:
            log.warning("lease not renewed error=%s", error)
        elif sent is not None:
            self._events.append(LeaseAcked(sent))
        waiting, self._lease_waiting = self._lease_waiting, None
        if waiting is not None:
            self.renew_lease(waiting)

    # --- other ------------------------------------------------------------------------------------------------------

    def fence(self, tasks: Sequence[TaskId]) -> None:
        """A database that is gone ends hundreds of tasks in a moment: what comes meanwhile is fenced together."""
        self._to_fence.update(dict.fromkeys(tasks))
        self._fence_next()

    def _fence_next(self) -> None:
        if not self._to_fence or len(self._fencing) >= FENCINGS_MAX:
            return
        tasks = tuple(islice(self._to_fence, FENCED_AT_ONCE_MAX))
        for task in tasks:
            del self._to_fence[task]
        self._fencing.append(tasks)
        threading.Thread(target=self._fence, args=(tasks,), name="herd-fence", daemon=True).start()

    def _fence(self, tasks: tuple[TaskId, ...]) -> None:
        """Runs on a thread of its own."""
        group, failed = self._config.group_id, set(tasks)
        ids = {make(group, *task): task for task in tasks for make in TRANSACTIONAL_IDS}
        try:
            errors = {name: error for name, error in self._backend.fence(list(ids)).items() if error is not None}
            for name, error in errors.items():
                log.warning("fence failed transactional_id=%s error=%s", name, error)
            failed = {ids[name] for name in errors}
        finally:
            self._post(lambda: self._fenced(tasks, failed))

    def _fenced(self, tasks: tuple[TaskId, ...], failed: set[TaskId]) -> None:
        """One that was asked for again meanwhile is not done before that call has ended too."""
        self._fencing.remove(tasks)
        open_still = set(self._to_fence).union(*self._fencing)
        done = tuple(task for task in tasks if task not in open_still)
        if done:
            self._events.append(FencesDone(done, tuple(sorted(failed & set(done)))))
        self._fence_next()

    def topics(self) -> frozenset[str]:
        """What a connector could read; called by planning threads."""
        return self._backend.topics()

    def leave(self) -> None:
        """Leave the group: the next owner is elected at once."""
        leadership: Any = getattr(self, "_leadership", None)
        if leadership is not None:
            leadership.close()

    def close(self) -> None:
        """End all clients; whatever `open` had not reached is not there to be closed."""
        self.leave()
        self._drop_writer()
        for name in ("_configs", "_status"):
            opened: Any = getattr(self, name, None)
            if opened is not None:
                opened.close()
        self._backend.close()


class _Claim:
    """A claim under way: the writer is opened by the pen's thread, the log is read by the herder's."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.pen = Pen("herd-pen")
        self.opening = False
        self.dropped = False
        self.writer: Writer | None = None
        self.ends: Ends | None = None

    def opened(self, writer: Writer, ends: Ends) -> None:
        if self.dropped:
            writer.close()
        else:
            self.writer, self.ends = writer, ends

    def drop(self) -> None:
        self.dropped = True
        if self.writer is not None:
            self.pen.do(self.writer.close)
        self.pen.end()


@dataclass(slots=True)
class _Writing:
    """A write under way."""

    command: WriteLog
    writer: Writer
    term: Term
    since: float
    given_up: bool = False


def _identity_in(records: Sequence[Record]) -> Identity | None:
    """Whose log it is, by the last record that says so."""
    return next((identity_of(record.value) for record in reversed(records) if record.key == CLUSTER), None)
