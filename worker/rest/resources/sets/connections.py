"""Connections: addresses and logins that are kept once, and that connectors name with the key `connection`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import MASK
from cdcworker.coordinator.log.connections import CLASS, users
from cdcworker.coordinator.model import Connection, Connector, DeleteConnection, PutConnection, Reply, View
from cdcworker.coordinator.versions import may_write
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import read_object
from cdcworker.worker.http.paths import encode_segment
from cdcworker.worker.rest.commands import carry_out, forward_to_leader
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.long_answers import answer_of_parts
from cdcworker.worker.rest.resources.connectors import config_map, etag, if_match
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.security import secret_retention
from cdcworker.worker.security.access import visible
from cdcworker.worker.validation import connections
from cdcworker.worker.validation.validate import error_line, finding_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

log = logging.getLogger(__name__)

PATH = "/v1/connections/{connection}"
NOT_FOUND = "Connection {} not found"
IN_USE = declare(
    "rest.connection_in_use",
    "config",
    "The connection is used by connectors",
    "Delete these connectors, or name another connection in their configs, and ask again.",
)
BREAKS = declare(
    "config.connection_breaks",
    "config",
    "A connector could not run with the connection as it would be",
    "See the error of the connector. `validate=false` leaves out the checks that ask a server.",
)
OLDER_WORKERS = declare(
    "rest.older_workers",
    "transient",
    "A worker of an older version is in the cluster, which does not know this",
    "Upgrade all workers, and ask again: GET /v1/cluster shows their versions.",
)
Json = dict[str, Any]


async def list_connections(api: ApiContext, request: Request) -> Response:
    view = api.view()
    parts = (
        (name, shown(api, view, request, connection))
        for name, connection in sorted(view.state.connections.items())
        if visible(request.scope, name)
    )
    return await answer_of_parts(parts, "connections", {"version": view.state.version})


async def get_connection(api: ApiContext, request: Request) -> Response:
    connection = _found(api, request.path_params["connection"])
    view = api.view()
    body = {**shown(api, view, request, connection), "provides": await api.judge(lambda: _provides(api, connection))}
    return JSONResponse(body, headers={"ETag": etag(connection.version)})


async def put_connection(api: ApiContext, request: Request) -> Response:
    """Creates or replaces a connection; a masked secret keeps the stored one. Connectors that use it have to hold with it."""
    name, view = request.path_params["connection"], api.view()
    if not connections.NAME.fullmatch(name):
        raise e.bad_request(f"{name[:60]!r}: {connections.NAME_RULE}")
    given = config_map(await read_object(request))
    if not view.is_leader and view.state.leader is not None:
        return await forward_to_leader(api, request, view.state.leader.url)
    if not may_write("connection", view.workers.values()):
        raise e.RestError(409, "Older workers would not know the connection", OLDER_WORKERS)
    stored = view.state.connections.get(name)
    config = await api.judge(lambda: _judged(api, request, given, stored))
    must_exist, version = if_match(request, name, stored, "connection")
    if stored is not None:
        await _check_users(api, request, stored, config)
    command = PutConnection(name, config, must_exist=must_exist, if_version=version)

    def done(reply: Reply) -> Response:
        now = api.view()
        connection = now.state.connections.get(name) or Connection(name, "", reply.version, config)
        headers = {"ETag": etag(reply.version)}
        if reply.created:
            headers["Location"] = f"/v1/connections/{encode_segment(name)}"
        log.info("connection changed connection=%s version=%d", name, reply.version)
        return JSONResponse(shown(api, now, request, connection), 201 if reply.created else 200, headers=headers)

    return await carry_out(api, request, command, missing=NOT_FOUND.format(name), done=done)


async def delete_connection(api: ApiContext, request: Request) -> Response:
    name, view = request.path_params["connection"], api.view()
    if not view.is_leader and view.state.leader is not None:
        return await forward_to_leader(api, request, view.state.leader.url)
    connection = _found(api, name)
    if used := users(view.state, name):
        seen = [one for one in used if visible(request.scope, one)]
        hidden = [f"{len(used) - len(seen)} that you may not see"] if len(seen) < len(used) else []
        raise e.RestError(409, f"Connection {name} is used by {', '.join([*seen, *hidden])}", IN_USE)
    _, version = if_match(request, name, connection, "connection")
    command = DeleteConnection(name, if_version=version)

    def done(_: Reply) -> Response:
        log.info("connection deleted connection=%s", name)
        return Response(status_code=204)

    return await carry_out(api, request, command, missing=NOT_FOUND.format(name), done=done)


def shown(api: ApiContext, view: View, request: Request, connection: Connection) -> Json:
    """Returns a connection with its secrets masked, and the connectors that use it, as far as the caller may see them."""
    return {
        "name": connection.name,
        "config": api.catalog.mask(connection.config),
        "version": connection.version,
        "connectors": [name for name in users(view.state, connection.name) if visible(request.scope, name)],
        "created": connection.created_ms,
        "updated": connection.updated_ms,
    }


def _found(api: ApiContext, name: str) -> Connection:
    connection = api.view().state.connections.get(name)
    if connection is None:
        raise e.not_found(NOT_FOUND.format(name))
    return connection


def _provides(api: ApiContext, connection: Connection) -> dict[str, list[str]]:
    """Returns the keys that the connection provides, by the classes that it is for or that use it."""
    state = api.view().state
    used = [state.connectors[name].config.get(CLASS, "") for name in users(state, connection.name)]
    out = {}
    for name in [connection.config.get(CLASS, ""), *used]:
        try:
            plugin = api.catalog.lookup(name)
            out[plugin.name] = connections.provides(api.catalog, name, connection)
        except CdcError as error:
            log.info("connection of a class that is not known here connection=%s error=%s", connection.name, error.code)
    return out


def _judged(
    api: ApiContext, request: Request, given: Mapping[str, str | None], stored: Connection | None
) -> dict[str, str]:
    """Returns the config with the stored secrets that it keeps. RestError 400 for one that no connection may have."""
    before = stored.config if stored is not None else {}
    config = api.catalog.unmask(given, before)
    found = list(connections.findings(api.catalog, config))
    if found:
        errors = [finding_json(finding) for finding in found]
        lines = e.listed([error_line(finding) for finding in found], "")
        raise e.RestError(400, lines, e.INVALID_CONFIG, configPath=errors[0]["configPath"], errors=errors)
    if stored is not None:
        sent = {name for name in given if MASK not in (given[name] or "")}
        secret_retention.check(request.scope, api.catalog, config, before, sent)
    return {name: value for name, value in config.items() if value is not None}


async def _check_users(api: ApiContext, request: Request, stored: Connection, config: Mapping[str, str]) -> None:
    """RestError 400 where a connector that uses the connection would not hold with the new config. One that runs and that
    the caller may see asks its server."""
    state = api.view().state
    known = {**state.connections, stored.name: replace(stored, config=dict(config))}
    named = [state.connectors[name] for name in users(state, stored.name)]

    def judged() -> list[Connector]:
        used = [one for one in named if connections.is_known(api.catalog, one.config)]
        for connector in used:
            if found := connections.broken(api.catalog, connector.config, known, stored):
                raise _breaks(request, connector, error_line(found[0]))
        return used

    used = await api.judge(judged)
    running = [one for one in used if one.target_state == "RUNNING" and visible(request.scope, one.name)]
    if running and config != stored.config and flag(request.query_params, "validate", default=True):
        first = running[0]
        config_of = {"name": first.name, **first.config}
        report = await api.validate(config_of, live=True, prefixes=first.topic_prefixes, known=known)
        touched = {*config, *stored.config}
        errors = [finding for finding in report.errors if not finding.key or finding.key in touched]
        if errors:
            raise _breaks(request, first, error_line(errors[0]))


def _breaks(request: Request, connector: Connector, line: str) -> e.RestError:
    whose = f"Connector {connector.name}" if visible(request.scope, connector.name) else "A connector of others"
    return e.RestError(400, f"{whose} would not run with the connection: {secret_names.text(line)}", BREAKS)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/connections",
        list_connections,
        "Connections, with secrets masked",
        "connections",
        role="read",
        whose="each",
    ),
    Endpoint("GET", PATH, get_connection, "Read a connection", "connections", (200, 404), role="read"),
    Endpoint(
        "PUT",
        PATH,
        put_connection,
        "Create or replace a connection",
        "connections",
        (200, 201, 400, 409, 412),
        ("validate", "dry_run"),
        "Config",
        role="admin",
    ),
    Endpoint(
        "DELETE",
        PATH,
        delete_connection,
        "Delete a connection that no connector uses",
        "connections",
        (204, 200, 404, 409, 412),
        ("dry_run",),
        role="admin",
    ),
)
