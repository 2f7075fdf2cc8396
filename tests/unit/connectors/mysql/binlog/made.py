"""Events that are written by hand, from the published description of MySQL's format, and events that real servers have sent."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cdcworker.connectors.mysql.binlog.event_reader import Event, EventReader
from cdcworker.connectors.mysql.binlog.format_description import Checksum
from cdcworker.connectors.mysql.binlog.header import EventType

RECORDED = Path(__file__).parent / "mariadb-11.4.hex"
"""All events of three small files, as MariaDB 11.4.5 has sent them."""


RECORDED_MYSQL = Path(__file__).parent / "mysql-9.7.hex"
"""The same of a genuine MySQL 9.7.4."""


def recorded(file: Path = RECORDED) -> list[bytes]:
    return [bytes.fromhex(line) for line in file.read_text().split()]


def event(kind: int, body: bytes, *, flags: int = 0, log_pos: int = 0, checksum: bool = False) -> bytes:
    size = 19 + len(body) + 4 * checksum
    data = struct.pack("<IBIIIH", 1_700_000_000, kind, 5, size, log_pos, flags) + body
    return data + struct.pack("<I", zlib.crc32(data)) if checksum else data


def packed(number: int) -> bytes:
    if number < 0xFB:
        return bytes([number])
    return b"\xfc" + struct.pack("<H", number) if number < 1 << 16 else b"\xfe" + struct.pack("<Q", number)


def text(value: str) -> bytes:
    data = value.encode()
    return packed(len(data)) + data


def format_description(version: str = "8.4.0", checksum: Checksum = Checksum.OFF) -> bytes:
    lengths = bytearray(42)
    for kind in (EventType.TABLE_MAP, EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1):
        lengths[kind - 1] = 8
    body = struct.pack("<H50sIB", 4, version.encode(), 0, 19) + bytes(lengths) + bytes([checksum])
    return event(EventType.FORMAT_DESCRIPTION, body, checksum=True)


def table_map(
    codes: bytes, metadata: bytes, fields: Iterable[tuple[int, bytes]] = (), *, table_id: int = 9, table: str = "t"
) -> bytes:
    count = len(codes)
    head = table_id.to_bytes(6, "little") + b"\x01\x00" + b"\x04shop\x00" + bytes([len(table)]) + table.encode() + b"\0"
    body = head + packed(count) + codes + packed(len(metadata)) + metadata + b"\xff" * ((count + 7) // 8)
    return event(EventType.TABLE_MAP, body + b"".join(bytes([f]) + packed(len(v)) + v for f, v in fields))


def rows(kind: int, count: int, bitmaps: bytes, images: bytes, *, table_id: int = 9, flags: int = 1) -> bytes:
    extra = b"\x02\x00" if kind >= EventType.WRITE_ROWS else b""
    head = table_id.to_bytes(6, "little") + struct.pack("<H", flags) + extra + packed(count)
    return event(kind, head + bitmaps + images)


def read(*events: bytes, reader: EventReader | None = None) -> list[Event]:
    """Reads events after a format description of MySQL."""
    reader = reader or EventReader()
    list(reader.read(format_description()))
    return [found for data in events for found in reader.read(data)]


def bodies(*events: bytes) -> list[Any]:
    return [found.body for found in read(*events)]


def through(reader: EventReader, events: Iterable[bytes]) -> Iterator[Event]:
    for data in events:
        yield from reader.read(data)
