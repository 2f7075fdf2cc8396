"""The worker itself: version, liveness, readiness, drain; and the state of the whole cluster."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from cdcworker.worker.http import errors as e
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.context import HERDER_SILENT_S, ApiContext
from cdcworker.worker.rest.dry_run import dry_run_answer, is_dry_run
from cdcworker.worker.rest.read_consistency import number
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.security.access import sees_all, visible
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CONNECT_API = "4.3.0"
"""The version of Kafka Connect's API. Clients compare the first two numbers to see what they may call; our own version
follows as a pre-release part."""
SILENT_S_MAX = 60.0
"""Seconds without a step of the herder's thread after which `/healthz` fails: an orchestrator then restarts the
process, so anything that heals by itself must be faster."""

JOURNAL_ENTRIES = 50
DRAINS = {None: None, "expected": True, "none": False}
"""The values of `restart`; without it the worker's property decides."""

READY = "Worker has completed startup and is ready to handle requests."
UNHEALTHY = "Worker was unable to handle this request and may be unable to handle other requests."


async def root(api: ApiContext, request: Request) -> Response:
    return JSONResponse(
        {
            "version": f"{CONNECT_API}-cdcworker.{version('cdcworker')}",
            "commit": "unknown",
            "kafka_cluster_id": api.view().kafka_cluster_id,
        }
    )


async def health(api: ApiContext, request: Request) -> Response:
    view = api.view()
    if view.last_tick_age_s > HERDER_SILENT_S:
        return JSONResponse({"status": "unhealthy", "message": UNHEALTHY}, 500)
    if dead := api.settings.threads.dead():
        return JSONResponse({"status": "unhealthy", "message": _died(dead)}, 500)
    if not view.ready:
        return JSONResponse({"status": "starting", "message": e.STILL_STARTING}, 503)
    return JSONResponse({"status": "healthy", "message": READY})


def _died(dead: Sequence[str]) -> str:
    return f"Threads of this worker have died and their work is not done: {', '.join(dead)}"


async def alive(api: ApiContext, request: Request) -> Response:
    """Answers whether this process works: its event loop answers and the herder's thread makes steps. No other system
    is asked."""
    age = api.view().last_tick_age_s
    if age > SILENT_S_MAX:
        return JSONResponse(
            {"status": "unhealthy", "message": f"The coordination thread is silent for {age:.0f} s"}, 503
        )
    return JSONResponse({"status": "ok"})


async def live(api: ApiContext, request: Request) -> Response:
    """Answers which process runs here: workers ask each other when one falls silent."""
    view = api.view()
    return JSONResponse({"worker": view.worker_id, "boot": view.boot_id})


async def ready(api: ApiContext, request: Request) -> Response:
    view = api.view()
    if view.last_tick_age_s > HERDER_SILENT_S:
        return JSONResponse({"status": "unhealthy", "message": UNHEALTHY}, 503)
    if dead := api.settings.threads.dead():
        return JSONResponse({"status": "unhealthy", "message": _died(dead)}, 503)
    if not view.ready:
        return JSONResponse({"status": "starting", "message": e.STILL_STARTING}, 503)
    if view.draining:
        return JSONResponse({"status": "draining", "message": "Worker hands over its tasks."}, 503)
    return JSONResponse({"status": "ready"})


async def cluster(api: ApiContext, request: Request) -> Response:
    cluster_state = connect_json.cluster(api.view())
    cluster_state["tasks"] = [task for task in cluster_state["tasks"] if visible(request.scope, task["connector"])]
    cluster_state["warnings"] = list(api.settings.warnings) if sees_all(request.scope) else []
    return JSONResponse(cluster_state)


async def journal(api: ApiContext, request: Request) -> Response:
    """Answers the newest decisions about tasks, newest first."""
    limit = number(request.query_params.get("limit", str(JOURNAL_ENTRIES)))
    if limit is None:
        raise e.bad_request("limit must be a number", e.parameter("limit"))
    view = api.view()
    entries = connect_json.rebalance_journal(view, limit)
    for entry in entries:
        entry["moves"] = [move for move in entry["moves"] if visible(request.scope, move["connector"])]
    return JSONResponse({"entries": entries, "version": view.state.version})


async def openapi(api: ApiContext, request: Request) -> Response:
    """Answers the OpenAPI document of this worker."""
    from cdcworker.worker.rest.openapi.document import cached

    return JSONResponse(cached(request.app.state.endpoints, closed=api.settings.protection.gate.is_closed))


async def drain(api: ApiContext, request: Request) -> Response:
    """Answers at once; the worker then hands its tasks over and ends.

    `restart=expected`: the tasks are not handed over but wait, for a limited time, for the next process of this worker
    id.
    """
    if api.drain is None:
        return JSONResponse({"error_code": 501, "message": "This worker cannot be drained over REST."}, 501)
    restart = request.query_params.get("restart")
    if restart not in DRAINS:
        raise e.bad_request(f"restart must be one of {', '.join(filter(None, DRAINS))}", e.parameter("restart"))
    if is_dry_run(request):
        view = api.view()
        assignment = view.state.assignments.get(view.worker_id)
        moved = [{"connector": task.connector, "task": task.task} for task in (assignment.tasks if assignment else ())]
        return dry_run_answer(effect="drained", worker=view.worker_id, tasks=moved)
    api.drain(DRAINS[restart])
    return JSONResponse({"status": "draining"}, 202)


ENDPOINTS = (
    Endpoint("GET", "/", root, "Version of the worker", "worker", role="read", whose="each", needs_cluster=False),
    Endpoint(
        "GET",
        "/health",
        health,
        "Health as Kafka Connect tells it",
        "worker",
        (200, 500, 503),
        role="open",
        needs_cluster=False,
    ),
    Endpoint("GET", "/healthz", alive, "Liveness", "worker", (200, 503), role="open", needs_cluster=False),
    Endpoint("GET", "/readyz", ready, "Readiness", "worker", (200, 503), role="open", needs_cluster=False),
    Endpoint(
        "GET", "/v1/live", live, "Which process of this worker answers", "worker", role="open", needs_cluster=False
    ),
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
    Endpoint(
        "GET", "/v1/openapi.json", openapi, "This description", "worker", role="read", whose="each", needs_cluster=False
    ),
    Endpoint(
        "POST",
        "/v1/drain",
        drain,
        "Hand over this worker's tasks, then end it",
        "worker",
        statuses=(200, 202, 400, 501),
        query=("restart", "dry_run"),
        role="admin",
        needs_cluster=False,
    ),
)
