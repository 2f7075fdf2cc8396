"""The connector plugins of this worker, their definitions, and validation of configs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

from cdcworker.connectors.config.definition import MASK, ConfigDef
from cdcworker.connectors.config.installed_plugins import InstalledPlugin, RefusedPlugin
from cdcworker.connectors.converters import config as converters
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.connectors.transform_chain.config import PLUGINS
from cdcworker.connectors.transform_chain.plugin_parts import PARTS, part_of
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import read_object
from cdcworker.worker.http.error_members import DETAILS
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.resources.connectors import check_connection, config_map, topic_bound
from cdcworker.worker.rest.routing import Endpoint, flag, wants_details
from cdcworker.worker.security import secret_retention
from cdcworker.worker.security.access import require
from cdcworker.worker.validation.validate import NO_CLASS, NO_CLASS_TEXT
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

OWN = "cdcworker"
LATEST = "latest"
PLACE = "order"
"""A second name for a key's place in its group, which Kafka Connect does not have."""


class _Origin(Protocol):
    """What something is from: the product itself, or another distribution."""

    @property
    def distribution(self) -> str: ...
    @property
    def version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Own:
    """The product as an origin."""

    distribution: str
    version: str


async def list_plugins(api: ApiContext, request: Request) -> Response:
    """Answers the plugins, also under the class names that existing tools look for; with details the distribution of each, and
    those that cannot be used."""
    own = _Own(OWN, version(OWN))
    found: list[tuple[str, str, _Origin]] = [
        (name, plugin.kind, plugin.origin or own)
        for plugin in api.catalog.plugins()
        for name in (plugin.name, *(alias for alias in plugin.aliases if "." in alias))
    ]
    if not flag(request.query_params, "connectorsOnly", default=True):
        found += [(part.name, part.kind, _source(part.name) or own) for part in PARTS]
    shown: list[dict[str, Any]] = [
        {"class": name, "type": kind, "version": of.version}
        | ({"distribution": of.distribution} if wants_details(request) else {})
        for name, kind, of in found
    ]
    if wants_details(request):
        shown += [
            _refused_json(plugin) for plugin in (*api.catalog.refused(), *PLUGINS.refused, *converters.PLUGINS.refused)
        ]
    return JSONResponse(shown)


def _source(name: str) -> InstalledPlugin | None:
    """Returns where a transform or a converter is from; None: from the product."""
    return PLUGINS.sources.get(name) or converters.PLUGINS.sources.get(name)


def _refused_json(plugin: RefusedPlugin) -> dict[str, Any]:
    return {
        "class": plugin.name or None,
        "type": "refused",
        "version": plugin.version or None,
        "distribution": plugin.distribution,
        "error": plugin.error.to_dict(),
    }


async def plugin_config(api: ApiContext, request: Request) -> Response:
    name = request.path_params["plugin"]
    part = part_of(name)
    plugin = None if part else _plugin(api, name)
    origin = plugin.origin if plugin else _source(name)
    requested, own = request.query_params.get("version", LATEST), origin.version if origin else version(OWN)
    if requested not in (LATEST, own):
        wanted = f"matches the version range [{requested},{requested}], available versions: [{own}]"
        raise e.bad_request(f"Plugin {name} not found that {wanted}", e.parameter("version"))
    definition = api.catalog.definition(plugin) if plugin else ConfigDef(part.keys if part else ())
    return JSONResponse([shown_definition(each, request) for each in definition.definitions()])


def shown_definition(definition: dict[str, Any] | None, request: Request) -> dict[str, Any] | None:
    """Returns a key's definition with Kafka Connect's members alone, unless the request asks for details."""
    if definition is None or wants_details(request):
        return definition
    return {name: value for name, value in definition.items() if name != PLACE}


async def validate(api: ApiContext, request: Request) -> Response:
    """Answers 200 with every problem in the body; the systems outside are asked too, within the time limit."""
    requested = request.path_params["plugin"]
    config = config_map(await read_object(request))
    named = config.get("connector.class")
    if not named:
        raise e.RestError(400, NO_CLASS_TEXT, NO_CLASS, configPath="/config/connector.class")
    if not _same(api, requested, named):
        message = f"Included connector type {named} does not match request type {requested}"
        raise e.bad_request(message, "/config/connector.class")
    if config.get("name"):
        require(request.scope, "admin", config["name"] or "")
    stored = api.view().state.connectors.get(config.get("name") or "")
    given = {name for name, value in config.items() if MASK not in (value or "")}

    def unmasked() -> dict[str, str | None]:
        full = api.catalog.unmask(config, stored.config if stored else {})
        if stored is not None:
            secret_retention.check(request.scope, api.catalog, full, stored.config, given)
        return full

    live = flag(request.query_params, "validate", default=True)
    bound = topic_bound(request.scope, config.get("name") or "", stored)
    full = await api.judge(unmasked)
    await check_connection(api, request, full, stored)
    report = await api.validate(full, live=live, prefixes=bound)
    infos = {**await api.judge(report.config_infos), "name": named}
    infos["configs"] = [
        {**each, "definition": shown_definition(each["definition"], request)} for each in infos["configs"]
    ]
    if not wants_details(request):
        del infos["findings"]
    return JSONResponse(infos)


def _plugin(api: ApiContext, name: str) -> Plugin:
    try:
        return api.catalog.lookup(name)
    except CdcError:
        raise e.not_found(f"Unknown plugin {name}.") from None


def _same(api: ApiContext, requested: str, named: str) -> bool:
    """Returns whether two names mean one class. Kafka Connect compares by the end of the name, so that a short class
    name works; aliases match as well."""
    if named.endswith(requested):
        return True
    try:
        return api.catalog.lookup(named) == api.catalog.lookup(requested)
    except CdcError:
        return False


ENDPOINTS = (
    Endpoint(
        "GET",
        "/connector-plugins",
        list_plugins,
        "List plugins",
        "plugins",
        query=("connectorsOnly", DETAILS),
        role="read",
        whose="each",
        needs_cluster=False,
    ),
    Endpoint(
        "GET",
        "/connector-plugins/{plugin}/config",
        plugin_config,
        "Keys of a plugin",
        "plugins",
        (200, 400, 404),
        ("version", DETAILS),
        role="read",
        whose="each",
        needs_cluster=False,
    ),
    Endpoint(
        "PUT",
        "/connector-plugins/{plugin}/config/validate",
        validate,
        "Validate a config",
        "plugins",
        (200, 400),
        ("validate", DETAILS),
        "Config",
        role="admin",
        whose="named",
    ),
)
