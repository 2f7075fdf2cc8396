"""`/ui/login` and what follows: a person's login to the console at the identity provider, and the logout."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterable
from typing import Final

from cdcworker.schemas.errors import CODES
from cdcworker.worker.console.files import HEADERS
from cdcworker.worker.http import errors as e
from cdcworker.worker.identity.login import ConsoleLogin
from cdcworker.worker.identity.sessions import Cookie
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.security import cross_site
from cdcworker.worker.security.access import CALLER
from cdcworker.worker.security.audit import RECORDED
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Log in – cdcworker</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<main class="login">
<h1>cdcworker</h1>
<p role="alert">{message}</p>
<p>{hint}</p>
<p class="quiet small">{code}</p>
<p><a href="./">Back to the console</a></p>
</main>
</body>
</html>
"""
"""What a browser shows of a login that did not succeed. It has no script."""
KEPT_NOWHERE: Final = {**HEADERS, "Cache-Control": "no-store"}


async def offered(api: ApiContext, request: Request) -> Response:
    """Answers where the console logs people in at an identity provider; null where it does not."""
    login = api.settings.protection.login if api.settings.console else None
    return JSONResponse({"single_sign_on": None if login is None else f"{login.client.url}login"})


async def begin(api: ApiContext, request: Request) -> Response:
    try:
        place, cookie = await _login(api).begin(again=flag(request.query_params, "again"))
    except e.RestError as error:
        return _shown(error)
    return _led(place, (cookie,))


async def callback(api: ApiContext, request: Request) -> Response:
    login = _login(api)
    try:
        caller, cookies = await login.complete(request.query_params, request.headers.get("cookie", ""))
    except e.RestError as error:
        return _shown(error)
    request.scope.update({CALLER: caller, RECORDED: True})
    return _led(login.client.url, cookies)


async def logout(api: ApiContext, request: Request) -> Response:
    """Ends the session in this browser. Answers where the browser goes on, to end the one at the provider."""
    login, cookies = _login(api), request.headers.get("cookie", "")
    cross_site.check_change(request.scope)
    with contextlib.suppress(e.RestError):
        # Who is revoked logs out as well.
        if (caller := login.sessions.caller(cookies)) is not None:
            request.scope[CALLER] = caller
    place, ended = await login.end(cookies)
    answer = JSONResponse({"location": place or None})
    return answer if flag(request.query_params, "dry_run") else _with_cookies(answer, ended)


def _login(api: ApiContext) -> ConsoleLogin:
    login = api.settings.protection.login
    if login is None or not api.settings.console:
        raise e.not_found("This worker logs nobody in at an identity provider (rest.oidc.client.id)")
    return login


def _led(place: str, cookies: Iterable[Cookie]) -> Response:
    """Leads the browser on."""
    return _with_cookies(Response(status_code=303, headers={**KEPT_NOWHERE, "Location": place}), cookies)


def _with_cookies(answer: Response, cookies: Iterable[Cookie]) -> Response:
    for cookie in cookies:
        answer.headers.append("Set-Cookie", cookie.header())
    return answer


def _shown(error: e.RestError) -> Response:
    code = error.code or ""
    hint = CODES[code].hint if code else ""
    page = PAGE.format(message=html.escape(error.message), hint=html.escape(hint), code=html.escape(code))
    again = {name: value for name, value in error.headers.items() if name == "Retry-After"}
    return HTMLResponse(page, error.status, headers={**KEPT_NOWHERE, **again})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/ui/logins",
        offered,
        "Where the console logs people in at an identity provider",
        "console",
        role="open",
        needs_cluster=False,
    ),
    Endpoint(
        "GET",
        "/ui/login",
        begin,
        "Lead a browser to the login at the identity provider",
        "console",
        (303, 404, 503),
        query=("again",),
        produces="text/html",
        role="open",
        needs_cluster=False,
    ),
    Endpoint(
        "GET",
        "/ui/callback",
        callback,
        "Where the identity provider leads a browser back",
        "console",
        (303, 404, 503),
        query=("code", "state", "iss", "error"),
        produces="text/html",
        role="open",
        needs_cluster=False,
    ),
    Endpoint(
        "POST",
        "/ui/logout",
        logout,
        "End a session of the console",
        "console",
        (200, 404),
        query=("dry_run",),
        role="open",
        needs_cluster=False,
    ),
)
