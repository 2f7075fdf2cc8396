"""Sets up logging: text on a terminal, JSON lines elsewhere; every record is one line, whatever it holds."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from typing import Final, Literal, TextIO

from cdcworker.worker.logs.redaction import clean

Format = Literal["auto", "text", "json"]

RECENT_LINES: Final = 2_000
RECENT_CHARS_MAX: Final = 4_096
QUIET_LIBRARIES: Final = ("uvicorn", "httpx", "httpcore", "asyncio", "py4j")
CONTEXT_FIELDS: Final = ("worker", "connector", "task", "position")
_CONTROL: Final = {number: f"\\x{number:02x}" for number in (*range(32), 127, *range(128, 160)) if number != 9}
_CONTROL[ord("\n")] = "\\n"
_CONTROL[ord("\r")] = "\\r"
_CONTROL.update({0x2028: "\\u2028", 0x2029: "\\u2029"})


_bound: dict[str, str] = {}


def bind(**names: str) -> None:
    """Adds fields to every record of this process, such as the worker's id."""
    _bound.update(names)


def one_line(text: str) -> str:
    """Returns the text without line breaks and control characters: names of tables come from outside and must not forge
    log lines."""
    return text.translate(_CONTROL)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        item: dict[str, object] = {
            "ts": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": clean(record.getMessage()),
        }
        for name in CONTEXT_FIELDS:
            value = getattr(record, name, _bound.get(name))
            if value is not None:
                item[name] = value
        if record.exc_info and record.exc_info[0] is not None:
            item["trace"] = trace(record)
        return json.dumps(item, separators=(",", ":"), default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname:<7} {record.name} {one_line(clean(record.getMessage()))}"
        if record.exc_info and record.exc_info[0] is not None:
            text += " trace=" + one_line(trace(record))
        return text


def trace(record: logging.LogRecord) -> str:
    """Returns types and places of an exception without their texts: those of libraries may quote row values."""
    parts: list[str] = []
    exc = record.exc_info[1] if record.exc_info else None
    while exc is not None and len(parts) < 8:
        frames = []
        traceback = exc.__traceback__
        while traceback is not None:
            frames.append(f"{traceback.tb_frame.f_globals.get('__name__', '?')}:{traceback.tb_lineno}")
            traceback = traceback.tb_next
        parts.append(f"{type(exc).__name__} at {' > '.join(frames[-12:])}")
        exc = exc.__cause__ or exc.__context__
    return " | caused by ".join(parts)


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class RecentLines(logging.Handler):
    """Keeps the last lines as JSON for support bundles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=RECENT_LINES)
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if len(line) > RECENT_CHARS_MAX:
            line = json.dumps({"ts": _time(record), "level": record.levelname, "logger": record.name, "cut": len(line)})
        self.lines.append(line)


_recent: RecentLines | None = None


def keep_recent() -> None:
    """Keeps lines from now on; `set_up` is called before."""
    global _recent
    _recent = RecentLines()
    logging.getLogger().addHandler(_recent)


def recent() -> list[str]:
    """Returns the lines that were kept."""
    return list(_recent.lines) if _recent is not None else []


def set_up(level: str = "INFO", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Configures the root logger of this process, and replaces any handlers."""
    out = stream or sys.stderr
    text = form == "text" or (form == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Handlers that fail (a closed pipe) must not take the worker with them.
    logging.raiseExceptions = False
