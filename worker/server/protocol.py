"""uvicorn's HTTP protocol with limits in time and number, and with the client's certificate for the handlers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import h11
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.answer_headers import EVERY_ANSWER, AnswerHeaders
from cdcworker.worker.http.error_members import ErrorMembers
from cdcworker.worker.http.framing import problem_of
from cdcworker.worker.security.caller_shares import CallerShares, ConnectionOwner
from cdcworker.worker.security.gate import CONNECTION, HEALTH_PATHS, LIVE_PATHS, PEER
from cdcworker.worker.security.rate_limit import RequestRate, TokenBuckets, client_of
from cdcworker.worker.security.tls import common_name
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

TLS_CLOSE_S: Final = 0.2
PROBE_HEAD_S: Final = 2.0
BEYOND: Final = {"Connection": "close", "Retry-After": str(e.RETRY_AFTER_S)}
PIECES_MAX: Final = 1_000
PIECE_BYTES: Final = 512
"""Bytes of a body for which it may have one piece more."""


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of one listener."""

    connections_max: int = 1000
    """Open connections. Over further ones only probes are answered; above one and a half times of it connections are
    closed."""
    per_client_max: int = 200
    probes_per_client_max: int = 20
    """Connections of an address beyond its share. Over these only probes are answered; the oldest makes room."""
    head_bytes_max: int = 32_768
    head_s: float = 10.0
    """Seconds from the first byte of a request, or the opening of the connection, to the end of its headers."""
    idle_s: int = 60
    write_s: float = 30.0
    """Seconds for which a client may leave an answer unread."""
    clients: Counter[str] = field(default_factory=Counter)
    """Open connections by address."""
    probes: dict[str, list[LimitedProtocol]] = field(default_factory=dict)
    """Connections beyond the share of their address, oldest first."""
    probe_arrivals: TokenBuckets = field(default_factory=lambda: TokenBuckets(RequestRate(100.0, 200.0)))
    """The rate of connections beyond the share of their address. Above it they are cut."""
    users: CallerShares = field(default_factory=lambda: CallerShares(200))
    """Open connections by user."""
    arrivals: TokenBuckets = field(default_factory=lambda: TokenBuckets(RequestRate(100.0, 400.0)))
    """The rate of new connections by address, so that a client cannot avoid the other limits by new connections."""


class LimitedProtocol(H11Protocol):
    """One connection. `protocol_of` sets `limits`."""

    limits: ConnectionLimits

    def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.conn = _Connection(h11.SERVER, config.h11_max_incomplete_event_size)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._address = client_of(self.client[0]) if self.client else ""
        limits = self.limits
        self._owner = ConnectionOwner(limits.users)
        self._head_s = limits.head_s
        is_full = len(self.connections) > limits.connections_max
        crowded = limits.clients[self._address] >= limits.per_client_max
        self._is_beyond = is_full or crowded or not limits.arrivals.take(self._address)
        far_beyond = len(self.connections) > limits.connections_max * 3 // 2
        if far_beyond or (self._is_beyond and not limits.probe_arrivals.take(self._address)):
            transport.abort()
            return
        if self._is_beyond:
            self._admit_for_a_probe()
        else:
            limits.clients[self._address] += 1
        name = common_name(transport.get_extra_info("ssl_object"))
        self.app = _with_peer(self.app, name, self._owner)
        self._head_timer = self.loop.call_later(self._head_s, self._head_late)

    def _admit_for_a_probe(self) -> None:
        """Keeps a connection beyond the share of its address for a short time, so that what watches the worker from there
        is answered."""
        beyond = self.limits.probes.setdefault(self._address, [])
        beyond.append(self)
        if len(beyond) > self.limits.probes_per_client_max:
            beyond.pop(0).transport.abort()
        self._head_s = min(self._head_s, PROBE_HEAD_S)
        self.app = probes_only(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._owner.release()
        self._disarm()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def _leave(self) -> None:
        """Frees the place of this connection."""
        limits, address = self.limits, self._address
        if self._is_beyond:
            beyond = [each for each in limits.probes.pop(address, ()) if each is not self]
            if beyond:
                limits.probes[address] = beyond
        else:
            limits.clients[address] -= 1
            if limits.clients[address] <= 0:
                del limits.clients[address]

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE:
            problem = problem_of(self.conn.trailing_data[0])
            if problem:
                self._refuse(400, problem)
                return
        super().handle_events()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._disarm()
        elif self._head_timer is None and not self.transport.is_closing():
            # Bytes of the next request, or of a body that nobody wants: time does not begin anew with each of them.
            self._head_timer = self.loop.call_later(self._head_s, self._head_late)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def shutdown(self) -> None:
        """Closes the connection when the server stops. TLS would wait half a minute for the client's close_notify."""
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(TLS_CLOSE_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answers in the form of all other errors; too large headers have a status of their own."""
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
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # an answer is on its way or gone
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
        body = json.dumps({"error_code": status, "message": message}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *EVERY_ANSWER,
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
    """Returns the protocol class with these limits."""
    return type("Protocol", (LimitedProtocol,), {"limits": limits})


def _with_peer(app: Any, name: str, owner: ConnectionOwner) -> Any:
    async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
        scope[CONNECTION] = owner
        if name:
            scope[PEER] = name
        await app(scope, receive, send)

    return with_peer


def probes_only(app: Any) -> Any:
    """Returns the application as a client beyond its share sees it: probes are answered, one on each connection."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD") or scope["path"] not in LIVE_PATHS | HEALTH_PATHS:
            refusal = e.RestError(503, "Too many connections", e.TOO_MANY, headers=BEYOND)
            await AnswerHeaders(ErrorMembers(refusal.response()))(scope, receive, send)
            return

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await app(scope, receive, last)

    return answer


class _Connection(h11.Connection):
    """h11's connection, which refuses a body in many small pieces: each piece costs about as much as a request."""

    pieces = 0
    body_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.pieces = self.body_bytes = 0
        elif isinstance(event, h11.Data):
            self.pieces += 1
            self.body_bytes += len(event.data)
            if self.pieces > PIECES_MAX + self.body_bytes // PIECE_BYTES:
                raise h11.RemoteProtocolError("The body comes in too small pieces")
        return event
