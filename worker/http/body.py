"""Request bodies: strict JSON with the place of a mistake, and Kafka Connect's flat maps of strings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cdcworker.schemas.untrusted.json_text import require_depth
from cdcworker.worker.http import errors as e
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 1 << 20
VALUES_MAX = 50_000
"""Values of one JSON body. Many small ones cost far more time than their bytes let expect."""
BYTES_PER_VALUE = 10
"""A larger body may hold more of them, as long as they are no smaller than those of a list of offsets."""
MEMBERS_MAX = 1_000
"""Members of one map of strings."""
LABELS_MAX = 64
LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
LABEL_VALUE_MAX = 63
TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
HALF_A_PAIR = "Text holds half of a surrogate pair, which no UTF-8 can carry"


class JsonNumber(str):
    """A JSON number as it was written: a config value keeps `1.10` and `1e3`."""

    __slots__ = ()


class BodyLimit:
    """Refuses bodies above a size with 413, before they are read if the length is declared."""

    def __init__(self, app: ASGIApp, bytes_max: int = BODY_BYTES_MAX) -> None:
        self.app = app
        self.bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self.bytes_max:
            await too_large(self.bytes_max).response()(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        total = 0

        async def read() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.bytes_max:
                raise too_large(self.bytes_max)
            return message

        return read


def too_large(bytes_max: int) -> e.RestError:
    return e.RestError(413, f"The body is larger than {bytes_max} bytes", e.TOO_LARGE, headers={"Connection": "close"})


async def read_json(request: Request) -> Any:
    """Returns the parsed body. RestError 400 with line and column when it is not JSON."""
    return _parsed(await _text_of(request), parse_int=JsonNumber, parse_float=JsonNumber)


def check_values(data: bytes) -> None:
    """RestError 413 for a body that holds more values than allowed."""
    most = max(VALUES_MAX, len(data) // BYTES_PER_VALUE)
    if _marks(data) <= most:
        return
    quotes = data.count(b'"') - data.count(b'\\"')
    if quotes > 2 * most or _marks(TEXT.sub(b"", data)) > most:
        raise e.RestError(413, f"The body holds more than {most} values", e.TOO_LARGE)


def _marks(data: bytes) -> int:
    """Returns about how many values there are, those in texts counted too."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


async def read_plain(request: Request) -> Any:
    """Returns the parsed body with numbers as numbers. RestError 400 also for text that UTF-8 cannot carry."""
    text = await _text_of(request)
    parsed = _parsed(text)
    try:
        if "\\u" in text:
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise e.bad_request(HALF_A_PAIR, "") from None
    return parsed


async def _text_of(request: Request) -> str:
    data = await request.body()
    check_values(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise _bad_json("not UTF-8", line, exc.start - (data.rfind(b"\n", 0, exc.start))) from None


def _parsed(text: str, **numbers: Any) -> Any:
    try:
        require_depth(text)
        return json.loads(text, parse_constant=_refuse_constant, **numbers)
    except json.JSONDecodeError as exc:
        raise _bad_json(exc.msg, exc.lineno, exc.colno) from None
    except (ValueError, RecursionError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise e.RestError(400, f"Malformed JSON: {reason}", e.BAD_JSON) from None


async def read_object(request: Request) -> dict[str, Any]:
    """Returns the body as a JSON object. RestError 400 for any other body."""
    parsed = await read_json(request)
    if not isinstance(parsed, dict):
        raise e.bad_request("The body must be a JSON object", "")
    return parsed


def string_map(parsed: Any, *parents: str) -> dict[str, str | None]:
    """Returns a flat map of strings. Scalars become strings as in Kafka Connect's parser; null stays None."""
    if not isinstance(parsed, Mapping):
        what = "The body" if not parents else f"`{parents[-1]}`"
        raise e.bad_request(f"{what} must be an object of strings", e.pointer(*parents))
    if len(parsed) > MEMBERS_MAX:
        what = "The body" if not parents else f"`{parents[-1]}`"
        raise e.bad_request(f"{what} has more than {MEMBERS_MAX} members", e.pointer(*parents))
    return {_text(key, *parents, key): scalar(value, *parents, key) for key, value in parsed.items()}


def scalar(value: Any, *path: str) -> str | None:
    """Returns a JSON scalar as a string, None for null. RestError 400 for a list or an object."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(str(value), *path)
    kind = "a list" if isinstance(value, list) else "an object"
    raise e.bad_request(f"`{_shown(path[-1])}` must be a string, not {kind}", e.pointer(*map(_shown, path)))


def _text(text: str, *path: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        place = e.pointer(*map(_shown, path))
        raise e.bad_request(HALF_A_PAIR, place) from None
    return text


def _shown(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _bad_json(reason: str, line: int, column: int) -> e.RestError:
    message = f"Malformed JSON: {reason} (line {line}, column {column})"
    return e.RestError(400, message, e.BAD_JSON, where={"line": line, "column": column})


def parse_labels(given: Mapping[str, str | None], *parents: str) -> dict[str, str]:
    """Returns the labels. RestError 400 that names the one that is wrong."""
    if len(given) > LABELS_MAX:
        raise e.bad_request(f"A connector has at most {LABELS_MAX} labels", e.pointer(*parents))
    for key, value in given.items():
        if not LABEL_KEY.fullmatch(key):
            text = "A label's key has 1 to 63 letters, digits, dots, slashes, hyphens and underscores"
            raise e.bad_request(text, e.pointer(*parents, key))
        if value is None or len(value) > LABEL_VALUE_MAX or not value.isprintable():
            text = f"A label's value has at most {LABEL_VALUE_MAX} characters that can be printed"
            raise e.bad_request(text, e.pointer(*parents, key))
    return {key: value for key, value in given.items() if value is not None}
