"""`/ui`: the files of the console, a page in the browser that asks the REST API as any other client does. They hold
nothing of the cluster, so that everybody may have them: whoever uses the page says there who asks."""

from __future__ import annotations

from cdcworker.worker.console.files import HEADERS, PAGE, console_files
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.security.access import caller_of
from cdcworker.worker.security.gate import CONSOLE
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


async def page(api: ApiContext, request: Request) -> Response:
    """Answers the page. Its address ends in a slash, so that it finds its files also behind a proxy with a prefix."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    if api.settings.console and not raw.partition(b"?")[0].endswith(b"/"):
        return Response(status_code=308, headers={"Location": f"{CONSOLE}/", **HEADERS})
    return _file(api, request, PAGE)


async def asset(api: ApiContext, request: Request) -> Response:
    name = request.path_params["file"]
    return _file(api, request, "" if "/" in name else name)


async def vendor_asset(api: ApiContext, request: Request) -> Response:
    return _file(api, request, f"vendor/{request.path_params['file']}")


def _file(api: ApiContext, request: Request, name: str) -> Response:
    found = console_files().get(name) if api.settings.console else None
    if found is None:
        raise e.not_found(
            "There is no such file" if api.settings.console else "This worker has no console (ui.enabled)"
        )
    headers = {"ETag": found.etag, **HEADERS}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {found.etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type=found.media_type)


async def caller(api: ApiContext, request: Request) -> Response:
    """Answers who asks and what they may do, so that a client offers nothing that would be refused."""
    found = caller_of(request.scope)
    grants = [{"role": grant.role, "prefix": grant.prefix} for grant in found.grants]
    return JSONResponse({"name": found.name, "by": found.by, "grants": grants})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/caller",
        caller,
        "Who asks, and which roles they have",
        "worker",
        role="read",
        whose="each",
        needs_cluster=False,
    ),
    Endpoint(
        "GET",
        "/ui",
        page,
        "The console, for a browser",
        "console",
        (200, 304, 308, 404),
        produces="text/html",
        role="open",
        needs_cluster=False,
    ),
    Endpoint(
        "GET",
        "/ui/{file}",
        asset,
        "A file of the console",
        "console",
        (200, 304, 404),
        produces="text/javascript",
        also="text/css",
        role="open",
        needs_cluster=False,
    ),
    Endpoint(
        "GET",
        "/ui/vendor/{file}",
        vendor_asset,
        "A library of the console",
        "console",
        (200, 304, 404),
        produces="text/javascript",
        also="text/css",
        role="open",
        needs_cluster=False,
    ),
)
