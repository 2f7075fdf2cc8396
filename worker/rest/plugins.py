"""The connectors of this worker, their definitions, and validation."""

from __future__ import annotations

from importlib.metadata import version

from cdcworker.connectors.config import MASK, ConfigDef
from cdcworker.connectors.parts import PARTS, part_of
from cdcworker.connectors.registry import Plugin
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.body import read_object, string_map
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.security import kept
from cdcworker.worker.security.access import require
from cdcworker.worker.validate import NO_CLASS, NO_CLASS_TEXT
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

LATEST = "latest"


async def list_plugins(api: Api, request: Request) -> Response:
    """Also under the class names that existing tools look for."""
    number = version("cdcworker")
    found: list[tuple[str, str]] = [
        (name, plugin.kind)
        for plugin in api.catalog.plugins()
        for name in (plugin.name, *(alias for alias in plugin.aliases if "." in alias))
    ]
    if not flag(request.query_params, "connectorsOnly", default=True):
        found += [(part.name, part.kind) for part in PARTS]
    return JSONResponse([{"class": name, "type": kind, "version": number} for name, kind in found])


async def plugin_config(api: Api, request: Request) -> Response:
    name = request.path_params["plugin"]
    part = part_of(name)
    plugin = None if part else _plugin(api, name)
    wanted, own = request.query_params.get("version", LATEST), version("cdcworker")
    if wanted not in (LATEST, own):
        raise e.bad_request(f"Plugin {name} has no version {wanted}: there is {own}", e.parameter("version"))
    definition = api.catalog.definition(plugin) if plugin else ConfigDef(part.keys if part else ())
    return JSONResponse(definition.definitions())


async def validate(api: Api, request: Request) -> Response:
    """200 with every problem in the body; the outside is asked too, within its time limit."""
    wanted = request.path_params["plugin"]
    config = string_map(await read_object(request), "config")
    named = config.get("connector.class")
    if not named:
        raise e.RestError(400, NO_CLASS_TEXT, NO_CLASS, configPath="/config/connector.class")
    if not _same(api, wanted, named):
        message = f"Included connector type {named} does not match request type {wanted}"
        raise e.bad_request(message, "/config/connector.class")
    if config.get("name"):
        require(request.scope, "admin", config["name"] or "")
    stored = api.view().state.connectors.get(config.get("name") or "")
    given = {name for name, value in config.items() if MASK not in (value or "")}
    config = api.catalog.unmask(config, stored.config if stored else {})
    if stored is not None:
        kept.check(request.scope, api.catalog.mask, config, stored.config, given)
    report = await api.validate(config, live=flag(request.query_params, "validate", default=True))
    return JSONResponse({**report.config_infos(), "name": named})


def _plugin(api: Api, name: str) -> Plugin:
    try:
        return api.catalog.lookup(name)
    except CdcError:
        raise e.not_found(f"Unknown plugin {name}.") from None


def _same(api: Api, wanted: str, named: str) -> bool:
    """Connect compares by ending, so that a short class name works; two names of one connector match as well."""
    if named.endswith(wanted):
        return True
    try:
        return api.catalog.lookup(named) == api.catalog.lookup(wanted)
    except CdcError:
        return False


ENDPOINTS = (
    Endpoint(
        "GET",
        "/connector-plugins",
        list_plugins,
        "List plugins",
        "plugins",
        query=("connectorsOnly",),
        role="read",
        whose="each",
    ),
    Endpoint(
        "GET",
        "/connector-plugins/{plugin}/config",
        plugin_config,
        "Keys of a plugin",
        "plugins",
        (200, 400, 404),
        ("version",),
        role="read",
        whose="each",
    ),
    Endpoint(
        "PUT",
        "/connector-plugins/{plugin}/config/validate",
        validate,
        "Validate a config",
        "plugins",
        (200, 400),
        ("validate",),
        "Config",
        role="admin",
        whose="named",
    ),
)
