"""`/v1/connectors/NAME/changes`: rows as they change, as server-sent events. Row values are data: who asks is written down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.change_view import Filter
from cdcworker.worker.changes import ENDED, NO_TOPICS, Asked, Changes, Topics, check_filter, parse_begin, topics_of
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.events import BEAT_S, BUSY_S, END_CHECK_S, HEADERS, STREAM
from cdcworker.worker.rest.reading import number
from cdcworker.worker.rest.routing import Endpoint, flag
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

PATH = "/v1/connectors/{connector}/changes"


async def changes(api: Api, request: Request) -> Response:
    """`ready`, then `change` and `counts` (read, matched, dropped, unreadable), at last `end` or `error`."""
    connector = api.connector(request.path_params["connector"])
    reader = api.settings.changes
    if reader is None:
        raise e.not_available("Reading changes")
    asked, topics = _asked(api, request), topics_of(api.view(), connector)
    if not topics.names and not topics.pattern:
        raise e.from_cdc(CdcError(NO_TOPICS, "nothing says which topics it has", where={"connector": connector.name}))
    if reader.is_full:
        headers = {"Retry-After": str(BUSY_S)}
        raise e.RestError(503, "Too many read changes at this worker", e.TOO_MANY, headers=headers)
    # A read, but of rows: it belongs into the trail, and when it begins.
    api.settings.audit.record(request.scope, 200)
    return StreamingResponse(_stream(api, reader, topics, asked), headers=HEADERS, media_type=STREAM)


def _asked(api: Api, request: Request) -> Asked:
    query = request.query_params
    lists = {name: tuple(query.getlist(text)) for name, text in (("tables", "table"), ("ops", "op"))}
    wanted = Filter(**lists, key=tuple(query.getlist("key")), where=tuple(query.getlist("where")))
    try:
        check_filter(wanted)
    except ValueError as exc:
        raise e.bad_request(str(exc)) from None
    limit = query.get("limit")
    if limit is not None and not number(limit):
        raise e.bad_request("limit must be a number from 1", e.parameter("limit"))
    try:
        begin, at = parse_begin(query.get("from", "now"), api.clock())
    except (ValueError, OverflowError):
        text = "from is now, beginning, an offset, an age like 15m, or a time with its zone"
        raise e.bad_request(text, e.parameter("from")) from None
    return Asked(wanted, begin, at, number(limit) or 0, flag(query, "follow", True))


async def _stream(api: Api, reader: Changes, topics: Topics, asked: Asked) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    end, beat = loop.time() + api.settings.events_s_max, loop.time() + BEAT_S
    async with reader.reading(topics, asked) as lines:
        waiting: asyncio.Task[bytes] | None = None
        try:
            while loop.time() < end and not api.ending.is_set():
                if loop.time() >= beat:
                    beat = loop.time() + BEAT_S
                    yield ": \n\n"
                # Kept over several looks: a line that is half read must not be lost.
                waiting = waiting or asyncio.ensure_future(lines.readline())
                done, _ = await asyncio.wait({waiting}, timeout=END_CHECK_S)
                if not done:
                    continue
                line, waiting = waiting.result(), None
                kind, text = _event(line)
                yield text
                if kind in ("end", "error"):
                    return
            yield _text("end", {"why": "time" if loop.time() >= end else "worker"})
        finally:
            if waiting is not None:
                waiting.cancel()


def _event(line: bytes) -> tuple[str, str]:
    if not line.endswith(b"\n"):
        kind, data = "error", CdcError(ENDED, "it has ended early").to_dict()
    else:
        ((kind, data),) = json.loads(line).items()
    return kind, _text(kind, data)


def _text(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        changes,
        "Rows as they change, before and after",
        statuses=(200, 400, 404, 503),
        query=("table", "op", "key", "where", "from", "limit", "follow"),
        produces=STREAM,
        role="operate",
    ),
)
