"""Snapshots as jobs: tables are read again, or for the first time, while the stream of changes goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcworker.connectors.config.definition import MASK
from cdcworker.connectors.snapshot_jobs import SNAPSHOT, BadJobRequest, snapshot_spec
from cdcworker.coordinator.core import jobs
from cdcworker.coordinator.model import ChangeJob, Connector, Job, JobWish, PutJob, Reply, View
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import read_plain
from cdcworker.worker.http.paths import encode_segment
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.commands import carry_out
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import is_dry_run, preview
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.security.access import caller_of, require
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

NO_JOBS = declare(
    "rest.no_snapshots",
    "config",
    "The connector takes no snapshots on demand",
    "Only sources of tables do; GET /connectors/{connector} shows its class.",
)
PATH = "/v1/connectors/{connector}/snapshots"
ONE = f"{PATH}/{{snapshot}}"
PENDING = "PENDING"
NUMBERS = ("rows", "bytes", "tables_done", "tables_cancelled", "tables_total", "rows_estimate", "rows_per_s", "eta_s")
Json = dict[str, Any]


async def list_snapshots(api: ApiContext, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"])
    found = [_as_seen(request, connector.name, item) for item in snapshots_of(api.view(), connector)]
    return JSONResponse({"connector": connector.name, "snapshots": found})


async def get_snapshot(api: ApiContext, request: Request) -> Response:
    return JSONResponse(_as_seen(request, request.path_params["connector"], snapshot_json(api, request)))


def _as_seen(request: Request, connector: str, item: Json) -> Json:
    """Returns the snapshot as the caller may see it: a condition compares with values of rows, which the role `read` does not
    show."""
    if not item["filters"] or caller_of(request.scope).may("operate", connector):
        return item
    return {**item, "filters": dict.fromkeys(item["filters"], MASK)}


def snapshot_json(api: ApiContext, request: Request) -> Json:
    """Returns the snapshot that the path names. RestError 404 when there is none."""
    connector, snapshot_id = api.connector(request.path_params["connector"]), request.path_params["snapshot"]
    for item in snapshots_of(api.view(), connector):
        if item["id"] == snapshot_id:
            return item
    raise e.not_found(f"Connector {connector.name} has no snapshot {snapshot_id}")


async def create(api: ApiContext, request: Request) -> Response:
    """Requests a snapshot. A request equal to a snapshot that has not ended answers that snapshot."""
    name = request.path_params["connector"]
    given = await read_plain(request)
    if not isinstance(given, dict):
        raise e.bad_request("The body must be a JSON object", "")
    try:
        spec = snapshot_spec(given)
    except BadJobRequest as exc:
        raise e.bad_request(str(exc), e.pointer(*exc.path)) from None
    connector = api.connector(name)
    require_tables(api, connector)
    if "filters" in spec:
        # A condition may ask the database anything that the connector's role may see.
        require(request.scope, "admin", name)

    def done(reply: Reply) -> Response:
        answer = JSONResponse(_item(api.view(), connector, reply.job), 202)
        answer.headers["Location"] = f"/v1/connectors/{encode_segment(name)}/snapshots/{reply.job}"
        return answer

    return await carry_out(api, request, PutJob(name, SNAPSHOT, spec), missing=f"Connector {name} not found", done=done)


def require_tables(api: ApiContext, connector: Connector) -> None:
    try:
        plugin = api.catalog.plugin_of(connector.config)
    except CdcError:
        return
    if SNAPSHOT not in plugin.jobs:
        raise e.RestError(409, f"Connector {connector.name} is of a class that takes no snapshots", NO_JOBS)


async def pause(api: ApiContext, request: Request) -> Response:
    return await _change(api, request, "PAUSED")


async def resume(api: ApiContext, request: Request) -> Response:
    return await _change(api, request, "RUNNING")


async def cancel(api: ApiContext, request: Request) -> Response:
    """Cancels a snapshot; rows that were read stay in the topics."""
    return await _change(api, request, "CANCELLED")


async def _change(api: ApiContext, request: Request, target: JobWish) -> Response:
    item = snapshot_json(api, request)
    name, snapshot_id = request.path_params["connector"], item["id"]
    connector = api.connector(name)
    if item["state"] in jobs.ENDED and item["state"] != target:
        message = f"Snapshot {snapshot_id} has ended: {item['state']}"
        raise e.RestError(409, message, e.CONFLICT, headers={"X-CDC-Reason": "state"})
    command = ChangeJob(name, snapshot_id, target, SNAPSHOT)

    def done(reply: Reply) -> Response:
        return JSONResponse(_item(api.view(), connector, reply.job), 202)

    missing = f"Connector {name} not found"
    if is_dry_run(request):
        return await preview(api, command, missing=missing)
    return await carry_out(api, request, command, missing=missing, done=done)


# -- what there is ----------------------------------------------------------------------------------------------------


def snapshots_of(view: View, connector: Connector) -> list[Json]:
    """Returns the snapshots of a connector: requests from the config log, progress from the status log, on any worker."""
    records = {job.id: job for job in jobs.of(view.state, connector.name) if job.kind == SNAPSHOT}
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for task, status in sorted(view.statuses.items()):
        if task.connector == connector.name:
            for snapshot_id, part in jobs.reported(status).items():
                if part.get("kind", SNAPSHOT) == SNAPSHOT:
                    parts.setdefault(snapshot_id, []).append(part)
    ids = dict.fromkeys([*records, *parts])
    count = len(connect_json.task_configs(view, connector))
    return sorted(
        (
            _shown(snapshot_id, records.get(snapshot_id), jobs.merged(parts.get(snapshot_id, ())), count)
            for snapshot_id in ids
        ),
        key=lambda item: (item["created_ms"] or 0, item["id"]),
    )


def _item(view: View, connector: Connector, snapshot_id: str) -> Json:
    """Returns the snapshot, also when this worker has not read it from the log yet."""
    known = next((item for item in snapshots_of(view, connector) if item["id"] == snapshot_id), None)
    return known or _shown(snapshot_id, None, None, 0)


def _shown(snapshot_id: str, job: Job | None, progress: Mapping[str, Any] | None, tasks: int) -> Json:
    outcome = job.outcome if job is not None else None
    at = outcome or progress or {}
    spec = dict(job.spec) if job is not None else {}
    state = str(at.get("state", PENDING))
    if outcome is None and job is not None and state not in jobs.ENDED and not tasks:
        # No task is there to take it up or to give it up: what is wanted is what will be.
        state = PENDING if job.wanted == "RUNNING" else job.wanted
    return {
        "id": snapshot_id,
        "origin": at.get("origin", "request") if job is None or not job.own else "request",
        "state": state,
        "wanted": job.wanted if job is not None else "RUNNING",
        "tables": spec.get("tables", []),
        "filters": spec.get("filters", {}),
        "rows_per_s_max": spec.get("rows_per_s", 0),
        **{name: at.get(name) for name in NUMBERS},
        "waits_for": (progress or {}).get("waits_for", "") if outcome is None else "",
        "details": list((progress or {}).get("tables", ())) if outcome is None else [],
        "created_ms": job.created_ms if job is not None and job.own else at.get("started_ms"),
        "started_ms": at.get("started_ms"),
        "ended_ms": at.get("ended_ms"),
        "error": at.get("error"),
    }


DRY = ("dry_run",)
ENDPOINTS = (
    Endpoint("GET", PATH, list_snapshots, "Snapshots of a connector", "snapshots", (200, 404), role="read"),
    Endpoint(
        "POST",
        PATH,
        create,
        "Read tables once more, beside the stream",
        "snapshots",
        (200, 202, 400, 404, 409),
        DRY,
        "CreateSnapshot",
        role="operate",
    ),
    Endpoint("GET", ONE, get_snapshot, "How far a snapshot has come", "snapshots", (200, 404), role="read"),
    Endpoint("PUT", f"{ONE}/pause", pause, "Pause a snapshot", "snapshots", (200, 202, 404, 409), DRY, role="operate"),
    Endpoint(
        "PUT", f"{ONE}/resume", resume, "Resume a snapshot", "snapshots", (200, 202, 404, 409), DRY, role="operate"
    ),
    Endpoint("DELETE", ONE, cancel, "Cancel a snapshot", "snapshots", (200, 202, 404, 409), DRY, role="operate"),
)
