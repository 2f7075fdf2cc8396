"""Events without rows: rotation, statements, commits and what else a log holds."""

from __future__ import annotations

from typing import Final, NamedTuple

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader, text_of
from cdcworker.connectors.mysql.binlog.gtid_events import XaId
from cdcworker.connectors.mysql.errors import MalformedError

_CHARSET: Final = 4
_SKIPPED: Final = {0: 4, 1: 8, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8}
"""By code the bytes of status variables of one length that are of no concern here."""
_CATALOG, _TIME_ZONE, _CATALOG_SHORT, _INVOKER, _DATABASES, _COLLATIONS = 2, 5, 6, 11, 12, 131
_DATABASES_MAX: Final = 254
"""Stands in place of a count for more databases than are named."""
_FILE_BYTES: Final = 13
"""Of the file that a statement has loaded: its number, its place in the text, what is done with duplicates."""


class Rotate(NamedTuple):
    """The log goes on in a file at a position."""

    file: str
    position: int


class Query(NamedTuple):
    """A statement that is logged as text: DDL, `BEGIN`, `COMMIT`, or what does not write rows. `collation` is that of its text;
    None where it is not said."""

    thread_id: int
    error: int
    schema: str
    statement: bytes
    collation: int | None


class Xid(NamedTuple):
    """A transaction of an engine commits."""

    number: int


class XaPrepare(NamedTuple):
    """An XA transaction is prepared, or in one phase committed."""

    is_one_phase: bool
    xa: XaId


class StatementTextEvent(NamedTuple):
    """The statement whose rows follow, for who reads along: ROWS_QUERY of MySQL, ANNOTATE_ROWS of MariaDB."""

    statement: bytes


class HeartbeatEvent(NamedTuple):
    """The server has nothing to send; its log ends here."""

    file: str
    position: int


class CheckpointEvent(NamedTuple):
    """MariaDB: files before this one are not needed for its crash recovery."""

    file: str


class Stop(NamedTuple):
    """The server was stopped."""


class Incident(NamedTuple):
    """Something is missing in the log, such as events that were too large for it."""

    number: int


class StartEncryption(NamedTuple):
    """MariaDB: what follows in the file is encrypted."""

    scheme: int
    key_version: int


class OtherEvent(NamedTuple):
    """An event without meaning for who reads rows."""

    event_type: int


def read_rotate(body: ByteReader) -> Rotate:
    position = body.number(8)
    return Rotate(text_of(body.rest()), position)


def read_query(body: ByteReader, *, loads_file: bool = False) -> Query:
    """Reads a statement. `loads_file`: one that has loaded a file, whose place in the statement stands before the rest."""
    thread_id, _, schema_size, error, status_size = (body.number(size) for size in (4, 4, 1, 2, 2))
    if loads_file:
        body.take(_FILE_BYTES)
    collation = _collation(ByteReader(body.take(status_size)))
    schema = text_of(body.take(schema_size))
    body.zero()
    return Query(thread_id, error, schema, body.rest(), collation)


def _collation(status: ByteReader) -> int | None:
    """Finds the client's collation among the status variables. Their lengths are known by their codes only, so the first code
    that is not known ends the search."""
    while status.left:
        code = status.number(1)
        if code == _CHARSET:
            return status.number(2)
        if code in _SKIPPED:
            status.take(_SKIPPED[code])
        elif code in (_TIME_ZONE, _CATALOG_SHORT):
            status.short_bytes()
        elif code == _CATALOG:
            status.take(status.number(1) + 1)
        elif code == _INVOKER:
            status.short_bytes()
            status.short_bytes()
        elif code == _COLLATIONS:
            status.take(4 * status.number(1))
        elif code == _DATABASES:
            _skip_databases(status)
        else:
            return None
    return None


def _skip_databases(status: ByteReader) -> None:
    count = status.number(1)
    for _ in range(0 if count == _DATABASES_MAX else count):
        while status.number(1):
            pass


def read_xid(body: ByteReader) -> Xid:
    xid = Xid(body.number(8))
    body.end()
    return xid


def read_xa_prepare(body: ByteReader) -> XaPrepare:
    is_one_phase, format_id = bool(body.number(1)), body.number(4)
    global_size, branch_size = body.number(4), body.number(4)
    if global_size > 64 or branch_size > 64:
        raise MalformedError("an XA transaction with an impossible name")
    return XaPrepare(is_one_phase, XaId(format_id, body.take(global_size), body.take(branch_size)))


def read_rows_query(body: ByteReader) -> StatementTextEvent:
    body.take(1)  # The length, which a byte cannot hold.
    return StatementTextEvent(body.rest())


def read_annotate_rows(body: ByteReader) -> StatementTextEvent:
    return StatementTextEvent(body.rest())


def read_heartbeat_v2(body: ByteReader) -> HeartbeatEvent:
    """Reads fields of a code, a length and a value, up to code 0. Codes that are not known are passed over."""
    file, position = "", 0
    while body.left and (code := body.packed()):
        value = ByteReader(body.packed_bytes())
        if code == 1:
            file = text_of(value.rest())
        elif code == 2:
            position = value.packed()
    return HeartbeatEvent(file, position)


def read_checkpoint(body: ByteReader) -> CheckpointEvent:
    return CheckpointEvent(text_of(body.take(body.number(4))))


def read_incident(body: ByteReader) -> Incident:
    return Incident(body.number(2))


def read_start_encryption(body: ByteReader) -> StartEncryption:
    scheme, key_version = body.number(1), body.number(4)
    body.take(12)
    return StartEncryption(scheme, key_version)
