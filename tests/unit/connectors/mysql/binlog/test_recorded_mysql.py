"""The log of a genuine MySQL 9.7.4: tagged GTIDs, a compressed transaction, partial and binary JSON, minimal images, a vector."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from cdcworker.connectors.mysql.binlog.event_reader import Event, EventPlace, EventReader
from cdcworker.connectors.mysql.binlog.format_description import Checksum, FormatDescription
from cdcworker.connectors.mysql.binlog.gtid_events import Gtid, PreviousGtids
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.binlog.plain_events import Query, Rotate, StatementTextEvent
from cdcworker.connectors.mysql.binlog.rows import UNSENT, BinlogRow, Operation, RowsEvent
from cdcworker.connectors.mysql.binlog.table_map import KeyPart, TableMap
from cdcworker.connectors.mysql.types.declared import Geometry
from cdcworker.connectors.mysql.types.json_diff import JsonChange, JsonDiff

from . import made

POINT = Geometry(0, bytes.fromhex("0101000000000000000000f03f0000000000000040"))
FIRST = (
    *(1, 200, "hé", 1999, "é", "p,q", Decimal("-12.500"), POINT, 3, (1.0, 2.5, -3.0)),
    *('{"a": [1, 2.5, "é", null, true], "z": 12345678901}', "[]", b"a\0\0\0"),
    datetime(2024, 2, 29, 12, 34, 56, 789000, tzinfo=UTC),
    -timedelta(hours=12, minutes=34, seconds=56, milliseconds=780),
    5,
)


@pytest.fixture(scope="module")
def raw() -> list[bytes]:
    return made.recorded(made.RECORDED_MYSQL)


@pytest.fixture(scope="module")
def events(raw: list[bytes]) -> list[Event]:
    return list(made.through(EventReader(Checksum.CRC32), raw))


def rows_of(events: list[Event]) -> list[tuple[Operation, tuple[BinlogRow, ...]]]:
    return [(event.body.operation, event.body.rows) for event in events if isinstance(event.body, RowsEvent)]


def test_places_follow_each_other_and_a_compressed_transaction_is_at_one(events: list[Event], raw: list[bytes]) -> None:
    sizes = dict.fromkeys((event.place for event in events), 0)
    for before, after in pairwise(sizes):
        assert after.position > before.position or after.file > before.file
    (payload,) = [data for data in raw if data[4] == EventType.TRANSACTION_PAYLOAD]
    inside = [event.place for event in events if not event.header.log_pos and not event.header.is_artificial]
    assert len(inside) == 4
    assert len(set(inside)) == 1
    assert EventPlace(inside[0].file, inside[0].position + len(payload)) in sizes


def test_the_server_is_mysql(events: list[Event]) -> None:
    description = next(event.body for event in events if isinstance(event.body, FormatDescription))
    assert (description.server_version, description.is_mariadb, description.checksum) == (
        "9.7.4-2",
        False,
        Checksum.CRC32,
    )


def test_gtids_rise_by_tag_and_the_next_file_tells_them_all(events: list[Event]) -> None:
    gtids = [event.body for event in events if isinstance(event.body, Gtid)]
    tagged = [gtid for gtid in gtids if gtid.tag]
    assert [(gtid.tag, gtid.sequence) for gtid in tagged] == [("blue", 1)]
    plain = [gtid.sequence for gtid in gtids if not gtid.tag]
    assert plain == list(range(1, len(plain) + 1))
    assert {gtid.times.server_version for gtid in gtids} == {90704}
    assert all(gtid.times.length > 0 and gtid.times.immediate_commit_us > 1_700_000_000_000_000 for gtid in gtids)
    last = [event.body for event in events if isinstance(event.body, PreviousGtids)][-1]
    assert str(last.executed) == f"{gtids[0].source}:1-{len(plain)}:blue:1"


def test_a_table_map_of_all_optional_metadata(events: list[Event]) -> None:
    table = next(event.body for event in events if isinstance(event.body, TableMap))
    signs = {column.name: column.type.is_unsigned for column in table.columns if column.type.is_unsigned is not None}
    assert signs == {"id": True, "u": True, "y": True, "d": False, "inv": False}
    assert [column.name for column in table.columns if not column.is_visible] == ["inv"]
    assert [column.dimensions for column in table.columns if column.dimensions] == [3]
    assert [column.type.members for column in table.columns if column.type.members] == [("x", "é"), ("p", "q")]
    assert table.key == (KeyPart(0),)


def test_values_of_every_kind(events: list[Event]) -> None:
    assert rows_of(events)[0] == (
        Operation.INSERT,
        (BinlogRow(None, FIRST), BinlogRow(None, (2, *[None] * 7, 3, *[None] * 7))),
    )


def test_partial_updates_of_json_in_minimal_and_in_full_images(events: list[Event]) -> None:
    key = (1, *[UNSENT] * 15)
    one = JsonDiff((JsonChange("replace", "$.a[0]", "99"), JsonChange("insert", "$.n", '"new"')))
    two = JsonDiff((JsonChange("remove", "$.z", None),))
    three = JsonDiff((JsonChange("replace", "$.n", '{"q": 1.5}'),))
    first, second, third = (rows[0] for _, rows in rows_of(events)[1:4])
    assert first == BinlogRow(key, (*[UNSENT] * 10, one, "[1]", *[UNSENT] * 4))
    assert second == BinlogRow(key, (*[UNSENT] * 10, two, *[UNSENT] * 5))
    assert third.before == (*FIRST[:10], '{"a": [99, 2.5, "é", null, true], "n": "new"}', "[1]", *FIRST[12:])
    assert third.after == (*FIRST[:10], three, JsonDiff(()), *FIRST[12:])


def test_the_rows_of_a_compressed_transaction(events: list[Event]) -> None:
    assert rows_of(events)[4] == (
        Operation.INSERT,
        (
            BinlogRow(None, (3, None, "p" * 20, *[None] * 5, 3, *[None] * 7)),
            BinlogRow(None, (4, None, "x", *[None] * 5, 3, *[None] * 7)),
        ),
    )


def test_the_other_events(events: list[Event]) -> None:
    kinds = Counter(type(event.body) for event in events)
    assert kinds[Rotate] == 5
    assert [event.body.statement for event in events if isinstance(event.body, StatementTextEvent)] == [
        b"update a set c='rq' where id=4",
    ]
    statements = [event.body.statement for event in events if isinstance(event.body, Query)]
    assert b"create database shop" in statements
    assert b"BEGIN" in statements
