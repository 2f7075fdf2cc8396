"""A driver that writes to MySQL until it is killed: `killed_writer.py PORT PASSWORD EPOCH together|alone`. What it writes depends on
the ledger alone; it ends with 0 when all is written."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from cdcworker.connectors.api.table_batch import VisibleThrough
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter

from tests import change_streams

TOPICS = ("shop.public.orders", "shop.public.other")
OTHER = change_streams.table(change_streams.ID, name="other")
STEPS = 6


def shape(number: int):
    """Two columns exchange their names at each other step, and one is added in the middle."""
    names = ("a", "b") if number % 2 == 0 else ("b", "a")
    columns = [change_streams.column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names)]
    if number >= STEPS // 2:
        columns.append(change_streams.column("more", "int", "integer", column_id=4))
    return change_streams.table(change_streams.column("id", "long", "bigint", False, column_id=1), *columns)


def row(number: int, id: int, first: str, second: str):
    return (id, first, second, *((number,) if number >= STEPS // 2 else ()))


def records() -> change_streams.Stream:
    """Rows of two tables that are inserted, changed and deleted."""
    stream = change_streams.Stream(1)
    for number in range(STEPS):
        for at in range(4):
            stream.insert(shape(number), row(number, 4 * number + at, "A", "B"))
        stream.insert(OTHER, (number,))
        stream.update(shape(number), row(number, 4 * number, "A2", "B2"))
        stream.delete(shape(number), (4 * number + 1,))
    return stream


def wanted() -> list[tuple[object, ...]]:
    """The rows of the first table when all is written: id, and the columns by their identities."""
    kept = [at for at in range(4 * STEPS) if at % 4 != 1]
    return [
        (at, *(("A2", "B2") if at % 4 == 0 else ("A", "B")), at // 4 if at // 4 >= STEPS // 2 else None) for at in kept
    ]


def write(writer: Any, epoch: int, together: bool) -> None:
    writer.fence((epoch, 0))
    writer.claim(TOPICS)
    stream, whole = records(), len(records().records)
    for number in range(1, STEPS + 1):
        found = stream.records[: whole * number // STEPS]
        batch = stream.assembler().build(change_streams.arrow(found), writer.ledger(), number)
        if batch.offsets and together:
            writer.apply_all([replace(batch, through={"shop": VisibleThrough(number, number)})])
        elif batch.offsets:
            writer.apply(batch)


if __name__ == "__main__":
    login = Login("127.0.0.1", int(sys.argv[1]), "cdc", sys.argv[2])
    write(MySqlWriter(login, "sink"), int(sys.argv[3]), sys.argv[4] == "together")
