"""Builds pgoutput messages, so that the decoder is tested on bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cdcworker.connectors.postgres.pgoutput import PG_EPOCH_US

TEXT, INT4 = 25, 23


def frame(payload: bytes, lsn: int = 0x100) -> bytes:
    return struct.pack(">cQQq", b"w", lsn, lsn, 0) + payload


def begin(lsn: int, xid: int = 7, us: int = PG_EPOCH_US) -> bytes:
    return frame(struct.pack(">cQqI", b"B", lsn, us - PG_EPOCH_US, xid))


def commit(lsn: int, end: int | None = None, us: int = PG_EPOCH_US) -> bytes:
    return frame(struct.pack(">cBQQq", b"C", 0, lsn, end or lsn + 8, us - PG_EPOCH_US))


def relation(oid: int, columns: Sequence[tuple[str, int, bool]], identity: str = "d", name: str = "t") -> bytes:
    out = struct.pack(">cI", b"R", oid) + b"public\0" + name.encode() + b"\0" + identity.encode()
    out += struct.pack(">H", len(columns))
    for column, type_oid, in_key in columns:
        out += bytes([in_key]) + column.encode() + b"\0" + struct.pack(">Ii", type_oid, -1)
    return frame(out)


def values(*items: bytes | str | None) -> bytes:
    """A tuple; None is NULL, the str `u` an unsent value."""
    out = struct.pack(">H", len(items))
    for item in items:
        if item is None:
            out += b"n"
        elif item == "u":
            out += b"u"
        else:
            assert isinstance(item, bytes)
            out += b"t" + struct.pack(">I", len(item)) + item
    return out


def insert(oid: int, *items: bytes | str | None) -> bytes:
    return frame(struct.pack(">cIc", b"I", oid, b"N") + values(*items))


def update(oid: int, new: Sequence, old: Sequence | None = None, kind: bytes = b"K") -> bytes:
    before = kind + values(*old) if old is not None else b""
    return frame(struct.pack(">cI", b"U", oid) + before + b"N" + values(*new))


def delete(oid: int, old: Sequence, kind: bytes = b"K") -> bytes:
    return frame(struct.pack(">cIc", b"D", oid, kind) + values(*old))


def truncate(*oids: int) -> bytes:
    return frame(struct.pack(f">cIB{len(oids)}I", b"T", len(oids), 0, *oids))


def origin(name: str, lsn: int) -> bytes:
    return frame(struct.pack(">cQ", b"O", lsn) + name.encode() + b"\0")


def message(prefix: str, content: bytes, lsn: int, transactional: bool = True) -> bytes:
    head = struct.pack(">cBQ", b"M", transactional, lsn)
    return frame(head + prefix.encode() + b"\0" + struct.pack(">I", len(content)) + content, lsn)
