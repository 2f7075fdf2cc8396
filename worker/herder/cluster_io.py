"""The herder's input and output: both logs, the election, claims and writes of the leader, leases, and the fencing of
tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cdcworker.coordinator.api import Ends, LeaderWriter, LogRecord, Term, TermOver, WriterFenced, WriteUnknown
from cdcworker.coordinator.core.events import (
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
from cdcworker.coordinator.log.leader_claim import CLUSTER, ClusterIdentity, identity_conflict, identity_of
from cdcworker.coordinator.model import Leader, TaskId
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import start_thread
from cdcworker.worker.herder.backends import make_backend
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.log_tail import LogTail
from cdcworker.worker.herder.serial_thread import SerialThread
from cdcworker.worker.protocol.task_spec import TRANSACTIONAL_IDS

log = logging.getLogger(__name__)

READ_S = 20.0
"""Seconds to read a log to its end."""
HANGS_S = 12.0
"""Seconds after which a transactional call is given up: the client can exceed its own timeouts."""
CLAIM_S = 25.0
"""Seconds for a new leader to open its writer and to read the config log."""
FENCINGS_MAX = 2
"""Fencing calls at the same time, each with a thread and clients of its own: a slow one of this worker does not delay
the leader's."""
FENCED_AT_ONCE_MAX = 100
"""Tasks in one fencing call, so that the first results arrive soon however many tasks there are."""
REFUSED_TERM_S = 5.0
"""Seconds that a claim waits for the group to sync after the broker refused the proof of leadership."""

Job = Callable[[], None]


