"""A person looks at the ledger in the target, or alters it; the connector is stopped meanwhile."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.mysql_client.error_numbers import number_of
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.sink_errors import FENCED, LEDGER_BUSY
from cdcworker.connectors.warehouses.mysql import statements
from cdcworker.connectors.warehouses.mysql.connection import opened, transaction
from cdcworker.connectors.warehouses.mysql.errors import from_pymysql
from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import Connection

LOCK_TIMEOUT: Final = "set session innodb_lock_wait_timeout = 5"
"""A task that has not noticed yet that it is to stop holds its fence row as long as its batch takes."""
_LOCKED: Final = (1205, 3572)
_MS: Final = "cast(timestampdiff(microsecond, '1970-01-01', at) / 1000 as signed)"
LEDGER: Final = f"""select next_offset, batch, {_MS}, applied from _cdcworker.ledger
    where sink = %s and topic = %s and `partition` = %s"""
DEAD: Final = f"""select code, {_MS} from _cdcworker.dead_letter
    where sink = %s and topic = %s and `partition` = %s and `offset` = %s"""


def stored(login: Login, place: LedgerAccess) -> SinkOffsets:
    """Returns the next offset of each partition."""
    ledger = MySqlLedger(place.connector, 0)
    with _transaction(login) as connection:
        return ledger.read(connection) if ledger.is_there(connection) else {}


def trace(login: Login, place: LedgerAccess, change: Mapping[str, Any], schema: str, column: str) -> dict[str, Any]:
    """Returns what the target knows of one change: whether it was applied or set aside, and whose row is there now, by the
    column of positions; empty: there is none."""
    where = (place.connector, change["topic"], change["partition"])
    position = _position(change.get("source", {}))
    out: dict[str, Any] = {"position": position.hex() if position else None}
    with _transaction(login) as connection:
        if not MySqlLedger(place.connector, 0).is_there(connection):
            return out
        row = connection.one(LEDGER, where)
        if row is not None:
            out |= {"next_offset": row[0], "batch": row[1], "at_ms": row[2], "applied": row[3] and bytes(row[3]).hex()}
        dead = connection.one(DEAD, (*where, change["offset"]))
        if dead is not None:
            out |= {"dead": dead[0], "dead_ms": dead[1]}
        if position is not None and column:
            out["row"] = _row(connection, change, schema, position, column)
    return out


def _position(source: Mapping[str, Any]) -> bytes | None:
    names = ("commit_lsn", "tx_index", "tx_sub")
    return struct.pack(">qii", *(source[name] for name in names)) if all(name in source for name in names) else None


def _row(connection: Connection, change: Mapping[str, Any], schema: str, position: bytes, column: str) -> str | None:
    """None: cannot be told, since the key reads differently there, or the table is another."""
    import pymysql

    space, _, table = change["table"].rpartition(".")
    key = change["key"]
    if not isinstance(key, dict) or not key or any(isinstance(value, dict | list) for value in key.values()):
        return None
    tests = " and ".join(
        f"cast({statements.quote(name)} as char) = {statements.literal(str(value))}" for name, value in key.items()
    )
    place = f"{statements.quote(schema or space)}.{statements.quote(table)}"
    try:
        rows = connection.ask(f"select {statements.quote(column)} from {place} where {tests}")
    except pymysql.Error:
        return None
    if not rows or rows[0][0] is None:
        return "absent" if not rows else None
    at = bytes(rows[0][0])
    return "this" if at == position else "newer" if at > position else "older"


def alter(login: Login, place: LedgerAccess, changes: SinkOffsets | None) -> None:
    """Alters the offsets in one transaction. It fences off every task with a lower epoch; floors and tombstones stay,
    so that what is read again can neither bring back a deleted row nor one from before a TRUNCATE."""
    with _session(login) as connection:
        ledger = MySqlLedger(place.connector, 0)
        ledger.create(connection)
        with transaction(connection):
            _fence(connection, place)
            ledger.forget_ids(connection, None if changes is None else [topic for topic, _ in changes])
            if changes is None:
                connection.do("delete from _cdcworker.ledger where sink = %s", (place.connector,))
                return
            for (topic, partition), offset in changes.items():
                if offset is None:
                    connection.do(
                        "delete from _cdcworker.ledger where sink = %s and topic = %s and `partition` = %s",
                        (place.connector, topic, partition),
                    )
                else:
                    _set(connection, place, (topic, partition, offset))


def _fence(connection: Connection, place: LedgerAccess) -> None:
    """Both tables hold epochs: a task that has never written a batch stands in the first one only."""
    sink = place.connector
    rows = connection.ask(
        "select task_epoch, attempt from _cdcworker.fence where sink = %s order by task for update", (sink,)
    )
    rows += connection.ask(
        "select task_epoch, attempt from _cdcworker.ledger where sink = %s order by topic, `partition` for update",
        (sink,),
    )
    if any((task_epoch, attempt) > place.epoch for task_epoch, attempt in rows):
        raise CdcError(FENCED, "a newer task has started meanwhile", where={"sink": sink})
    for table in ("fence", "ledger"):
        connection.do(
            f"update _cdcworker.{table} set task_epoch = %s, attempt = %s where sink = %s", (*place.epoch, sink)
        )


def _set(connection: Connection, place: LedgerAccess, row: tuple[str, int, int]) -> None:
    """Without a last applied position, which the records to come may be older than."""
    connection.do(
        """insert into _cdcworker.ledger (sink, topic, `partition`, next_offset, task_epoch, attempt, at)
           values (%s, %s, %s, %s, %s, %s, now(6)) on duplicate key update
           next_offset = values(next_offset), applied = null, source_ts_ms = null, at = values(at)""",
        (place.connector, *row, *place.epoch),
    )


@contextlib.contextmanager
def _session(login: Login) -> Iterator[Connection]:
    import pymysql

    with contextlib.closing(opened(login, "cdcworker-offsets")) as connection:
        try:
            connection.do(LOCK_TIMEOUT)
            yield connection
        except pymysql.Error as exc:
            if number_of(exc) in _LOCKED:
                raise CdcError(LEDGER_BUSY, "the ledger is locked") from exc
            raise from_pymysql(exc) from exc


@contextlib.contextmanager
def _transaction(login: Login) -> Iterator[Connection]:
    with _session(login) as connection, transaction(connection):
        yield connection
