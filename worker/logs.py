"""Logging: text on a terminal, JSON lines otherwise; one record is one line, whatever it holds."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from typing import Final, Literal, TextIO

from cdcworker.worker.security.redact import clean

Format = Literal["auto", "text", "json"]

RECENT_LINES: Final = 2_000
RECENT_CHARS_MAX: Final = 4_096
TALKATIVE: Final = ("uvicorn", "httpx", "httpcore", "asyncio", "py4j")
CONTEXT_FIELDS: Final = ("worker", "connector", "task", "position")
_CONTROL: Final = {number: f"\\x{number:02x}" for number in (*range(32), 127, *range(128, 160)) if number != 9}
_CONTROL[ord("\n")] = "\\n"
_CONTROL[ord("\r")] = "\\r"
_CONTROL.update({0x2028: "\\u2028", 0x2029: "\\u2029"})


_bound: dict[str, str] = {}


def bind(**names: str) -> None:
    """What every record of this process has besides: which worker it is."""
    _bound.update(names)


def one_line(text: str) -> str:
    """Names of tables and columns come from outside: they must not be able to forge a log line."""
    return text.translate(_CONTROL)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        item: dict[str, object] = {
            "ts": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": clean(record.getMessage()),
        }
        for name in CONTEXT_FIELDS:
            found = getattr(record, name, _bound.get(name))
            if found is not None:
                item[name] = found
        if record.exc_info and record.exc_info[0] is not None:
            item["trace"] = trace(record)
        return json.dumps(item, separators=(",", ":"), default=str)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname:<7} {record.name} {one_line(clean(record.getMessage()))}"
        if record.exc_info and record.exc_info[0] is not None:
            text += " trace=" + one_line(trace(record))
        return text


def trace(record: logging.LogRecord) -> str:
    """Types and places of an exception without its texts: those of foreign libraries may quote values."""
    parts: list[str] = []
    exc = record.exc_info[1] if record.exc_info else None
    while exc is not None and len(parts) < 8:
        frames = []
        place = exc.__traceback__
        while place is not None:
            frames.append(f"{place.tb_frame.f_globals.get('__name__', '?')}:{place.tb_lineno}")
            place = place.tb_next
        parts.append(f"{type(exc).__name__} at {' > '.join(frames[-12:])}")
        exc = exc.__cause__ or exc.__context__
    return " | caused by ".join(parts)


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class Recent(logging.Handler):
    """The last lines, as JSON, for who asks this worker for them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=RECENT_LINES)
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if len(line) > RECENT_CHARS_MAX:
            line = json.dumps({"ts": _time(record), "level": record.levelname, "logger": record.name, "cut": len(line)})
        self.lines.append(line)


_recent: Recent | None = None


def keep_recent() -> None:
    """Keep lines from now on; `set_up` comes before."""
    global _recent
    _recent = Recent()
    logging.getLogger().addHandler(_recent)


def recent() -> list[str]:
    return list(_recent.lines) if _recent is not None else []


def set_up(level: str = "INFO", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Configure the root logger of this process; replaces what was there."""
    out = stream or sys.stderr
    text = form == "text" or (form == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Handlers that fail (a closed pipe) must not take the worker with them.
    logging.raiseExceptions = False
