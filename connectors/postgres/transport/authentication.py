"""A second connection beside one that libpq has opened, to the same server and as the same user, whose bytes are ours: TLS
and authentication as PostgreSQL's protocol 3.0 has them ("Message Flow", 54.2), with SCRAM (RFC 5802, 7677)."""

from __future__ import annotations

import hashlib
import os
import pwd
import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdcworker.connectors.config import server_authentication
from cdcworker.connectors.postgres.transport.certificate import SSL_REQUEST
from cdcworker.connectors.postgres.transport.channel import Channel, NotSupported, error_fields, left_until
from cdcworker.connectors.postgres.transport.tls_channel import TlsChannel
from cdcworker.schemas.errors import CdcError
from psycopg import pq
from scramp import ScramClient
from scramp.utils import ScramException

FRAME_BYTES_MAX: Final = 65_536
"""Before a connection is ready nothing longer is said."""
TIMEOUT_S: Final = 10.0
IDENTIFY: Final = b"IDENTIFY_SYSTEM"
STARTED: Final = b"select extract(epoch from pg_postmaster_start_time())::text, pg_is_in_recovery()::text"
"""A primary and its standbys are one system on one timeline: when the server was started tells them apart."""
_PASSING: Final = ("53", "57", "08", "55006")
"""SQLSTATE: no room for a connection, a server on its way up or down, a connection's failure."""
_PROTOCOL: Final = 196_608
_ENDPOINT: Final = "tls-server-end-point"
_NOT_OURS: Final = {
    "sslcrl": ("",), "sslcrldir": ("",), "sslnegotiation": ("", "postgres"), "sslsni": ("", "1"), "require_auth": ("", *server_authentication.values()),
    "sslcertmode": ("", "allow", "disable"), "scram_client_key": ("",), "scram_server_key": ("",),
    "ssl_max_protocol_version": ("",), "ssl_min_protocol_version": ("", "TLSv1", "TLSv1.1", "TLSv1.2"),
}  # fmt: skip
"""Options of libpq's and the values that say nothing here; with another one libpq reads the stream."""


@dataclass(frozen=True, slots=True, repr=False)
class ServerAddress:
    """Where libpq's connection went, and how."""

    host: str
    address: str
    port: int
    user: str
    password: str
    startup: Mapping[str, str]
    options: Mapping[str, str]
    server: Sequence[bytes | None]
    """What whoever answered says to `IDENTIFY` and `STARTED`."""

    @classmethod
    def of(cls, conn: pq.abc.PGconn) -> ServerAddress:
        """`NotSupported` where the connection does not take a replication command, or what was set is not UTF-8."""
        server: list[bytes | None] = []
        for statement in (IDENTIFY, STARTED):
            answer = conn.exec_(statement)
            if answer.status != pq.ExecStatus.TUPLES_OK:
                raise NotSupported("the server does not say who it is", passing=True)
            server += [answer.get_value(0, column) for column in range(2)]
        try:
            options = {option.keyword.decode(): (option.val or b"").decode() for option in conn.info}
            host, address, user, name, password, told = (
                value.decode() for value in (conn.host, conn.hostaddr, conn.user, conn.db, conn.password, conn.options)
            )
        except UnicodeDecodeError:
            raise NotSupported("a setting is not UTF-8") from None
        startup = {"user": user, "database": name, "options": told}
        startup |= {name: options.get(name, "") for name in ("replication", "application_name", "client_encoding")}
        return cls(host, address or host, int(conn.port), user, password, startup, options, tuple(server))

    @property
    def timeout_s(self) -> float:
        return float(self.options.get("connect_timeout") or TIMEOUT_S)


