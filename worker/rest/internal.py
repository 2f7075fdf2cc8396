"""What only workers ask of each other. Kafka Connect's two paths are known and refused to people as Connect does."""

from __future__ import annotations

from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import Response


async def not_needed(api: Api, request: Request) -> Response:
    """Here the leader splits connectors and fences tasks by itself."""
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
