"""The members of errors: Kafka Connect's two on the routes that are not this product's own, unless a client asks for more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from cdcworker.worker.http.paths import split_path

if TYPE_CHECKING:  # the command line asks for members, too, and has no use for a server's library
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

DETAILS: Final = "details"
"""The query flag that asks for the members that Kafka Connect's answers do not have."""
FORWARD: Final = "forward"
"""The query parameter of a request that another worker forwards, Kafka Connect's."""
OWN_PATHS: Final = frozenset({"v1", "ui", "metrics", "healthz", "readyz"})
"""The first segments of the paths that neither Kafka Connect nor Confluent's schema registry has."""
MEMBERS: Final = ("error_code", "message")
"""All members of Kafka Connect's ErrorMessage, which some clients refuse with others beside them."""


class ErrorMembers:
    """Takes the members that Kafka Connect does not have out of errors.

    A worker that forwards a request gets all of them, whatever its client has asked for: it looks for codes, and takes out
    itself what its client does not want. `details`: clients need not ask.
    """

    def __init__(self, app: ASGIApp, *, details: bool = False) -> None:
        self.app = app
        self.details = details

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = scope["type"] == "http" and not self.details and not has_own_errors(scope)
        await self.app(scope, receive, _without_more(send) if plain else send)


def has_own_errors(scope: Scope) -> bool:
    """Returns whether errors of a request have all members: on this product's own routes, for a client that asks for them,
    and for a worker that forwards."""
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    return is_own(split_path(scope)) or FORWARD in query or query.get(DETAILS, "").lower() == "true"


def is_own(segments: Sequence[str] | None) -> bool:
    """Returns whether a path, by its segments, is one that only this product has."""
    first = segments[0] if segments else ""
    return first in OWN_PATHS


def _without_more(send: Send) -> Send:
    """Returns a send function that holds an answer of status 400 or above until its body is complete."""
    head: Message | None = None
    body = b""

    async def shorten(message: Message) -> None:
        nonlocal head, body
        if message["type"] == "http.response.start" and message["status"] >= 400:
            head = message
        elif head is None:
            await send(message)
        elif message["type"] == "http.response.body":
            body += message.get("body", b"")
            if not message.get("more_body", False):
                body, length = _shortened(body), len(body)
                await send(head if len(body) == length else _with_length(head, len(body)))
                await send({"type": "http.response.body", "body": body})

    return shorten


def _shortened(body: bytes) -> bytes:
    """Returns an error with Kafka Connect's members alone, and anything else as it is."""
    try:
        content: Any = json.loads(body)
    except ValueError:
        return body
    if not isinstance(content, dict) or set(MEMBERS) >= set(content) or not set(MEMBERS) <= set(content):
        return body
    kept = {name: content[name] for name in MEMBERS}
    return json.dumps(kept, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def _with_length(head: Message, length: int) -> Message:
    headers = [(name, value) for name, value in head.get("headers", ()) if name.lower() != b"content-length"]
    return {**head, "headers": [*headers, (b"content-length", str(length).encode())]}
