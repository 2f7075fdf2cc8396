"""`/v1/events`: server-sent events of state changes; a client that reconnects goes on where it was cut off."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.event_feed import FeedEvent, FeedListener
from cdcworker.worker.rest.held_stream import STREAM, HeldStream, too_many
from cdcworker.worker.rest.read_consistency import number
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.security.access import sees_all, visible
from starlette.requests import Request
from starlette.responses import Response

KEEP_ALIVE_S = 15.0
"""Seconds between comments in the stream, so that no proxy closes it as idle."""
END_CHECK_S = 0.5
RETRY_MS = 1000
LAST_ID = re.compile(r"(.{1,32})-([0-9]{1,18})")


@dataclass(frozen=True)
class EventFilter:
    """The events that a client has selected and may see."""

    connectors: frozenset[str]
    limit: int | None
    may_see: Callable[[str], bool]
    sees_cluster: bool

    def matches(self, event: FeedEvent) -> bool:
        if event.connector is None:
            return not self.connectors
        return (not self.connectors or event.connector in self.connectors) and self.may_see(event.connector)

    def visible_data(self, event: FeedEvent) -> dict[str, Any]:
        """Returns the data of the event; of a decision about several connectors only the moves that the caller may see."""
        if event.type != "tasks.moved" or self.sees_cluster:
            return event.data
        return {**event.data, "moves": [move for move in event.data["moves"] if self.may_see(move["connector"])]}


async def events(api: ApiContext, request: Request) -> Response:
    """Streams events, first `hello`, or `reset` when missed events are no longer known: the client then reads the state
    again."""
    if api.event_feed.is_full:
        raise too_many("Too many clients follow this worker's events")
    limit = request.query_params.get("limit")
    if limit is not None and not number(limit):
        raise e.bad_request("limit must be a number from 1", e.parameter("limit"))
    selected = EventFilter(
        frozenset(request.query_params.getlist("connector")),
        number(limit),
        lambda name: visible(request.scope, name),
        sees_all(request.scope),
    )
    return HeldStream(_stream(api, _last_event_number(api, request), selected), request, api.streams)


def _last_event_number(api: ApiContext, request: Request) -> int | None:
    """Returns the number in `Last-Event-ID`, -1 for one of another process, None without the header."""
    text = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    if not text:
        return None
    match = LAST_ID.fullmatch(text)
    return int(match[2]) if match and match[1] == _boot(api) else -1


def _boot(api: ApiContext) -> str:
    return api.view().boot_id[:32]


async def _stream(api: ApiContext, after: int | None, selected: EventFilter) -> AsyncIterator[str]:
    async with api.event_feed.listening(after) as (listener, complete):
        view = api.view()
        yield f"retry: {RETRY_MS}\n"
        start = {"worker": view.worker_id, "boot": view.boot_id, "version": view.state.version}
        yield _text(api, "hello" if complete else "reset", start, None if after is not None else api.event_feed.number)
        async for event in _events(api, listener, selected):
            yield (
                _text(api, event.type, {"ts": event.ts_ms, **selected.visible_data(event)}, event.number)
                if event
                else ": \n\n"
            )
        if listener.is_overrun:
            yield _text(
                api,
                "behind",
                {"message": "This client reads too slowly: connect again, and read the state again (GET /v1/cluster)"},
                None,
            )


async def _events(api: ApiContext, listener: FeedListener, selected: EventFilter) -> AsyncIterator[FeedEvent | None]:
    """Yields events until the limit, the longest time or the end of the worker; None stands for a keep-alive."""
    loop = asyncio.get_running_loop()
    end, keep_alive_at, left = loop.time() + api.limits.events_s_max, loop.time() + KEEP_ALIVE_S, selected.limit
    while loop.time() < end and not api.ending.is_set() and not listener.is_overrun:
        if loop.time() >= keep_alive_at:
            keep_alive_at = loop.time() + KEEP_ALIVE_S
            yield None
        wait_s = max(0.0, min(END_CHECK_S, keep_alive_at - loop.time(), end - loop.time()))
        try:
            event = await asyncio.wait_for(listener.queue.get(), wait_s)
        except TimeoutError:
            continue
        if event is None:
            return
        if selected.matches(event):
            yield event
            left = None if left is None else left - 1
            if left == 0:
                return


def _text(api: ApiContext, kind: str, data: dict[str, Any], id: int | None) -> str:
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
