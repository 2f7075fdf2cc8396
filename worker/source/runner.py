"""Runs one source task: opens it at its committed position, again after every passing failure, until told to stop."""

from __future__ import annotations

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, Protocol

from cdcworker.connectors.api.source import SourceTask, WritesRecords
from cdcworker.connectors.external_registry.errors import UNAVAILABLE
from cdcworker.connectors.telemetry.latency import REPORTED
from cdcworker.connectors.telemetry.retry_status import RetryStatus
from cdcworker.coordinator.errors import TASK_FENCED
from cdcworker.coordinator.kafka import errors as kafka_errors
from cdcworker.coordinator.log.offset_records import OffsetRecord
from cdcworker.coordinator.log.task_metrics import INCOMPLETE
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.protocol.control import TaskControl
from cdcworker.worker.protocol.heartbeat import HEARTBEAT, STARTING
from cdcworker.worker.source.counters import Counters
from cdcworker.worker.source.data_topics import LEFT_OPEN
from cdcworker.worker.source.error_policy import RETRIES_MAX, backoff, decide, unexpected
from cdcworker.worker.source.incomplete_topics import IncompleteTopics
from cdcworker.worker.source.record_layouts import shaper_of
from cdcworker.worker.source.session import (
    LEASE_LAPSED,
    ChangeEncoder,
    DeliverySession,
    RecordProducer,
    RecordTargets,
    SessionParts,
    TransactionLimits,
)
from cdcworker.worker.source.table_quarantine import QuarantinedTables
from cdcworker.worker.source.topic_facts import TopicLookups

log = logging.getLogger(__name__)

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1
EXIT_FENCED: Final = 3

FENCES_MAX: Final = 5
FENCES_WINDOW_S: Final = 60.0
"""A woken zombie fences the rightful owner once. More often means that two owners fight, which a person must see."""
OUTAGE_OVER_S: Final = 15.0
"""After so long without an error an outage of a schema registry is over. A commit says nothing of it: a session commits its start
before it needs a schema."""
HEALTHY_AFTER_S: Final = 60.0
METRICS_INTERVAL_S: Final = 1.0
WAIT_STEP_S: Final = 0.2
IDLE_S_MAX: Final = 5.0
"""An idle source that was at its log's end so recently waits for nothing: it says so once a second."""
SLOW_COMMIT_S: Final = 2.0
"""A commit takes so long when a broker was away, which may have left one before it without its markers."""