def login(way: ServerAddress) -> Channel:
    """The connection, ready for its first statement. `NotSupported` where libpq is to go on alone."""
    for option, silent in _NOT_OURS.items():
        if way.options.get(option, "") not in silent:
            raise NotSupported(f"{option} is set")
    try:
        return _logged_in(way)
    except ssl.SSLError as exc:
        raise NotSupported(f"TLS: {getattr(exc, 'verify_message', '') or exc.reason}") from exc
    except OSError as exc:
        raise NotSupported(f"{type(exc).__name__}: {exc.strerror}", passing=True) from exc
    except CdcError as exc:
        raise NotSupported(exc.message, passing=True) from exc
    except ScramException as exc:
        raise NotSupported(f"SCRAM: {exc}") from exc
    except ValueError as exc:
        raise NotSupported("the server's word is not understood") from exc


def _logged_in(way: ServerAddress) -> Channel:
    context = context_of(way.options)
    deadline = time.monotonic() + way.timeout_s
    one = socket.create_connection((way.address, way.port), way.timeout_s)
    try:
        _keep_alive(one, way.options)
        one.settimeout(left_until(deadline))
        one.sendall(SSL_REQUEST)
        if one.recv(1) != b"S":
            raise NotSupported("the server does not offer TLS")
        channel = TlsChannel(one, context, way.host, deadline)
        talk = _Login(channel, way, deadline)
        talk.run()
        # Behind one address there may be another server by now, which nobody has checked.
        if (*talk.ask(IDENTIFY)[:2], *talk.ask(STARTED)) != tuple(way.server):
            raise NotSupported("another server answers", passing=True)
    except BaseException:
        one.close()
        raise
    return channel


def context_of(options: Mapping[str, str]) -> ssl.SSLContext:
    """As strict as libpq's sslmode (libpq, "SSL Support"): where there is a file of authorities it is asked in each mode."""
    mode, home = options.get("sslmode", ""), _home() / ".postgresql"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    root = options.get("sslrootcert") or str(home / "root.crt")
    if root == "system":
        context.load_default_certs()
    elif Path(root).exists():
        if (home / "root.crl").exists():
            raise NotSupported("there is a list of revoked certificates")
        context.load_verify_locations(root)
    elif mode.startswith("verify"):
        raise NotSupported("there is no file of authorities")
    else:
        context.verify_mode = ssl.CERT_NONE
    certificate = options.get("sslcert") or str(home / "postgresql.crt")
    if options.get("sslcertmode") != "disable" and Path(certificate).exists():
        key = options.get("sslkey") or str(home / "postgresql.key")
        context.load_cert_chain(certificate, key, lambda: options.get("sslpassword", ""))
    return context


def _home() -> Path:
    """As libpq finds it."""
    try:
        return Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise NotSupported("the user has no home") from None


def _keep_alive(one: socket.socket, options: Mapping[str, str]) -> None:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.get("keepalives") == "0":
        return
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    told = {
        "TCP_KEEPIDLE": "keepalives_idle",
        "TCP_KEEPINTVL": "keepalives_interval",
        "TCP_KEEPCNT": "keepalives_count",
    }
    for name, option in {**told, "TCP_USER_TIMEOUT": "tcp_user_timeout"}.items():
        if hasattr(socket, name) and options.get(option):
            one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), int(options[option]))


