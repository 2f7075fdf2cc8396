"""Listens to tasks: messages become events, log lines go to the worker's log, and no task says more than its share."""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable
from typing import Final

from cdcworker.coordinator.events import Event, TaskReport
from cdcworker.coordinator.model import JsonObject
from cdcworker.worker.child import CLOSED, Child
from cdcworker.worker.pipes import Budget, event_of, level_of, message_of, position_of

log = logging.getLogger(__name__)
task_log = logging.getLogger("cdcworker.task")

READ_BYTES: Final = 65_536
MESSAGE_BYTES_PER_S: Final = 1_048_576
MESSAGE_BYTES_BURST: Final = 8_388_608
MESSAGES_PER_S: Final = 200
MESSAGES_BURST: Final = 1_000
"""A task that says more is read more slowly: its states must all be heard, and its pipe makes it wait."""
LOG_BYTES_PER_S: Final = 4_194_304
LOG_BYTES_BURST: Final = 16_777_216
LOG_LINES_PER_S: Final = 100
LOG_LINES_BURST: Final = 1_000
"""Of what a task logs beyond that only the number of lines is kept."""
LAST_WORDS_LINES: Final = 500
LAST_WORDS_BYTES_MAX: Final = 1_048_576
METRICS_EVERY_S: Final = 0.2
SILENT_S: Final = 2.0
SUMMARY_EVERY_S: Final = 10.0


class Hearing:
    """What one task may still say."""

    def __init__(self, now: float) -> None:
        self.message_bytes = Budget(MESSAGE_BYTES_PER_S, MESSAGE_BYTES_BURST, now)
        self.messages = Budget(MESSAGES_PER_S, MESSAGES_BURST, now)
        self.log_bytes = Budget(LOG_BYTES_PER_S, LOG_BYTES_BURST, now)
        self.log_lines = Budget(LOG_LINES_PER_S, LOG_LINES_BURST, now)
        self.noise = 0
        """Lines among the messages that are none, and in `dropped` lines of the log, since the last summary."""
        self.dropped = 0
        self.dropped_total = 0
        self.summary_at = float("-inf")
        self.metrics: JsonObject | None = None
        self.metrics_at = now - METRICS_EVERY_S
        self.usage: JsonObject = {}
        self.position: JsonObject | None = None
        """The last one that the task told of: what its lines in the log are bound to."""
        self.stands = False
        """It has reported that it runs or is paused."""
        self.deaf: dict[int, float] = {}
        """Pipes that are not read for the moment, and until when."""


