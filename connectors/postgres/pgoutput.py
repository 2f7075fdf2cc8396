"""pgoutput: bytes of one logical replication message in, values out. Opens nothing; knows no table but by its OID."""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Sequence
from typing import Any, NamedTuple

from cdcworker.connectors.capture.column_mapping import Parser

PG_EPOCH_US = 946_684_800_000_000
"""2000-01-01, where PostgreSQL's clock starts, in microseconds since 1970."""

COLUMNS_MAX = 1664
"""PostgreSQL's own limit on a target list; a larger count means that the bytes are not what they should be."""


HEADER = 25
"""Bytes of XLogData before the message: `w`, two LSNs and a clock."""

ROW_KINDS = frozenset(b"IUD")
"""Messages of rows: insert, update, delete."""

FRAMED_KINDS = ROW_KINDS | frozenset(b"BC")
"""Messages that may be taken out of a buffer of frames: rows, and the begin and the commit of a transaction."""

OWN_PREFIX = "cdcworker"
"""The prefix of the logical messages that this source writes itself; they are not handed on."""


class WireError(ValueError):
    """Bytes that are not a pgoutput message."""


class _Unchanged:
    """The mark of a TOAST value that the server did not send."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = _Unchanged()
HAD_NULL = 1
HAD_UNCHANGED = 2


class Begin(NamedTuple):
    final_lsn: int
    commit_us: int
    xid: int


class Commit(NamedTuple):
    commit_lsn: int
    end_lsn: int
    commit_us: int


class RelationColumn(NamedTuple):
    name: str
    type_oid: int
    typmod: int
    in_key: bool


class Relation(NamedTuple):
    """A table's shape as the stream tells it; `identity` is relreplident (`d`, `n`, `f`, `i`)."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Origin(NamedTuple):
    lsn: int
    name: str


class Truncate(NamedTuple):
    cascade: bool
    restart_identity: bool
    oids: tuple[int, ...]


class LogicalMessage(NamedTuple):
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_COLUMN_TAIL = struct.Struct(">Ii")


def read_begin(data: bytes) -> Begin:
    if len(data) != 21:
        raise WireError("begin: wrong length")
    lsn, us, xid = _BEGIN.unpack_from(data, 1)
    return tuple.__new__(Begin, (lsn, us + PG_EPOCH_US, xid))


def read_commit(data: bytes) -> Commit:
    if len(data) != 26:
        raise WireError("commit: wrong length")
    _, lsn, end, us = _COMMIT.unpack_from(data, 1)
    return tuple.__new__(Commit, (lsn, end, us + PG_EPOCH_US))


def read_relation(data: bytes) -> Relation:
    oid = _uint(data, 1, 4)
    schema, p = _text(data, 5)
    table, p = _text(data, p)
    identity = chr(_uint(data, p, 1))
    count = _uint(data, p + 1, 2)
    p += 3
    if count > COLUMNS_MAX:
        raise WireError("relation: impossible column count")
    columns = []
    for _ in range(count):
        flags = _uint(data, p, 1)
        name, p = _text(data, p + 1)
        if p + 8 > len(data):
            raise WireError("relation: cut short")
        type_oid, typmod = _COLUMN_TAIL.unpack_from(data, p)
        p += 8
        columns.append(RelationColumn(name, type_oid, typmod, bool(flags & 1)))
    _at_end(data, p)
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def read_type(data: bytes) -> tuple[int, str, str]:
    oid = _uint(data, 1, 4)
    schema, p = _text(data, 5)
    name, p = _text(data, p)
    _at_end(data, p)
    return oid, schema or "pg_catalog", name


def read_origin(data: bytes) -> Origin:
    lsn = _uint(data, 1, 8)
    name, p = _text(data, 9)
    _at_end(data, p)
    return Origin(lsn, name)


