"""Answers with very many parts: they are made and written as JSON part by part, and the event loop serves others meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.responses import Response

SLICE_S: Final = 0.01
"""Seconds of work after which others have their turn."""


async def answer_of_parts(
    parts: Iterable[tuple[str, Any]], name: str = "", rest: Mapping[str, Any] | None = None
) -> Response:
    """Returns an object of the parts by their names. With `name` it holds the values alone, as a list of this name beside
    the members of `rest`. The parts are made one by one, from one view of the cluster."""
    pieces: list[bytes] = []
    began = time.monotonic()
    for key, value in parts:
        pieces.append(_json(value) if name else _json(key) + b":" + _json(value))
        if time.monotonic() - began >= SLICE_S:
            await asyncio.sleep(0)
            began = time.monotonic()
    if not name:
        return _answer(_joined(b"{", pieces, b"}"))
    more = b"".join(b"," + _json(key) + b":" + _json(value) for key, value in (rest or {}).items())
    return _answer(_joined(b"{" + _json(name) + b":[", pieces, b"]" + more + b"}"))


def _joined(begin: bytes, pieces: list[bytes], end: bytes) -> bytes:
    """Returns the pieces between commas. They may be many megabytes, so they are copied once."""
    if not pieces:
        return begin + end
    pieces[0] = begin + pieces[0]
    pieces[-1] += end
    return b",".join(pieces)


def _answer(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
