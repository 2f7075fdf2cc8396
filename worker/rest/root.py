"""The worker itself: version, health for machines, the cluster's picture for screens."""

from __future__ import annotations

from importlib.metadata import version

from cdcworker.worker.rest import dry, shapes
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.context import HERDER_SILENT_S, Api
from cdcworker.worker.rest.reading import number
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.security.access import visible
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CONNECT_API = "4.3.0"
"""Clients compare the first two numbers to see what they may call; ours follows as a pre-release part."""
BEAT_LOST_S = 60.0
"""A liveness probe restarts the process: it must be much slower than whatever heals by itself."""

JOURNAL_ENTRIES = 50
DRAINS = {None: None, "expected": True, "none": False}
"""What `restart` may say; without it the worker's property decides."""

READY = "Worker has completed startup and is ready to handle requests."
STARTING = "Worker is still starting up."
UNHEALTHY = "Worker was unable to handle this request and may be unable to handle other requests."


async def root(api: Api, request: Request) -> Response:
    return JSONResponse(
        {
            "version": f"{CONNECT_API}-cdcworker.{version('cdcworker')}",
            "commit": "unknown",
            "kafka_cluster_id": api.view().kafka_cluster_id,
        }
    )


async def health(api: Api, request: Request) -> Response:
    view = api.view()
    if view.last_tick_age_s > HERDER_SILENT_S:
        return JSONResponse({"status": "unhealthy", "message": UNHEALTHY}, 500)
    if not view.ready:
        return JSONResponse({"status": "starting", "message": STARTING}, 503)
    return JSONResponse({"status": "healthy", "message": READY})


async def alive(api: Api, request: Request) -> Response:
    """This loop answers and the coordination thread beats; nothing outside the process is asked."""
    age = api.view().last_tick_age_s
    if age > BEAT_LOST_S:
        return JSONResponse(
            {"status": "unhealthy", "message": f"The coordination thread is silent for {age:.0f} s"}, 503
        )
    return JSONResponse({"status": "ok"})


async def live(api: Api, request: Request) -> Response:
    """Which process answers here: workers ask each other when one falls silent."""
    view = api.view()
    return JSONResponse({"worker": view.worker_id, "boot": view.boot_id})


async def ready(api: Api, request: Request) -> Response:
    view = api.view()
    if view.last_tick_age_s > HERDER_SILENT_S:
        return JSONResponse({"status": "unhealthy", "message": UNHEALTHY}, 503)
    if not view.ready:
        return JSONResponse({"status": "starting", "message": STARTING}, 503)
    if view.draining:
        return JSONResponse({"status": "draining", "message": "Worker hands over its tasks."}, 503)
    return JSONResponse({"status": "ready"})


async def cluster(api: Api, request: Request) -> Response:
    picture = shapes.cluster(api.view())
    picture["tasks"] = [task for task in picture["tasks"] if visible(request.scope, task["connector"])]
    return JSONResponse(picture)


async def journal(api: Api, request: Request) -> Response:
    """The last decisions about tasks, newest first."""
    limit = number(request.query_params.get("limit", str(JOURNAL_ENTRIES)))
    if limit is None:
        raise e.bad_request("limit must be a number", e.parameter("limit"))
    view = api.view()
    entries = shapes.journal(view, limit)
    for entry in entries:
        entry["moves"] = [move for move in entry["moves"] if visible(request.scope, move["connector"])]
    return JSONResponse({"entries": entries, "version": view.state.version})


async def openapi(api: Api, request: Request) -> Response:
    """What this worker offers, as OpenAPI 3.1."""
    from cdcworker.worker.rest.app import ENDPOINTS as ALL
    from cdcworker.worker.rest.openapi import cached

    return JSONResponse(cached(ALL))


async def drain(api: Api, request: Request) -> Response:
    """Answers at once; the worker hands its tasks over and then ends.

    `restart=expected`: they are not handed over but wait for the next process of this worker id, within its time.
    """
    if api.drain is None:
        return JSONResponse({"error_code": 501, "message": "This worker cannot be drained over REST."}, 501)
    restart = request.query_params.get("restart")
    if restart not in DRAINS:
        raise e.bad_request(f"restart must be one of {', '.join(filter(None, DRAINS))}", e.parameter("restart"))
    if dry.asked(request):
        view = api.view()
        held = view.state.assignments.get(view.worker_id)
        moved = [{"connector": task.connector, "task": task.task} for task in (held.tasks if held else ())]
        return dry.shown(effect="drained", worker=view.worker_id, tasks=moved)
    api.drain(DRAINS[restart])
    return JSONResponse({"status": "draining"}, 202)


ENDPOINTS = (
    Endpoint("GET", "/", root, "Version of the worker", "worker", role="read", whose="each"),
    Endpoint("GET", "/health", health, "Health as Kafka Connect tells it", "worker", (200, 500, 503), role="open"),
    Endpoint("GET", "/healthz", alive, "Liveness", "worker", (200, 503), role="open"),
    Endpoint("GET", "/readyz", ready, "Readiness", "worker", (200, 503), role="open"),
    Endpoint("GET", "/v1/live", live, "Which process of this worker answers", "worker", role="open"),
    Endpoint("GET", "/v1/cluster", cluster, "Leader, workers and tasks", "cluster", role="read", whose="each"),
    Endpoint(
        "GET",
        "/v1/cluster/journal",
        journal,
        "Why tasks moved",
        "cluster",
        (200, 400),
        ("limit",),
        role="read",
        whose="each",
    ),
    Endpoint("GET", "/v1/openapi.json", openapi, "This description", "worker", role="read", whose="each"),
    Endpoint(
        "POST",
        "/v1/drain",
        drain,
        "Hand over this worker's tasks, then end it",
        "worker",
        statuses=(200, 202, 400, 501),
        query=("restart", "dry_run"),
        role="admin",
    ),
)