class _Login:
    """The conversation from the startup message to ReadyForQuery."""

    def __init__(self, channel: TlsChannel, way: ServerAddress, deadline: float) -> None:
        self._channel = channel
        self._way = way
        self._deadline = deadline
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)
        self._scram: ScramClient | None = None
        self._bound = False

    def run(self) -> None:
        told = "".join(f"{name}\0{value}\0" for name, value in self._way.startup.items() if value)
        body = struct.pack(">I", _PROTOCOL) + told.encode() + b"\0"
        self._channel.write(struct.pack(">I", len(body) + 4) + body)
        while True:
            kind, body = self._frame()
            if kind == b"R":
                self._authenticate(int.from_bytes(body[:4], "big"), body[4:])
            elif kind == b"Z":
                return
            elif kind == b"E":
                state = error_fields(body).get("C", "?")
                raise NotSupported(f"the server refuses: {state}", passing=state.startswith(_PASSING))
            elif kind not in (b"S", b"K", b"N"):
                raise NotSupported("the server's word is not understood")

    def ask(self, statement: bytes) -> list[bytes | None]:
        """The last row of what a command answers."""
        self._channel.write(b"Q" + struct.pack(">I", len(statement) + 5) + statement + b"\0")
        row: list[bytes | None] = []
        while True:
            kind, body = self._frame()
            if kind == b"Z":
                return row
            if kind == b"E":
                raise NotSupported("the server does not say who it is", passing=True)
            if kind == b"D":
                row, at = [], 2
                for _ in range(int.from_bytes(body[:2], "big")):
                    size = int.from_bytes(body[at : at + 4], "big", signed=True)
                    row.append(None if size < 0 else body[at + 4 : at + 4 + size])
                    at += 4 + max(size, 0)

    def _authenticate(self, how: int, data: bytes) -> None:
        """AuthenticationRequest. Without SCRAM's last word nobody who asked for it is believed."""
        bound = self._way.options.get("channel_binding") == "require"
        asked = {3: "password", 5: "md5"}.get(how)
        if asked in server_authentication.refused(self._way.options.get("require_auth", "")):
            raise NotSupported(f"the server asks for {asked}, which is not allowed")
        if asked and not bound:
            self._answer((self._plain() if how == 3 else self._digest(data)) + b"\0")
        elif how == 10:
            self._offer([name.decode() for name in data.split(b"\0") if name], bound)
        elif how == 11 and self._scram:
            self._scram.set_server_first(data.decode())
            self._answer(self._scram.get_client_final().encode())
        elif how == 12 and self._scram:
            self._scram.set_server_final(data.decode())
            self._scram = None
        elif how != 0 or self._scram or (bound and not self._bound):
            raise NotSupported("the server asks for what is not spoken here")

    def _offer(self, names: list[str], bound: bool) -> None:
        spoken = [name for name in names if name in ("SCRAM-SHA-256", "SCRAM-SHA-256-PLUS")]
        if bound and "SCRAM-SHA-256-PLUS" not in spoken:
            raise NotSupported("the server binds no channels")
        binding = None if self._way.options.get("channel_binding") == "disable" else (_ENDPOINT, self._channel.tls)
        # The server goes by the startup message's user.
        client = ScramClient(spoken, "-", self._way.password, channel_binding=binding)
        first = client.get_client_first().encode()
        self._answer(client.mechanism_name.encode() + b"\0" + struct.pack(">I", len(first)) + first)
        self._scram, self._bound = client, client.mechanism_name.endswith("-PLUS")

    def _plain(self) -> bytes:
        return self._way.password.encode()

    def _digest(self, salt: bytes) -> bytes:
        inner = hashlib.md5(self._plain() + self._way.user.encode(), usedforsecurity=False).hexdigest()
        return b"md5" + hashlib.md5(inner.encode() + salt, usedforsecurity=False).hexdigest().encode()

    def _answer(self, data: bytes) -> None:
        self._channel.write(b"p" + struct.pack(">I", len(data) + 4) + data)

    def _frame(self) -> tuple[bytes, bytes]:
        head = self._exactly(5)
        size = int.from_bytes(head[1:], "big")
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise NotSupported("the server sent a frame of an impossible size")
        return head[:1], self._exactly(size - 4)

    def _exactly(self, size: int) -> bytes:
        data, at = bytearray(size), 0
        while at < size:
            try:
                got = self._channel.recv_into(memoryview(data)[at:])
            except BlockingIOError:
                left = self._deadline - time.monotonic()
                if left <= 0 or not self._poller.poll(left * 1000):
                    raise NotSupported("the server is silent", passing=True) from None
                continue
            if not got:
                raise NotSupported("the server hung up", passing=True)
            at += got
        return bytes(data)
