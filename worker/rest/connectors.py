"""Connectors: list, create, read, change, delete."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.config import MASK
from cdcworker.coordinator.model import Connector, DeleteConnector, PutConnector, Reply, TargetState
from cdcworker.worker.rest import beginnings, dry, shapes
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.body import parse_labels, read_object, scalar, string_map
from cdcworker.worker.rest.context import POLL_S, Api, carry_out, forward
from cdcworker.worker.rest.routing import Endpoint, encode_segment, flag
from cdcworker.worker.security import kept
from cdcworker.worker.security.access import require, visible
from cdcworker.worker.validate import Report
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CREATE_MEMBERS = ("name", "config", "initial_state", "initial_offsets", "labels")
TARGET_STATES: Mapping[str, TargetState] = {"running": "RUNNING", "paused": "PAUSED", "stopped": "STOPPED"}
TRIMMED = "".join(map(chr, range(0x21)))
"""What Java's trim() removes."""
ETAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')


async def list_connectors(api: Api, request: Request) -> Response:
    view = api.view()
    expand = request.query_params.getlist("expand")
    connectors = sorted(item for item in view.state.connectors.items() if visible(request.scope, item[0]))
    if not expand:
        return JSONResponse([name for name, _ in connectors])
    out: dict[str, dict[str, Any]] = {}
    for name, connector in connectors:
        if "status" in expand:
            out.setdefault(name, {})["status"] = shapes.connector_state(view, connector)
        if "info" in expand:
            out.setdefault(name, {})["info"] = shapes.connector_info(view, connector, api.catalog.mask)
    return JSONResponse(out)


async def create(api: Api, request: Request) -> Response:
    body = await read_object(request)
    unknown = sorted(set(body) - set(CREATE_MEMBERS))
    if unknown:
        raise e.bad_request(f"Unknown member {unknown[0]!r}: {', '.join(CREATE_MEMBERS)} exist", e.pointer(unknown[0]))
    name = (scalar(body.get("name"), "name") or "").strip(TRIMMED)
    require(request.scope, "admin", name)
    if body.get("config") is None:
        raise e.bad_request("`config` is missing", "/config")
    config = named(string_map(body["config"], "config"), name)
    given = body.get("labels")
    draft = Draft(
        name,
        config,
        create_only=True,
        target_state=initial_state(body.get("initial_state")),
        labels=None if given is None else parse_labels(string_map(given, "labels"), "labels"),
        offsets=await beginnings.initial_offsets(request, body),
        mark=beginnings.mark_of(request, body),
    )
    return await submit(api, request, draft)


