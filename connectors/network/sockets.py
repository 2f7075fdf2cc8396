"""Connections: to addresses that were judged, and such that another thread can break them off."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from cdcworker.connectors.config.allowed_hosts import addresses


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is. `tls` is None for a plain connection."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    connect_s: float = 10.0
    request_s: float = 30.0
    """How long each piece of an answer may take."""
    key: str = "http.url"
    """The key of the config that names it."""


def connected(place: Endpoint, key: str, known: Callable[[socket.socket], None]) -> socket.socket:
    """Returns a connection to a host that `key` of a config names. `known` is told of each socket before anything is waited for on
    it, so that it can be broken off.

    CdcError `config.host_not_allowed`; UnknownHost; OSError.
    """
    failure = OSError("no address")
    for address in addresses(place.host, key):
        try:
            sock = socket.create_connection((address, place.port), place.connect_s)
        except OSError as exc:
            failure = exc
            continue
        known(sock)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if place.tls is not None:
                sock = place.tls.wrap_socket(sock, server_hostname=place.host, do_handshake_on_connect=False)
                known(sock)
                sock.do_handshake()
            sock.settimeout(place.request_s)
        except BaseException:
            sock.close()
            raise
        return sock
    raise failure


def break_off(sock: socket.socket | None) -> None:
    """Ends what another thread does with a socket."""
    if sock is not None:
        with contextlib.suppress(OSError):
            # That of a socket with TLS would take its encryption off first, while another thread may be sending.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def name_of(exc: Exception) -> str:
    """Returns what a failure is, without a text that the server may have sent."""
    code = getattr(exc, "errno", None)
    return (
        os.strerror(code)
        if isinstance(code, int) and not isinstance(exc, ssl.SSLError) and code > 0
        else type(exc).__name__
    )
