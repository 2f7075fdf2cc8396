"""What a poll returns: changes with a position, a position alone where one is due, or only how far the stream has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from cdcworker.connectors.capture.stream.heartbeat import Heartbeat
from cdcworker.connectors.capture.stream.position_pace import PositionPace
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, PollBatch, Position
from cdcworker.schemas.errors import CdcError


class StreamedSession(Protocol):
    """An open task, as far as its batches tell of it."""

    @property
    def complete(self) -> bool:
        """Only rows were to be read, and all have been handed on."""

    @property
    def place(self) -> Any:
        """Where the stream stands: equal while it does not move."""

    @property
    def boundary(self) -> int:
        """Every transaction whose commit has a lower number has been handed on."""

    @property
    def moves(self) -> int:
        """Steps of the snapshot's progress."""

    @property
    def is_loading(self) -> bool:
        """Returns whether there are tables of which readers do not have all rows."""

    @property
    def loading(self) -> list[str]:
        """Names of some of those."""

    def position_json(self, ts_us: int) -> JsonObject:
        """The position as it is stored; `ts_us`: commit time of the last transaction, 0 where none is known."""


S = TypeVar("S", bound=StreamedSession)
S_contra = TypeVar("S_contra", bound=StreamedSession, contravariant=True)


class TaskNumbers(Protocol[S_contra]):
    """Reports the task's numbers to the worker."""

    events: int
    """How many changes the task has handed on."""

    def tick(self, session: S_contra, now: float) -> None:
        """Called after a batch: a source that is never idle tells its numbers too."""


class Batches(Generic[S]):
    """Makes the batches of one task. `run` carries out a statement of the heartbeat; `share`: what watermarks of one of several tasks
    say besides; `place` returns what they say of the place in the log in its own form."""

    def __init__(
        self,
        pace: PositionPace,
        heartbeat: Heartbeat,
        numbers: TaskNumbers[S],
        run: Callable[[S, str], CdcError | None],
        share: Mapping[str, Any] | None = None,
        place: Callable[[S], Mapping[str, Any]] | None = None,
    ) -> None:
        self._pace = pace
        self._heartbeat = heartbeat
        self._numbers = numbers
        self._run = run
        self._share = share or {}
        self._place = place

    def with_position(self, session: S, out: Sequence[Change | EncodedRecords], ts_us: int, *, idle: bool) -> PollBatch:
        """Returns these changes, with the position behind them."""
        now = time.monotonic()
        if self._heartbeat.interval_s and self._heartbeat.due(now):
            at = Position(session.boundary, 0, 0)
            out = [*out, *self._heartbeat.beat(now, at, partial(self._run, session))]
        for item in out:
            self._numbers.events += len(item.records) if isinstance(item, EncodedRecords) else 1
        self._numbers.tick(session, now)
        self._pace.store(session.place, session.moves, now)
        return PollBatch(out, session.position_json(ts_us), self._watermark(session, ts_us), idle)

    def without_changes(self, session: S, ts_us: int, *, idle: bool) -> PollBatch:
        now = time.monotonic()
        is_due = self._pace.is_due(session.place, session.moves, now)
        if session.complete or is_due or self._heartbeat.due(now):
            return self.with_position(session, [], ts_us, idle=idle)
        if self._pace.tells(now):
            self._numbers.tick(session, now)
            return PollBatch(watermark=self._watermark(session, ts_us), idle=idle)
        return PollBatch(idle=idle)

    def _watermark(self, session: S, ts_us: int) -> JsonObject:
        """Every transaction whose commit lies before `commit_lsn` has been handed on; of the tables that are `loading` not all rows
        yet."""
        ts_ms = (ts_us or time.time_ns() // 1000) // 1000
        at = {"commit_lsn": session.boundary, "ts_ms": ts_ms, **self._share}
        if self._place is not None:
            at |= self._place(session)
        loading = session.loading if session.is_loading else []
        return {**at, "loading": loading} if loading else at
