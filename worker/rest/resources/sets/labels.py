"""Labels of connectors: short texts to group and find them by. A change of labels restarts nothing."""

from __future__ import annotations

from typing import Any

from cdcworker.coordinator.model import Connector, PutConnector, Reply, View
from cdcworker.worker.http.body import parse_labels, read_object, string_map
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.commands import carry_out
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.long_answers import answer_of_parts
from cdcworker.worker.rest.resources.connectors import etag, if_match
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.security.access import visible
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PATH = "/v1/connectors/{connector}/labels"
Json = dict[str, Any]


async def list_connectors(api: ApiContext, request: Request) -> Response:
    """Answers everything that a list of connectors shows, from one view. `label=team=shop` and `label=team` select; all
    of them have to hold."""
    view = api.view()
    selectors = [text.partition("=") for text in dict.fromkeys(request.query_params.getlist("label"))]
    parts = (
        (name, summary(view, connector))
        for name, connector in sorted(view.state.connectors.items())
        if visible(request.scope, name) and all(_holds(connector, *part) for part in selectors)
    )
    return await answer_of_parts(parts, "connectors", {"version": view.state.version})


def _holds(connector: Connector, key: str, separator: str, value: str) -> bool:
    return key in connector.labels and (not separator or connector.labels[key] == value)


def summary(view: View, connector: Connector) -> Json:
    state = connect_json.connector_state(view, connector)
    states: dict[str, int] = {}
    for task in state["tasks"]:
        states[task["state"]] = states.get(task["state"], 0) + 1
    return {
        "name": connector.name,
        "type": connector.kind,
        "class": connector.config.get("connector.class"),
        "state": state["connector"]["state"],
        "health": state["health"],
        "reason": state.get("reason", ""),
        "tasks": states,
        "labels": dict(connector.labels),
        "topic_prefixes": list(connector.topic_prefixes),
        "version": connector.version,
        "created": connector.created_ms,
        "updated": connector.updated_ms,
    }


async def get_labels(api: ApiContext, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"])
    return JSONResponse(dict(connector.labels), headers={"ETag": etag(connector.version)})


async def put_labels(api: ApiContext, request: Request) -> Response:
    given = string_map(await read_object(request))
    return await _write(api, request, parse_labels({key: value for key, value in given.items() if value is not None}))


async def _write(api: ApiContext, request: Request, labels: dict[str, str]) -> Response:
    name = request.path_params["connector"]
    _, version = if_match(request, name, api.view().state.connectors.get(name))
    command = PutConnector(name, None, labels=labels, must_exist=True, if_version=version)

    def done(reply: Reply) -> Response:
        return JSONResponse(labels, headers={"ETag": etag(reply.version)} if reply.version else {})

    return await carry_out(api, request, command, missing=f"Connector {name} not found", done=done)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/connectors",
        list_connectors,
        "Connectors with state and labels",
        query=("label",),
        role="read",
        whose="each",
    ),
    Endpoint("GET", PATH, get_labels, "Labels of a connector", statuses=(200, 404), role="read"),
    Endpoint(
        "PUT",
        PATH,
        put_labels,
        "Replace the labels of a connector",
        statuses=(200, 400, 404, 409, 412),
        query=("dry_run",),
        body="Labels",
        role="admin",
    ),
)
