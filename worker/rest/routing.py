"""The table of endpoints, matched on the raw path, so that any name fits into one path segment."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.error_members import DETAILS
from cdcworker.worker.http.paths import split_path
from cdcworker.worker.rest.connect_json import task_configs, whole_shares
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.read_consistency import check_epoch, check_numbers, check_ready, check_version
from cdcworker.worker.security import access
from cdcworker.worker.security.audit import PATH
from starlette.datastructures import URLPath
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

log = logging.getLogger(__name__)

Handler = Callable[[ApiContext, Request], Awaitable[Response]]

JSON = "application/json"
INT_SEGMENT = re.compile(r"-?[0-9]{1,10}")
INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of the API. `path` has literal segments, `{name}` and `{name:int}`; the other fields describe it
    for OpenAPI."""

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str = "connectors"
    statuses: tuple[int, ...] = (200,)
    query: tuple[str, ...] = ()
    body: str = ""
    produces: str = JSON
    also: str = ""
    """Another media type in which it answers when the client asks for it."""
    role: str = ""
    """The role that the caller needs: open, read, operate, admin or internal."""
    whose: str = ""
    """The target on which the role is needed: empty for the connector in the path, else the cluster; or `named` and
    `each` (see `security.access`)."""
    needs_cluster: bool = True
    """False if the answer tells of this process alone, so that a worker gives it before it knows the cluster."""


class ApiRoute(BaseRoute):
    """All methods of one path."""

    def __init__(self, path: str, endpoints: Sequence[Endpoint]) -> None:
        self.path = path
        self.endpoints = {endpoint.method: endpoint for endpoint in endpoints}
        self.template = [_segment(part) for part in path.split("/")[1:]]
        methods = {*self.endpoints, "OPTIONS", *(["HEAD"] if "GET" in self.endpoints else [])}
        self.allow = ", ".join(sorted(methods))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        if "cdc.segments" not in scope:
            scope["cdc.segments"] = split_path(scope)
        segments = scope["cdc.segments"]
        params = None if segments is None else self._params(segments)
        return (Match.NONE, {}) if params is None else (Match.FULL, {"path_params": params, PATH: self.path})

    def _params(self, segments: Sequence[str]) -> dict[str, Any] | None:
        if len(segments) != len(self.template):
            return None
        params: dict[str, Any] = {}
        for (literal, name, is_int), text in zip(self.template, segments, strict=True):
            if not name:
                if text != literal:
                    return None
            elif is_int:
                if not INT_SEGMENT.fullmatch(text) or abs(int(text)) > INT_MAX:
                    return None
                params[name] = int(text)
            elif text:
                params[name] = text
            else:
                return None
        return params

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except e.RestError as error:
            response = error.response()
        except CdcError as error:
            log.warning("request failed method=%s path=%s error=%s", request.method, self.path, error)
            response = e.from_cdc(error).response()
        except HTTPException:
            raise
        except Exception as error:  # the edge of the process: the trace goes to the log, never into the answer
            log.exception("request failed method=%s path=%s error=%s", request.method, self.path, type(error).__name__)
            response = e.RestError(500, "Internal Server Error: the worker's log tells more", INTERNAL).response()
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(headers={"Allow": self.allow})
        endpoint = self.endpoints.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            raise e.plain(405, {"Allow": self.allow})
        accept = request.headers.get("accept")
        if not any(accepts(accept, media) for media in (endpoint.produces, endpoint.also) if media):
            raise e.plain(406)
        if has_body(request) and not is_json(request.headers.get("content-type")):
            raise e.plain(415)
        access.check(request.scope, endpoint.role, access.reach(endpoint.path, endpoint.whose), request.path_params)
        check_numbers(request)
        api: ApiContext = request.app.state.api
        if endpoint.needs_cluster:
            await check_ready(api, reads=endpoint.method == "GET")
        await _mask_ahead(api, request)
        if endpoint.method == "GET":
            await check_version(api, request)
        else:
            await check_epoch(api, request)
        return await endpoint.handler(api, request)


async def _mask_ahead(api: ApiContext, request: Request) -> None:
    """Has the connector in the path masked before its handler and the audit log show it."""
    view = api.view()
    connector = view.state.connectors.get(request.path_params.get("connector", ""))
    if connector is not None:
        shown = [connector.config, {"name": connector.name, **connector.config}]
        if "tasks" in request.scope[PATH]:
            shown += whole_shares(connector, task_configs(view, connector))
        await api.mask_ahead(shown)


def routes(endpoints: Iterable[Endpoint]) -> list[ApiRoute]:
    """Returns one route for each path of the endpoints."""
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    return [ApiRoute(path, group) for path, group in by_path.items()]


def accepts(header: str | None, produced: str) -> bool:
    """Returns whether an Accept header allows the media type: the most specific range that covers it decides by its
    quality."""
    if not header or not header.strip():
        return True
    main = produced.partition("/")[0]
    qualities: dict[str, float] = {}
    for item in header.split(","):
        media, *parameters = (part.strip().lower() for part in item.split(";"))
        qualities[media] = max(qualities.get(media, 0.0), _quality(parameters))
    for media in (produced, f"{main}/*", "*/*", "*"):
        if media in qualities:
            return qualities[media] > 0
    return False


def is_json(content_type: str | None) -> bool:
    """Returns whether a Content-Type is JSON; a missing one counts as JSON."""
    return content_type is None or content_type.partition(";")[0].strip().lower() == JSON


def has_body(request: Request) -> bool:
    """Returns whether the request has a body."""
    length = request.headers.get("content-length")
    return "transfer-encoding" in request.headers or (length is not None and length.strip("0") != "")


def flag(query: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Returns a boolean of the query string: any value but `true`, in any case, is false."""
    value = query.get(name)
    return default if value is None else value.lower() == "true"


def wants_details(request: Request) -> bool:
    """Returns whether the client asks for the members that Kafka Connect's answers do not have."""
    return flag(request.query_params, DETAILS)


def _quality(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _segment(part: str) -> tuple[str, str, bool]:
    if not part.startswith("{"):
        return part, "", False
    name, _, kind = part[1:-1].partition(":")
    return "", name, kind == "int"