class Ears:
    """For the thread that owns the selector. `on_message` sees every message before its event is posted."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        post: Callable[[Event], None],
        on_message: Callable[[Child, JsonObject], None] = lambda _child, _message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selector = selector
        self._post = post
        self._on_message = on_message
        self._clock = clock
        self._hearings: dict[Child, Hearing] = {}

    def open(self, child: Child) -> None:
        self._hearings[child] = Hearing(self._clock())
        self._watch(child, child.stdout)
        self._watch(child, child.stderr)

    def _watch(self, child: Child, descriptor: int) -> None:
        read = self._read_messages if descriptor == child.stdout else self._read_log
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _mask: read(child))

    def close(self, child: Child) -> None:
        """Take its last words, its error above all, and what it still had to say for itself."""
        hearing = self._hearings.get(child)
        if hearing is None:
            return
        hearing.log_lines = Budget(LOG_LINES_PER_S, LAST_WORDS_LINES, self._clock())
        for descriptor, read in ((child.stdout, self._read_messages), (child.stderr, self._read_log)):
            left = LAST_WORDS_BYTES_MAX
            while left > 0 and descriptor != CLOSED and (size := read(child)):
                left -= size
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        for line in child.out.close():
            self._take(child, hearing, line)
        for line in child.err.close():
            self._log(child, hearing, line)
        self._say_metrics(child, hearing)
        self._summarize(child, hearing, float("inf"))
        del self._hearings[child]

    def tick(self, now: float) -> None:
        """Listen again to those who have waited, pass on numbers that were held back."""
        for child, hearing in self._hearings.items():
            for descriptor in [fd for fd, until in hearing.deaf.items() if now >= until]:
                del hearing.deaf[descriptor]
                self._watch(child, descriptor)
            if hearing.metrics is not None and now - hearing.metrics_at >= METRICS_EVERY_S:
                self._say_metrics(child, hearing)
            self._summarize(child, hearing, now)

    def deadline(self) -> float | None:
        times = [until for hearing in self._hearings.values() for until in hearing.deaf.values()]
        times += [h.metrics_at + METRICS_EVERY_S for h in self._hearings.values() if h.metrics is not None]
        return min(times, default=None)

    def lines_dropped(self, child: Child) -> int:
        hearing = self._hearings.get(child)
        return hearing.dropped_total if hearing else 0

    def _read(self, child: Child, descriptor: int) -> bytes:
        """What is there. At the end the pipe is no longer watched."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return b""
        if not data and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        return data

    def _rest(self, child: Child, descriptor: int, pause_s: float) -> None:
        if pause_s > 0 and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
            self._hearings[child].deaf[descriptor] = self._clock() + pause_s

    # --- messages ----------------------------------------------------------------------------------------------------

    def _read_messages(self, child: Child) -> int:
        data, hearing, now = self._read(child, child.stdout), self._hearings[child], self._clock()
        lines = child.out.feed(data)
        for line in lines:
            self._take(child, hearing, line)
        pause_s = max(hearing.message_bytes.spend(len(data), now), hearing.messages.spend(len(lines), now))
        self._rest(child, child.stdout, pause_s)
        return len(data)

    def _take(self, child: Child, hearing: Hearing, line: bytes) -> None:
        message = message_of(line)
        if message is None:
            hearing.noise += bool(line.strip())
            return
        self._on_message(child, message)
        event = event_of(child.task, message)
        if isinstance(event, TaskReport) and event.state is None:
            hearing.metrics = {**(hearing.metrics or {}), **event.metrics}
            hearing.position = position_of(event.metrics) or hearing.position
            if self._clock() - hearing.metrics_at >= METRICS_EVERY_S:
                self._say_metrics(child, hearing)
        elif event is not None:
            running = isinstance(event, TaskReport) and event.state in ("RUNNING", "PAUSED")
            hearing.stands = hearing.stands or running
            self._post(event)
        elif message.get("type") != "beat":
            hearing.noise += 1

    def _say_metrics(self, child: Child, hearing: Hearing) -> None:
        """The newest numbers of a task; more often than that nobody looks at them."""
        if hearing.metrics is not None:
            self._post(TaskReport(child.task, metrics={**hearing.metrics, **hearing.usage}))
            hearing.metrics, hearing.metrics_at = None, self._clock()

    def report(self, child: Child, numbers: JsonObject) -> None:
        """What the worker has measured itself goes with the task's own numbers, and alone when it sends none."""
        hearing = self._hearings.get(child)
        if hearing is not None:
            hearing.usage = numbers
            if hearing.stands and hearing.metrics is None and self._clock() - hearing.metrics_at >= SILENT_S:
                hearing.metrics = {}

    # --- the log -----------------------------------------------------------------------------------------------------

    def _read_log(self, child: Child) -> int:
        data, hearing = self._read(child, child.stderr), self._hearings[child]
        for line in child.err.feed(data):
            self._log(child, hearing, line)
        self._rest(child, child.stderr, hearing.log_bytes.spend(len(data), self._clock()))
        return len(data)

    def _log(self, child: Child, hearing: Hearing, line: bytes) -> None:
        if not line.strip():
            return
        if not hearing.log_lines.take(1, self._clock()):
            hearing.dropped += 1
            hearing.dropped_total += 1
            return
        text = line.decode(errors="replace").rstrip()
        names: JsonObject = {"connector": child.task.connector, "task": child.task.task}
        if hearing.position is not None:
            names["position"] = hearing.position
        named = level_of(text)
        level = max(named or logging.INFO, logging.WARNING if child.showing else logging.NOTSET)
        # What a task's own loggers say has been judged there already, by the same levels and for each logger by itself.
        if (named is None or task_log.level) and not task_log.isEnabledFor(level):
            return
        record = task_log.makeRecord(
            task_log.name, level, __file__, 0, "[%s] %s", (child.task.id, text), None, extra=names
        )
        task_log.handle(record)

    def _summarize(self, child: Child, hearing: Hearing, now: float) -> None:
        if now - hearing.summary_at < SUMMARY_EVERY_S:
            return
        if hearing.dropped:
            log.warning("task logs too much task=%s dropped_lines=%d", child.task.id, hearing.dropped)
        if hearing.noise:
            log.warning("task said something else than messages task=%s lines=%d", child.task.id, hearing.noise)
        if hearing.dropped or hearing.noise:
            hearing.dropped = hearing.noise = 0
            hearing.summary_at = now
