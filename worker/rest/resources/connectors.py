"""Connectors: list, create, read, change and delete."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.config.definition import MASK
from cdcworker.coordinator.log.connections import as_run, connection_name
from cdcworker.coordinator.model import Connection, Connector, DeleteConnector, PutConnector, Reply, TargetState
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import parse_labels, read_object, scalar, string_map
from cdcworker.worker.http.error_members import DETAILS, FORWARD
from cdcworker.worker.http.paths import encode_segment
from cdcworker.worker.offsets.model import DropsLeftovers
from cdcworker.worker.offsets.source_database import leftovers
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.commands import carry_out, forward_to_leader
from cdcworker.worker.rest.connector_leftovers import (
    LEFT,
    droppable,
    header_of,
    left_behind,
    used_by_others,
    wanted_drops,
)
from cdcworker.worker.rest.context import POLL_S, ApiContext
from cdcworker.worker.rest.dry_run import is_dry_run, preview
from cdcworker.worker.rest.long_answers import answer_of_parts
from cdcworker.worker.rest.refusals import refusal
from cdcworker.worker.rest.resources import connector_creation, offsets
from cdcworker.worker.rest.routing import Endpoint, flag, wants_details
from cdcworker.worker.security import secret_retention
from cdcworker.worker.security.access import caller_of, require, require_connection, visible
from cdcworker.worker.validation import connections
from cdcworker.worker.validation.config_limits import check_count, check_size
from cdcworker.worker.validation.validate import ValidationReport
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

log = logging.getLogger(__name__)

CREATE_MEMBERS = ("name", "config", "initial_state", "initial_offsets", "labels")
TARGET_STATES: Mapping[str, TargetState] = {"running": "RUNNING", "paused": "PAUSED", "stopped": "STOPPED"}
STOP_S_MAX = 20.0
"""How long a deletion that drops waits for the tasks to end."""
TRIMMED = "".join(map(chr, range(0x21)))
"""The characters that Java's `trim()` removes."""
ETAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')


async def list_connectors(api: ApiContext, request: Request) -> Response:
    view = api.view()
    expand = request.query_params.getlist("expand")
    connectors = sorted(item for item in view.state.connectors.items() if visible(request.scope, item[0]))
    if not expand:
        return JSONResponse([name for name, _ in connectors])
    if "info" in expand:
        await api.mask_ahead({"name": name, **connector.config} for name, connector in connectors)
    # A value that is not known adds nothing to the connectors, as in Kafka Connect.
    wanted: dict[str, Callable[[str, Connector], Any]] = {}
    if "status" in expand:
        shown = (lambda state: state) if wants_details(request) else connect_json.plain_state
        wanted["status"] = lambda _, one: shown(connect_json.connector_state(view, one))
    if "info" in expand:
        scope = request.scope
        wanted["info"] = lambda name, one: connect_json.connector_info(view, one, api.mask_for(scope, name))
    parts = ((name, {part: make(name, one) for part, make in wanted.items()}) for name, one in connectors)
    return await answer_of_parts(parts)


async def create(api: ApiContext, request: Request) -> Response:
    body = await read_object(request)
    first = next((name for name in body if name not in CREATE_MEMBERS), None)
    if first is not None:
        raise e.bad_request(f"Unknown member {first!r}: {', '.join(CREATE_MEMBERS)} exist", e.pointer(first))
    name = (scalar(body.get("name"), "name") or "").strip(TRIMMED)
    require(request.scope, "admin", name)
    if body.get("config") is None:
        raise e.bad_request("`config` is missing", "/config")
    config = named(config_map(body["config"]), name)
    given = body.get("labels")
    draft = ConfigDraft(
        name,
        config,
        create_only=True,
        target_state=initial_state(body.get("initial_state")),
        labels=None if given is None else parse_labels(string_map(given, "labels"), "labels"),
        offsets=await connector_creation.initial_offsets(request, body),
        mark=connector_creation.mark_of(request, body),
    )
    return await submit(api, request, draft)


