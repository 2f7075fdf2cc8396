"""`/v1/support`: what this worker adds to a support bundle, without rows and secrets."""

from __future__ import annotations

from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.resources.offsets import off_loop
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.rest.settings import available
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


async def support(api: ApiContext, request: Request) -> Response:
    """Answers versions, the worker's properties without secrets, settings of topics, and the last lines of its log."""
    report = available(api.services.support, "Telling about this worker")
    topics = sorted({name for names in api.view().topics.values() for name in names})
    return JSONResponse(await off_loop(api, request, lambda: report.tell(topics)))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/support",
        support,
        "What this worker adds to a support bundle",
        "worker",
        (200, 503),
        role="admin",
        needs_cluster=False,
    ),
)
