"""`/v1/connectors/NAME/explain`: the whole way of one row, looked for by a child of this worker."""

from __future__ import annotations

from cdcworker.worker.diagnostics.explain import ExplainRequest, parse_position
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.resources.offsets import off_loop
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.rest.settings import available
from cdcworker.worker.security.access import caller_of
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


async def explain(api: ApiContext, request: Request) -> Response:
    """Stages in their order; each says whether it was found, when it was, and in words what is known."""
    connector, query = api.connector(request.path_params["connector"]), request.query_params
    explainer = available(api.services.explainer, "Following rows")
    table, key = query.get("of", ""), tuple(query.getlist("key"))
    if not table or not key:
        raise e.bad_request(
            "the table and the key of the row have to be named", e.parameter("of" if not table else "key")
        )
    try:
        position, place = parse_position(api.view(), connector, query["lsn"]) if query.get("lsn") else (None, "")
    except ValueError as exc:
        raise e.bad_request(str(exc), e.parameter("lsn")) from None
    # A key is data, and so is the answer.
    api.settings.protection.audit.record(request.scope, 200)
    caller, asked = caller_of(request.scope), ExplainRequest(table, key, position, place)

    def sees(name: str) -> bool:
        # What the target of another sink knows of a row is data as well.
        return caller.may("operate", name)

    found = await off_loop(api, request, lambda: explainer.explain(api.view(), connector, asked, sees))
    return JSONResponse(found)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/connectors/{connector}/explain",
        explain,
        "The way of one row: source, task, topic, transaction, sinks",
        statuses=(200, 400, 404, 503),
        query=("of", "key", "lsn"),
        role="operate",
    ),
)
