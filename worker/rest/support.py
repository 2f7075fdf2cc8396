"""`/v1/support`: what this worker adds to a support bundle; no rows, no secrets."""

from __future__ import annotations

from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.offsets import off_loop
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


async def support(api: Api, request: Request) -> Response:
    """Versions, the worker's properties without secrets, settings of topics, the last lines of its log."""
    told = api.settings.support
    if told is None:
        raise e.not_available("Telling about this worker")
    topics = sorted({name for names in api.view().topics.values() for name in names})
    return JSONResponse(await off_loop(api, lambda: told.tell(topics)))


ENDPOINTS = (
    Endpoint(
        "GET", "/v1/support", support, "What this worker adds to a support bundle", "worker", (200, 503), role="admin"
    ),
)
