"""Maintenance of the tables of a lake: what the last runs have done, and a run that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.api.sink import MaintainsTables
from cdcworker.connectors.snapshot_jobs import MAINTENANCE
from cdcworker.coordinator.core import jobs
from cdcworker.coordinator.model import Connector, Job, PutJob, Reply, View
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.commands import carry_out
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

NO_MAINTENANCE: Final = declare(
    "rest.no_maintenance",
    "config",
    "The connector has no tables that are maintained",
    "Only sinks with warehouse=iceberg or warehouse=delta have; a database looks after its tables by itself.",
)
PATH: Final = "/v1/connectors/{connector}/maintenance"
Json = dict[str, Any]


async def show(api: ApiContext, request: Request) -> Response:
    """Answers what the last run of each task has done, and the runs that were asked for."""
    connector, view = _lake(api, request), api.view()
    return JSONResponse(
        {
            "connector": connector.name,
            "tasks": [_task(view, connector, number) for number in _tasks(view, connector)],
            "runs": [_run(view, job) for job in jobs.of(view.state, connector.name) if job.kind == MAINTENANCE],
        }
    )


async def run(api: ApiContext, request: Request) -> Response:
    """Asks for a run. While one that was asked for has not ended it is answered again."""
    connector = _lake(api, request)

    def done(reply: Reply) -> Response:
        view = api.view()
        found = next((job for job in jobs.of(view.state, connector.name) if job.id == reply.job), None)
        shown = _run(view, found) if found is not None else {"id": reply.job, "state": "PENDING"}
        return JSONResponse({"connector": connector.name, **shown}, 202)

    command = PutJob(connector.name, MAINTENANCE, {})
    return await carry_out(api, request, command, missing=f"Connector {connector.name} not found", done=done)


def _lake(api: ApiContext, request: Request) -> Connector:
    connector = api.connector(request.path_params["connector"])
    try:
        sink = api.catalog.plugin_of(connector.config).load()(connector.config)
        has_tables = isinstance(sink, MaintainsTables) and sink.maintains_tables
    except (CdcError, ImportError, AttributeError):
        has_tables = True  # of a class that this worker does not know
    if not has_tables:
        raise e.RestError(409, f"Connector {connector.name} writes to no lake", NO_MAINTENANCE)
    return connector


def _tasks(view: View, connector: Connector) -> range:
    return range(len(connect_json.task_configs(view, connector)))


def _metrics(view: View, connector: Connector, number: int) -> Mapping[str, Any]:
    owner = next(
        (
            each
            for task, each in connect_json.task_owners(view).items()
            if (task.connector, task.task) == (connector.name, number)
        ),
        None,
    )
    status = None if owner is None else connect_json.reported(view, owner)
    return {} if status is None else status.metrics


def _task(view: View, connector: Connector, number: int) -> Json:
    metrics = _metrics(view, connector, number)
    last = metrics.get("maintenance")
    runs = metrics.get("maintenance_runs")
    return {
        "task": number,
        "runs": runs if isinstance(runs, int) else 0,
        "last": dict(last) if isinstance(last, dict) else None,
    }


def _run(view: View, job: Job) -> Json:
    parts = [
        part
        for task, status in sorted(view.statuses.items())
        if task.connector == job.connector and (part := jobs.reported(status).get(job.id)) is not None
    ]
    at: Mapping[str, Any] = job.outcome or jobs.merged(parts) or {}
    return {
        "id": job.id,
        "state": str(at.get("state", "PENDING")),
        "created_ms": job.created_ms,
        "started_ms": at.get("started_ms"),
        "ended_ms": at.get("ended_ms"),
        "error": at.get("error"),
    }


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        show,
        "What maintenance has done to the tables of a lake",
        statuses=(200, 404, 409),
        role="read",
    ),
    Endpoint(
        "POST",
        PATH,
        run,
        "Maintain the tables of a lake now, beside the batches",
        statuses=(200, 202, 404, 409),
        query=("dry_run",),
        role="operate",
    ),
)