def read_truncate(data: bytes) -> Truncate:
    count = _uint(data, 1, 4)
    flags = _uint(data, 5, 1)
    if len(data) != 6 + 4 * count:
        raise WireError("truncate: wrong length")
    return Truncate(bool(flags & 1), bool(flags & 2), struct.unpack_from(f">{count}I", data, 6))


def read_message(data: bytes) -> LogicalMessage:
    flags = _uint(data, 1, 1)
    lsn = _uint(data, 2, 8)
    prefix, p = _text(data, 10)
    size = _uint(data, p, 4)
    p += 4
    if p + size != len(data):
        raise WireError("message: wrong length")
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[p:])


def read_values(data: bytes, p: int, parsers: Sequence[Parser]) -> tuple[list[Any], int, int]:
    """One tuple from offset `p`, each value through its column's parser: the values, the offset after them, and flags
    of what else there was: `HAD_NULL` (None in the values), `HAD_UNCHANGED` (`UNCHANGED` in the values).

    A slice of a short buffer is short without an error, so the one check that matters is the offset afterwards.
    """
    if (data[p] << 8) | data[p + 1] != len(parsers):
        raise WireError("tuple: column count differs from the relation's")
    p += 2
    out: list[Any] = []
    append = out.append
    number = int.from_bytes
    flags = 0
    for parse in parsers:
        kind = data[p]
        if kind == 116:
            start = p + 5
            p = start + number(data[p + 1 : start], "big")
            append(parse(data[start:p]))
        elif kind == 110:
            append(None)
            p += 1
            flags |= HAD_NULL
        elif kind == 117:
            append(UNCHANGED)
            p += 1
            flags |= HAD_UNCHANGED
        elif kind == 98:
            start = p + 5
            p = start + number(data[p + 1 : start], "big")
            append(_large(parse, data[start:p]))
        else:
            raise WireError("tuple: unknown kind of value")
    if p > len(data):
        raise WireError("tuple: cut short")
    return out, p, flags


def read_some_values(data: bytes, p: int, parsers: Sequence[Parser | None]) -> tuple[list[Any], int, int]:
    """Reads as `read_values` does, without the columns whose parser is None."""
    values, end, flags = read_values(data, p, [parse or _ignore for parse in parsers])
    return [value for value, parse in zip(values, parsers, strict=True) if parse], end, flags


def fill_unsent(values: list[Any], old: list[Any] | None, usable: Any) -> tuple[int, ...]:
    """Put what the old tuple holds in place of unsent values; the indexes that stay unsent, None in their place."""
    unsent = []
    for i, value in enumerate(values):
        if value is not UNCHANGED:
            continue
        if old is not None and i in usable and old[i] is not UNCHANGED:
            values[i] = old[i]
        else:
            values[i] = None
            unsent.append(i)
    return tuple(unsent)


def read_texts(data: bytes, p: int, count: int) -> tuple[list[bytes | None], int]:
    """One tuple's text forms as they are; None for NULL and for unsent values."""
    values, end, _ = read_values(data, p, [_same] * count)
    return [None if value is UNCHANGED else value for value in values], end


def _large(parse: Parser, value: bytes) -> Any:
    """A bytea as it is, where its text would take thrice the memory."""
    of_bytes = getattr(parse, "of_bytes", None)
    return of_bytes(value) if of_bytes else parse(b"\\x" + hexlify(value))


def _same(value: bytes) -> bytes:
    return value


def _ignore(_: bytes) -> None:
    return None


def _uint(data: bytes, p: int, size: int) -> int:
    if p + size > len(data):
        raise WireError("message: cut short")
    return int.from_bytes(data[p : p + size], "big")


def _text(data: bytes, p: int) -> tuple[str, int]:
    end = data.find(b"\0", p)
    if end < 0:
        raise WireError("message: text without end")
    try:
        return data[p:end].decode(), end + 1
    except UnicodeDecodeError as exc:
        raise WireError("message: name is not UTF-8") from exc


def _at_end(data: bytes, p: int) -> None:
    if p != len(data):
        raise WireError("message: bytes left over")


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)
