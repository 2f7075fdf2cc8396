"""Reads the output of task processes: messages become events, log lines go to the worker's log, and each task's share
is limited."""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable
from typing import Final

from cdcworker.coordinator.core.events import Event, TaskReport
from cdcworker.coordinator.model import JsonObject
from cdcworker.worker.processes.child import CLOSED, TaskChild
from cdcworker.worker.protocol.messages import RateBudget, event_of, level_of, message_of, position_of

log = logging.getLogger(__name__)
task_log = logging.getLogger("cdcworker.task")

READ_BYTES: Final = 65_536
MESSAGE_BYTES_PER_S: Final = 1_048_576
MESSAGE_BYTES_BURST: Final = 8_388_608
MESSAGES_PER_S: Final = 200
MESSAGES_BURST: Final = 1_000
"""A task that sends more messages is read more slowly: none of its states may be lost, so its pipe makes it wait."""
LOG_BYTES_PER_S: Final = 4_194_304
LOG_BYTES_BURST: Final = 16_777_216
LOG_LINES_PER_S: Final = 100
LOG_LINES_BURST: Final = 1_000
"""Log lines beyond this are dropped; only their number is logged."""
FINAL_LINES: Final = 500
FINAL_BYTES_MAX: Final = 1_048_576
METRICS_EVERY_S: Final = 0.2
SILENT_S: Final = 2.0
SUMMARY_EVERY_S: Final = 10.0


class TaskOutput:
    """The read state of one task's output, with the rates that are left to it."""

    def __init__(self, now: float) -> None:
        self.message_bytes = RateBudget(MESSAGE_BYTES_PER_S, MESSAGE_BYTES_BURST, now)
        self.messages = RateBudget(MESSAGES_PER_S, MESSAGES_BURST, now)
        self.log_bytes = RateBudget(LOG_BYTES_PER_S, LOG_BYTES_BURST, now)
        self.log_lines = RateBudget(LOG_LINES_PER_S, LOG_LINES_BURST, now)
        self.foreign_lines = 0
        """Lines on the message pipe that are no messages, since the last summary in the log."""
        self.dropped = 0
        self.dropped_total = 0
        self.summary_at = float("-inf")
        self.metrics: JsonObject | None = None
        self.metrics_at = now - METRICS_EVERY_S
        self.usage: JsonObject = {}
        self.position: JsonObject | None = None
        """The newest position that the task has reported; its log lines carry it."""
        self.is_up = False
        """True if the task has reported that it runs or is paused."""
        self.paused_until: dict[int, float] = {}
        """The pipes that are not read at the moment, and until when."""


