"""Connections to a MySQL or MariaDB server: where they may lead, TLS, and how its version is read."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.config import allowed_hosts, server_authentication
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

CONNECT_TIMEOUT_S: Final = 10.0
SYSTEM: Final = "system"
"""As a root certificate: the authorities of the machine."""


@dataclass(frozen=True, slots=True)
class Login:
    """Where a server is and who logs in there. The password is in no text of it."""

    hosts: str
    port: int
    user: str
    password: str = field(repr=False)
    sslmode: str = "prefer"
    sslrootcert: str | None = None


@dataclass(frozen=True, slots=True)
class LoginRefusals:
    """What a kind of connector calls that which keeps it from logging in: codes of errors, and keys of its configuration."""

    unreachable: str
    """The code for a server that does not answer."""
    unreadable: str
    """The code for a root certificate that cannot be read."""
    host_key: str
    rootcert_key: str


def connected(
    login: Login, program: str, refusals: LoginRefusals, *, sql_mode: str, timeout_s: float = CONNECT_TIMEOUT_S
) -> MySqlConnection:
    """Returns a connection whose user is logged in. Raises CdcError where no server is reached, and PyMySQL's errors for what the
    server itself refuses. The password goes to no server that TLS does not verify, unless the worker's operator says so."""
    from cdcworker.connectors.mysql_client.client import MySqlConnection

    last: Exception | None = None
    for host, address in _addresses(login, refusals):
        made = MySqlConnection(
            trusted=login.sslmode in server_authentication.VERIFIED or server_authentication.passwords_are_open(),
            host=host,
            port=login.port,
            user=login.user,
            # PyMySQL would encode it in Latin-1.
            password=login.password.encode(),
            charset="utf8mb4",
            sql_mode=sql_mode,
            autocommit=True,
            program_name=program,
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            write_timeout=timeout_s,
            **_tls(login, refusals),
        )
        try:
            made.connect(_socket(address, login.port, timeout_s))
        except OSError as exc:
            last = exc
            continue
        made.wait_without_limit()
        return made
    raise CdcError(refusals.unreachable, f"the connection failed ({type(last).__name__})") from last


def _addresses(login: Login, refusals: LoginRefusals) -> Iterator[tuple[str, str]]:
    """Returns the hosts with the addresses that this worker lets connectors reach: names are not looked up again."""
    for host in (part.strip() for part in login.hosts.split(",")):
        try:
            found = allowed_hosts.addresses(host, refusals.host_key)
        except allowed_hosts.UnknownHost:
            text = "the name of the host leads to no address"
            raise CdcError(refusals.unreachable, text, where={"host": host}) from None
        for address in found:
            yield host, address


def _socket(address: str, port: int, timeout_s: float) -> socket.socket:
    """Returns a connected socket. A server whose machine is gone answers nothing at all: noticed within half a minute."""
    made = socket.create_connection((address, port), timeout_s)
    options = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, number in options.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)
    return made


def _tls(login: Login, refusals: LoginRefusals) -> dict[str, Any]:
    """Returns PyMySQL's options for a mode of libpq's: `allow` is `prefer`, and `require` with a root certificate verifies it."""
    if login.sslmode == "disable":
        return {"ssl_disabled": True}
    if login.sslmode in ("allow", "prefer"):
        return {}
    try:
        context = ssl.create_default_context(cafile=None if login.sslrootcert == SYSTEM else login.sslrootcert)
    except (OSError, ssl.SSLError) as exc:
        text = f"{refusals.rootcert_key} cannot be read ({type(exc).__name__})"
        raise CdcError(refusals.unreadable, text, hint="Name a file of certificates in PEM.") from exc
    # Certificates that MySQL makes by itself lack what this asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = login.sslmode == "verify-full"
    if login.sslmode == "require" and not login.sslrootcert:
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


def version_of(text: str) -> tuple[int, ...]:
    """Returns the numbers of a version such as `11.4.5-MariaDB` or `8.0.36`."""
    numbers = text.removeprefix("5.5.5-").partition("-")[0].split(".")
    return tuple(int(part) for part in numbers if part.isdecimal())
