"""The REST application: the whole route table and what surrounds it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from cdcworker.worker.rest import (
    changes,
    connectors,
    doctor,
    events,
    explain,
    history,
    internal,
    labels,
    letters,
    lifecycle,
    loggers,
    metrics,
    offsets,
    plugins,
    root,
    snapshots,
    support,
    verify,
)
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.body import BodyLimit
from cdcworker.worker.rest.context import Api, HerderLike, Settings
from cdcworker.worker.rest.forward import Forwarder
from cdcworker.worker.rest.limits import RequestLimits
from cdcworker.worker.rest.routing import Endpoint, routes
from cdcworker.worker.rest.trail import Pictures
from cdcworker.worker.security import session, tls
from cdcworker.worker.security.audit import AuditMiddleware
from cdcworker.worker.security.gate import GateMiddleware
from cdcworker.worker.security.registry import guarded
from cdcworker.worker.security.signing import Signer
from cdcworker.worker.validate import Catalog, Checks, run_checks
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

ENDPOINTS: tuple[Endpoint, ...] = (
    *root.ENDPOINTS,
    *connectors.ENDPOINTS,
    *lifecycle.ENDPOINTS,
    *offsets.ENDPOINTS,
    *plugins.ENDPOINTS,
    *loggers.ENDPOINTS,
    *labels.ENDPOINTS,
    *events.ENDPOINTS,
    *history.ENDPOINTS,
    *changes.ENDPOINTS,
    *explain.ENDPOINTS,
    *doctor.ENDPOINTS,
    *verify.ENDPOINTS,
    *letters.ENDPOINTS,
    *metrics.ENDPOINTS,
    *snapshots.ENDPOINTS,
    *support.ENDPOINTS,
    *internal.ENDPOINTS,
)
"""Every operation, declared once: routing reads it, and so can whatever describes the API."""


def create_app(
    herder: HerderLike,
    *,
    registry_routes: Sequence[BaseRoute] = (),
    settings: Settings | None = None,
    catalog: Catalog | None = None,
    checks: Checks = run_checks,
    forwarder: Forwarder | None = None,
    drain: Callable[[bool | None], None] | None = None,
) -> Starlette:
    """The application over one herder. `registry_routes` are further routes, such as the schema registry's; `drain`
    asks this worker to hand over its tasks and end, its argument whether it comes back (None: as configured).
    """
    signer = Signer(lambda: herder.view().state.settings)
    forwarder = forwarder or Forwarder()
    forwarder.signer = signer
    settings = settings or Settings()
    forwarder.tls = settings.tls.peers if settings.tls else None
    api = Api(herder, settings, catalog or Catalog(), checks, forwarder, drain=drain)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await api.forwarder.start()
        try:
            async with tls.kept(api.settings.tls), session.kept(api), loggers.followed(api), verify.kept(api):
                yield
        finally:
            await api.feed.close()
            await api.forwarder.stop()

    app = Starlette(
        routes=[*routes(ENDPOINTS), *map(guarded, registry_routes)],
        middleware=[
            Middleware(RequestLimits),
            Middleware(AuditMiddleware, audit=settings.audit, pictures=Pictures(api)),
            Middleware(GateMiddleware, gate=api.settings.gate, signer=signer, bytes_max=api.settings.body_bytes_max),
            Middleware(BodyLimit, bytes_max=api.settings.body_bytes_max),
        ],
        exception_handlers={HTTPException: _framework_error, e.RestError: _rest_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.api = api
    return app


async def _framework_error(request: Request, exc: Exception) -> Response:
    """Unknown paths and the like, in Connect's error form."""
    assert isinstance(exc, HTTPException)
    return e.plain(exc.status_code, exc.headers).response()


async def _rest_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, e.RestError)
    return exc.response()
