"""Compressed events: whole transactions of MySQL (zstd), and statements and rows of MariaDB (zlib)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader
from cdcworker.connectors.mysql.binlog.header import EVENT_BYTES_MAX, HEADER_BYTES, read_header
from cdcworker.connectors.mysql.binlog.rows import OPERATIONS
from cdcworker.connectors.mysql.errors import PAYLOAD_LIBRARY, MalformedError
from cdcworker.schemas.errors import CdcError

_SIZE, _ALGORITHM, _INFLATED_SIZE = 1, 2, 3
_ZSTD, _NONE = 0, 255
_COMPRESSED: Final = 0x80
COMPRESSED_ROWS: Final = frozenset(kind for kind in OPERATIONS if "COMPRESSED" in kind.name)
"""MariaDB's rows events whose rows are compressed."""


class Payload(NamedTuple):
    """A transaction in one event. `inflated_size` is the bytes of its events as the server says it."""

    algorithm: int
    inflated_size: int
    data: bytes


def read_payload(body: ByteReader) -> Payload:
    """Reads the fields of a code, a length and a value, up to code 0, and the events after them."""
    fields = {}
    while (code := body.packed()) != 0:
        fields[code] = ByteReader(body.packed_bytes()).packed()
    data = body.rest()
    if fields.get(_SIZE, len(data)) != len(data):
        raise MalformedError("a compressed transaction of another length than it says")
    algorithm = fields.get(_ALGORITHM, _ZSTD)
    if algorithm not in (_ZSTD, _NONE):
        raise MalformedError("a transaction that is compressed in an unknown way")
    return Payload(algorithm, fields.get(_INFLATED_SIZE, 0), data)


def inflated_events(payload: Payload) -> Iterator[bytes]:
    """Yields the events of a transaction, whole and without checksums. They are inflated one after the other, so that no more than
    one of them is in memory."""
    stream = _Inflated(payload)
    while head := stream.read(HEADER_BYTES):
        size = read_header(head).size
        yield head + stream.exactly(size - HEADER_BYTES)


class _Inflated:
    """The bytes of a payload's events. Raises MalformedError where they are more than the server has said."""

    def __init__(self, payload: Payload) -> None:
        try:
            import pyarrow
        except ImportError as exc:
            raise CdcError(PAYLOAD_LIBRARY, "a compressed transaction needs pyarrow, which is not installed") from exc
        self._failure = pyarrow.ArrowException
        source = pyarrow.BufferReader(payload.data)
        is_plain = payload.algorithm == _NONE
        self._stream = source if is_plain else pyarrow.CompressedInputStream(source, "zstd")
        self._left = payload.inflated_size or len(payload.data) if is_plain else payload.inflated_size

    def read(self, size: int) -> bytes:
        """Reads so many bytes; none at the end."""
        try:
            data = bytes(self._stream.read(size))
        except (OSError, self._failure):
            raise MalformedError("a compressed transaction is damaged") from None
        self._left -= len(data)
        if self._left < 0:
            raise MalformedError("a compressed transaction is longer than it says")
        return data

    def exactly(self, size: int) -> bytes:
        if size > self._left:
            raise MalformedError("an event is longer than its compressed transaction")
        data = self.read(size)
        if len(data) != size:
            raise MalformedError("a compressed transaction is cut short")
        return data


def inflated(data: bytes) -> bytes:
    """Returns the bytes that MariaDB has compressed: a byte that tells how and how long the length is, the length, and zlib's bytes."""
    if not data or not data[0] & _COMPRESSED or data[0] & 0x70:
        raise MalformedError("a part of an event is compressed in an unknown way")
    start = 1 + (data[0] & 7)
    size = int.from_bytes(data[1:start], "big")
    if size > EVENT_BYTES_MAX:
        raise MalformedError("a part of an event is larger than any event")
    try:
        found = zlib.decompressobj().decompress(data[start:], size + 1)
    except zlib.error:
        raise MalformedError("a part of an event is damaged") from None
    if len(found) != size:
        raise MalformedError("a part of an event has another length than it says")
    return found


def inflated_query(body: ByteReader) -> bytes:
    """Returns the body of a QUERY event for that of a compressed one, of which the statement alone is compressed."""
    data = body.rest()
    schema_size, status_size = ByteReader(data, 8).number(1), ByteReader(data, 11).number(2)
    statement = 13 + status_size + schema_size + 1
    if statement > len(data):
        raise MalformedError("cut short")
    return data[:statement] + inflated(data[statement:])
