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

from cdcworker.connectors.api import SourceTask
from cdcworker.connectors.latency import REPORTED
from cdcworker.connectors.retrying import Retrying
from cdcworker.coordinator import kafka_errors
from cdcworker.coordinator.errors import TASK_FENCED
from cdcworker.coordinator.offsets import StoredPosition
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.control import Control
from cdcworker.worker.policy import backoff, decide, unexpected
from cdcworker.worker.progress import OWN, STARTING
from cdcworker.worker.source_counts import Counters
from cdcworker.worker.source_session import (
    LEASE_LAPSED,
    ChangeEncoder,
    Limits,
    Pen,
    Place,
    Session,
    Tools,
)
from cdcworker.worker.source_shaper import shaper_of
from cdcworker.worker.source_topics import LEFT_OPEN
from cdcworker.worker.topic_facts import Topics
from cdcworker.worker.troubles import Troubles

log = logging.getLogger(__name__)

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1
EXIT_FENCED: Final = 3

FENCES_MAX: Final = 5
FENCES_WINDOW_S: Final = 60.0
"""A woken zombie fences the rightful owner once. More often means that two owners fight, which a person must see."""
HEALTHY_AFTER_S: Final = 60.0
METRICS_INTERVAL_S: Final = 1.0
WAIT_STEP_S: Final = 0.2
SLOW_COMMIT_S: Final = 2.0
"""A commit takes so long when a broker was away, which may have left one before it without its markers."""


