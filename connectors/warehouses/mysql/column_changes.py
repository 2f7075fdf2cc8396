"""Names of columns and the source's identities of them. MySQL ends a transaction when it alters a table, so what a change of
names is to be is written down before it: whoever comes after a crash finds by the order of the columns whether it was made."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.mysql import statements
from cdcworker.connectors.warehouses.mysql.connection import transaction
from cdcworker.connectors.warehouses.sql.ledger import COLUMNS

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection
    from cdcworker.connectors.warehouses.mysql.found_tables import FoundTable

log = logging.getLogger(__name__)
Place = tuple[str, str]
"""Sink and topic."""

_HERE: Final = "where sink = %s and topic = %s"


@dataclass(frozen=True, slots=True)
class NameChange:
    """What holds once a table has been altered: all its columns in their order, the names by the source's identity, and which
    names of before are which now; those of deleted columns are none."""

    order: tuple[str, ...]
    names: Mapping[int, str]
    renamed: Mapping[str, str | None] = field(default_factory=dict)


def known(connection: MySqlConnection, place: Place) -> dict[int, str]:
    """Returns the names of a topic's columns by the source's identity of them."""
    return dict(connection.ask(COLUMNS, place))


def begin(connection: MySqlConnection, place: Place, change: NameChange) -> None:
    """Writes down what an ALTER TABLE is to make of the names."""
    content = {"names": {str(id): name for id, name in change.names.items()}, "renamed": dict(change.renamed)}
    connection.do(
        """insert into _cdcworker.column_change (sink, topic, columns_then, names_then) values (%s, %s, %s, %s)
           on duplicate key update columns_then = values(columns_then), names_then = values(names_then)""",
        (*place, json.dumps(list(change.order)), json.dumps(content)),
    )


def of_deleted(found: FoundTable, held: Mapping[str, int], deleted: Collection[str]) -> NameChange:
    """Returns what holds once these columns are deleted, and nothing else is changed."""
    order = tuple(name for name in found.columns if name not in deleted)
    return NameChange(order, {id: name for name, id in held.items() if name in order}, dict.fromkeys(deleted))


def is_begun(connection: MySqlConnection, place: Place) -> bool:
    """Returns whether a change was written down and has not ended."""
    return connection.one(f"select 1 from _cdcworker.column_change {_HERE}", place) is not None


def recover(connection: MySqlConnection, place: Place, found: FoundTable) -> None:
    """Ends a change that a task began: it was made where the columns stand as they then do, and else was not."""
    row = connection.one(f"select columns_then, names_then from _cdcworker.column_change {_HERE}", place)
    if row is None:
        return
    order, content = json.loads(row[0]), json.loads(row[1])
    if list(found.columns) == order:
        names = {int(id): name for id, name in content["names"].items()}
        end(connection, place, NameChange(tuple(order), names, content["renamed"]))
    else:
        connection.do(f"delete from _cdcworker.column_change {_HERE}", place)


def end(connection: MySqlConnection, place: Place, change: NameChange) -> None:
    """Stores the names, in one step with the rows that wait for a new key: they follow their columns."""
    with transaction(connection):
        store(connection, place, change.names)
        if any(old != new for old, new in change.renamed.items()):
            _rename_waiting(connection, place, change.renamed)
        connection.do(f"delete from _cdcworker.column_change {_HERE}", place)


def store(connection: MySqlConnection, place: Place, names: Mapping[int, str]) -> None:
    connection.do(f"delete from _cdcworker.columns {_HERE}", place)
    for id, name in names.items():
        connection.do(
            "insert into _cdcworker.columns (sink, topic, colid, name) values (%s, %s, %s, %s)", (*place, id, name)
        )


def forget(connection: MySqlConnection, place: Place) -> None:
    """Of a table that was there before and is no more."""
    with transaction(connection):
        for table in ("columns", "column_change"):
            connection.do(f"delete from _cdcworker.{table} {_HERE}", place)


def _rename_waiting(connection: MySqlConnection, place: Place, renamed: Mapping[str, str | None]) -> None:
    names = {
        statements.row_name(old): None if new is None else statements.row_name(new) for old, new in renamed.items()
    }
    rows = connection.ask(
        f"select `key`, `row` from _cdcworker.tombstone {_HERE} and `row` is not null for update", place
    )
    for key, text in rows:
        kept = {names.get(name, name): value for name, value in json.loads(text).items()}
        kept.pop(None, None)
        connection.do(
            f"update _cdcworker.tombstone set `row` = %s {_HERE} and `key` = %s", (json.dumps(kept), *place, key)
        )


# -- the clauses of an ALTER TABLE --------------------------------------------------------------------------------------


def clauses(planned: ColumnNaming, deleted: Sequence[str], changed: Collection[str]) -> list[str]:
    """Returns the clauses that name columns anew, all in one step, but for those that are `changed` otherwise too, and that
    delete some."""
    out = drops(deleted)
    for old, new in planned.names.items():
        if old != new and old not in changed:
            out.append(f"rename column {statements.quote(old)} to {statements.quote(new)}")
    return out


def drops(deleted: Sequence[str]) -> list[str]:
    return [f"drop column {statements.quote(name)}" for name in deleted]


def tell(target: statements.TargetTable, planned: ColumnNaming) -> None:
    """Logs what the columns are called now."""
    for old, new in planned.names.items():
        if old != new:
            done = "a dropped column made room" if old in planned.dropped else "renamed"
            log.info("%s table=%s column=%s now=%s", done, target.plain_name, old, new)
