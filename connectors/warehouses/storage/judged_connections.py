"""Connections to object stores, each judged when it is opened, by the address that it leads to."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.config import allowed_hosts
from cdcworker.schemas.errors import CdcError

CONNECT_S_MAX: Final = 5.0
READ_S_MAX: Final = 30.0


def open_session(session: Any, admit: Callable[[str], None]) -> Any:
    """Returns a session of requests' that uses nothing of the environment or the files of the worker's user, follows no answer that
    points elsewhere, and repeats nothing. `admit` is called with the URL of each request before it is sent."""
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class JudgedConnection(HTTPConnection):
        def _new_conn(self) -> Any:
            return judged(super()._new_conn(), self)

    class JudgedTlsConnection(HTTPSConnection):
        def _new_conn(self) -> Any:
            return judged(super()._new_conn(), self)

    class Pool(HTTPConnectionPool):
        ConnectionCls = JudgedConnection

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = JudgedTlsConnection

    class Adapter(HTTPAdapter):  # type: ignore[misc]
        def init_poolmanager(self, *args: Any, **more: Any) -> None:
            super().init_poolmanager(*args, **more)
            self.poolmanager.pool_classes_by_scheme = {"http": Pool, "https": TlsPool}

        def send(self, request: Any, *args: Any, **more: Any) -> Any:
            admit(request.url)
            return super().send(request, *args, **{**more, "timeout": (CONNECT_S_MAX, READ_S_MAX)})

    session.trust_env = False
    session.get_redirect_target = lambda _answer: None
    for scheme in ("http://", "https://"):
        session.mount(scheme, Adapter(max_retries=0))
    return session


def judged(socket: Any, connection: Any) -> Any:
    """Returns a new connection's socket, to which nothing has been written. CdcError `config.host_not_allowed` where it leads to an
    address that is closed: a name is looked up again for each connection. A proxy is the operator's choice."""
    if connection.proxy is None:
        address = ipaddress.ip_address(socket.getpeername()[0].partition("%")[0])
        problem = allowed_hosts.lake_problem(connection.host, [address])
        if problem:
            socket.close()
            text = f"the host of the object store {problem}"
            raise CdcError(allowed_hosts.NOT_ALLOWED, text, where={"host": connection.host})
    return socket
