"""Connections to Redis: to addresses that were judged, of a cluster those of every node that it names."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.config.allowed_hosts import UnknownHost
from cdcworker.connectors.config.tls_policy import PLAIN, VERIFIED
from cdcworker.connectors.network.sockets import Endpoint, break_off, connected
from cdcworker.connectors.network.tls import tls_context
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.redis.config import database_of, is_cluster, is_secure, places_of
from cdcworker.connectors.targets.redis.replies import error_of
from cdcworker.connectors.targets.redis.scripts import ALL, Script
from cdcworker.schemas.errors import CdcError
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, ConnectionPool
from redis.retry import Retry

PLACE_KEY: Final = "redis.hosts"


class Call(NamedTuple):
    """A script with its keys and arguments; without a script the arguments are a command."""

    script: Script | None
    keys: Sequence[bytes]
    args: Sequence[bytes | str | int]


class RedisClient:
    """Sends calls together, and returns their replies. One thread uses it, but for `cancel`."""

    def __init__(self, config: Mapping[str, Any], state_dir: str) -> None:
        self._places = places_of(config)
        self._is_cluster = is_cluster(config)
        self._wait = (config["redis.wait.replicas"], config["redis.wait.timeout"])
        hosts = [place.host for place in self._places]
        tls_policy.check("redis.ssl.enabled", "false", VERIFIED if is_secure(config) else PLAIN, hosts)
        self._tls = tls_context(config, "redis.ssl.", state_dir, TARGET_REFUSES) if is_secure(config) else None
        self._connect_s = config["redis.socket.connect.timeout.ms"] / 1000
        self._request_s = config["redis.timeout"] or config["redis.operation.timeout.ms"] / 1000
        password = config["redis.password"]
        self._login = {
            "username": config["redis.username"] or None,
            "password": password.reveal().strip() if password else None,
        }
        self._database = database_of(config)
        self._sockets: list[socket.socket] = []
        self._client: Redis | RedisCluster | None = None

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Returns the replies, errors of single calls among them. CdcError where there are none."""
        try:
            replies = self._sent(calls)
            if any(isinstance(one, exceptions.NoScriptError) for one in replies):
                for script in ALL:
                    self._connected().script_load(script.text)
                replies = self._sent(calls)
        except exceptions.RedisError as exc:
            self.close()
            raise error_of(exc) from None
        except UnknownHost:
            self.close()
            text = f"a host of {PLACE_KEY} leads to no address"
            raise TargetUnavailable(TARGET_UNAVAILABLE, text) from None
        except BaseException:
            self.close()
            raise
        return replies[: len(calls)]

    def ask(self, *command: str) -> Any:
        """Returns the reply of one command. CdcError; an error of the command itself is one as well."""
        (reply,) = self.run([Call(None, (), command)])
        if isinstance(reply, exceptions.RedisError):
            raise error_of(reply)
        return reply

    def knows(self, *command: str) -> bool:
        """Returns whether the server has a command; it is not run. CdcError."""
        (reply,) = self.run([Call(None, (), ("COMMAND GETKEYS", *command))])
        return not isinstance(reply, exceptions.ResponseError)

    def cancel(self) -> None:
        """Breaks the connections, from any thread."""
        for sock in list(self._sockets):
            break_off(sock)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    def _sent(self, calls: Sequence[Call]) -> list[Any]:
        pipe: Any = self._connected().pipeline(transaction=False)
        for script, keys, args in calls:
            if script is None:
                pipe.execute_command(*args)
            else:
                pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        count, wait_ms = self._wait
        if count:
            pipe.execute_command("WAIT", count, wait_ms)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        if count and isinstance(replies[-1], int) and replies[-1] < count:
            text = f"{replies[-1]} of {count} replicas have the batch"
            raise TargetUnavailable(TARGET_UNAVAILABLE, text, where={"key": "redis.wait.replicas"})
        return replies

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._cluster() if self._is_cluster else self._single()
        return self._client

    def _single(self) -> Redis:
        (place,) = self._places
        pool = ConnectionPool(
            connection_class=self._connection_class(), host=place.host, port=place.port, db=self._database, **self._common()
        )  # fmt: skip
        return Redis(connection_pool=pool)

    def _cluster(self) -> RedisCluster:
        nodes = [ClusterNode(place.host, place.port) for place in self._places]  # type: ignore[no-untyped-call]
        first = nodes.pop(0)
        host = f"[{first.host}]" if ":" in first.host else first.host
        # Only a client that is made from an address takes a class of connections.
        url = f"redis://{host}:{first.port}"
        return RedisCluster(url=url, startup_nodes=nodes, connection_class=self._connection_class(), **self._common())

    def _common(self) -> dict[str, Any]:
        # The engine tries again, and knows how often.
        return {**self._login, "protocol": 2, "socket_timeout": self._request_s, "retry": Retry(NoBackoff(), 0)}

    def _connection_class(self) -> type[Connection]:
        tls, connect_s, request_s, known = self._tls, self._connect_s, self._request_s, self._known

        class JudgedConnection(Connection):
            def _connect(self) -> socket.socket:
                try:
                    return connected(Endpoint(self.host, self.port, tls, connect_s, request_s), PLACE_KEY, known)
                except ssl.SSLCertVerificationError as exc:
                    text = f"the server's certificate is not trusted: {exc.verify_message}"
                    raise CdcError(TARGET_REFUSES, text) from None

        return JudgedConnection

    def _known(self, sock: socket.socket) -> None:
        self._sockets = [*(one for one in self._sockets if one.fileno() >= 0), sock]
