"""Debezium's offsets of MariaDB: whichever row it has written last, a task goes on with the next one, and the way back is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cdcworker.connectors.mysql.binlog.gtid_events import MariaDbTransaction
from cdcworker.connectors.mysql.binlog.rows import RowsEvent
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.connectors.mysql.transport.commands import Reader
from cdcworker.schemas.errors import CdcError

from ..logged import LoggedServer
from ..source.reading import Reading

pytestmark = pytest.mark.mysql
MADE = (
    "drop database if exists shop",
    "create database shop",
    "use shop",
    "create table orders (id int primary key, n int)",
)
TRANSACTION = (
    "use shop",
    "begin",
    "insert into orders values (1, 1), (2, 1), (3, 1)",
    "delete from orders where id = 2",
)


@pytest.fixture
def reading(logged: LoggedServer) -> Iterator[Reading]:
    one = Reading(logged)
    yield one
    one.stop()


@pytest.fixture
def offsets(logged: LoggedServer) -> list[tuple[dict[str, Any], int]]:
    """The offset that Debezium stores with each row of a transaction, and how many rows it has written then."""
    logged.ask(*MADE)
    before = str(logged.position())
    found, done, number, place = [], 0, -1, None
    plain = Reader(server_id=99, wait=False)
    for event in logged.events(*TRANSACTION, "update orders set n = 2", "commit", reader=plain):
        if isinstance(event.body, MariaDbTransaction) and not event.body.is_standalone:
            number, place = 0, event.place
        if place is None:
            continue
        for row in range(len(event.body.rows) if isinstance(event.body, RowsEvent) else 0):
            done += 1
            at = {"file": place.file, "pos": place.position, "gtids": before, "event": number, "row": row + 1}
            found.append(({**at, "ts_sec": 1_700_000_000, "server_id": 7}, done))
        number += 1
    assert [count for _, count in found] == list(range(1, 7))
    return found


def test_a_task_goes_on_behind_the_row_that_was_written_last(
    reading: Reading, offsets: list[tuple[dict[str, Any], int]]
) -> None:
    source = MySqlSource(reading.config)
    for offset, done in offsets:
        position = source.from_debezium(0, offset).content
        assert position["part"][2] == done
        back = source.to_debezium(0, position).content
        assert {name: back[name] for name in ("file", "pos", "event", "row")} == {
            name: offset[name] for name in ("file", "pos", "event", "row")
        }
    whole = source.from_debezium(0, {name: offsets[0][0][name] for name in ("file", "pos", "gtids")}).content
    assert "part" not in whole
    reading.position = source.from_debezium(0, offsets[1][0]).content
    reading.start()
    reading.until(lambda: len(reading.changes) >= 4)
    assert [(change.op, (change.after or change.before)[0]) for change in reading.changes] == [
        ("c", 3), ("d", 2), ("u", 1), ("u", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        ({"file": "log.000001", "pos": 4, "snapshot": "INITIAL"}, "debezium.snapshot_unfinished"),
        ({"file": "log.000001", "pos": "x"}, "debezium.offset_unfit"),
        ({"file": "", "pos": 4}, "debezium.offset_unfit"),
        ({"file": "log.999999", "pos": 4}, "mysql.log_purged"),
    ],
)
def test_what_nobody_can_go_on_from_is_refused(reading: Reading, offset: dict[str, Any], code: str) -> None:
    with pytest.raises(CdcError) as caught:
        MySqlSource(reading.config).from_debezium(0, offset)
    assert caught.value.code == code
