"""Roles on the schema registry's routes, which are not of the table of endpoints."""

from __future__ import annotations

from typing import Final

from cdcworker.worker.rest import errors as e
from cdcworker.worker.security import access
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

READING_POSTS: Final = ("/compatibility/subjects/", "/subjects/{subject}")
"""Paths whose POST looks something up."""


def role_of(path: str, method: str) -> str:
    """Reading schemas is a grant of its own; whatever writes is for the cluster's admins."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return access.SCHEMAS
    looks_up = path.startswith(READING_POSTS[0]) or path == READING_POSTS[1]
    return access.SCHEMAS if method == "POST" and looks_up else "admin"


def guarded(route: BaseRoute) -> BaseRoute:
    """The same route, closed to callers without the role. A route of another kind has no place here."""
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
