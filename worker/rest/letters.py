"""Dead letters over REST: which a sink has set aside and why, and their second try. What is in them is never told."""

from __future__ import annotations

import re
from typing import Any, Final

from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.letters import NOT_KEPT, DeadLetters
from cdcworker.worker.rest import dry
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.offsets import off_loop
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PATH: Final = "/v1/connectors/{connector}/dead-letters"
LIMIT, LIMIT_MAX = 100, 1000
PLACE: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249}):(?P<partition>[0-9]{1,9}):(?P<offset>[0-9]{1,18})")
Json = dict[str, Any]


async def show(api: Api, request: Request) -> Response:
    """In the order of topic, partition and offset; `next` goes on as `after`."""
    connector, letters = _asked(api, request)
    limit = _limit(request)
    # One more than asked for tells whether there are more.
    found = await off_loop(api, lambda: letters.show(connector, {**_which(request), "limit": limit + 1}))
    shown = found["letters"][:limit]
    after = _place(shown[-1]) if len(found["letters"]) > limit else None
    return JSONResponse(
        {"connector": connector.name, "total": found["total"], "dead_letters": shown, "next": after},
    )


async def redrive(api: Api, request: Request) -> Response:
    """As many as a request has time for; `next` goes on as `after`. A dry run does it and takes it back."""
    connector, letters = _asked(api, request)
    dry_run = dry.asked(request)
    found = await off_loop(api, lambda: letters.redrive(connector, {**_which(request), "dry_run": dry_run}))
    place = found.pop("next")
    after = None if place is None else ":".join(map(str, place))
    out = {"connector": connector.name, **found, "complete": place is None, "next": after}
    return dry.shown(effect="redriven", **out) if dry_run else JSONResponse(out)


def _asked(api: Api, request: Request) -> tuple[Connector, DeadLetters]:
    connector, letters = api.connector(request.path_params["connector"]), api.settings.letters
    if letters is None:
        raise e.not_available("Dead letters")
    if connector.kind != "sink":
        error = CdcError(NOT_KEPT, f"{connector.name} is a source")
        raise e.RestError(400, error.message, error.code, suggestion=error.hint)
    return connector, letters


def _which(request: Request) -> Json:
    query = request.query_params
    out: Json = {"topic": query.get("topic", "")}
    if query.get("after"):
        found = PLACE.fullmatch(query["after"])
        if found is None:
            raise e.bad_request("`after` must be TOPIC:PARTITION:OFFSET", e.parameter("after"))
        out["after"] = [found["topic"], int(found["partition"]), int(found["offset"])]
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
        "Apply them again, now that the cause is mended",
        statuses=(200, 400, 404, 503),
        query=("topic", "after", "dry_run"),
        role="operate",
    ),
)