async def get_connector(api: ApiContext, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"])
    mask = api.mask_for(request.scope, connector.name)
    body = connect_json.connector_info(api.view(), connector, mask)
    return JSONResponse(body, headers={"ETag": etag(connector.version)})


async def get_config(api: ApiContext, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"])
    config = api.mask_for(request.scope, connector.name)({"name": connector.name, **connector.config})
    return JSONResponse(config, headers={"ETag": etag(connector.version)})


async def put_config(api: ApiContext, request: Request) -> Response:
    name = request.path_params["connector"]
    config = named(config_map(await read_object(request)), name)
    must_exist, version = if_match(request, name, api.view().state.connectors.get(name))
    return await submit(api, request, ConfigDraft(name, config, must_exist=must_exist, if_version=version))


async def patch_config(api: ApiContext, request: Request) -> Response:
    """Merges keys into the config at the leader, again if the config has changed meanwhile: no patch is lost."""
    name = request.path_params["connector"]
    patch = config_map(await read_object(request))
    if patch.get("name", name) != name:
        raise name_mismatch(patch["name"] or "", name)
    view = api.view()
    if not view.is_leader and view.state.leader is not None and request.query_params.get(FORWARD) != "false":
        return await forward_to_leader(api, request, view.state.leader.url)
    _, version = if_match(request, name, api.view().state.connectors.get(name))
    deadline, live = time.monotonic() + api.limits.patch_s, True
    while True:
        connector = api.connector(name)
        sent = frozenset(patch)
        draft = ConfigDraft(
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
        # Others change the connector at this moment; this worker's view follows within milliseconds.
        live = False
        await asyncio.sleep(POLL_S)


async def delete(api: ApiContext, request: Request) -> Response:
    """Kafka Connect's 204, with a header that says what stays; `drop` drops slot and publication after the tasks' end."""
    name = request.path_params["connector"]
    kinds = wanted_drops(request)
    _, version = if_match(request, name, api.view().state.connectors.get(name))
    command = DeleteConnector(name, if_version=version)
    missing = f"Connector {name} not found"
    before = api.view()
    connector = before.state.connectors.get(name)
    if kinds and connector is not None:
        if is_dry_run(request):
            return await preview(api, command, missing=missing, more={"drop": droppable(before, connector, kinds)})
        return await _delete_and_drop(api, request, connector, kinds, version)
    headers = header_of(left_behind(before, connector)) if connector is not None else {}

    def done(_: Reply) -> Response:
        log.info("connector deleted connector=%s left=%s", name, headers.get(LEFT, "{}"))
        return Response(status_code=204, headers=headers)

    return await carry_out(api, request, command, missing=missing, done=done)


async def _delete_and_drop(
    api: ApiContext, request: Request, connector: Connector, kinds: Collection[str], version: int | None
) -> Response:
    """Stops the connector, drops, deletes, and answers what is gone and what is left and why."""
    view, name = api.view(), connector.name
    leader = view.state.leader
    if leader is None:
        raise e.no_leader()
    if not view.is_leader:
        return await forward_to_leader(api, request, leader.url)
    missing = f"Connector {name} not found"
    stop = PutConnector(name, None, target_state="STOPPED", must_exist=True, if_version=version)
    reply = await api.ask(stop)
    if reply.outcome != "ok":
        raise refusal(api, reply, name, missing)
    connector = api.connector(name)
    await offsets.stopped(api, connector, STOP_S_MAX)
    items = await _dropped(api, request, connector, kinds)
    left = left_behind(api.view(), connector)
    for item in items:
        # A reference in the config may stand for more names than are seen in it here.
        if item["error"] is None and item["name"] in left.get(item["kind"], ()):
            left[item["kind"]].remove(item["name"])
    still = {kind: names for kind, names in left.items() if names}
    body: dict[str, Any] = {
        "connector": name,
        "dropped": [{"kind": item["kind"], "name": item["name"]} for item in items if item["error"] is None],
        "refused": [item for item in items if item["error"] is not None],
        "left": still,
    }

    def done(_: Reply) -> Response:
        log.info("connector deleted connector=%s left=%s", name, header_of(still).get(LEFT, "{}"))
        return JSONResponse(body, headers=header_of(still))

    command = DeleteConnector(name, if_version=connector.version)
    return await carry_out(api, request, command, missing=missing, done=done)


async def _dropped(
    api: ApiContext, request: Request, connector: Connector, kinds: Collection[str]
) -> list[dict[str, Any]]:
    """Drops what the connector leaves; what stays is told with its reason, and the deletion goes on."""
    service = api.offsets
    if not isinstance(service, DropsLeftovers):
        raise e.not_available("Dropping what a connector leaves")
    view = api.view()
    connector = as_run(view.state, connector)
    try:
        return await offsets.off_loop(
            api, request, lambda: service.drop(connector, kinds, used_by_others(view, connector))
        )
    except CdcError as error:
        named = [(item.kind, item.name) for item in leftovers(connector) if item.kind in kinds]
        # Of a config that cannot be read no names are known.
        wanted = named or [(kind, "") for kind in sorted(kinds)]
        return [{"kind": kind, "name": name, "error": error.to_dict()} for kind, name in wanted]


@dataclass(frozen=True)
class ConfigDraft:
    """A config that is to be validated and written. Validation refuses a value of None."""

    name: str
    config: Mapping[str, str | None]
    create_only: bool = False
    must_exist: bool = False
    if_version: int | None = None
    target_state: TargetState | None = None
    labels: Mapping[str, str] | None = None
    sent: frozenset[str] | None = None
    """The keys that the request has sent; None: all."""
    offsets: list[Any] | None = None
    """The initial offsets of a new connector."""
    mark: str = ""


async def submit(api: ApiContext, request: Request, draft: ConfigDraft, *, live: bool = True) -> Response:
    """Validates the config here, live checks included, and submits it; the leader validates again without them."""
    check_size(draft.config)
    view = api.view()
    stored = view.state.connectors.get(draft.name)
    connection = connection_name(draft.config)
    may_lack = (stored is None and any(MASK in (value or "") for value in draft.config.values())) or (
        connection and connection not in view.state.connections
    )
    if may_lack and not view.is_leader and view.state.leader is not None:
        # A view that lags behind the leader's may lack the connector whose secret is to be kept, or the connection.
        return await forward_to_leader(api, request, view.state.leader.url)
    config = await api.judge(lambda: unmasked(api, request, draft, stored))
    await check_connection(api, request, config, stored)
    known_conflict = draft.create_only and stored is not None
    live = live and flag(request.query_params, "validate", default=True) and not known_conflict
    bound = topic_bound(request.scope, draft.name, stored)
    report = await api.validate(config, live=live, prefixes=bound)
    if report.errors:
        raise invalid(report)
    given = {name: value for name, value in config.items() if value is not None}
    await api.mask_ahead([given])
    command = _command(request, draft, given, report)
    starts = connector_creation.parsed(draft.offsets, report.plugin.kind) if draft.offsets else None

    def done(reply: Reply) -> Response:
        return accepted(api, request, command, reply, report)

    missing = f"Connector {draft.name} not found"
    if is_dry_run(request):
        return await preview(api, command, missing=missing, remarks=report.remarks)
    try:
        if starts:
            return await connector_creation.carry_out(api, request, command, starts, done)
        return await carry_out(api, request, command, missing=missing, done=done, checked=True)
    except e.RestError as error:
        if error.code != e.EXISTS or not connector_creation.is_repeated(api, command):
            raise
        return done(Reply("ok", created=True, version=api.connector(draft.name).version))


def unmasked(api: ApiContext, request: Request, draft: ConfigDraft, stored: Connector | None) -> dict[str, str | None]:
    """Returns the config with the stored secrets that it keeps. CdcError when it must not keep one."""
    config = api.catalog.unmask(draft.config, stored.config if stored else {})
    if stored is not None:
        sent = draft.config if draft.sent is None else draft.sent
        known = {name for name in sent if MASK not in (draft.config.get(name) or "")}
        secret_retention.check(request.scope, api.catalog, config, stored.config, known)
    return config


async def check_connection(
    api: ApiContext, request: Request, config: Mapping[str, str | None], stored: Connector | None
) -> None:
    """Checks that the caller may use the connection that a config names. RestError 403, CdcError `config.key_beside_connection`."""
    name = connection_name(config)
    if name:
        require_connection(request.scope, "operate", name)
        if not caller_of(request.scope).may("admin", name):
            before = stored.config if stored is not None else None
            known = api.view().state.connections
            await api.judge(lambda: connections.check_beside(api.catalog, config, before, known))


def _command(request: Request, draft: ConfigDraft, config: Mapping[str, str], report: ValidationReport) -> PutConnector:
    return PutConnector(
        draft.name,
        config,
        kind=report.plugin.kind,
        target_state=draft.target_state,
        create_only=draft.create_only,
        must_exist=draft.must_exist,
        if_version=draft.if_version,
        labels=draft.labels,
        mark=draft.mark,
        # None: also where this worker does not know yet that the connector has a bound, it keeps it.
        topic_prefixes=caller_of(request.scope).topic_prefixes(draft.name) or None,
    )


def topic_bound(scope: Mapping[str, Any], name: str, stored: Connector | None) -> tuple[str, ...]:
    """Returns what the names of the connector's topics begin with from now on: as the caller's grants say. A caller who
    may name any topic does not lift the bound of another's connector."""
    granted = caller_of(scope).topic_prefixes(name)
    return granted or (stored.topic_prefixes if stored is not None else ())


def accepted(
    api: ApiContext, request: Request, command: PutConnector, reply: Reply, report: ValidationReport
) -> Response:
    """Returns ConnectorInfo of the config that was written; 201 with its location for a new connector. Notes of
    validation are added for clients that ask for details."""
    view, mask = api.view(), api.mask_for(request.scope, command.name)
    stored = view.state.connectors.get(command.name)
    if stored is not None:
        body = connect_json.connector_info(view, stored, mask)
    else:
        body = {"name": command.name, "tasks": [], "type": report.plugin.kind}
    body["config"] = mask(dict(command.config or {}))
    if wants_details(request) and report.remarks:
        body["notes"] = report.shown(report.remarks)
    headers = {"ETag": etag(reply.version)} if reply.version else {}
    if reply.created:
        headers["Location"] = f"/connectors/{encode_segment(command.name)}"
    return JSONResponse(body, 201 if reply.created else 200, headers=headers)


def invalid(report: ValidationReport) -> e.RestError:
    errors = report.shown(report.errors)
    # A key that is missing under its name may be there under a misspelt one: that is where to look first.
    first = next((error for error in errors if error.get("fix")), errors[0])
    return e.RestError(
        400,
        e.listed(report.lines(), report.advice()),
        e.INVALID_CONFIG,
        configPath=first["configPath"],
        fix=first.get("fix"),
        errors=errors,
    )


def config_map(parsed: Any) -> dict[str, str | None]:
    """Returns the config of a body. CdcError for one that is too large, RestError 400 for what is none."""
    if isinstance(parsed, Mapping):
        check_count(parsed)
    config = string_map(parsed, "config")
    check_size(config)
    return config


def named(config: dict[str, str | None], name: str) -> dict[str, str | None]:
    """Returns the config with its name. RestError 400 for a config that names another connector."""
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


def if_match(
    request: Request, name: str, stored: Connector | Connection | None, kind: str = "connector"
) -> tuple[bool, int | None]:
    """Returns (must exist, version) of an If-Match header. Of several versions the one of `stored` counts; foreign tags
    never match."""
    header = request.headers.get("if-match")
    if header is None:
        return False, None
    tags = [tag.strip() for tag in header.split(",")]
    if "*" in tags:
        return True, None
    versions = [int(match[1]) for tag in tags if (match := ETAG.fullmatch(tag))]
    if not versions:
        raise e.RestError(412, f"If-Match names no version of {kind} {name}", e.VERSION_MISMATCH)
    current = stored.version if stored else None
    return False, current if current in versions else versions[0]


ENDPOINTS = (
    Endpoint(
        "GET", "/connectors", list_connectors, "List connectors", query=("expand", DETAILS), role="read", whose="each"
    ),
    Endpoint(
        "POST",
        "/connectors",
        create,
        "Create a connector",
        statuses=(200, 201, 400, 409),
        query=("validate", DETAILS, "dry_run"),
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
        statuses=(200, 204, 400, 404, 409, 412),
        query=("dry_run", "drop"),
        role="admin",
    ),
    Endpoint("GET", "/connectors/{connector}/config", get_config, "Read a config", statuses=(200, 404), role="read"),
    Endpoint(
        "PUT",
        "/connectors/{connector}/config",
        put_config,
        "Create or replace a config",
        statuses=(200, 201, 400, 409, 412),
        query=("validate", DETAILS, "dry_run"),
        body="Config",
        role="admin",
    ),
    Endpoint(
        "PATCH",
        "/connectors/{connector}/config",
        patch_config,
        "Change some keys of a config",
        statuses=(200, 400, 404, 409, 412),
        query=("validate", DETAILS, "dry_run"),
        body="ConfigPatch",
        role="admin",
    ),
)
