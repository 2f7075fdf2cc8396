"""The event of a tagged GTID, which is the first in MySQL's newer format of numbered fields with numbers of variable length."""

from __future__ import annotations

import uuid
from typing import Final

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader, text_of
from cdcworker.connectors.mysql.binlog.gtid_events import SEQUENCE_MAX, TAG_BYTES_MAX, Gtid, TransactionTimes
from cdcworker.connectors.mysql.errors import MalformedError

_VERSION: Final = 1
_FLAGS, _SOURCE, _SEQUENCE, _TAG, _LAST_COMMITTED, _LOGICAL_TIME = range(6)
_IMMEDIATE, _ORIGINAL, _LENGTH, _SERVER_VERSION, _ORIGINAL_VERSION, _TICKET = range(6, 12)
_SIGNED: Final = frozenset({_SEQUENCE, _LAST_COMMITTED, _LOGICAL_TIME})
_LAST: Final = _TICKET


def read_tagged_gtid(body: ByteReader) -> Gtid:
    """Reads the fields that are there, in the order of their numbers. Fields beyond those known may be passed over, unless the
    message says that one of them may not."""
    start, size = body.at, body.left
    if _unsigned(body) != _VERSION:
        raise MalformedError("a tagged GTID of an unknown version")
    if _unsigned(body) != size:
        raise MalformedError("a tagged GTID of another length than it says")
    if _unsigned(body) > _LAST + 1:
        raise MalformedError("a tagged GTID with a field that is not known and may not be passed over")
    found: dict[int, int] = {}
    source, tag, last = None, "", -1
    while body.at < start + size:
        field = _unsigned(body)
        if field <= last:
            raise MalformedError("a tagged GTID with fields out of order")
        last = field
        if field > _LAST:
            body.rest()
        elif field == _SOURCE:
            source = uuid.UUID(bytes=bytes(_byte(body) for _ in range(16)))
        elif field == _TAG:
            tag = _tag(body)
        else:
            found[field] = _signed(body) if field in _SIGNED else _unsigned(body)
    sequence = found.get(_SEQUENCE, 0)
    if source is None or not 0 < sequence <= SEQUENCE_MAX:
        raise MalformedError("a tagged GTID without its source or number")
    head = (found.get(_FLAGS, 0), source, tag, sequence, found.get(_LAST_COMMITTED, 0), found.get(_LOGICAL_TIME, 0))
    return Gtid(*head, _times(found))


def _times(found: dict[int, int]) -> TransactionTimes:
    immediate, version = found.get(_IMMEDIATE, 0), found.get(_SERVER_VERSION, 0)
    return TransactionTimes(
        immediate,
        found.get(_ORIGINAL, immediate),
        found.get(_LENGTH, 0),
        version,
        found.get(_ORIGINAL_VERSION, version),
        found.get(_TICKET, 0),
    )


def _tag(body: ByteReader) -> str:
    size = _unsigned(body)
    if size > TAG_BYTES_MAX:
        raise MalformedError("a tag that is too long")
    return text_of(body.take(size))


def _byte(body: ByteReader) -> int:
    number = _unsigned(body)
    if number > 255:
        raise MalformedError("a byte of a UUID that is none")
    return number


def _unsigned(body: ByteReader) -> int:
    """Reads a number: the ones at the end of its first byte count the bytes after it, and are cut off with the zero above them."""
    first = body.number(1)
    more = 0
    while first >> more & 1:
        more += 1
    if more == 8:
        return body.number(8)
    return (first | body.number(more) << 8) >> (more + 1)


def _signed(body: ByteReader) -> int:
    """Reads a number whose lowest bit is its sign; of a negative one all bits are inverted."""
    number = _unsigned(body)
    return ~(number >> 1) if number & 1 else number >> 1
