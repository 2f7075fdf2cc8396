"""Types that the binary log does not tell from binary strings: MariaDB's UUID, INET4, INET6 and VECTOR; and geometries."""

from __future__ import annotations

import ipaddress
import struct
import uuid as uuids
from typing import NamedTuple

from cdcworker.connectors.mysql.errors import MalformedError


class Geometry(NamedTuple):
    """A geometry: the id of its reference system, and its well-known binary form."""

    srid: int
    wkb: bytes


def geometry(value: bytes) -> Geometry:
    if len(value) < 4:
        raise MalformedError("a geometry is cut short")
    return Geometry(int.from_bytes(value[:4], "little"), value[4:])


def vector(value: bytes) -> tuple[float, ...]:
    if len(value) % 4:
        raise MalformedError("a vector of a broken length")
    return struct.unpack(f"<{len(value) // 4}f", value)


def inet4(value: bytes) -> str:
    return str(ipaddress.IPv4Address(_sized(value, 4)))


def inet6(value: bytes) -> str:
    """Returns the text that the server prints: of an address that holds one of version 4, that with dots; and a single group of zeros is
    left out where there is no longer run of them."""
    address = ipaddress.IPv6Address(_sized(value, 16))
    number = int(address)
    if number >> 32 in (0, 0xFFFF) and (number >> 32 or number > 0xFFFF):
        head = "::ffff:" if number >> 32 else "::"
        return f"{head}{ipaddress.IPv4Address(number & 0xFFFFFFFF)}"
    groups = str(address).split(":")
    if "" in groups or "0" not in groups:
        return str(address)
    at = groups.index("0")
    return f"{':'.join(groups[:at])}::{':'.join(groups[at + 1 :])}"


def uuid(value: bytes) -> str:
    return str(uuids.UUID(bytes=_sized(value, 16)))


def _sized(value: bytes, size: int) -> bytes:
    if len(value) > size:
        raise MalformedError("a value is longer than its type")
    return value.ljust(size, b"\0")
