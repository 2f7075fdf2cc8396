"""Roles on the routes of the schema registry.

These routes are not in the table of endpoints: their paths, media type, error codes and statuses are Confluent's, and
its clients depend on all of them.
"""

from __future__ import annotations

from typing import Final

from cdcworker.worker.http import errors as e
from cdcworker.worker.security import access
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

READING_POSTS: Final = ("/compatibility/subjects/", "/subjects/{subject}")
"""Paths whose POST only looks something up."""


def role_of(path: str, method: str) -> str:
    """Returns the role for a request: reading schemas has a grant of its own, and writes are for admins of the cluster."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return access.SCHEMAS
    looks_up = path.startswith(READING_POSTS[0]) or path == READING_POSTS[1]
    return access.SCHEMAS if method == "POST" and looks_up else "admin"


def guarded(route: BaseRoute) -> BaseRoute:
    """Returns the route with a check of the caller's role. TypeError for a route that is no plain route."""
    if not isinstance(route, Route):
        raise TypeError("only plain routes can be guarded")
    route.app = _Guarded(route.app, route.path)
    return route


class _Guarded:
    def __init__(self, app: ASGIApp, path: str) -> None:
        self.app = app
        self.path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            access.check(scope, role_of(self.path, scope["method"]), "cluster", {})
        except e.RestError as error:
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)
