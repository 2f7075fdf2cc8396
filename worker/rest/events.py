"""`/v1/events`: server-sent events of state changes, which a client can take up again where it was cut off."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.feed import Event, Listener
from cdcworker.worker.rest.reading import number
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.security.access import sees_all, visible
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

STREAM = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
BEAT_S = 15.0
"""A comment goes out this often, so that nothing on the way takes the stream for dead."""
END_CHECK_S = 0.5
RETRY_MS = 1000
BUSY_S = 5
LAST_ID = re.compile(r"(.{1,32})-([0-9]{1,18})")


@dataclass(frozen=True)
class Wanted:
    connectors: frozenset[str]
    limit: int | None
    may_see: Callable[[str], bool]
    all_of_it: bool

    def takes(self, event: Event) -> bool:
        if event.connector is None:
            return not self.connectors
        return (not self.connectors or event.connector in self.connectors) and self.may_see(event.connector)

    def shown(self, event: Event) -> dict[str, Any]:
        """Of a decision about several connectors only what the caller may see."""
        if event.type != "tasks.moved" or self.all_of_it:
            return event.data
        return {**event.data, "moves": [move for move in event.data["moves"] if self.may_see(move["connector"])]}


async def events(api: Api, request: Request) -> Response:
    """`hello` first, or `reset` when what was missed is not known any more: then read the pictures again."""
    if api.feed.is_full:
        headers = {"Retry-After": str(BUSY_S)}
        raise e.RestError(503, "Too many clients follow this worker's events", e.TOO_MANY, headers=headers)
    limit = request.query_params.get("limit")
    if limit is not None and not number(limit):
        raise e.bad_request("limit must be a number from 1", e.parameter("limit"))
    wanted = Wanted(
        frozenset(request.query_params.getlist("connector")),
        number(limit),
        lambda name: visible(request.scope, name),
        sees_all(request.scope),
    )
    return StreamingResponse(_stream(api, _last(api, request), wanted), headers=HEADERS, media_type=STREAM)


def _last(api: Api, request: Request) -> int | None:
    """The number in `Last-Event-ID`; one of another process is -1, which nobody has."""
    text = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    if not text:
        return None
    found = LAST_ID.fullmatch(text)
    return int(found[2]) if found and found[1] == _boot(api) else -1


def _boot(api: Api) -> str:
    return api.view().boot_id[:32]


async def _stream(api: Api, after: int | None, wanted: Wanted) -> AsyncIterator[str]:
    async with api.feed.listening(after) as (listener, complete):
        view = api.view()
        yield f"retry: {RETRY_MS}\n"
        start = {"worker": view.worker_id, "boot": view.boot_id, "version": view.state.version}
        yield _text(api, "hello" if complete else "reset", start, None if after is not None else api.feed.number)
        async for event in _events(api, listener, wanted):
            yield (
                _text(api, event.type, {"ts": event.ts_ms, **wanted.shown(event)}, event.number) if event else ": \n\n"
            )
        if listener.is_behind:
            yield _text(api, "behind", {"message": "Too slow: connect again and read the pictures again"}, None)


async def _events(api: Api, listener: Listener, wanted: Wanted) -> AsyncIterator[Event | None]:
    """Until the limit, the longest time, or the worker's end; None is a beat."""
    loop = asyncio.get_running_loop()
    end, beat, left = loop.time() + api.settings.events_s_max, loop.time() + BEAT_S, wanted.limit
    while loop.time() < end and not api.ending.is_set() and not listener.is_behind:
        if loop.time() >= beat:
            beat = loop.time() + BEAT_S
            yield None
        wait_s = max(0.0, min(END_CHECK_S, beat - loop.time(), end - loop.time()))
        try:
            event = await asyncio.wait_for(listener.queue.get(), wait_s)
        except TimeoutError:
            continue
        if event is None:
            return
        if wanted.takes(event):
            yield event
            left = None if left is None else left - 1
            if left == 0:
                return


def _text(api: Api, kind: str, data: dict[str, Any], id: int | None) -> str:
    tag = "" if id is None else f"id: {_boot(api)}-{id}\n"
    return f"{tag}event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/events",
        events,
        "State changes as they happen",
        "cluster",
        (200, 400, 503),
        ("connector", "limit", "last_event_id"),
        produces=STREAM,
        role="read",
        whose="each",
    ),
)
