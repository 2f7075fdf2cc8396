"""A person looks at the ledger in the target, or alters it; the connector is stopped meanwhile."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.sink_errors import FENCED
from cdcworker.connectors.warehouses.sql.connection import SqlConnection
from cdcworker.connectors.warehouses.sql.ledger import SqlLedger
from cdcworker.schemas.errors import CdcError

C = TypeVar("C", bound=SqlConnection)

_FENCE_EPOCHS: Final = "select task_epoch, attempt from _cdcworker.fence where sink = %s order by task for update"
_RAISE: Final = (
    "update _cdcworker.fence set task_epoch = %s, attempt = %s where sink = %s",
    "update _cdcworker.ledger set task_epoch = %s, attempt = %s where sink = %s",
)
_FORGET_ALL: Final = "delete from _cdcworker.ledger where sink = %s"


@dataclass(frozen=True, slots=True)
class LedgerStatements:
    """A server's statements over one partition of a ledger, with sink, topic and partition as their first parameters."""

    partition: str
    """Next offset, batch, time in ms and applied position."""
    dead_letter: str
    """Code and time in ms, of an offset."""
    epochs: str
    """The epochs of all partitions of a sink, which is its only parameter; they are locked."""
    forget: str
    put: str
    """Sets an offset, with an epoch where the partition is new. It leaves no last applied position, which the records to come may be
    older than."""
    fences: str = _FENCE_EPOCHS
    """The epochs of all tasks of a sink, which is its only parameter; they are locked."""


class SqlLedgerAdmin(ABC, Generic[C]):
    """The ledger's tables in the target, over a connection of its own for each request. `schema` is where the tables of rows are,
    empty: as in the source; `column` has their positions, empty: none has."""

    statements: LedgerStatements

    def __init__(self, access: LedgerAccess, ledger: SqlLedger[C], schema: str = "", column: str = "") -> None:
        self._access = access
        self._ledger = ledger
        self._schema = schema
        self._column = column

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[C]:
        """Opens one transaction in which the ledger is read."""

    @abstractmethod
    def _alteration(self) -> AbstractContextManager[C]:
        """Opens one transaction in which the ledger is there and altered. A task that has not noticed yet that it is to stop holds
        its fence row as long as its batch takes: it is waited for shortly."""

    @abstractmethod
    def _positions(self, connection: C, place: tuple[str, str], key: Mapping[str, Any]) -> list[bytes | None] | None:
        """Returns the positions of the rows of a key; None: they cannot be told, since the key reads differently there, or the table
        is another."""

    def offsets(self) -> SinkOffsets:
        with self._transaction() as connection:
            return self._ledger.read(connection) if self._ledger.is_there(connection) else {}

    def alter(self, changes: SinkOffsets | None) -> None:
        """Alters the offsets in one transaction. It fences off every task with a lower epoch; floors and tombstones stay,
        so that what is read again can neither bring back a deleted row nor one from before a TRUNCATE."""
        sink = self._access.connector
        with self._alteration() as connection:
            self._fence(connection)
            self._ledger.forget_ids(connection, None if changes is None else [topic for topic, _ in changes])
            if changes is None:
                connection.do(_FORGET_ALL, (sink,))
                return
            for place, offset in changes.items():
                if offset is None:
                    connection.do(self.statements.forget, (sink, *place))
                else:
                    connection.do(self.statements.put, (sink, *place, offset, *self._access.epoch))

    def _fence(self, connection: C) -> None:
        """Both tables hold epochs: a task that has never written a batch stands in the first one only."""
        sink, epoch = self._access.connector, self._access.epoch
        rows = [
            row for text in (self.statements.fences, self.statements.epochs) for row in connection.ask(text, (sink,))
        ]
        if any((task_epoch, attempt) > epoch for task_epoch, attempt in rows):
            raise CdcError(FENCED, "a newer task has started meanwhile", where={"sink": sink})
        for statement in _RAISE:
            connection.do(statement, (*epoch, sink))

    def trace(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the target knows of one change: whether it was applied or set aside, and whose row is there now."""
        where = (self._access.connector, change["topic"], change["partition"])
        position = position_of(change.get("source", {}))
        out: dict[str, Any] = {"position": position.hex() if position else None}
        with self._transaction() as connection:
            if not self._ledger.is_there(connection):
                return out
            row = connection.one(self.statements.partition, where)
            if row is not None:
                out |= {"next_offset": row[0], "batch": row[1], "at_ms": row[2]}
                out["applied"] = row[3] and bytes(row[3]).hex()
            dead = connection.one(self.statements.dead_letter, (*where, change["offset"]))
            if dead is not None:
                out |= {"dead": dead[0], "dead_ms": dead[1]}
            if position is not None and self._column:
                out["row"] = self._row(connection, change, position)
        return out

    def _row(self, connection: C, change: Mapping[str, Any], position: bytes) -> str | None:
        space, _, table = change["table"].rpartition(".")
        key = change["key"]
        if not isinstance(key, dict) or not key or any(isinstance(value, dict | list) for value in key.values()):
            return None
        return row_state(self._positions(connection, (self._schema or space, table), key), position)


def position_of(source: Mapping[str, Any]) -> bytes | None:
    """Returns the position of a change, by what its record says of the source; None: it says none."""
    names = ("commit_lsn", "tx_index", "tx_sub")
    return struct.pack(">qii", *(source[name] for name in names)) if all(name in source for name in names) else None


def row_state(found: Sequence[bytes | None] | None, position: bytes) -> str | None:
    """Returns whose row is there by the positions that were `found` for a key: this change's, or one of a newer or an older change,
    or none (absent). None: cannot be told."""
    if not found or found[0] is None:
        return "absent" if found is not None and not found else None
    # Of a row with versions there are several.
    positions = [bytes(at) for at in found if at is not None]
    at = position if position in positions else max(positions)
    return "this" if at == position else "newer" if at > position else "older"
