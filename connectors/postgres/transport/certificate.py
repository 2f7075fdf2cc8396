"""The end date of a server's certificate: a TLS handshake after PostgreSQL's request, and as much DER as that takes."""

from __future__ import annotations

import socket
import ssl
import struct
from datetime import UTC, datetime

from cdcworker.connectors.postgres.errors import UNREACHABLE
from cdcworker.schemas.errors import CdcError

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_SEQUENCE, _UTC_TIME, _VERSION = 0x30, 0x17, 0xA0


def fetch(host: str, port: int, timeout_s: float) -> bytes:
    """The certificate as DER. Whom it names is not looked at: libpq does that, as database.sslmode says."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), timeout_s) as plain:
        plain.sendall(SSL_REQUEST)
        if plain.recv(1) != b"S":
            raise CdcError(UNREACHABLE, "the server does not offer TLS")
        with context.wrap_socket(plain, server_hostname=host) as wrapped:
            return wrapped.getpeercert(binary_form=True) or b""


def end_of(certificate: bytes) -> datetime:
    """`notAfter`: the second time of the validity, which follows version, serial, algorithm and issuer."""
    try:
        _, content, _ = _element(certificate)
        _, signed, _ = _element(content)
        tag, _, rest = _element(signed)
        if tag != _VERSION:
            rest = signed
        for _ in range(3):
            _, _, rest = _element(rest)
        _, validity, _ = _element(rest)
        _, _, rest = _element(validity)
        tag, text, _ = _element(rest)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
    except (IndexError, ValueError) as exc:
        raise CdcError(UNREACHABLE, "the server's certificate cannot be read") from exc


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """(tag, content, what follows) of one DER element."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start = 2 + (length & 0x7F)
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("cut")
    return tag, data[start : start + length], data[start + length :]
