"""Request bodies: strict JSON that names the place of a mistake, and Connect's flat string maps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cdcworker.worker.rest import errors as e
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 1 << 20
LABELS_MAX = 64
LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
LABEL_VALUE_MAX = 63
HALF_A_PAIR = "Text holds half of a surrogate pair, which no UTF-8 can carry"


class Number(str):
    """A JSON number as it was written: a config value keeps `1.10` and `1e3` as they are."""

    __slots__ = ()


class BodyLimit:
    """Refuses bodies above a size with 413, before they are read when the length is declared."""

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
    """The parsed body; RestError 400 with line and column when it is not JSON."""
    return _parsed(await _text_of(request), parse_int=Number, parse_float=Number)


async def read_plain(request: Request) -> Any:
    """The same with numbers as numbers, and text that UTF-8 can carry."""
    parsed = _parsed(await _text_of(request))
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise e.bad_request(HALF_A_PAIR, "") from None
    return parsed


async def _text_of(request: Request) -> str:
    data = await request.body()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise _bad_json("not UTF-8", line, exc.start - (data.rfind(b"\n", 0, exc.start))) from None


def _parsed(text: str, **numbers: Any) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, **numbers)
    except json.JSONDecodeError as exc:
        raise _bad_json(exc.msg, exc.lineno, exc.colno) from None
    except (ValueError, RecursionError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise e.RestError(400, f"Malformed JSON: {reason}", e.BAD_JSON) from None


async def read_object(request: Request) -> dict[str, Any]:
    parsed = await read_json(request)
    if not isinstance(parsed, dict):
        raise e.bad_request("The body must be a JSON object", "")
    return parsed


def string_map(parsed: Any, *parents: str) -> dict[str, str | None]:
    """A flat map of strings; scalars become strings as Connect's parser makes them, null stays."""
    if not isinstance(parsed, Mapping):
        what = "The body" if not parents else f"`{parents[-1]}`"
        raise e.bad_request(f"{what} must be an object of strings", e.pointer(*parents))
    return {_text(key, *parents, key): scalar(value, *parents, key) for key, value in parsed.items()}


def scalar(value: Any, *path: str) -> str | None:
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
    """RestError 400 that says which one is wrong."""
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
