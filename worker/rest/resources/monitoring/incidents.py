"""`/v1/incidents`: what was wrong with connectors for longer than a moment, and who was told."""

from __future__ import annotations

from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.rest.settings import available
from cdcworker.worker.security.access import sees_all, visible
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


async def list_incidents(api: ApiContext, request: Request) -> Response:
    """Answers incidents, the newest first: all that are kept, or with `open=true` those that are not over. `objectives` says how
    connectors do by those that have a target. `receivers` says why receivers take no messages; only the leader knows it, and only
    who sees all connectors is told."""
    alerts = available(api.services.alerts, "Incidents (the worker property alerts.file)")
    only_open = flag(request.query_params, "open")
    shown = [
        {name: value for name, value in incident.items() if name != "v"}
        for incident in alerts.incidents()
        if visible(request.scope, incident["connector"]) and not (only_open and incident["resolved"] is not None)
    ]
    objectives = [one for one in alerts.objectives() if visible(request.scope, one["connector"])]
    problems = dict(alerts.problems()) if sees_all(request.scope) else {}
    return JSONResponse({"incidents": shown, "objectives": objectives, "receivers": problems})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/incidents",
        list_incidents,
        "Incidents of connectors, and who was told",
        "cluster",
        (200, 501),
        ("open",),
        role="read",
        whose="each",
    ),
)