class ClusterIo:
    """Serves the clients of one herder. All methods are called by the herder's thread; `post` brings results of other
    threads to it."""

    def __init__(self, config: HerderConfig, post: Callable[[Job], None]) -> None:
        self._config = config
        self._post = post
        self._events: list[Event] = []
        self._backend = make_backend(config)
        self._writer: LeaderWriter | None = None
        self._writer_thread: SerialThread | None = None
        self._claim: _Claim | None = None
        self._term: Term | None = None
        self._refused: Term | None = None
        self._lease_sent: float | None = None
        self._lease_waiting: LogRecord | None = None
        self._writing: _Writing | None = None
        self._to_fence: dict[TaskId, None] = {}
        self._fencing: list[tuple[TaskId, ...]] = []
        self._is_removing = False

    # --- start ------------------------------------------------------------------------------------------------------

    def open(self) -> tuple[Sequence[LogRecord], Sequence[LogRecord]]:
        """Connects, checks the topics, joins the election, and returns the records of the config log and of the status
        log."""
        backend = self._backend
        backend.open()
        self._configs, self._status = backend.configs(), backend.status()
        configs, status = self._configs.read_to_end(READ_S), self._status.read_to_end(READ_S)
        self._config_tail = LogTail(self._configs, "configs", self._post)
        self._status_tail = LogTail(self._status, "status", self._post)
        self._check_identity(configs)
        self._leadership = backend.join()
        return configs, status

    def _check_identity(self, records: Sequence[LogRecord]) -> None:
        """Refuses a config log of another cluster: two clusters that share topics or a group id would fence each other."""
        error = identity_conflict(_identity_in(records), self._backend.identity, self._config.accepted_identity)
        if error is not None:
            raise error
        self._record_identity(records)

    def _record_identity(self, records: Sequence[LogRecord]) -> None:
        """Notes the cluster's identity, also when the first leader writes it later: a worker of another identity must
        not lead."""
        known, mine = _identity_in(records), self._backend.identity
        if known is not None and (known == mine or mine.fingerprint != self._config.accepted_identity):
            self._backend.record_identity(known)

    @property
    def identity(self) -> ClusterIdentity:
        return self._backend.identity

    @property
    def cluster_id(self) -> str:
        return self._backend.cluster_id

    @property
    def partitions(self) -> Mapping[str, int]:
        return self._backend.partitions

    # --- each poll --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._claim is not None

    def poll(self) -> Iterator[Event]:
        """Serves all clients once without blocking and yields the events in the order in which the core may take them."""
        self._leadership.tick(0)
        yield from self._term_events()
        if tailed := self._config_tail.poll():
            self._record_identity(tailed.records)
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
        """Opens a writer on a thread of its own. One more poll comes first: a worker that was suspended learns there
        that it has lost."""
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
                claim.thread.do(lambda: self._open_writer(claim))
            elif age_s > REFUSED_TERM_S:
                self._refused = None
                self._fail_claim(
                    claim, "the consumer group has not rebalanced since the broker refused the proof of leadership"
                )
        elif claim.ends is not None and self._config_tail.is_complete and self._configs.reached(claim.ends):
            # Reading after init_transactions and before the first write leaves no room for a predecessor (INV-6).
            self._claim, self._writer, self._writer_thread = None, claim.writer, claim.thread
            yield Claimed()
        elif age_s > CLAIM_S and claim.ends is None:
            self._fail_claim(claim, "no writer in time")
        elif age_s > CLAIM_S:
            self._configs.reconnect()
            self._fail_claim(claim, "the config log was not read in time")

    def _open_writer(self, claim: _Claim) -> None:
        """Opens the writer, on the writer's thread."""
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
        writer, thread = self._writer, self._writer_thread
        self._writer = self._writer_thread = self._writing = None
        if writer is not None and thread is not None:
            thread.do(writer.close)
            thread.end()

    def write(self, command: WriteLog) -> None:
        """Writes records of the leader on the writer's thread; the next poll yields the outcome."""
        writer, thread, term = self._writer, self._writer_thread, self._leadership.term()
        if writer is None or thread is None or term is None:
            self._events.append(WriteFailed(command.write_id, "stale"))
            return
        writing = self._writing = _Writing(command, writer, term, time.monotonic())
        thread.do(lambda: self._write(writing))

    def _write(self, writing: _Writing) -> None:
        """Writes the records, on the writer's thread."""
        outcome: WriteDone | WriteFailed
        write_id = writing.command.write_id
        try:
            writing.writer.write(writing.command.records, writing.term)
            outcome = WriteDone(write_id)
        except TermOver:
            outcome = WriteFailed(write_id, "stale")
        except WriterFenced:
            outcome = WriteFailed(write_id, "fenced")
        except WriteUnknown:
            outcome = WriteFailed(write_id, "unknown")
        self._post(lambda: self._write_ended(writing, outcome))

    def _write_ended(self, writing: _Writing, outcome: WriteDone | WriteFailed) -> None:
        """Passes the outcome on, also when the writer was dropped meanwhile: the core may still wait for it."""
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
        text = "write given up write=%s error=the Kafka client did not return within %.0f s"
        log.error(text, writing.command.write_id, HANGS_S)
        writing.given_up = True
        self._drop_writer()
        self._events.append(WriteFailed(writing.command.write_id, "unknown"))

    # --- status log -------------------------------------------------------------------------------------------------

    def append_status(self, records: Sequence[LogRecord]) -> None:
        """Sends records to the status log; a failure is logged only, since reports repeat."""

        def done(error: CdcError | None) -> None:
            if error is not None:
                log.warning("status not stored records=%d error=%s", len(records), error)

        self._status.send(records, done)

    def renew_lease(self, record: LogRecord) -> None:
        """Sends the lease record. One is under way at a time; while Kafka does not answer, only the newest one waits."""
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
        """Fences the producers of tasks. Tasks that come while fencing calls run are fenced together by the next call."""
        self._to_fence.update(dict.fromkeys(tasks))
        self._fence_next()

    def _fence_next(self) -> None:
        if not self._to_fence or len(self._fencing) >= FENCINGS_MAX:
            return
        tasks = tuple(islice(self._to_fence, FENCED_AT_ONCE_MAX))
        for task in tasks:
            del self._to_fence[task]
        self._fencing.append(tasks)
        start_thread(self._fence, tasks, name="fence-tasks")

    def _fence(self, tasks: tuple[TaskId, ...]) -> None:
        """Fences the tasks, on a thread of its own."""
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
        """Passes the result on. A task that was requested again meanwhile counts as fenced when that call has ended
        too."""
        self._fencing.remove(tasks)
        open_still = set(self._to_fence).union(*self._fencing)
        done = tuple(task for task in tasks if task not in open_still)
        if done:
            self._events.append(FencesDone(done, tuple(sorted(failed & set(done)))))
        self._fence_next()

    def remove_leader(self, leader: Leader) -> None:
        """Ends the place in the election of a leader that is gone. One call runs at a time; the core asks again."""
        if not self._is_removing:
            self._is_removing = True
            start_thread(self._remove, leader, name="remove-leader")

    def _remove(self, leader: Leader) -> None:
        """Ends the leader's place, on a thread of its own."""
        try:
            self._backend.remove_leader(leader)
            log.warning("leader taken out of the election worker=%s epoch=%d", leader.worker_id, leader.epoch)
        except CdcError as exc:
            log.warning("leader not taken out, its session will end worker=%s error=%s", leader.worker_id, exc)
        finally:
            self._post(self._removed)

    def _removed(self) -> None:
        self._is_removing = False

    def topics(self) -> frozenset[str]:
        """Returns the topics that a connector could read; called by planning threads."""
        return self._backend.topics()

    def leave(self) -> None:
        """Leaves the group, so that the next leader is elected at once."""
        leadership: Any = getattr(self, "_leadership", None)
        if leadership is not None:
            leadership.close()

    def close(self) -> None:
        """Closes all clients that `open` has opened."""
        self.leave()
        self._drop_writer()
        for name in ("_configs", "_status"):
            opened: Any = getattr(self, name, None)
            if opened is not None:
                opened.close()
        self._backend.close()


class _Claim:
    """A claim that is under way: the writer's thread opens the writer, the herder's thread reads the log to its end."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.thread = SerialThread("leader-writer")
        self.opening = False
        self.dropped = False
        self.writer: LeaderWriter | None = None
        self.ends: Ends | None = None

    def opened(self, writer: LeaderWriter, ends: Ends) -> None:
        if self.dropped:
            writer.close()
        else:
            self.writer, self.ends = writer, ends

    def drop(self) -> None:
        self.dropped = True
        if self.writer is not None:
            self.thread.do(self.writer.close)
        self.thread.end()


@dataclass(slots=True)
class _Writing:
    """A write that is under way."""

    command: WriteLog
    writer: LeaderWriter
    term: Term
    since: float
    given_up: bool = False


def _identity_in(records: Sequence[LogRecord]) -> ClusterIdentity | None:
    """Returns the identity of the cluster that the log belongs to, by its last record, or None."""
    return next((identity_of(record.value) for record in reversed(records) if record.key == CLUSTER), None)
