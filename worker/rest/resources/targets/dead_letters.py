"""Dead letters: which records a sink has set aside and why, and their redrive. The records themselves are not shown."""

from __future__ import annotations

import re
from typing import Any, Final

from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.dead_letters.service import NOT_KEPT, DeadLetters
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import dry_run_answer, is_dry_run
from cdcworker.worker.rest.resources.offsets import off_loop
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.rest.settings import available
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PATH: Final = "/v1/connectors/{connector}/dead-letters"
LIMIT, LIMIT_MAX = 100, 1000
PLACE: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249}):(?P<partition>[0-9]{1,9}):(?P<offset>[0-9]{1,18})")
"""Names the last dead letter of a page."""
Json = dict[str, Any]


async def show(api: ApiContext, request: Request) -> Response:
    """Answers dead letters ordered by topic, partition and offset; `next` is the value of `after` for the next page."""
    connector, dead_letters = _connector_and_service(api, request)
    limit = _limit(request)
    # One more than asked for tells whether there are more.
    listed = await off_loop(
        api, request, lambda: dead_letters.show(connector, {**_filter_of(request), "limit": limit + 1})
    )
    shown = listed["letters"][:limit]
    after = _place(shown[-1]) if len(listed["letters"]) > limit else None
    return JSONResponse(
        {"connector": connector.name, "total": listed["total"], "dead_letters": shown, "next": after},
    )


async def redrive(api: ApiContext, request: Request) -> Response:
    """Applies dead letters again, as many as a request has time for; `next` is the value of `after` to go on with.

    A dry run applies them and rolls back.
    """
    connector, dead_letters = _connector_and_service(api, request)
    dry_run = is_dry_run(request)
    result = await off_loop(
        api, request, lambda: dead_letters.redrive(connector, {**_filter_of(request), "dry_run": dry_run})
    )
    place = result.pop("next")
    after = None if place is None else ":".join(map(str, place))
    out = {"connector": connector.name, **result, "complete": place is None, "next": after}
    return dry_run_answer(effect="redriven", **out) if dry_run else JSONResponse(out)


def _connector_and_service(api: ApiContext, request: Request) -> tuple[Connector, DeadLetters]:
    connector = api.running(request.path_params["connector"])
    dead_letters = available(api.services.dead_letters, "Dead letters")
    if connector.kind != "sink":
        error = CdcError(NOT_KEPT, f"{connector.name} is a source")
        raise e.RestError(400, error.message, error.code, suggestion=error.hint)
    return connector, dead_letters


def _filter_of(request: Request) -> Json:
    query = request.query_params
    out: Json = {"topic": query.get("topic", "")}
    if query.get("after"):
        match = PLACE.fullmatch(query["after"])
        if match is None:
            raise e.bad_request("`after` must be TOPIC:PARTITION:OFFSET", e.parameter("after"))
        out["after"] = [match["topic"], int(match["partition"]), int(match["offset"])]
    return out


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(LIMIT))
    if not text.isascii() or not text.isdigit() or int(text[:18]) < 1:
        raise e.bad_request("`limit` must be a number from 1", e.parameter("limit"))
    return min(int(text[:18]), LIMIT_MAX)


def _place(letter: Json) -> str:
    return f"{letter['topic']}:{letter['partition']}:{letter['offset']}"


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        show,
        "Records that a sink has set aside, and why",
        statuses=(200, 400, 404, 503),
        query=("topic", "after", "limit"),
        role="read",
    ),
    Endpoint(
        "POST",
        f"{PATH}/redrive",
        redrive,
        "Apply dead letters again, now that their cause is repaired",
        statuses=(200, 400, 404, 503),
        query=("topic", "after", "dry_run"),
        role="operate",
    ),
)
