"""The doctor over REST: a connector's surroundings examined where its secrets are, in a child with a time limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.resources.offsets import off_loop
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.rest.settings import available
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

QUICK_S = 30.0
DEEP_S = 75.0
"""Below the limit of a request."""


async def examine(api: ApiContext, request: Request) -> Response:
    """Each check with what was measured, why it matters, and what mends it; nothing is changed."""
    connector = api.connector(request.path_params["connector"])
    ask, deep = available(api.services.examine, "Examining connectors"), flag(request.query_params, "deep")
    question = {
        "connector": connector.name,
        "config": dict(connector.config),
        "offsets": await _offsets(api, request, connector),
        "deep": deep,
        "checks": request.query_params.getlist("check"),
    }
    found = await off_loop(api, request, lambda: ask(question, DEEP_S if deep else QUICK_S))
    counts = Counter(item["severity"] for item in found)
    return JSONResponse(
        {"connector": connector.name, "blocked": counts["error"] > 0, "counts": dict(counts), "findings": found}
    )


async def _offsets(api: ApiContext, request: Request, connector: Connector) -> list[dict[str, Any]]:
    """Returns the offsets of the connector's tasks, which the doctor compares with what the source still has; none where they are
    not known."""
    if connector.kind != "source" or api.services.offsets is None:
        return []
    try:
        found = await off_loop(api, request, lambda: api.offsets.read(connector))
    except CdcError:
        return []
    return [{"partition": item.partition, "offset": item.offset} for item in found]


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/connectors/{connector}/doctor",
        examine,
        "Examine a connector's surroundings",
        "connectors",
        (200, 404),
        ("deep", "check"),
        role="operate",
    ),
)
