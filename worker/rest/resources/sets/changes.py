"""`/v1/connectors/NAME/changes`: row changes as server-sent events. Rows are data, so each reader is in the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.json_text import parse_message
from cdcworker.worker.diagnostics.change_view import ChangeFilter
from cdcworker.worker.diagnostics.tail import (
    ENDED,
    NO_TOPICS,
    TailChildren,
    TailRequest,
    TailTopics,
    check_filter,
    parse_begin,
    topics_of,
)
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.held_stream import STREAM, HeldStream, too_many
from cdcworker.worker.rest.read_consistency import number
from cdcworker.worker.rest.resources.events import END_CHECK_S, KEEP_ALIVE_S
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.rest.settings import available
from starlette.requests import Request
from starlette.responses import Response

PATH = "/v1/connectors/{connector}/changes"


async def changes(api: ApiContext, request: Request) -> Response:
    """Streams `ready`, then `change` and `counts` (read, matched, dropped, unreadable), at last `end` or `error`."""
    connector = api.connector(request.path_params["connector"])
    reader = available(api.services.tail, "Reading changes")
    tail_request, topics = _tail_request(api, request), topics_of(api.view(), connector)
    if not topics.names and not topics.pattern:
        raise e.from_cdc(
            CdcError(NO_TOPICS, "neither its config nor its tasks name any topic", where={"connector": connector.name})
        )
    if reader.is_full:
        raise too_many("Too many read changes at this worker")
    stream = HeldStream(_stream(api, reader, topics, tail_request), request, api.change_readers)
    # A read, but of rows: it is recorded in the audit log when it begins.
    api.settings.protection.audit.record(request.scope, 200)
    return stream


def _tail_request(api: ApiContext, request: Request) -> TailRequest:
    query = request.query_params
    lists = {name: tuple(query.getlist(text)) for name, text in (("tables", "table"), ("ops", "op"))}
    change_filter = ChangeFilter(**lists, key=tuple(query.getlist("key")), where=tuple(query.getlist("where")))
    try:
        check_filter(change_filter)
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
    return TailRequest(change_filter, begin, at, number(limit) or 0, flag(query, "follow", True))


async def _stream(
    api: ApiContext, reader: TailChildren, topics: TailTopics, tail_request: TailRequest
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    end, keep_alive_at = loop.time() + api.limits.events_s_max, loop.time() + KEEP_ALIVE_S
    async with reader.reading(topics, tail_request) as lines:
        waiting: asyncio.Task[bytes] | None = None
        try:
            while loop.time() < end and not api.ending.is_set():
                if loop.time() >= keep_alive_at:
                    keep_alive_at = loop.time() + KEEP_ALIVE_S
                    yield ": \n\n"
                # Kept over several looks: a line that is half read must not be lost.
                waiting = waiting or asyncio.ensure_future(lines.readline())
                done, _ = await asyncio.wait({waiting}, timeout=END_CHECK_S)
                if not done:
                    continue
                line, waiting = waiting.result(), None
                kind, text = event_of(line)
                yield text
                if kind in ("end", "error"):
                    return
            yield _text("end", {"why": "time" if loop.time() >= end else "worker"})
        finally:
            if waiting is not None:
                waiting.cancel()


def event_of(line: bytes) -> tuple[str, str]:
    kind, data = "error", CdcError(ENDED, "the process that reads the topics ended early").to_dict()
    if line.endswith(b"\n"):
        try:
            ((kind, data),) = parse_message(line).items()
        except ValueError:
            data = CdcError(ENDED, "the process that reads the topics wrote a line that is no event").to_dict()
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
