"""ZooKeeper clients made from the worker's properties, the nodes of a group, and the identity of the ensemble."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from cdcworker.coordinator import zk_errors as e
from cdcworker.coordinator.kafka_clients import Calm
from cdcworker.schemas.errors import CdcError

log = logging.getLogger("cdcworker.zookeeper")
log.addFilter(Calm())

RETRY_MAX_S = 1.0
"""Longest pause between tries to connect: it adds to a failover that meets a server's restart."""


@dataclass(frozen=True, slots=True)
class ZkSettings:
    """How to reach the ensemble; `digest` is `user:password`, and then nobody else may touch our nodes."""

    connect: str
    session_timeout_s: float = 10.0
    digest: str = field(default="", repr=False)

    @property
    def hosts(self) -> str:
        return self.connect.partition("/")[0]

    @property
    def chroot(self) -> str:
        """The path that our nodes lie under; made when it is missing, which a client's own chroot is not."""
        _, slash, path = self.connect.partition("/")
        return f"{slash}{path}".rstrip("/")

    def node(self, group_id: str, name: str) -> str:
        return f"{self.chroot}/cdcworker/{quote(group_id, safe='')}/{name}"

    def check(self) -> None:
        """CdcError when a host or the path cannot be meant."""
        hosts = [host.strip() for host in self.hosts.split(",")]
        ports = [host.rpartition(":")[2] for host in hosts]
        good = all(hosts) and all(port.isascii() and port.isdigit() for port in ports if port not in hosts)
        if not good or "//" in self.chroot or any(part in (".", "..") for part in self.chroot.split("/")):
            raise CdcError(e.CONNECT_STRING, "not a connect string", where={"configPath": "/zookeeper.connect"})


def make_client(settings: ZkSettings) -> Any:
    """A client that has not started; it reconnects by itself until it is stopped."""
    from kazoo.client import KazooClient
    from kazoo.retry import KazooRetry
    from kazoo.security import make_digest_acl

    settings.check()
    login: dict[str, Any] = {}
    if settings.digest:
        user, _, password = settings.digest.partition(":")
        login = {
            "auth_data": [("digest", settings.digest)],
            "default_acl": [make_digest_acl(user, password, all=True)],
        }
    return KazooClient(
        hosts=settings.hosts,
        timeout=settings.session_timeout_s,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=RETRY_MAX_S),
        command_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=RETRY_MAX_S, ignore_expire=False),
        logger=log,
        **login,
    )


def client_errors() -> tuple[type[Exception], ...]:
    """What the client raises."""
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    return (KazooException, KazooTimeoutError, OSError)


def end_client(client: Any) -> None:
    """Close the session, so that its nodes are gone at once. May take a session's time when no server answers."""
    ended: tuple[type[Exception], ...] = (*client_errors(), AttributeError, TypeError)
    try:
        client.stop()
        client.close()
    except ended as exc:
        # A client that never connected has no sockets to close, and finds that out the hard way.
        log.debug("client not closed cleanly error=%s", type(exc).__name__)


def ensemble_id(client: Any, path: str) -> str:
    """The identity that our group's first worker gave to this ensemble: lost with its data, hence never reused."""
    from kazoo.exceptions import NodeExistsError

    try:
        client.create(path, uuid.uuid4().hex.encode(), makepath=True)
    except NodeExistsError:
        # A server that lags behind might not know the node yet.
        client.sync(path)
    return str(client.get(path)[0].decode())
