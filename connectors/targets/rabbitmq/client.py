"""A connection to RabbitMQ: to an address that was judged, with everything in place before a message is published."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from amqp import exceptions
from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.config.allowed_hosts import UnknownHost
from cdcworker.connectors.config.tls_policy import PLAIN, VERIFIED
from cdcworker.connectors.network.sockets import Endpoint, break_off, connected
from cdcworker.connectors.network.tls import tls_context
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.rabbitmq.addresses import PLACE_KEY, Place, is_secure, places_of
from cdcworker.connectors.targets.rabbitmq.confirms import Confirms, Message
from cdcworker.connectors.targets.rabbitmq.publisher import Publisher, PublishSettings
from cdcworker.connectors.targets.rabbitmq.replies import error_of, login_error
from cdcworker.connectors.targets.rabbitmq.topology import settle, topology_of
from cdcworker.connectors.targets.rabbitmq.transport import JudgedConnection
from cdcworker.schemas.errors import CdcError

CLOSE_S: Final = 1.0
IGNORED: Final = "ignore"
RETRIED: Final = "retry"
_FAILURES: Final = (exceptions.AMQPError, OSError, UnknownHost, CdcError)


class RabbitClient:
    """Publishes messages and waits for their confirms. One thread uses it, but for `cancel`."""

    def __init__(self, config: Mapping[str, Any], state_dir: str, name: str) -> None:
        """`name`: what the server shows as the connection's."""
        self._config, self._name = config, name
        self._places = places_of(config)
        hosts = [place.host for place in self._places]
        tls_policy.check("rabbitmq.ssl.enabled", "false", VERIFIED if is_secure(config) else PLAIN, hosts)
        self._tls = tls_context(config, "rabbitmq.ssl.", state_dir, TARGET_REFUSES) if is_secure(config) else None
        self._topology = topology_of(config)
        self._publishing = PublishSettings(
            config["rabbitmq.publish.pending.max"],
            config["rabbitmq.unroutable"] != IGNORED,
            config["rabbitmq.unroutable"] == RETRIED,
            config["rabbitmq.publish.ack.timeout"] / 1000,
        )
        self._heartbeat_s = config["rabbitmq.requested.heartbeat.seconds"]
        self._connection: JudgedConnection | None = None
        self._publisher: Publisher | None = None
        self._sockets: list[socket.socket] = []
        self._used_at = 0.0

    def publish(self, messages: Sequence[Message], taken: set[str]) -> None:
        """Returns once the server has all messages. CdcError otherwise; `taken` gets the ids of those that it has."""
        publisher = self._ready_publisher(create=True)
        try:
            confirms = publisher.publish(messages, taken)
        except _FAILURES as exc:
            self._drop()
            raise error_of(exc, self._topology) from None
        except BaseException:
            self._drop()
            raise
        self._used_at = time.monotonic()
        self._judge(confirms)

    def check(self) -> None:
        """Logs in and looks at what has to be there; makes nothing. CdcError."""
        self._ready_publisher(create=False)

    def cancel(self) -> None:
        """Breaks off what runs, from any thread."""
        for sock in list(self._sockets):
            break_off(sock)

    def close(self) -> None:
        """Ends the connection as the server expects it."""
        if self._connection is not None and self._connection.connected:
            with contextlib.suppress(*_FAILURES):
                self._connection.sock.settimeout(CLOSE_S)
                self._connection.close()
        self._drop()

    def _judge(self, confirms: Confirms) -> None:
        if confirms.not_taken and not (confirms.unroutable and self._publishing.retries_unroutable):
            text = (
                f"RabbitMQ has not taken {confirms.not_taken} messages (basic.nack): a queue is full, or cannot write"
            )
            raise TargetUnavailable(TARGET_UNAVAILABLE, text)
        if not confirms.unroutable:
            return
        text = "no queue takes a message: nothing is bound to the exchange for its routing key"
        where = {"key": "rabbitmq.routing.key"}
        if self._config["rabbitmq.unroutable"] == RETRIED:
            raise TargetUnavailable(TARGET_UNAVAILABLE, text, where=where)
        raise CdcError(RECORD_REFUSED, text, where=where)

    def _ready_publisher(self, *, create: bool) -> Publisher:
        """Returns one whose connection is there, as far as can be seen. CdcError."""
        if self._publisher is not None and self._is_idle:
            self.close()
        if self._publisher is not None:
            try:
                self._publisher.look()
            except _FAILURES:
                self._drop()
        if self._publisher is None:
            try:
                self._publisher = self._connected(create=create)
            except BaseException:
                self._drop()
                raise
            self._used_at = time.monotonic()
        return self._publisher

    @property
    def _is_idle(self) -> bool:
        """Whether nobody has answered the server's heartbeats for so long that it may have ended the connection."""
        return bool(0 < self._heartbeat_s / 2 < time.monotonic() - self._used_at)

    def _connected(self, *, create: bool) -> Publisher:
        failure: CdcError | None = None
        for place in self._places:
            try:
                connection = self._connection = self._connected_to(place)
                break
            except _FAILURES as exc:
                self._drop()
                failure = self._failure(exc)
                if failure.kind != "transient":
                    raise failure from None
        else:
            assert failure is not None
            raise failure
        try:
            publisher = Publisher(connection, self._publishing)
            settle(publisher.channel, self._topology, create=create)
        except _FAILURES as exc:
            raise error_of(exc, self._topology) from None
        return publisher

    def _failure(self, exc: BaseException) -> CdcError:
        """Returns what it means that a server could not be connected to."""
        if isinstance(exc, ssl.SSLCertVerificationError):
            return CdcError(TARGET_REFUSES, f"the server's certificate is not trusted: {exc.verify_message}")
        if isinstance(exc, UnknownHost):
            return TargetUnavailable(TARGET_UNAVAILABLE, f"a host of {PLACE_KEY} leads to no address")
        return login_error(exc)

    def _connected_to(self, place: Place) -> JudgedConnection:
        config = self._config
        connect_s = config["rabbitmq.connection.timeout.ms"] / 1000
        handshake_s = config["rabbitmq.handshake.timeout.ms"] / 1000
        endpoint = Endpoint(place.host, place.port, self._tls, connect_s, handshake_s)
        password = config["rabbitmq.password"]
        settings = {
            "userid": config["rabbitmq.username"],
            "password": password.reveal().strip() if password else "guest",
            "login_method": config["rabbitmq.auth.mechanism"],
            "virtual_host": config["rabbitmq.virtual.host"],
            "heartbeat": self._heartbeat_s,
            "connect_timeout": handshake_s,
            "client_properties": {"product": "cdcworker", "connection_name": self._name},
        }
        connection = JudgedConnection(lambda: connected(endpoint, PLACE_KEY, self._known), settings)
        connection.connect()
        return connection

    def _known(self, sock: socket.socket) -> None:
        self._sockets = [*(one for one in self._sockets if one.fileno() >= 0), sock]

    def _drop(self) -> None:
        """Cuts the connection."""
        self._connection = self._publisher = None
        for sock in self._sockets:
            sock.close()
        self._sockets = []
