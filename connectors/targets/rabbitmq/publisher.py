"""Publishes messages on a channel: many without an answer at a time, and none behind another of its key that has none."""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from amqp import spec
from amqp.serialization import dumps
from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import TARGET_UNAVAILABLE
from cdcworker.connectors.targets.rabbitmq.confirms import Confirms, Message
from cdcworker.connectors.targets.rabbitmq.transport import JudgedConnection

FLUSH_BYTES: Final = 65_536
"""So much is sent together at the most, but for a larger message."""
LOOK_S: Final = 0.5
READ_S: Final = 0.05
"""How long the rest of what has begun to come is waited for."""
ROUTES_MAX: Final = 1_024


class PublishSettings(NamedTuple):
    pending_max: int
    mandatory: bool
    retries_unroutable: bool
    answer_s: float
    """How long the next answer may take."""


class Publisher:
    """One channel of a connection of its own. One that has raised is of no use any more."""

    def __init__(self, connection: JudgedConnection, settings: PublishSettings) -> None:
        self._connection, self._settings = connection, settings
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._transport = connection.transport
        self._poll = select.poll()
        self._poll.register(self._transport.sock, select.POLLIN | select.POLLOUT)
        self._confirms = Confirms(set(), retries_unroutable=settings.retries_unroutable)
        self._routes: dict[tuple[str, str], bytes] = {}
        self._is_proven = self.is_blocked = False
        self._answered_at = 0.0
        events = self._channel.events
        events["basic_ack"].add(self._acked)
        events["basic_nack"].add(self._nacked)
        events["basic_return"].add(self._returned)
        connection.on_blocked, connection.on_unblocked = self._blocked, self._unblocked

    @property
    def channel(self) -> Any:
        return self._channel

    def publish(self, messages: Sequence[Message], taken: set[str]) -> Confirms:
        """Returns what the answers are, once each message has one; `taken` gets the ids of those that the server has, also where this
        raises: errors of the library, OSError, TargetUnavailable where the next answer takes too long."""
        confirms, most = self._confirms, self._settings.pending_max
        confirms.begin(taken)
        self._answered_at = time.monotonic()
        for message in messages:
            # Where memory or disk are short the server says so at the first message, and has it nevertheless.
            while len(confirms) >= (most if self._is_proven else 1) or confirms.holds(message.order):
                self._flush()
                self._await()
            if confirms.holds_back(message):
                continue
            self._send(message)
            if len(self._transport.gathered) >= FLUSH_BYTES:
                self._flush()
        self._flush()
        while len(confirms):
            self._await()
        return confirms

    def look(self) -> None:
        """Takes what has come meanwhile. Raises where the connection has ended."""
        while self._transport.has_read or self._ready() & select.POLLIN:
            self._take(READ_S)

    # Writing

    def _send(self, message: Message) -> None:
        transport = self._transport
        route = (message.exchange, message.routing_key)
        arguments = self._routes.get(route)
        if arguments is None:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            arguments = self._routes[route] = dumps("Bssbb", (0, *route, self._settings.mandatory, False))
        transport.gathers = True
        try:
            self._connection.frame_writer(1, self._channel.channel_id, spec.Basic.Publish, arguments, message.content)
        finally:
            transport.gathers = False
        self._confirms.sent(message)

    def _flush(self) -> None:
        """Sends what is gathered. What comes meanwhile is read: the server may wait for that."""
        transport = self._transport
        if not transport.gathered:
            return
        left, transport.gathered = memoryview(bytes(transport.gathered)), bytearray()
        while left:
            ready = self._ready(LOOK_S)
            if transport.has_read or ready & select.POLLIN:
                self._take(READ_S)
            if ready & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                left = left[transport.sock.send(left[:FLUSH_BYTES]) :]
            self._judge_time()

    # Reading

    def _await(self) -> None:
        """Waits for something to come, for a moment."""
        if not self._take(LOOK_S):
            self._connection.heartbeat_tick()
        self._judge_time()

    def _take(self, timeout_s: float) -> bool:
        """Reads one frame with a meaning; returns whether one came."""
        try:
            self._connection.drain_events(timeout=timeout_s)
        except TimeoutError:
            return False
        return True

    def _ready(self, timeout_s: float = 0.0) -> int:
        sock = self._transport.sock
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return select.POLLIN | select.POLLOUT
        return next((found for _, found in self._poll.poll(timeout_s * 1000)), 0)

    def _judge_time(self) -> None:
        if time.monotonic() - self._answered_at <= self._settings.answer_s:
            return
        if self.is_blocked:
            text = "RabbitMQ takes no messages now: its memory or its disk is short (connection.blocked)"
        else:
            text = f"RabbitMQ has confirmed nothing in {self._settings.answer_s:g} s"
        raise TargetUnavailable(TARGET_UNAVAILABLE, text)

    def _acked(self, number: int, multiple: bool) -> None:
        self._answer()
        self._confirms.confirmed(number, multiple=bool(multiple))

    def _nacked(self, number: int, multiple: bool) -> None:
        self._answer()
        self._confirms.refused(number, multiple=bool(multiple))

    def _answer(self) -> None:
        self._is_proven, self._answered_at = True, time.monotonic()

    def _returned(self, _: Any, __: str, ___: str, message: Any) -> None:
        self._confirms.returned(message.properties["message_id"])

    def _blocked(self, _: Any) -> None:
        self.is_blocked = True

    def _unblocked(self) -> None:
        self.is_blocked, self._answered_at = False, time.monotonic()
