"""uvicorn on a thread with its own event loop: the REST API never waits for coordination and never delays it."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time

import uvicorn
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.http import errors as e
from cdcworker.worker.security.tls import TlsContexts
from cdcworker.worker.server.protocol import ConnectionLimits, protocol_of
from starlette.types import ASGIApp

log = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
HANDSHAKE_S = 10.0
BACKLOG = 512


class RestServer:
    """The REST server. It opens the port when it is created, so that a port in use is known before anything else
    starts."""

    def __init__(
        self,
        app: ASGIApp,
        host: str = "",
        port: int = 8083,
        *,
        tls: TlsContexts | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        limits = limits or ConnectionLimits()
        self._app = app
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=protocol_of(limits),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_s,
            h11_max_incomplete_event_size=limits.head_bytes_max,
            ssl_context_factory=None if tls is None else lambda *_: tls.server,
            timeout_graceful_shutdown=int(STOP_TIMEOUT_S),
        )
        self._server = _Server(config)
        self._thread = SupervisedThread(self._run, name="rest")

    def start(self) -> None:
        """Starts the thread and returns when requests are answered."""
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise CdcError(e.PORT_UNAVAILABLE, "The REST server did not start", where={"port": self.port})
            time.sleep(0.01)
        log.info("rest server listening port=%d", self.port)

    def stop(self) -> None:
        api = getattr(getattr(self._app, "state", None), "api", None)
        if api is not None:
            api.ending.set()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S * 2)
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


class _Server(uvicorn.Server):
    """uvicorn's server with a shorter time limit for TLS handshakes than its minute."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            loop = asyncio.get_running_loop()
            within = functools.partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_S)
            loop.create_server = within  # type: ignore[method-assign]
        await super().startup(sockets)


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; an empty host means all addresses, of IPv4 and IPv6 where both exist."""
    try:
        if host:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)  # noqa: S104  the listeners that check_bind has judged
    except OSError as exc:
        where: dict[str, str | int] = {"host": host or "*", "port": port}
        raise CdcError(e.PORT_UNAVAILABLE, f"Cannot listen: {exc.strerror or exc}", where=where) from exc
