"""A driver that writes to ClickHouse until it is killed: `killed_writer.py PORT EPOCH`. What it writes depends on the ledger alone; it ends
with 0 when all is written."""

from __future__ import annotations

import sys

from cdcworker.connectors.warehouses.clickhouse.client import Client, ServerPlace
from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter

from tests import change_streams
from tests.change_streams import NARROW

TOPICS = ("shop.public.orders", "shop.public.other")
OTHER = change_streams.table(change_streams.column("n", "int", "integer"), key=(), name="other")
STEPS = 5


def shape(number: int):
    """A column is added in the middle."""
    more = (change_streams.column("more", "int", "integer"),) if number >= STEPS // 2 else ()
    return change_streams.table(*NARROW.columns, *more)


def records() -> change_streams.Stream:
    """Rows of two tables that are inserted, changed in part, moved to other keys and deleted; one table has no key."""
    stream = change_streams.Stream(1)
    for number in range(STEPS):
        more = (number,) if number >= STEPS // 2 else ()
        for at in range(4):
            stream.insert(shape(number), (4 * number + at, at, "a", "large", *more))
        stream.insert(OTHER, (number,))
        stream.update(shape(number), (4 * number, 7, "b", None, *more), (3,))
        stream.delete(shape(number), (4 * number + 1,))
        stream.move(shape(number), (4 * number + 2,), (1000 + number, 8, "c", None, *more), (3,))
    return stream


def wanted() -> list[tuple[object, ...]]:
    """The rows of the first table when all is written."""
    out: list[tuple[object, ...]] = []
    for number in range(STEPS):
        more = number if number >= STEPS // 2 else None
        out += [(4 * number, 7, "b", "large", more), (4 * number + 3, 3, "a", "large", more)]
        out.append((1000 + number, 8, "c", "large", more))
    return sorted(out, key=repr)


def write(port: int, epoch: int) -> None:
    writer = ClickHouseWriter(Client(ServerPlace("127.0.0.1", port, "default", "")), "sink")
    writer.fence((epoch, 0))
    writer.claim(TOPICS)
    stream, whole = records(), len(records().records)
    for number in range(1, STEPS + 1):
        found = stream.records[: whole * number // STEPS]
        batch = stream.assembler().build(change_streams.arrow(found), writer.ledger(), number)
        if batch.offsets:
            writer.apply(batch)


if __name__ == "__main__":
    write(int(sys.argv[1]), int(sys.argv[2]))
