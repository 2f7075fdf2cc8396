"""Paths of requests as the client sent them, before any decoding that could join or split segments."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

if TYPE_CHECKING:
    from starlette.types import Scope


def split_path(scope: Scope) -> list[str] | None:
    """Returns the decoded segments of the raw path without one trailing slash; None when it is not percent-encoded
    UTF-8."""
    raw = scope.get("raw_path") or scope["path"].encode()
    if b"://" in raw and not raw.startswith(b"/"):
        raw = b"/" + raw.partition(b"://")[2].partition(b"/")[2]  # the absolute form of a request to a proxy
    parts = raw.partition(b"?")[0].split(b"/")[1:]
    if len(parts) > 1 and parts[-1] == b"":
        parts.pop()
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        return None


def encode_segment(name: str) -> str:
    """Returns a name as one path segment; dots alone are encoded too, since clients resolve `.` and `..` away."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")
