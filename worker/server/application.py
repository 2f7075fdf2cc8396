"""The REST application: all routes and the middleware around them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.answer_headers import AnswerHeaders
from cdcworker.worker.http.body import BodyLimit
from cdcworker.worker.http.error_members import ErrorMembers
from cdcworker.worker.http.request_limits import RequestLimitsMiddleware
from cdcworker.worker.rest import console, login
from cdcworker.worker.rest.audit_trail import AuditedState
from cdcworker.worker.rest.context import ApiContext, HerderLike
from cdcworker.worker.rest.forward import Forwarder
from cdcworker.worker.rest.resources import (
    connectors,
    doctor,
    events,
    explain,
    history,
    internal,
    lifecycle,
    loggers,
    offsets,
    plugins,
    root,
    snapshots,
    support,
)
from cdcworker.worker.rest.resources.monitoring import incidents, metric_compat, metrics
from cdcworker.worker.rest.resources.sets import changes, connections, labels
from cdcworker.worker.rest.resources.targets import dead_letters, maintenance, verify
from cdcworker.worker.rest.routing import Endpoint, routes
from cdcworker.worker.rest.settings import ApiSettings
from cdcworker.worker.schema_registry.roles import guarded
from cdcworker.worker.security import session_key, tls
from cdcworker.worker.security.audit import AuditMiddleware, telling_denials
from cdcworker.worker.security.gate import GateMiddleware
from cdcworker.worker.security.signing import Signer
from cdcworker.worker.validation.validate import Checks, ConnectorCatalog, run_checks
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

ENDPOINTS: tuple[Endpoint, ...] = (
    *root.ENDPOINTS,
    *connectors.ENDPOINTS,
    *connections.ENDPOINTS,
    *lifecycle.ENDPOINTS,
    *offsets.ENDPOINTS,
    *plugins.ENDPOINTS,
    *loggers.ENDPOINTS,
    *labels.ENDPOINTS,
    *events.ENDPOINTS,
    *incidents.ENDPOINTS,
    *history.ENDPOINTS,
    *changes.ENDPOINTS,
    *explain.ENDPOINTS,
    *doctor.ENDPOINTS,
    *verify.ENDPOINTS,
    *dead_letters.ENDPOINTS,
    *maintenance.ENDPOINTS,
    *metrics.ENDPOINTS,
    *metric_compat.ENDPOINTS,
    *snapshots.ENDPOINTS,
    *support.ENDPOINTS,
    *login.ENDPOINTS,
    *console.ENDPOINTS,
    *internal.ENDPOINTS,
)
"""Every operation, declared once: routing, roles and the OpenAPI document read this table."""


def create_app(
    herder: HerderLike,
    *,
    registry_routes: Sequence[BaseRoute] = (),
    settings: ApiSettings | None = None,
    catalog: ConnectorCatalog | None = None,
    checks: Checks = run_checks,
    transport: httpx.AsyncBaseTransport | None = None,
    drain: Callable[[bool | None], None] | None = None,
) -> Starlette:
    """Returns the application over one herder.

    `registry_routes` are the schema registry's routes. `drain` asks this worker to hand over its tasks and end; its
    argument says whether the worker comes back (None: as configured). `transport` carries requests to other workers
    (None: the network).
    """
    settings = settings or ApiSettings()
    protection = settings.protection
    signer = Signer(herder.view, protection.worker_secrets)
    forwarder = Forwarder(signer, protection.tls.peers if protection.tls else None, transport)
    api = ApiContext(herder, settings, catalog or ConnectorCatalog(), checks, forwarder, drain=drain)

    app = Starlette(
        routes=[*routes(ENDPOINTS), *map(guarded, registry_routes)],
        middleware=[
            Middleware(AnswerHeaders),
            Middleware(ErrorMembers, details=settings.error_details),
            Middleware(RequestLimitsMiddleware),
            Middleware(AuditMiddleware, audit=protection.audit, states=AuditedState(api)),
            Middleware(GateMiddleware, gate=protection.gate, signer=signer, bytes_max=settings.limits.body_bytes_max),
            Middleware(BodyLimit, bytes_max=settings.limits.body_bytes_max),
        ],
        exception_handlers={HTTPException: _framework_error, e.RestError: _rest_error},
        lifespan=lambda _: _running(api),
    )
    app.router.redirect_slashes = False
    app.state.api = api
    app.state.endpoints = ENDPOINTS
    return app


@contextlib.asynccontextmanager
async def _running(api: ApiContext) -> AsyncIterator[None]:
    """Runs what serves the requests besides handlers: forwarding, key renewal, log levels, schedules."""
    protection = api.settings.protection
    await api.forwarder.start()
    try:
        async with (
            tls.reloading(protection.tls),
            telling_denials(protection.audit),
            session_key.renewed(api, protection.session_key_ttl_s),
            loggers.following_log_levels(api),
            verify.kept(api),
        ):
            yield
    finally:
        await api.event_feed.close()
        await api.forwarder.stop()
        api.close()


async def _framework_error(request: Request, exc: Exception) -> Response:
    """Answers unknown paths and the like in Kafka Connect's error form."""
    assert isinstance(exc, HTTPException)
    return e.plain(exc.status_code, exc.headers).response()


async def _rest_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, e.RestError)
    return exc.response()