class OutputReader:
    """Reads the output of all tasks on the thread that owns the selector. `on_message` gets every message before its
    event is posted."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        post: Callable[[Event], None],
        on_message: Callable[[TaskChild, JsonObject], None] = lambda _child, _message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selector = selector
        self._post = post
        self._on_message = on_message
        self._clock = clock
        self._outputs: dict[TaskChild, TaskOutput] = {}

    def open(self, child: TaskChild) -> None:
        self._outputs[child] = TaskOutput(self._clock())
        self._register(child, child.stdout)
        self._register(child, child.stderr)

    def _register(self, child: TaskChild, descriptor: int) -> None:
        read = self._read_messages if descriptor == child.stdout else self._read_log
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _mask: read(child))

    def close(self, child: TaskChild) -> None:
        """Reads what is left in the pipes, above all the error of the task, and logs the summary."""
        output = self._outputs.get(child)
        if output is None:
            return
        output.log_lines = RateBudget(LOG_LINES_PER_S, FINAL_LINES, self._clock())
        for descriptor, read in ((child.stdout, self._read_messages), (child.stderr, self._read_log)):
            left = FINAL_BYTES_MAX
            while left > 0 and descriptor != CLOSED and (size := read(child)):
                left -= size
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        for line in child.out.close():
            self._handle(child, output, line)
        for line in child.err.close():
            self._log(child, output, line)
        self._post_metrics(child, output)
        self._summarize(child, output, float("inf"))
        del self._outputs[child]

    def tick(self, now: float) -> None:
        """Resumes the pipes whose pause is over, and posts metrics that were held back."""
        for child, output in self._outputs.items():
            for descriptor in [fd for fd, until in output.paused_until.items() if now >= until]:
                del output.paused_until[descriptor]
                self._register(child, descriptor)
            if output.metrics is not None and now - output.metrics_at >= METRICS_EVERY_S:
                self._post_metrics(child, output)
            self._summarize(child, output, now)

    def deadline(self) -> float | None:
        """Returns the monotonic time by which `tick` has something to do, None for never."""
        times = [until for output in self._outputs.values() for until in output.paused_until.values()]
        times += [h.metrics_at + METRICS_EVERY_S for h in self._outputs.values() if h.metrics is not None]
        return min(times, default=None)

    def lines_dropped(self, child: TaskChild) -> int:
        output = self._outputs.get(child)
        return output.dropped_total if output else 0

    def _read(self, child: TaskChild, descriptor: int) -> bytes:
        """Returns the bytes that can be read. At its end the pipe leaves the selector."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return b""
        if not data and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        return data

    def _pause(self, child: TaskChild, descriptor: int, pause_s: float) -> None:
        if pause_s > 0 and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
            self._outputs[child].paused_until[descriptor] = self._clock() + pause_s

    # --- messages ----------------------------------------------------------------------------------------------------

    def _read_messages(self, child: TaskChild) -> int:
        data, output, now = self._read(child, child.stdout), self._outputs[child], self._clock()
        lines = child.out.feed(data)
        for line in lines:
            self._handle(child, output, line)
        pause_s = max(output.message_bytes.spend(len(data), now), output.messages.spend(len(lines), now))
        self._pause(child, child.stdout, pause_s)
        return len(data)

    def _handle(self, child: TaskChild, output: TaskOutput, line: bytes) -> None:
        message = message_of(line)
        if message is None:
            output.foreign_lines += bool(line.strip())
            return
        self._on_message(child, message)
        event = event_of(child.task, message)
        if isinstance(event, TaskReport) and event.state is None:
            output.metrics = {**(output.metrics or {}), **event.metrics}
            output.position = position_of(event.metrics) or output.position
            if self._clock() - output.metrics_at >= METRICS_EVERY_S:
                self._post_metrics(child, output)
        elif event is not None:
            running = isinstance(event, TaskReport) and event.state in ("RUNNING", "PAUSED")
            output.is_up = output.is_up or running
            self._post(event)
        elif message.get("type") != "beat":
            output.foreign_lines += 1

    def _post_metrics(self, child: TaskChild, output: TaskOutput) -> None:
        """Posts the newest metrics of a task, at most every METRICS_EVERY_S seconds."""
        if output.metrics is not None:
            self._post(TaskReport(child.task, metrics={**output.metrics, **output.usage}))
            output.metrics, output.metrics_at = None, self._clock()

    def report(self, child: TaskChild, numbers: JsonObject) -> None:
        """Adds numbers that the worker has measured to the task's own metrics; a task that sends none gets a report of
        its own."""
        output = self._outputs.get(child)
        if output is not None:
            output.usage = numbers
            if output.is_up and output.metrics is None and self._clock() - output.metrics_at >= SILENT_S:
                output.metrics = {}

    # --- the log -----------------------------------------------------------------------------------------------------

    def _read_log(self, child: TaskChild) -> int:
        data, output = self._read(child, child.stderr), self._outputs[child]
        for line in child.err.feed(data):
            self._log(child, output, line)
        self._pause(child, child.stderr, output.log_bytes.spend(len(data), self._clock()))
        return len(data)

    def _log(self, child: TaskChild, output: TaskOutput, line: bytes) -> None:
        if not line.strip():
            return
        if not output.log_lines.take(1, self._clock()):
            output.dropped += 1
            output.dropped_total += 1
            return
        text = line.decode(errors="replace").rstrip()
        names: JsonObject = {"connector": child.task.connector, "task": child.task.task}
        if output.position is not None:
            names["position"] = output.position
        named = level_of(text)
        level = max(named or logging.INFO, logging.WARNING if child.shows_stacks else logging.NOTSET)
        # What a task's own loggers say has been judged there already, by the same levels and for each logger by itself.
        if (named is None or task_log.level) and not task_log.isEnabledFor(level):
            return
        record = task_log.makeRecord(
            task_log.name, level, __file__, 0, "[%s] %s", (child.task.id, text), None, extra=names
        )
        task_log.handle(record)

    def _summarize(self, child: TaskChild, output: TaskOutput, now: float) -> None:
        if now - output.summary_at < SUMMARY_EVERY_S:
            return
        if output.dropped:
            log.warning("task logs too much task=%s dropped_lines=%d", child.task.id, output.dropped)
        if output.foreign_lines:
            log.warning("task wrote lines that are no messages task=%s lines=%d", child.task.id, output.foreign_lines)
        if output.dropped or output.foreign_lines:
            output.dropped = output.foreign_lines = 0
            output.summary_at = now
