"""Requests between workers. Kafka Connect's two internal paths exist and are refused to other callers as Kafka Connect
does."""

from __future__ import annotations

from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import Response


async def not_needed(api: ApiContext, request: Request) -> Response:
    """Refuses: here the leader itself splits connectors and fences tasks."""
    raise e.not_available("Handing over task configs and fencing over REST")


ENDPOINTS = (
    Endpoint(
        "POST",
        "/connectors/{connector}/tasks",
        not_needed,
        "Task configs from a worker (internal)",
        "internal",
        (400, 403, 501, 503),
        role="internal",
    ),
    Endpoint(
        "PUT",
        "/connectors/{connector}/fence",
        not_needed,
        "Fencing asked for by a worker (internal)",
        "internal",
        (400, 403, 501, 503),
        role="internal",
    ),
)
