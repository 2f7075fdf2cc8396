"""ZooKeeper clients by the worker's properties, the nodes of a worker group, and the identity of the ensemble."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from cdcworker.coordinator.kafka.clients import LogThrottle
from cdcworker.coordinator.zookeeper import errors as e
from cdcworker.schemas.errors import CdcError

log = logging.getLogger("cdcworker.zookeeper")
log.addFilter(LogThrottle())

RETRY_MAX_S = 1.0
"""The longest pause between attempts to connect; it adds to a failover during a server's restart."""


@dataclass(frozen=True, slots=True)
class ZkSettings:
    """How to reach the ensemble. With a `digest` (`user:password`, never printed: INV-11) only that user may use the
    nodes."""

    connect: str
    session_timeout_s: float = 10.0
    digest: str = field(default="", repr=False)

    @property
    def hosts(self) -> str:
        """The servers of the connect string, without its path."""
        return self.connect.partition("/")[0]

    @property
    def chroot(self) -> str:
        """The path above the group's nodes. Unlike a client's own chroot it is created when it is missing."""
        _, slash, path = self.connect.partition("/")
        return f"{slash}{path}".rstrip("/")

    def node(self, group_id: str, name: str) -> str:
        """Returns the path of a node of this worker group."""
        return f"{self.chroot}/cdcworker/{quote(group_id, safe='')}/{name}"

    def check(self) -> None:
        """Raises CdcError `zookeeper.connect_string` for an invalid host, port or path."""
        hosts = [host.strip() for host in self.hosts.split(",")]
        ports = [host.rpartition(":")[2] for host in hosts]
        good = all(hosts) and all(port.isascii() and port.isdigit() for port in ports if port not in hosts)
        if not good or "//" in self.chroot or any(part in (".", "..") for part in self.chroot.split("/")):
            raise CdcError(e.CONNECT_STRING, "not a connect string", where={"configPath": "/zookeeper.connect"})


def make_client(settings: ZkSettings) -> Any:
    """Returns a client that is not started; once started it reconnects by itself until it is stopped."""
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
    """Returns the exceptions that a kazoo client raises."""
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    return (KazooException, KazooTimeoutError, OSError)


def end_client(client: Any) -> None:
    """Closes the session, which removes its nodes at once. It may block for a session time-out when no server
    answers."""
    ended: tuple[type[Exception], ...] = (*client_errors(), AttributeError, TypeError)
    try:
        client.stop()
        client.close()
    except ended as exc:
        # A client that never connected has no sockets, and fails to close them.
        log.debug("client not closed cleanly error=%s", type(exc).__name__)


def ensemble_id(client: Any, path: str) -> str:
    """Returns the identity of the ensemble: a random node that the group's first worker created. It is lost with the
    data."""
    from kazoo.exceptions import NodeExistsError

    try:
        client.create(path, uuid.uuid4().hex.encode(), makepath=True)
    except NodeExistsError:
        # A server that lags behind might not know the node yet.
        client.sync(path)
    return str(client.get(path)[0].decode())
