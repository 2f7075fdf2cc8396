"""The log of a real MariaDB 11.4: its events, their places, and the rows that they hold."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from itertools import pairwise

import pytest
from cdcworker.connectors.mysql.binlog.event_reader import Event, EventPlace, EventReader
from cdcworker.connectors.mysql.binlog.format_description import Checksum, FormatDescription
from cdcworker.connectors.mysql.binlog.gtid_events import MariaDbGtidList, MariaDbTransaction, XaId
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.binlog.plain_events import Query, Rotate, StatementTextEvent, XaPrepare, Xid
from cdcworker.connectors.mysql.binlog.rows import UNSENT, BinlogRow, Operation, RowsEvent
from cdcworker.connectors.mysql.binlog.table_map import KeyPart, TableMap
from cdcworker.connectors.mysql.errors import CHECKSUM, ROW_METADATA
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid
from cdcworker.connectors.mysql.types.declared import Geometry
from cdcworker.schemas.errors import CdcError

from . import made

POINT = Geometry(0, bytes.fromhex("0101000000000000000000f03f0000000000000040"))
FIRST = (1, "tähti", Decimal("12.50"), "new", "a,c", POINT, datetime(2024, 2, 29, 12, 34, 56, 789000), "漢字", -1)


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(made.through(EventReader(Checksum.CRC32), made.recorded()))


def rows_of(events: list[Event], table: str) -> list[tuple[Operation, tuple[BinlogRow, ...]]]:
    return [
        (event.body.operation, event.body.rows)
        for event in events
        if isinstance(event.body, RowsEvent) and event.body.table is not None and event.body.table.table == table
    ]


def test_the_first_events_tell_the_file_the_server_and_the_checksum(events: list[Event]) -> None:
    rotate, description = events[0].body, events[1].body
    assert rotate == Rotate("bin.000001", 4)
    assert isinstance(description, FormatDescription)
    assert (description.server_version, description.checksum) == ("11.4.5-MariaDB-log", Checksum.CRC32)
    assert description.is_mariadb


def test_every_place_is_the_one_before_and_the_size_of_its_event(events: list[Event]) -> None:
    """Also within transactions, whose events do not tell their places."""
    for before, after in pairwise(events):
        if after.place.file == before.place.file and not isinstance(before.body, Rotate):
            step = after.place.position - before.place.position
            assert step == (0 if before.header.is_artificial else before.header.size), before
    assert events[-1].place == EventPlace("bin.000003", 336)
    assert [event.place for event in events if isinstance(event.body, FormatDescription)] == [
        EventPlace(f"bin.00000{n}", 4) for n in (1, 2, 3)
    ]


def test_a_table_map_has_all_that_the_server_says_of_columns(events: list[Event]) -> None:
    table = next(event.body for event in events if isinstance(event.body, TableMap))
    assert (table.schema, table.table) == ("shop", "orders")
    assert [column.name for column in table.columns] == [
        *("id", "name", "price", "state", "flags", "place", "made", "note", "hidden"),
    ]
    assert [column.is_nullable for column in table.columns] == [False, False, *[True] * 7]
    assert [column.type.is_unsigned for column in table.columns if column.type.is_unsigned is not None] == [
        *(True, True, False),
    ]
    assert table.key == (KeyPart(0),)
    assert [column.type.members for column in table.columns if column.type.members] == [
        ("new", "sent", "é"),
        ("a", "b", "c"),
    ]
    assert table.columns[5].geometry == 1
    pairs = next(event.body for event in events if isinstance(event.body, TableMap) and event.body.table == "pairs")
    assert pairs.key == (KeyPart(1), KeyPart(0))


def test_full_rows_have_every_value(events: list[Event]) -> None:
    operation, (first, second) = rows_of(events, "orders")[0]
    assert operation is Operation.INSERT
    assert first == BinlogRow(None, FIRST)
    assert second == BinlogRow(None, (2, "b", None, None, None, None, None, None, -1))


def test_what_a_minimal_image_leaves_out_is_marked(events: list[Event]) -> None:
    update, delete, insert = rows_of(events, "orders")[1:4]
    assert update == (
        Operation.UPDATE,
        (BinlogRow((1, *[UNSENT] * 8), (UNSENT, UNSENT, Decimal("1.00"), *[UNSENT] * 4, "x", UNSENT)),),
    )
    assert delete == (Operation.DELETE, (BinlogRow((2, *[UNSENT] * 8), None),))
    assert insert[1][0].before is None
    assert insert[1][0].after is not None
    assert insert[1][0].after[:3] == (3, "c", UNSENT)


def test_an_image_without_blobs_leaves_out_only_those(events: list[Event]) -> None:
    _, (row,) = rows_of(events, "orders")[4]
    assert row.before is not None
    assert row.after is not None
    assert [i for i, value in enumerate(row.after) if value is UNSENT] == [7]
    assert (row.before[1], row.after[1]) == ("tähti", "d")


def test_compressed_rows_and_statements_are_read_as_others(events: list[Event]) -> None:
    assert rows_of(events, "pairs")[2:5] == [
        (Operation.INSERT, (BinlogRow(None, (5, 6, "y" * 30)), BinlogRow(None, (7, 8, "y" * 30)))),
        (Operation.UPDATE, (BinlogRow((5, 6, "y" * 30), (5, 6, "z" * 30)),)),
        (Operation.DELETE, (BinlogRow((5, 6, "z" * 30), None),)),
    ]
    kinds = Counter(event.header.event_type for event in events)
    assert kinds[EventType.QUERY_COMPRESSED] == 1
    assert kinds[EventType.WRITE_ROWS_COMPRESSED_V1] == 1
    statements = [event.body.statement for event in events if isinstance(event.body, Query)]
    assert b"create table more (a int) comment '" + b"c" * 80 + b"'" in statements
    assert all(event.body.collation == 45 for event in events if isinstance(event.body, Query))


def test_transactions_begin_with_their_gtid_and_end_with_a_commit(events: list[Event]) -> None:
    found = [event.body for event in events if isinstance(event.body, MariaDbTransaction)]
    assert [body.gtid for body in found] == [MariaDbGtid(3, 7, n) for n in range(1, len(found) + 1)]
    assert found[0].is_standalone
    assert found[0].is_ddl
    assert not found[3].is_standalone
    assert len([event for event in events if isinstance(event.body, Xid)]) == len(
        [b for b in found if not b.is_standalone and not b.xa]
    )
    lists = [event.body for event in events if isinstance(event.body, MariaDbGtidList)]
    assert lists[0].gtids == ()
    assert lists[1].gtids == (found[-2].gtid,)


def test_an_xa_transaction_has_its_name_where_it_is_prepared_and_where_it_ends(events: list[Event]) -> None:
    name = XaId(5, b"g1", b"b1")
    xa = [event.body for event in events if isinstance(event.body, MariaDbTransaction) and event.body.xa]
    assert [(body.xa, body.is_prepared_xa, body.is_completed_xa) for body in xa] == [
        (name, True, False),
        (name, False, True),
    ]
    assert [event.body for event in events if isinstance(event.body, XaPrepare)] == [XaPrepare(False, name)]


def test_the_text_of_a_statement_comes_before_its_rows(events: list[Event]) -> None:
    texts = [event.body.statement for event in events if isinstance(event.body, StatementTextEvent)]
    assert texts[2] == b"delete from orders where id=2"


def test_a_changed_bit_is_found_by_the_checksum() -> None:
    raw = made.recorded()
    reader = EventReader(Checksum.CRC32)
    list(made.through(reader, raw[:13]))
    broken = bytearray(raw[13])
    broken[40] ^= 1
    with pytest.raises(CdcError) as caught:
        list(reader.read(bytes(broken)))
    assert caught.value.code == CHECKSUM
    assert caught.value.where == {"file": "bin.000001", "position": 1398}


def test_rows_of_columns_of_which_too_little_is_known_are_refused_by_name() -> None:
    def forget(table: TableMap) -> TableMap:
        columns = [
            column._replace(type=column.type._replace(is_unsigned=None, collation=None)) for column in table.columns
        ]
        return table._replace(columns=tuple(columns))

    with pytest.raises(CdcError) as caught:
        list(made.through(EventReader(Checksum.CRC32, forget), made.recorded()))
    assert caught.value.code == ROW_METADATA
    assert caught.value.where["table"] == "shop.orders"
    assert caught.value.where["column"] == "id"