async def get_connector(api: Api, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"])
    body = shapes.connector_info(api.view(), connector, api.catalog.mask)
    return JSONResponse(body, headers={"ETag": etag(connector.version)})


async def get_config(api: Api, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"])
    config = api.catalog.mask({"name": connector.name, **connector.config})
    return JSONResponse(config, headers={"ETag": etag(connector.version)})


async def put_config(api: Api, request: Request) -> Response:
    name = request.path_params["connector"]
    config = named(string_map(await read_object(request), "config"), name)
    must_exist, version = if_match(api, request, name)
    return await submit(api, request, Draft(name, config, must_exist=must_exist, if_version=version))


async def patch_config(api: Api, request: Request) -> Response:
    """Computed by the leader on the version it holds, and again if that changed meanwhile: no patch is lost."""
    name = request.path_params["connector"]
    patch = string_map(await read_object(request), "config")
    if patch.get("name", name) != name:
        raise name_mismatch(patch["name"] or "", name)
    view = api.view()
    if not view.is_leader and view.state.leader is not None and request.query_params.get("forward") != "false":
        return await forward(api, request, view.state.leader.url)
    _, version = if_match(api, request, name)
    deadline, live = time.monotonic() + api.settings.patch_s, True
    while True:
        connector = api.connector(name)
        sent = frozenset(patch)
        draft = Draft(
            name, patched(connector, patch), must_exist=True, if_version=version or connector.version, sent=sent
        )
        try:
            return await submit(api, request, draft, live=live)
        except e.RestError as error:
            if error.code != e.VERSION_MISMATCH or version is not None:
                raise
        if time.monotonic() >= deadline:
            headers = {"Retry-After": str(e.RETRY_AFTER_S), "X-CDC-Reason": "concurrent"}
            raise e.RestError(409, e.CONFLICTING_OPERATION, e.CONFLICT, headers=headers)
        # Others change the connector at this moment; this worker's picture follows within milliseconds.
        live = False
        await asyncio.sleep(POLL_S)


async def delete(api: Api, request: Request) -> Response:
    name = request.path_params["connector"]
    _, version = if_match(api, request, name)
    command = DeleteConnector(name, if_version=version)
    missing = f"Connector {name} not found"
    return await carry_out(api, request, command, missing=missing, done=lambda _: Response(status_code=204))


@dataclass(frozen=True)
class Draft:
    """A config on its way into the log. A value of None is still to be refused by validation."""

    name: str
    config: Mapping[str, str | None]
    create_only: bool = False
    must_exist: bool = False
    if_version: int | None = None
    target_state: TargetState | None = None
    labels: Mapping[str, str] | None = None
    sent: frozenset[str] | None = None
    """The keys that came with the request; None: all."""
    offsets: list[Any] | None = None
    """Where a new connector is to begin."""
    mark: str = ""


async def submit(api: Api, request: Request, draft: Draft, *, live: bool = True) -> Response:
    """Validated here first; the leader validates once more, without the outside."""
    view = api.view()
    stored = view.state.connectors.get(draft.name)
    if (
        stored is None
        and any(MASK in (value or "") for value in draft.config.values())
        and not view.is_leader
        and view.state.leader is not None
    ):
        # A picture that lags behind the leader's may lack the connector whose secret is to be kept.
        return await forward(api, request, view.state.leader.url)
    config = api.catalog.unmask(draft.config, stored.config if stored else {})
    if stored is not None:
        sent = draft.config if draft.sent is None else draft.sent
        known = {name for name in sent if MASK not in (draft.config.get(name) or "")}
        kept.check(request.scope, api.catalog.mask, config, stored.config, known)
    known_conflict = draft.create_only and stored is not None
    live = live and flag(request.query_params, "validate", default=True) and not known_conflict
    report = await api.validate(config, live=live)
    if report.errors:
        raise invalid(report)
    given = {name: value for name, value in config.items() if value is not None}
    command = PutConnector(
        draft.name,
        given,
        kind=report.plugin.kind,
        target_state=draft.target_state,
        create_only=draft.create_only,
        must_exist=draft.must_exist,
        if_version=draft.if_version,
        labels=draft.labels,
        mark=draft.mark,
    )
    starts = beginnings.parsed(draft.offsets, report.plugin.kind) if draft.offsets else None

    def done(reply: Reply) -> Response:
        return accepted(api, command, reply, report)

    missing = f"Connector {draft.name} not found"
    if dry.asked(request):
        return await dry.preview(api, command, missing=missing, remarks=report.remarks)
    try:
        if starts:
            return await beginnings.carry_out(api, request, command, starts, done)
        return await carry_out(api, request, command, missing=missing, done=done, checked=True)
    except e.RestError as error:
        if error.code != e.EXISTS or not beginnings.is_repeated(api, command):
            raise
        return done(Reply("ok", created=True, version=api.connector(draft.name).version))


def accepted(api: Api, command: PutConnector, reply: Reply, report: Report) -> Response:
    """ConnectorInfo of what was written, 201 with its place when new. Remarks of validation come along."""
    view = api.view()
    stored = view.state.connectors.get(command.name)
    if stored is not None:
        body = shapes.connector_info(view, stored, api.catalog.mask)
    else:
        body = {"name": command.name, "tasks": [], "type": report.plugin.kind}
    body["config"] = api.catalog.mask(dict(command.config or {}))
    if report.remarks:
        body["notes"] = report.shown(report.remarks)
    headers = {"ETag": etag(reply.version)} if reply.version else {}
    if reply.created:
        headers["Location"] = f"/connectors/{encode_segment(command.name)}"
    return JSONResponse(body, 201 if reply.created else 200, headers=headers)


def invalid(report: Report) -> e.RestError:
    errors = report.shown(report.errors)
    # A key that is missing under its name may be there under a misspelt one: that is where to look first.
    first = next((error for error in errors if error.get("fix")), errors[0])
    return e.RestError(
        400,
        e.listed(report.lines()),
        e.INVALID_CONFIG,
        configPath=first["configPath"],
        fix=first.get("fix"),
        errors=errors,
    )


def named(config: dict[str, str | None], name: str) -> dict[str, str | None]:
    """The config with its name in it; a different one is refused."""
    if "name" in config and config["name"] is not None and config["name"] != name:
        raise name_mismatch(config["name"], name)
    return {**config, "name": name}


def name_mismatch(given: str, name: str) -> e.RestError:
    message = f"Connector name configuration ({given}) doesn't match connector name in the URL ({name})"
    return e.bad_request(message, "/config/name")


def patched(connector: Connector, patch: Mapping[str, str | None]) -> dict[str, str | None]:
    merged = {"name": connector.name, **connector.config, **patch}
    return {name: value for name, value in merged.items() if value is not None}


def initial_state(value: Any) -> TargetState | None:
    if value is None:
        return None
    text = scalar(value, "initial_state") or ""
    state = TARGET_STATES.get(text.lower())
    if state is None:
        raise e.bad_request("`initial_state` must be RUNNING, PAUSED or STOPPED", "/initial_state")
    return state


def etag(version: int) -> str:
    return f'"{version}"'


def if_match(api: Api, request: Request, name: str) -> tuple[bool, int | None]:
    """(must exist, version) of an If-Match. Of several versions the one that holds now; foreign tags never match."""
    header = request.headers.get("if-match")
    if header is None:
        return False, None
    tags = [tag.strip() for tag in header.split(",")]
    if "*" in tags:
        return True, None
    versions = [int(found[1]) for tag in tags if (found := ETAG.fullmatch(tag))]
    if not versions:
        raise e.RestError(412, f"If-Match names no version of connector {name}", e.VERSION_MISMATCH)
    connector = api.view().state.connectors.get(name)
    current = connector.version if connector else None
    return False, current if current in versions else versions[0]


ENDPOINTS = (
    Endpoint("GET", "/connectors", list_connectors, "List connectors", query=("expand",), role="read", whose="each"),
    Endpoint(
        "POST",
        "/connectors",
        create,
        "Create a connector",
        statuses=(200, 201, 400, 409),
        query=("validate", "dry_run"),
        body="CreateConnector",
        role="admin",
        whose="named",
    ),
    Endpoint("GET", "/connectors/{connector}", get_connector, "Read a connector", statuses=(200, 404), role="read"),
    Endpoint(
        "DELETE",
        "/connectors/{connector}",
        delete,
        "Delete a connector",
        statuses=(200, 204, 404, 409, 412),
        query=("dry_run",),
        role="admin",
    ),
    Endpoint("GET", "/connectors/{connector}/config", get_config, "Read a config", statuses=(200, 404), role="read"),
    Endpoint(
        "PUT",
        "/connectors/{connector}/config",
        put_config,
        "Create or replace a config",
        statuses=(200, 201, 400, 409, 412),
        query=("validate", "dry_run"),
        body="Config",
        role="admin",
    ),
    Endpoint(
        "PATCH",
        "/connectors/{connector}/config",
        patch_config,
        "Change some keys of a config",
        statuses=(200, 400, 404, 409, 412),
        query=("validate", "dry_run"),
        body="ConfigPatch",
        role="admin",
    ),
)
