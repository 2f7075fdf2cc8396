"""The doctor over REST: a connector's surroundings examined where its secrets are, in a child with a time limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cdcworker.connectors.checks import CheckResult, DoctorCheck, ExaminedTarget
from cdcworker.coordinator.log.task_metrics import INCOMPLETE
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.diagnostics.doctor import chosen, row
from cdcworker.worker.rest.connect_json import reported, task_owners
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.resources.offsets import off_loop
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.rest.settings import available
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

QUICK_S = 30.0
DEEP_S = 75.0
"""Below the limit of a request."""
POLICY = "topic.creation.default.cleanup.policy"
HINT = f"Set {POLICY}=compact: rows whose large values were not sent are read again then. REPLICA IDENTITY FULL sends every value."
COMPACTED = DoctorCheck("topics.compacted", "A late reader builds a row from the last record of its key.", lambda _: ())


async def examine(api: ApiContext, request: Request) -> Response:
    """Each check with what was measured, why it matters, and what mends it; nothing is changed."""
    connector = api.running(request.path_params["connector"])
    ask, deep = available(api.services.examine, "Examining connectors"), flag(request.query_params, "deep")
    question = {
        "connector": connector.name,
        "config": dict(connector.config),
        "offsets": await _offsets(api, request, connector),
        "deep": deep,
        "checks": request.query_params.getlist("check"),
    }
    found = await off_loop(api, request, lambda: ask(question, DEEP_S if deep else QUICK_S))
    found += _of_tasks(api, connector, request.query_params.getlist("check"))
    counts = Counter(item["severity"] for item in found)
    return JSONResponse(
        {"connector": connector.name, "blocked": counts["error"] > 0, "counts": dict(counts), "findings": found}
    )


def _of_tasks(api: ApiContext, connector: Connector, checks: list[str]) -> list[dict[str, Any]]:
    """Returns what the connector's running tasks have met: compacted topics whose rows may lack values."""
    view = api.view()
    statuses = (
        reported(view, owner) for owner in task_owners(view).values() if owner.task.id.connector == connector.name
    )
    topics = sorted({str(topic) for status in statuses if status for topic in status.metrics.get(INCOMPLETE) or ()})
    text = "is compacted by somebody else: the last record of a key may lack a large value"
    results = [CheckResult("warning", topic, f"{topic} {text}", key=POLICY, hint=HINT) for topic in topics]
    return [row(item) for item in chosen((ExaminedTarget(COMPACTED, result, 0.0) for result in results), checks)]


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
