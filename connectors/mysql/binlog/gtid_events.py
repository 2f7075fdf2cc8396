"""Events that begin a transaction by its GTID, and those that list what a file's predecessors hold."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader
from cdcworker.connectors.mysql.errors import MalformedError
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid
from cdcworker.connectors.mysql.gtid.mysql import GtidSet

_LOGICAL_TIMESTAMP: Final = 2
_HAS_ORIGINAL_TIME: Final = 1 << 55
_HAS_ORIGINAL_VERSION: Final = 1 << 31
SEQUENCE_MAX: Final = (1 << 63) - 1
TAG_BYTES_MAX: Final = 32


class TransactionTimes(NamedTuple):
    """What newer servers say of a transaction; 0 where one does not. Commits are in microseconds since 1970, `original` at the
    server that it came from. `length` is the bytes of all its events."""

    immediate_commit_us: int = 0
    original_commit_us: int = 0
    length: int = 0
    server_version: int = 0
    original_server_version: int = 0
    commit_group_ticket: int = 0


class Gtid(NamedTuple):
    """MySQL: a transaction begins. `source` and `sequence` are its GTID, with a tag or without; `source` is None for an anonymous
    one. `last_committed` and `logical_time` order transactions that may be applied at once."""

    flags: int
    source: uuid.UUID | None
    tag: str
    sequence: int
    last_committed: int = 0
    logical_time: int = 0
    times: TransactionTimes = TransactionTimes()


class PreviousGtids(NamedTuple):
    """MySQL: what the files before this one hold."""

    executed: GtidSet


class XaId(NamedTuple):
    """The name of an XA transaction."""

    format_id: int
    global_id: bytes
    branch: bytes


class MariaDbTransaction(NamedTuple):
    """MariaDB: a transaction, or a statement that is one alone, begins. `commit_id` is the same in what was committed as a group."""

    gtid: MariaDbGtid
    flags: int
    commit_id: int = 0
    xa: XaId | None = None

    @property
    def is_standalone(self) -> bool:
        """Tells whether no COMMIT follows, as after a DDL statement."""
        return bool(self.flags & 0x01)

    @property
    def is_ddl(self) -> bool:
        return bool(self.flags & 0x20)

    @property
    def is_prepared_xa(self) -> bool:
        return bool(self.flags & 0x40)

    @property
    def is_completed_xa(self) -> bool:
        return bool(self.flags & 0x80)


class MariaDbGtidList(NamedTuple):
    """MariaDB: the last GTID of each domain and server in the files before this one."""

    flags: int
    gtids: tuple[MariaDbGtid, ...]


def read_gtid(body: ByteReader, *, anonymous: bool) -> Gtid:
    flags = body.number(1)
    source = uuid.UUID(bytes=body.take(16))
    sequence = _sequence(body.signed(8), anonymous=anonymous)
    last_committed = logical_time = 0
    if body.left and body.number(1) == _LOGICAL_TIMESTAMP:
        last_committed, logical_time = body.signed(8), body.signed(8)
    times = _times(body)
    return Gtid(flags, None if anonymous else source, "", sequence, last_committed, logical_time, times)


def _sequence(number: int, *, anonymous: bool) -> int:
    if not (number == 0 if anonymous else 0 < number <= SEQUENCE_MAX):
        raise MalformedError("a GTID with an impossible number")
    return number


def _times(body: ByteReader) -> TransactionTimes:
    """Reads what servers have added since 5.7, each of which may be missing at the end."""
    if body.left < 7:
        return TransactionTimes()
    immediate = body.number(7)
    original = body.number(7) if immediate & _HAS_ORIGINAL_TIME else 0
    immediate &= _HAS_ORIGINAL_TIME - 1
    length = body.packed() if body.left else 0
    version = original_version = 0
    if body.left >= 4:
        version = body.number(4)
        original_version = body.number(4) if version & _HAS_ORIGINAL_VERSION else 0
        version &= _HAS_ORIGINAL_VERSION - 1
    ticket = body.number(8) if body.left >= 8 else 0
    return TransactionTimes(immediate, original or immediate, length, version, original_version or version, ticket)


def read_previous_gtids(body: ByteReader) -> PreviousGtids:
    return PreviousGtids(GtidSet.decode(body.rest()))


def read_mariadb_transaction(body: ByteReader, server_id: int) -> MariaDbTransaction:
    sequence, domain, flags = body.number(8), body.number(4), body.number(1)
    commit_id, xa = 0, None
    if flags & 0x02:
        commit_id = body.number(8)
    if flags & 0xC0:
        format_id, global_size, branch_size = body.number(4), body.number(1), body.number(1)
        xa = XaId(format_id, body.take(global_size), body.take(branch_size))
    # What may follow tells of engines and threads, and zeros fill up what is short.
    return MariaDbTransaction(MariaDbGtid(domain, server_id, sequence), flags, commit_id, xa)


def read_mariadb_gtid_list(body: ByteReader) -> MariaDbGtidList:
    packed = body.number(4)
    count, flags = packed & 0x0FFFFFFF, packed >> 28
    if count * 16 > body.left:
        raise MalformedError("a list of GTIDs that is longer than its event")
    found = []
    for _ in range(count):
        domain, server_id, sequence = body.number(4), body.number(4), body.number(8)
        found.append(MariaDbGtid(domain, server_id, sequence))
    return MariaDbGtidList(flags, tuple(found))
