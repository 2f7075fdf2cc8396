"""Keeps what was resolved for a task, and values of rows, out of the lines that Java and other foreign code in its process group
write to the log."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import re
import select
import signal
import threading
from collections.abc import Iterator
from typing import Final

from cdcworker.schemas.threads import SupervisedThread
from cdcworker.schemas.untrusted.driver_text import kept, kept_kinds
from cdcworker.worker.logs.redaction import clean
from cdcworker.worker.protocol.control import end_process_group
from cdcworker.worker.protocol.messages import LOG_LINE_BYTES_MAX, LineSplitter

STDERR: Final = 2
READ_BYTES: Final = 65_536
_JAVA: Final = re.compile(r"(\S{10,40} [A-Z]{4,5} spark [\w$.-]{1,200} )(.*)", re.DOTALL)
"""A line of Spark's logger, by its layout in connectors/spark/runtime/java_gateway.py."""
_FRAME: Final = re.compile(r"\s+(?:at [\w$.<>/@~-]{1,500}\([\w$.:<> -]{0,300}\)|\.\.\. [0-9]{1,9} more)")
"""A frame of a stack. Behind the last one the next line of the logger may begin."""
_WHOLE: Final = ("#", "OpenJDK ", "WARNING: ", "Terminating due to ", *(f"%{level}|" for level in range(8)))
"""How lines of the virtual machine and of librdkafka begin."""


class JavaLines:
    """Takes values out of the lines of one Java process. What an exception says may have any number of lines: of those behind
    a line of Spark's logger only frames and names of exceptions are kept."""

    def __init__(self) -> None:
        self._in_message = False

    def cleaned(self, line: str) -> str | None:
        """Returns what is kept of a line; None: nothing."""
        found = _JAVA.fullmatch(line)
        if found:
            self._in_message = True
            return found[1] + kept(found[2])
        if not self._in_message or line.startswith(_WHOLE):
            return line
        frame = _FRAME.match(line)
        if frame is None:
            return kept_kinds(line) or None
        rest = self.cleaned(line[frame.end() :]) if line[frame.end() :].strip() else None
        return frame[0] if rest is None else f"{frame[0]}\n{rest}"


class ForeignOutput:
    """Puts a pipe in the place of standard error, whose lines a thread cleans. Our own loggers, which clean their lines
    themselves, and the stacks of a task that hangs go on to where standard error led."""

    def __init__(self, stderr: int = STDERR) -> None:
        self._stderr = stderr
        self._log = os.dup(stderr)
        self._lines = LineSplitter(LOG_LINE_BYTES_MAX)
        self._java = JavaLines()
        self._lock = threading.Lock()
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.dup2(write, stderr)
        os.close(write)

    def start(self) -> None:
        """Begins to clean. The log's handlers are those of the task's process, set up before."""
        # What is in the pipe is lost when the interpreter aborts: its stacks go to the log itself.
        faulthandler.enable(file=self._log)
        faulthandler.register(signal.SIGQUIT, file=self._log, all_threads=True)
        stream = os.fdopen(self._log, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(stream)
        # Without it Java would wait for ever to write.
        SupervisedThread(self._serve, name="foreign-output", ends_process=True).start()

    def drain(self) -> None:
        """Writes what is in the pipe, before the process ends. Standard error leads to the log itself again."""
        os.dup2(self._log, self._stderr)
        with contextlib.suppress(OSError):
            self._take_all()
            with self._lock:
                for line in self._lines.close():
                    self._write(line)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        try:
            while poll.poll() and self._take_all():
                pass
        except OSError:
            # A broken pipe means that the worker is gone.
            end_process_group()

    def _take_all(self) -> bool:
        """Returns False when nobody can write to the pipe any more."""
        with self._lock, contextlib.suppress(BlockingIOError):
            while data := os.read(self._read, READ_BYTES):
                for line in self._lines.feed(data):
                    self._write(line)
            return False
        return True

    def _write(self, line: bytes) -> None:
        text = self._java.cleaned(line.decode(errors="backslashreplace"))
        if text is None:
            return
        left = clean(text).encode(errors="backslashreplace") + b"\n"
        while left:
            left = left[os.write(self._log, left) :]


@contextlib.contextmanager
def cleaned_output() -> Iterator[None]:
    """Cleans what foreign code writes while the context lasts."""
    output = ForeignOutput()
    output.start()
    try:
        yield
    finally:
        output.drain()