class Registering(Protocol):
    def __call__(self, registrations: Sequence[Any]) -> Sequence[int]: ...
    def close_idle(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class TopicLookup(TopicLookups, Protocol):
    def close_idle(self) -> None: ...
    def check_ended(self) -> None: ...
    def compacted(self) -> Sequence[str]: ...


class RunnerPorts(Protocol):
    """All that a runner needs of Kafka and the connector. Real in `kafka_ports`, scripted in tests."""

    committed: JsonObject | None
    """The last position of which this process knows that it was committed; set by the runner."""

    @property
    def place(self) -> RecordTargets: ...

    @property
    def limits(self) -> TransactionLimits: ...

    @property
    def topics(self) -> TopicLookup: ...

    def prepare(self) -> None:
        """Called before each session, with a lease. Begins what need not wait for the fence."""

    def release(self) -> None:
        """Releases what only the start needed; called once the source is open, and after any failure."""

    def producer(self) -> RecordProducer:
        """A new producer of the task's id; every predecessor is fenced when it returns (INV-5)."""

    def registrar(self) -> Registering:
        """Likewise for the schema producer."""

    def assigned(self) -> bool: ...

    def position(self) -> OffsetRecord | None: ...

    def encoder(self, register: Registering) -> ChangeEncoder: ...

    def task(self) -> SourceTask: ...


class Reporting(Protocol):
    def status(self, state: Any, error: CdcError | None = None) -> None: ...
    def metrics(self, numbers: Any) -> None: ...


class StartTimes:
    """The times that the parts of a start took, for the log: a fail-over waits for all of them."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._notes: list[str] = []

    def note(self, name: str) -> None:
        now = time.monotonic()
        self._notes.append(f"{name}={1000 * (now - self._last):.0f}")
        self._last = now

    def __str__(self) -> str:
        return " ".join(self._notes)


class NotOwner(Exception):
    """The config log names another owner, or none: end quietly."""


class SourceRunner:
    """`run` returns the exit code of the process. One session after the other; a session that fails is dropped whole."""

    def __init__(
        self,
        ports: RunnerPorts,
        control: TaskControl,
        report: Reporting,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = ports
        self._control = control
        self._report = report
        self._clock = clock
        self._counters = Counters()
        self._failures = 0
        self._outage = (float("-inf"), 0)
        """When an existing schema registry was last away, and how many times in a row."""
        self._sessions = 0
        self._look_back = True
        self._fences: deque[float] = deque(maxlen=FENCES_MAX + 1)
        self._metrics_at = float("-inf")
        self._rate_from = (self._clock(), 0)
        self._extra: dict[str, Any] = {}
        self._untold: dict[str, Any] = {}
        """What of it has not been sent yet."""
        self._registrar: Registering | None = None
        self._quarantine = QuarantinedTables()
        self._retrying = RetryStatus()
        self._first_commit: StartTimes | None = None
        self._incomplete: IncompleteTopics | None = None
        self._commit_s = 0.0
        self._must_look = False
        """Whether a commit took so long that a broker may have left a transaction open."""
        self._stands_since: float | None = None

    def extra_metrics(self, numbers: JsonObject) -> None:
        """Takes what the source reports about itself; it is sent with the runner's own numbers."""
        self._extra.update(numbers)
        self._untold.update(numbers)

    def run(self) -> int:
        paused_reported = False
        while not self._control.stopping:
            if self._control.paused:
                if not paused_reported:
                    self._report.status("PAUSED")
                paused_reported = True
                self._end_leftovers()
                self._control.wait(1.0, lambda: not self._control.paused)
                continue
            paused_reported = False
            if not self._control.leased():
                # A late init_transactions would fence the rightful owner: without a lease not even that.
                self._control.wait(WAIT_STEP_S, self._control.leased)
                continue
            code = self._attempt()
            if code is not None:
                return code
        self._report.status("STOPPED")
        return EXIT_STOPPED

    def _end_leftovers(self) -> None:
        """Whoever ran the task before may have been killed in a transaction, which holds back readers until its time-out.
        The start of a session ends it; a task that starts paused begins none."""
        if not self._look_back or self._sessions or not self._control.leased():
            return
        try:
            self._ports.prepare()
            with closing(self._ports.producer()), closing(self._ports.registrar()):
                self._ports.position()
            self._look_back = False
        except CdcError as error:
            log.warning("what another process left open is not ended yet error=%s", error)
        finally:
            self._ports.release()

    def _attempt(self) -> int | None:
        self._stands_since = None
        HEARTBEAT.enter(STARTING)
        # What was open before refers to itself, and may hold much in few objects.
        gc.collect()
        try:
            self._session()
            self._failures = 0
        except NotOwner:
            log.warning("the task is not assigned to this start any more")
            return EXIT_FENCED
        except CdcError as error:
            # A start that takes long before it fails is no sign of health.
            if self._stands_since is not None and self._clock() - self._stands_since > HEALTHY_AFTER_S:
                self._failures = 0
            return self._judge(error)
        except Exception as exc:
            log.exception("unexpected error in a source task")
            return self._fail(unexpected(exc))
        return None

    def _judge(self, error: CdcError) -> int | None:
        """None: go on with a new session."""
        if error.code in (LEASE_LAPSED, LEFT_OPEN):
            log.warning("session dropped error=%s", error)
            return None
        attempt = self._counted(error)
        action = decide(error, attempt)
        if action.kind == "yield":
            return self._fenced(error)
        if action.kind == "restart" and not error.retriable:
            error = CdcError(kafka_errors.TIMEOUT, error.message, where=error.where)
        if action.kind == "quarantine" and self._quarantine.take(error):
            return None
        if action.kind != "retry":
            return self._fail(error)
        self._retrying.failed(error)
        # What was told before must not come again: it may have been measured from outside since.
        untold, self._untold = self._untold, {}
        self._report.metrics({**untold, **self._retrying.numbers()})
        log.warning("session dropped attempt=%d delay_s=%.1f error=%s", attempt + 1, action.delay_s, error)
        self._control.wait(action.delay_s)
        return None

    def _counted(self, error: CdcError) -> int:
        """Returns how many errors in a row came before this one. An outage of a registry is waited for in place, however long."""
        if error.code != UNAVAILABLE:
            attempt, self._failures = self._failures, self._failures + 1
            return attempt
        (at, count), now = self._outage, self._clock()
        count = 0 if now - at > OUTAGE_OVER_S else count
        self._outage = (now, count + 1)
        return min(count, RETRIES_MAX - 1)

    def _fenced(self, error: CdcError) -> int | None:
        now = self._clock()
        self._fences.append(now)
        recent = sum(1 for at in self._fences if now - at <= FENCES_WINDOW_S)
        log.warning("fenced times=%d error=%s", recent, error)
        if recent > FENCES_MAX:
            text = f"fenced {recent} times within {FENCES_WINDOW_S:.0f} s although the task is assigned here"
            return self._fail(CdcError(TASK_FENCED, text))
        self._control.wait(backoff(recent - 1))
        return None

    def _fail(self, error: CdcError) -> int:
        log.error("source task failed error=%s", error)
        self._report.status("FAILED", error)
        return EXIT_FAILED

    def _session(self) -> None:
        """Fence, then read, then open: in this order nobody else can write what has been read (INV-5)."""
        ports, laps = self._ports, StartTimes()
        producer: RecordProducer | None = None
        registrar: Registering | None = None
        task: SourceTask | None = None
        try:
            ports.prepare()
            producer = ports.producer()
            self._registrar = registrar = ports.registrar()
            laps.note("fence_ms")
            if not ports.assigned():
                raise NotOwner
            laps.note("assigned_ms")
            stored = ports.position()
            self._check_stored(stored)
            laps.note("position_ms")
            task = ports.task()
            position = stored.position if stored else None
            self._quarantine.tell(task)
            task.open(position)
            laps.note("open_ms")
            ports.release()
            if self._control.interrupted():
                return
            self._sessions += 1
            self._stands_since = self._clock()
            self._report.status("RUNNING")
            log.info(
                "source task is open at its position position=%s session=%d %s", _shown(position), self._sessions, laps
            )
            self._first_commit = laps
            self._run_session(producer, registrar, task, position)
        except BaseException as exc:
            # What is open would hold back readers until the next start; a fenced producer has nothing to end.
            if not (isinstance(exc, CdcError) and exc.kind == "fenced"):
                for opened in (producer, registrar):
                    if opened is not None:
                        opened.abort()
            raise
        finally:
            ports.release()
            self._registrar = self._first_commit = None
            try:
                if task is not None:
                    task.close()
            finally:
                for opened in (producer, registrar):
                    if opened is not None:
                        opened.close()

    def _run_session(
        self, producer: RecordProducer, registrar: Registering, task: SourceTask, position: JsonObject | None
    ) -> None:
        encoder = self._ports.encoder(registrar)
        layouts = shaper_of(encoder, self._ports.topics)
        if layouts is not None and isinstance(task, WritesRecords):
            task.use_layouts(layouts)
        parts = SessionParts(
            producer=producer,
            task=task,
            encoder=encoder,
            topics=self._ports.topics,
            control=self._control,
            counters=self._counters,
            on_tick=partial(self._tick, producer),
            on_commit=self._committed,
            clock=self._clock,
        )
        self._incomplete = IncompleteTopics(task, encoder, self._ports.topics.compacted)
        session = DeliverySession(parts, self._ports.place, self._ports.limits, position)
        try:
            session.run()
        finally:
            self._ports.committed = session.committed

    def _check_stored(self, stored: OffsetRecord | None) -> None:
        if stored is None:
            return
        place = self._ports.place
        if stored.task_epoch > place.task_epoch:
            raise NotOwner
        if stored.incarnation != place.incarnation:
            log.warning("the position of an earlier connector of this name is used incarnation=%s", stored.incarnation)

    def _committed(self) -> None:
        self._failures = 0
        took_s, self._commit_s = self._counters.commit_s_total - self._commit_s, self._counters.commit_s_total
        self._must_look |= took_s > SLOW_COMMIT_S
        laps, self._first_commit = self._first_commit, None
        if laps is not None:
            self._retrying.over()
            self._quarantine.stored()
            laps.note("commit_ms")
            log.info("source task delivers session=%d %s", self._sessions, laps)

    def _tick(self, producer: RecordProducer, session: DeliverySession) -> None:
        now = self._clock()
        if self._must_look and producer.opened_at is None:
            self._must_look = False
            self._ports.topics.check_ended()
        if now - self._metrics_at < METRICS_INTERVAL_S:
            return
        self._metrics_at = now
        self._ports.topics.close_idle()
        if self._registrar is not None:
            self._registrar.close_idle()
        self._untold = {}
        self._report.metrics({**self._extra, **self._numbers(session, now)})

    def _numbers(self, session: DeliverySession, now: float) -> JsonObject:
        counters = self._counters
        since, records = self._rate_from
        rate = (counters.records - records) / (now - since) if now > since else 0.0
        self._rate_from = (now, counters.records)
        numbers: JsonObject = {
            "records": counters.records,
            "bytes": counters.bytes,
            "transactions": counters.commits,
            "events_per_s": round(rate, 1),
            "commit_s_total": round(counters.commit_s_total, 3),
            "commit_ms_avg": round(1000 * counters.commit_s_total / counters.commits, 2) if counters.commits else 0,
            "commit_ms_max": round(1000 * counters.commit_s_max, 2),
            "sessions": self._sessions,
            REPORTED: counters.latency.numbers(),
            **counters.numbers(),
            **self._retrying.numbers(),
            INCOMPLETE: self._incomplete.names() if self._incomplete else [],
            "position": _shown(session.committed),
        }
        if (behind := self._extra.get("lag_bytes")) is not None:
            # Also of 0: what was said before must not stay beside it.
            numbers["table_lag_bytes"] = counters.tables.lag_bytes(behind)
        if session.watermark is not None and "ts_ms" in session.watermark:
            late_s = round(max(0.0, time.time() - session.watermark["ts_ms"] / 1000), 3)
            numbers["lag_s"] = 0.0 if session.is_idle and late_s < IDLE_S_MAX else late_s
        return numbers


def _shown(position: JsonObject | None) -> JsonObject | None:
    """A position for people: its plain fields. Nested ones may be long and hold keys of rows, which are values."""
    if position is None:
        return None
    return {name: value for name, value in position.items() if not isinstance(value, dict | list)}