class Registering(Protocol):
    def __call__(self, registrations: Sequence[Any]) -> Sequence[int]: ...
    def rest(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class TopicLookup(Topics, Protocol):
    def rest(self) -> None: ...
    def check_ended(self) -> None: ...


class Ports(Protocol):
    """All that a runner needs of Kafka and the connector. Real in `source_ports`, scripted in tests."""

    committed: JsonObject | None
    """The last position of which this process knows that it was committed; set by the runner."""

    @property
    def place(self) -> Place: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def topics(self) -> TopicLookup: ...

    def prepare(self) -> None:
        """Before each session, with a lease: what may begin before the fence stands."""

    def release(self) -> None:
        """What only the start needed; called once the source is open, and after any failure."""

    def pen(self) -> Pen:
        """A new producer of the task's id; every predecessor is fenced when it returns (INV-5)."""

    def registrar(self) -> Registering:
        """Likewise for the schema producer."""

    def assigned(self) -> bool: ...

    def position(self) -> StoredPosition | None: ...

    def encoder(self, register: Registering) -> ChangeEncoder: ...

    def task(self) -> SourceTask: ...


class Reporting(Protocol):
    def status(self, state: Any, error: CdcError | None = None) -> None: ...
    def metrics(self, numbers: Any) -> None: ...


class Laps:
    """How long each part of a start took: what a fail-over waits for."""

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
        ports: Ports,
        control: Control,
        report: Reporting,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = ports
        self._control = control
        self._report = report
        self._clock = clock
        self._counters = Counters()
        self._failures = 0
        self._sessions = 0
        self._look_back = True
        self._fences: deque[float] = deque(maxlen=FENCES_MAX + 1)
        self._metrics_at = float("-inf")
        self._rate_from = (self._clock(), 0)
        self._extra: dict[str, Any] = {}
        self._registrar: Registering | None = None
        self._troubles = Troubles()
        self._retrying = Retrying()
        self._first_commit: Laps | None = None
        self._commit_s = 0.0
        self._must_look = False
        self._stands_since: float | None = None

    def extra_metrics(self, numbers: JsonObject) -> None:
        """What the source reports about itself; sent with the runner's own numbers."""
        self._extra.update(numbers)

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
            with closing(self._ports.pen()), closing(self._ports.registrar()):
                self._ports.position()
            self._look_back = False
        except CdcError as error:
            log.warning("what another process left open is not ended yet error=%s", error)
        finally:
            self._ports.release()

    def _attempt(self) -> int | None:
        self._stands_since = None
        OWN.enter(STARTING)
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
        attempt, self._failures = self._failures, self._failures + 1
        action = decide(error, attempt)
        if action.kind == "yield":
            return self._fenced(error)
        if action.kind == "restart" and not error.retriable:
            error = CdcError(kafka_errors.TIMEOUT, error.message, where=error.where)
        if action.kind == "quarantine" and self._troubles.take(error):
            return None
        if action.kind != "retry":
            return self._fail(error)
        self._retrying.failed(error)
        self._report.metrics({**self._extra, **self._retrying.numbers()})
        log.warning("session dropped attempt=%d delay_s=%.1f error=%s", attempt + 1, action.delay_s, error)
        self._control.wait(action.delay_s)
        return None

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
        ports, laps = self._ports, Laps()
        pen: Pen | None = None
        registrar: Registering | None = None
        task: SourceTask | None = None
        try:
            ports.prepare()
            pen = ports.pen()
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
            self._troubles.tell(task)
            task.open(position)
            laps.note("open_ms")
            ports.release()
            if self._control.interrupted():
                return
            self._sessions += 1
            self._stands_since = self._clock()
            self._report.status("RUNNING")
            log.info("source task stands position=%s session=%d %s", _shown(position), self._sessions, laps)
            self._first_commit = laps
            self._run_session(pen, registrar, task, position)
        except BaseException as exc:
            # What is open would hold back readers until the next start; a fenced producer has nothing to end.
            if not (isinstance(exc, CdcError) and exc.kind == "fenced"):
                for opened in (pen, registrar):
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
                for opened in (pen, registrar):
                    if opened is not None:
                        opened.close()

    def _run_session(self, pen: Pen, registrar: Registering, task: SourceTask, position: JsonObject | None) -> None:
        encoder = self._ports.encoder(registrar)
        lend, shaper = getattr(task, "lend", None), shaper_of(encoder, self._ports.topics)
        if lend is not None and shaper is not None:
            lend(shaper)
        tools = Tools(
            pen=pen,
            task=task,
            encoder=encoder,
            topics=self._ports.topics,
            control=self._control,
            counters=self._counters,
            on_tick=partial(self._tick, pen),
            clock=self._clock,
        )
        session = Session(tools, self._ports.place, self._ports.limits, position)
        session.on_commit = self._committed
        try:
            session.run()
        finally:
            self._ports.committed = session.committed

    def _check_stored(self, stored: StoredPosition | None) -> None:
        if stored is None:
            return
        place = self._ports.place
        if stored.task_epoch > place.task_epoch:
            raise NotOwner
        if stored.incarnation != place.incarnation:
            log.warning("the position of an earlier connector of this name is used incarnation=%s", stored.incarnation)

    def _committed(self) -> None:
        self._failures = 0
        self._retrying.over()
        self._troubles.stored()
        took_s, self._commit_s = self._counters.commit_s_total - self._commit_s, self._counters.commit_s_total
        self._must_look |= took_s > SLOW_COMMIT_S
        laps, self._first_commit = self._first_commit, None
        if laps is not None:
            laps.note("commit_ms")
            log.info("source task delivers session=%d %s", self._sessions, laps)

    def _tick(self, pen: Pen, session: Session) -> None:
        now = self._clock()
        if self._must_look and pen.opened_at is None:
            self._must_look = False
            self._ports.topics.check_ended()
        if now - self._metrics_at < METRICS_INTERVAL_S:
            return
        self._metrics_at = now
        self._ports.topics.rest()
        if self._registrar is not None:
            self._registrar.rest()
        self._report.metrics({**self._extra, **self._numbers(session, now)})

    def _numbers(self, session: Session, now: float) -> JsonObject:
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
            "position": _shown(session.committed),
        }
        if behind := self._extra.get("lag_bytes"):
            numbers["table_lag_bytes"] = counters.tables.lag_bytes(behind)
        if session.watermark is not None and "ts_ms" in session.watermark:
            numbers["lag_s"] = round(max(0.0, time.time() - session.watermark["ts_ms"] / 1000), 3)
        return numbers


def _shown(position: JsonObject | None) -> JsonObject | None:
    """A position for people: its plain fields. Nested ones may be long and hold keys of rows, which are values."""
    if position is None:
        return None
    return {name: value for name, value in position.items() if not isinstance(value, dict | list)}
