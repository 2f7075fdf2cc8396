"""A person looks at the ledger in the target, or alters it; the connector is stopped meanwhile."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.config.allowed_hosts import guarded
from cdcworker.connectors.sink_errors import FENCED, LEDGER_BUSY, from_psycopg
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_S: Final = 5
LOCK_TIMEOUT: Final = "set local lock_timeout = '5s'"
"""A task that has not noticed yet that it is to stop holds its fence row as long as its batch takes."""

LEDGER: Final = """select next_offset, batch, (extract(epoch from at) * 1000)::bigint, applied
    from _cdcworker.ledger where sink = %s and topic = %s and partition = %s"""
DEAD: Final = """select code, (extract(epoch from at) * 1000)::bigint from _cdcworker.dead_letter
    where sink = %s and topic = %s and partition = %s and "offset" = %s"""
RAISE: Final = (
    "update _cdcworker.fence set task_epoch = %s, attempt = %s where sink = %s",
    "update _cdcworker.ledger set task_epoch = %s, attempt = %s where sink = %s",
)


def stored(conninfo: str, place: LedgerAccess) -> SinkOffsets:
    with _transaction(conninfo) as connection:
        found = connection.execute("select to_regclass('_cdcworker.ledger')").fetchone()
        return PostgresLedger(place.connector, 0).read(connection) if found and found[0] else {}


def trace(conninfo: str, place: LedgerAccess, change: Mapping[str, Any], schema: str, column: str) -> dict[str, Any]:
    """Returns what the target knows of one change: whether it was applied or set aside, and whose row is there now, by the
    column of positions; empty: there is none."""
    where = (place.connector, change["topic"], change["partition"])
    position = _position(change.get("source", {}))
    out: dict[str, Any] = {"position": position.hex() if position else None}
    with _transaction(conninfo) as connection:
        found = connection.execute("select to_regclass('_cdcworker.ledger')").fetchone()
        if not found or not found[0]:
            return out
        row = connection.execute(LEDGER, where).fetchone()
        if row is not None:
            out |= {"next_offset": row[0], "batch": row[1], "at_ms": row[2], "applied": row[3] and bytes(row[3]).hex()}
        dead = connection.execute(DEAD, (*where, change["offset"])).fetchone()
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
    import psycopg
    from psycopg import sql

    space, _, table = change["table"].rpartition(".")
    key = change["key"]
    if not isinstance(key, dict) or not key or any(isinstance(value, dict | list) for value in key.values()):
        return None
    tests = sql.SQL(" and ").join(sql.SQL("{}::text = %s").format(sql.Identifier(name)) for name in key)
    text = sql.SQL("select {} from {} where {}").format(
        sql.Identifier(column), sql.Identifier(schema or space, table), tests
    )
    try:
        with connection.transaction():
            rows = connection.execute(text, [str(value) for value in key.values()]).fetchall()
    except psycopg.Error:
        return None
    if not rows or rows[0][0] is None:
        return "absent" if not rows else None
    # Of a row with versions there are several.
    found = [bytes(row[0]) for row in rows if row[0] is not None]
    at = position if position in found else max(found)
    return "this" if at == position else "newer" if at > position else "older"


def alter(conninfo: str, place: LedgerAccess, changes: SinkOffsets | None) -> None:
    """Alters the offsets in one transaction. It fences off every task with a lower epoch; floors and tombstones stay,
    so that what is read again can neither bring back a deleted row nor one from before a TRUNCATE."""
    with _transaction(conninfo) as connection:
        ledger = PostgresLedger(place.connector, 0)
        ledger.create(connection)
        connection.execute(LOCK_TIMEOUT)
        _fence(connection, place)
        ledger.forget_ids(connection, None if changes is None else [topic for topic, _ in changes])
        if changes is None:
            connection.execute("delete from _cdcworker.ledger where sink = %s", (place.connector,))
            return
        for (topic, partition), offset in changes.items():
            if offset is None:
                connection.execute(
                    "delete from _cdcworker.ledger where sink = %s and topic = %s and partition = %s",
                    (place.connector, topic, partition),
                )
            else:
                _set(connection, place, (topic, partition, offset))


def _fence(connection: Connection, place: LedgerAccess) -> None:
    """Both tables hold epochs: a task that has never written a batch stands in the first one only."""
    sink = place.connector
    rows = connection.execute(
        """select task_epoch, attempt from _cdcworker.fence where sink = %s order by task for update""", (sink,)
    ).fetchall()
    rows += connection.execute(
        "select task_epoch, attempt from _cdcworker.ledger where sink = %s order by topic, partition for update",
        (sink,),
    ).fetchall()
    if any((task_epoch, attempt) > place.epoch for task_epoch, attempt in rows):
        raise CdcError(FENCED, "a newer task has started meanwhile", where={"sink": sink})
    for statement in RAISE:
        connection.execute(statement, (*place.epoch, sink))


def _set(connection: Connection, place: LedgerAccess, row: tuple[str, int, int]) -> None:
    """Without a last applied position, which the records to come may be older than."""
    connection.execute(
        """insert into _cdcworker.ledger as l (sink, topic, partition, next_offset, task_epoch, attempt, at)
           values (%s, %s, %s, %s, %s, %s, clock_timestamp())
           on conflict (sink, topic, partition) do update
           set next_offset = excluded.next_offset, applied = null, source_ts_ms = null, at = excluded.at""",
        (place.connector, *row, *place.epoch),
    )


@contextlib.contextmanager
def _transaction(conninfo: str) -> Iterator[Connection]:
    import psycopg

    try:
        with psycopg.connect(
            guarded(conninfo), connect_timeout=CONNECT_TIMEOUT_S, application_name="cdcworker-offsets"
        ) as connection:
            yield connection
    except psycopg.errors.LockNotAvailable as exc:
        raise CdcError(LEDGER_BUSY, "the ledger is locked") from exc
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc
