"""uvicorn's HTTP protocol with limits in time and number, and with the client's certificate for those behind it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import h11
from cdcworker.worker.security.gate import PEER
from cdcworker.worker.security.rate import Buckets, Rate, client_of
from cdcworker.worker.security.tls import common_name
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

FAREWELL_S: Final = 0.2


@dataclass(frozen=True)
class ConnectionLimits:
    """Of one listener."""

    connections_max: int = 1000
    """Above it requests are answered with 503, above one and a half of it connections are not taken."""
    per_client_max: int = 200
    head_bytes_max: int = 32_768
    head_s: float = 10.0
    """From the first byte of a request, or the opening of the connection, to the end of its headers."""
    idle_s: int = 60
    write_s: float = 30.0
    """How long a client may leave an answer unread."""
    clients: Counter[str] = field(default_factory=Counter)
    """Open connections of each address."""
    arrivals: Buckets = field(default_factory=lambda: Buckets(Rate(100.0, 400.0)))
    """New connections of each address: to open and leave them is no way around the other limits."""


class LimitedProtocol(H11Protocol):
    """One connection. `limits` is set by `protocol_of`."""

    limits: ConnectionLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._address = client_of(self.client[0]) if self.client else ""
        limits = self.limits
        limits.clients[self._address] += 1
        too_many = len(self.connections) > limits.connections_max * 3 // 2
        crowded = limits.clients[self._address] > limits.per_client_max
        if too_many or crowded or not limits.arrivals.take(self._address):
            transport.abort()
            return
        name = common_name(transport.get_extra_info("ssl_object"))
        if name:
            self.app = _with_peer(self.app, name)
        self._head_timer = self.loop.call_later(limits.head_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.clients[self._address] -= 1
        if self.limits.clients[self._address] <= 0:
            del self.limits.clients[self._address]
        self._disarm()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._disarm()
        elif self._head_timer is None and not self.transport.is_closing():
            # Bytes of the next request, or of a body that nobody wants: time does not begin anew with each of them.
            self._head_timer = self.loop.call_later(self.limits.head_s, self._head_late)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def shutdown(self) -> None:
        """The server ends. TLS would wait half a minute for the client's farewell."""
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(FAREWELL_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """In the form of all other errors; a head above its limit has a status of its own."""
        problem = sys.exc_info()[1]
        status = getattr(problem, "error_status_hint", 400)
        self._refuse(status if status == 431 else 400, "The headers are too large" if status == 431 else msg)

    def _head_late(self) -> None:
        self._head_timer = None
        if self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE:
            self._refuse(408, "The request did not arrive in time")
        else:
            self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps({"error_code": status, "message": message}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events: list[Any] = [
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def protocol_of(limits: ConnectionLimits) -> type[LimitedProtocol]:
    return type("Protocol", (LimitedProtocol,), {"limits": limits})


def _with_peer(app: Any, name: str) -> Any:
    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = name
        await app(scope, receive, send)

    return known
