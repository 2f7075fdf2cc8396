"""What only MySQL has, from bytes written by hand: forms of older and newer servers, and what no server should send. What a
genuine one sends is in `test_recorded_mysql`."""

from __future__ import annotations

import struct
import uuid

import pyarrow
import pytest
from cdcworker.connectors.mysql.binlog.event_reader import EventPlace, EventReader
from cdcworker.connectors.mysql.binlog.format_description import Checksum
from cdcworker.connectors.mysql.binlog.gtid_events import Gtid, PreviousGtids, TransactionTimes
from cdcworker.connectors.mysql.binlog.header import ARTIFICIAL, IGNORABLE, IN_USE, EventType
from cdcworker.connectors.mysql.binlog.plain_events import (
    HeartbeatEvent,
    OtherEvent,
    Query,
    Rotate,
    StartEncryption,
    StatementTextEvent,
    Xid,
)
from cdcworker.connectors.mysql.binlog.rows import UNSENT, BinlogRow, Operation, RowsEvent
from cdcworker.connectors.mysql.binlog.table_map import KeyPart, TableMap
from cdcworker.connectors.mysql.errors import CHECKSUM, EVENT_UNKNOWN, LOG_ENCRYPTED, MALFORMED_EVENT, TYPE_UNKNOWN
from cdcworker.connectors.mysql.gtid.mysql import GtidSet, Source
from cdcworker.connectors.mysql.types.column import TypeCode
from cdcworker.connectors.mysql.types.json_diff import JsonChange, JsonDiff
from cdcworker.schemas.errors import CdcError

from . import made
from .made import bodies, event, packed, rows, table_map, text

SERVER = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
INTS = bytes([TypeCode.LONG, TypeCode.VARCHAR])
"""An int and a varchar(10) of utf8mb4."""
META = struct.pack("<H", 40)
FIELDS = [(1, b"\x00"), (2, packed(45)), (4, text("id") + text("name")), (8, packed(0))]
ONE = struct.pack("<i", 1) + b"\x01a"
TWO = struct.pack("<i", 2) + b"\x02bc"


def gtid_body(number: int, more: bytes = b"") -> bytes:
    return b"\x01" + SERVER.bytes + struct.pack("<q", number) + more


def test_a_gtid_of_each_version() -> None:
    times = (1 << 55 | 1_700_000_000_000_001).to_bytes(7, "little") + (1_600_000_000_000_002).to_bytes(7, "little")
    logical = struct.pack("<Bqq", 2, 6, 7)
    newest = logical + times + packed(500) + struct.pack("<IIQ", 1 << 31 | 80_400, 80_030, 77)
    found = bodies(
        event(EventType.GTID, gtid_body(9)),
        event(EventType.GTID, gtid_body(9, logical)),
        event(EventType.GTID, gtid_body(9, newest)),
        event(EventType.ANONYMOUS_GTID, b"\x00" + bytes(24) + logical),
    )
    whole = TransactionTimes(1_700_000_000_000_001, 1_600_000_000_000_002, 500, 80_400, 80_030, 77)
    assert found == [
        Gtid(1, SERVER, "", 9),
        Gtid(1, SERVER, "", 9, 6, 7),
        Gtid(1, SERVER, "", 9, 6, 7, whole),
        Gtid(0, None, "", 0, 6, 7),
    ]


def varlen(number: int) -> bytes:
    """MySQL's newer numbers: as many ones at the end of the first byte as bytes follow it."""
    more = next(n for n in range(9) if n == 8 or number < 1 << 7 * (n + 1))
    if more == 8:
        return b"\xff" + struct.pack("<Q", number)
    return (number << (more + 1) | (1 << more) - 1).to_bytes(more + 1, "little")


def signed(number: int) -> bytes:
    return varlen(~number << 1 | 1 if number < 0 else number << 1)


def tagged(fields: list[tuple[int, bytes]], last: int = 0) -> bytes:
    body = varlen(last) + b"".join(varlen(field) + value for field, value in fields)
    size = len(body) + 2
    assert size < 128
    return event(EventType.GTID_TAGGED, varlen(1) + varlen(size) + body)


TAGGED = [
    (0, varlen(1)),
    (1, b"".join(map(varlen, SERVER.bytes))),
    (2, signed(300)),
    (3, varlen(4) + b"blue"),
    (4, signed(6)),
    (5, signed(7)),
    (6, varlen(1_700_000_000_000_001)),
    (8, varlen(500)),
    (9, varlen(80_400)),
]


def test_a_tagged_gtid() -> None:
    times = TransactionTimes(1_700_000_000_000_001, 1_700_000_000_000_001, 500, 80_400, 80_400)
    assert bodies(tagged(TAGGED)) == [Gtid(1, SERVER, "blue", 300, 6, 7, times)]
    newer = [*TAGGED, (7 + 10, b"\x05what is not known")]
    assert bodies(tagged(newer)) == bodies(tagged(TAGGED))
    assert bodies(tagged([*TAGGED[:4], (4, signed(-1)), (11, varlen((1 << 64) - 1))]))[0].last_committed == -1


@pytest.mark.parametrize(
    "data",
    [
        tagged([*TAGGED, (20, b"x")], last=21),
        tagged(TAGGED[2:]),
        tagged([TAGGED[1], TAGGED[0], TAGGED[2]]),
        event(EventType.GTID_TAGGED, varlen(2) + varlen(3) + b"\0"),
        event(EventType.GTID_TAGGED, varlen(1) + varlen(30) + b"\0"),
        event(EventType.GTID, gtid_body(0)),
        event(EventType.ANONYMOUS_GTID, gtid_body(5)),
        event(EventType.PREVIOUS_GTIDS, b"\x01"),
    ],
)
def test_a_gtid_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(CdcError) as caught:
        bodies(data)
    assert caught.value.code == MALFORMED_EVENT


def test_what_files_before_hold() -> None:
    executed = GtidSet.parse(f"{SERVER}:1-5:7:blue:1-3")
    assert bodies(event(EventType.PREVIOUS_GTIDS, executed.encode())) == [PreviousGtids(executed)]
    assert executed.holds(Source(SERVER, "blue"), 3)


def test_rows_of_version_2_with_what_is_extra() -> None:
    images = b"\x00" + ONE + b"\x02" + struct.pack("<i", 2)
    head = (9).to_bytes(6, "little") + b"\x01\x00" + struct.pack("<H", 7) + b"extra" + packed(2) + b"\x03"
    table, found = bodies(table_map(INTS, META, FIELDS), event(EventType.WRITE_ROWS, head + images))
    assert isinstance(table, TableMap)
    assert table.key == (KeyPart(0),)
    assert found == RowsEvent(Operation.INSERT, table, (BinlogRow(None, (1, "a")), BinlogRow(None, (2, None))), True)


def test_an_update_has_a_bitmap_for_each_image() -> None:
    images = b"\x00" + ONE[:4] + b"\x00" + TWO[4:]
    _, found = bodies(table_map(INTS, META, FIELDS), rows(EventType.UPDATE_ROWS, 2, b"\x01\x02", images))
    assert found.rows == (BinlogRow((1, UNSENT), (UNSENT, "bc")),)


def test_a_row_of_which_nothing_was_logged_is_a_row() -> None:
    _, found = bodies(table_map(INTS, META, FIELDS), rows(EventType.WRITE_ROWS, 2, b"\x00", b""))
    assert found.rows == (BinlogRow(None, (UNSENT, UNSENT)),)


def test_an_event_without_rows_ends_a_statement() -> None:
    dummy = rows(EventType.DELETE_ROWS, 0, b"", b"", table_id=0xFFFFFF)
    assert bodies(dummy) == [RowsEvent(Operation.DELETE, None, (), True)]


def test_a_statement_of_several_tables_keeps_their_maps_until_it_ends() -> None:
    other = table_map(INTS, META, FIELDS, table_id=10, table="other")
    first = rows(EventType.WRITE_ROWS, 2, b"\x03", b"\x00" + ONE, flags=0)
    last = rows(EventType.WRITE_ROWS, 2, b"\x03", b"\x00" + TWO, table_id=10)
    found = bodies(table_map(INTS, META, FIELDS), other, first, last)
    assert [(body.table.table, body.rows[0].after) for body in found[2:]] == [("t", (1, "a")), ("other", (2, "bc"))]
    with pytest.raises(CdcError, match="no table map"):
        bodies(table_map(INTS, META, FIELDS), rows(EventType.WRITE_ROWS, 2, b"\x03", b"\x00" + ONE), first)


JSON_TABLE = table_map(
    bytes([TypeCode.LONG, TypeCode.JSON, TypeCode.JSON]),
    b"\x04\x04",
    [(1, b"\x00"), (4, text("id") + text("a") + text("b"))],
)
EMPTY_ARRAY = b"\x02\x00\x00\x04\x00"
INT_5 = b"\x05\x05\x00"


def json_value(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def test_a_partial_update_gives_the_differences_of_json_columns() -> None:
    diff = (
        b"\x00"
        + text("$.a")
        + packed(3)
        + INT_5
        + b"\x02"
        + text("$.b[0]")
        + b"\x01"
        + text("$.é")
        + packed(5)
        + EMPTY_ARRAY
    )
    before = b"\x00" + struct.pack("<i", 1) + json_value(EMPTY_ARRAY) + json_value(INT_5)
    after = b"\x01\x02" + b"\x00" + struct.pack("<i", 1) + json_value(EMPTY_ARRAY) + json_value(diff)
    _, found = bodies(JSON_TABLE, rows(EventType.PARTIAL_UPDATE_ROWS, 3, b"\x07\x07", before + after))
    changes = (
        JsonChange("replace", "$.a", "5"),
        JsonChange("remove", "$.b[0]", None),
        JsonChange("insert", "$.é", "[]"),
    )
    assert found.rows == (BinlogRow((1, "[]", "5"), (1, "[]", JsonDiff(changes))),)


def test_a_partial_update_may_hold_whole_values_and_leave_json_columns_out() -> None:
    before = b"\x00" + struct.pack("<i", 1)
    whole = b"\x00" + b"\x00" + json_value(INT_5)
    part = b"\x01\x02" + b"\x00" + json_value(b"\x02" + text("$[1]"))
    _, found = bodies(JSON_TABLE, rows(EventType.PARTIAL_UPDATE_ROWS, 3, b"\x01\x04", before + whole + before + part))
    assert [row.after for row in found.rows] == [
        (UNSENT, UNSENT, "5"),
        (UNSENT, UNSENT, JsonDiff((JsonChange("remove", "$[1]", None),))),
    ]


def payload(inner: bytes, algorithm: int = 0, size: int | None = None) -> bytes:
    data = pyarrow.Codec("zstd").compress(inner, asbytes=True) if algorithm == 0 else inner
    fields = [(2, packed(algorithm)), (3, packed(len(inner) if size is None else size)), (1, packed(len(data)))]
    head = b"".join(packed(field) + packed(len(value)) + value for field, value in fields) + packed(0)
    return event(EventType.TRANSACTION_PAYLOAD, head + data, log_pos=900, checksum=True)


INNER = [
    table_map(INTS, META, FIELDS),
    rows(EventType.WRITE_ROWS, 2, b"\x03", b"\x00" + ONE),
    event(EventType.XID, struct.pack("<Q", 12)),
]


@pytest.mark.parametrize("algorithm", [0, 255])
def test_a_compressed_transaction_gives_its_events_at_its_own_place(algorithm: int) -> None:
    reader = EventReader(Checksum.CRC32)
    opening = [
        event(EventType.ROTATE, struct.pack("<Q", 4) + b"log.7", flags=ARTIFICIAL, checksum=True),
        made.format_description(checksum=Checksum.CRC32),
    ]
    found = list(made.through(reader, [*opening, payload(b"".join(INNER), algorithm)]))[2:]
    assert [type(one.body) for one in found] == [TableMap, RowsEvent, Xid]
    assert {one.place for one in found} == {EventPlace("log.7", 4)}
    assert reader.place == EventPlace("log.7", 900)


@pytest.mark.parametrize(
    "data",
    [
        payload(b"".join(INNER), size=100),
        payload(b"".join(INNER)[:-3]),
        payload(b"".join(INNER)[:-3], size=10_000),
        payload(INNER[0] + event(EventType.ROTATE, struct.pack("<Q", 4) + b"x")),
        payload(b"".join(INNER), algorithm=7),
        payload(event(EventType.XID, bytes(8))[:9] + b"\xff\xff\xff\x3f" + bytes(30)),
    ],
)
def test_a_damaged_compressed_transaction_is_refused(data: bytes) -> None:
    reader = EventReader()
    list(reader.read(made.format_description(checksum=Checksum.CRC32)))
    with pytest.raises(CdcError) as caught:
        list(reader.read(data))
    assert caught.value.code == MALFORMED_EVENT


def test_other_events() -> None:
    v2 = packed(1) + packed(5) + b"log.7" + packed(2) + packed(3) + packed(70_000) + packed(0)
    v2 = packed(1) + text("log.7") + packed(2) + packed(len(packed(70_000))) + packed(70_000) + packed(0)
    assert bodies(
        event(EventType.HEARTBEAT, b"log.7", log_pos=400),
        event(EventType.HEARTBEAT_V2, v2),
        event(EventType.ROWS_QUERY, b"\x05insert"),
        event(EventType.VIEW_CHANGE, b"whatever"),
        event(150, b"whatever", flags=IGNORABLE),
    ) == [
        HeartbeatEvent("log.7", 400),
        HeartbeatEvent("log.7", 70_000),
        StatementTextEvent(b"insert"),
        OtherEvent(37),
        OtherEvent(150),
    ]


def test_an_unknown_event_is_passed_over_only_where_it_says_so() -> None:
    with pytest.raises(CdcError) as caught:
        bodies(event(150, b"whatever"))
    assert caught.value.code == EVENT_UNKNOWN


def test_an_encrypted_log_is_refused_unless_the_server_says_that_it_decrypts_what_it_sends() -> None:
    start = b"\x01" + struct.pack("<I", 3) + bytes(12)
    assert bodies(event(EventType.START_ENCRYPTION, start, flags=IGNORABLE)) == [StartEncryption(1, 3)]
    with pytest.raises(CdcError) as caught:
        bodies(event(EventType.START_ENCRYPTION, start))
    assert caught.value.code == LOG_ENCRYPTED


def test_all_optional_metadata_of_a_table() -> None:
    codes = bytes(
        [
            TypeCode.LONG,
            TypeCode.STRING,
            TypeCode.STRING,
            TypeCode.STRING,
            TypeCode.VECTOR,
            TypeCode.BLOB,
            TypeCode.YEAR,
        ]
    )
    metadata = b"\xfe\x28" + b"\xf7\x01" + b"\xf8\x01" + b"\x04" + b"\x02"
    fields = [
        (1, b"\x80"),
        (2, packed(45) + packed(1) + packed(63) + packed(2) + packed(8)),
        (4, b"".join(map(text, "abcdefg"))),
        (5, packed(2) + text("x") + text("y")),
        (6, packed(1) + b"\x01\xe9"),
        (9, packed(1) + packed(3) + packed(0) + packed(0)),
        (11, packed(8) + packed(45)),
        (12, b"\xfc"),
        (13, packed(3)),
        (99, b"newer"),
    ]
    (table,) = bodies(table_map(codes, metadata, fields))
    assert [column.type.collation for column in table.columns] == [None, 45, 8, 45, 63, 8, None]
    assert [column.type.members for column in table.columns[2:4]] == [("é",), ("x", "y")]
    assert table.columns[0].type.is_unsigned is True
    assert table.columns[4].dimensions == 3
    assert table.key == (KeyPart(1, 3), KeyPart(0, 0))
    assert [column.is_visible for column in table.columns] == [True] * 6 + [False]


@pytest.mark.parametrize(
    "data",
    [
        table_map(b"", b""),
        table_map(INTS, b"\x28"),
        table_map(INTS, META + b"\x00"),
        table_map(INTS, META, [(1, b"\x00\x00")]),
        table_map(INTS, META, [(1, b"\x00"), (1, b"\x00")]),
        table_map(INTS, META, [(2, packed(45) + packed(1) + packed(8))]),
        table_map(INTS, META, [(4, text("id"))]),
        table_map(INTS, META, [(8, packed(2))]),
        table_map(bytes([TypeCode.NEWDECIMAL]), b"\x42\x00"),
        table_map(bytes([TypeCode.STRING]), b"\xf7\x01", [(6, b"\xfc\xff\xff")]),
        table_map(bytes([TypeCode.BIT]), b"\x00\x09"),
        event(EventType.TABLE_MAP, b"\x01"),
        event(EventType.XID, b"\x01"),
        event(EventType.XID, bytes(9)),
        event(EventType.QUERY, bytes(8) + b"\x09" + bytes(4)),
    ],
)
def test_a_malformed_event_is_refused_with_its_place(data: bytes) -> None:
    reader = EventReader()
    list(reader.read(event(EventType.ROTATE, struct.pack("<Q", 4) + b"log.7", flags=ARTIFICIAL)))
    with pytest.raises(CdcError) as caught:
        made.read(data, reader=reader)
    assert caught.value.code == MALFORMED_EVENT
    assert caught.value.where["file"] == "log.7"
    assert "event" in caught.value.where


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(CdcError) as caught:
        bodies(table_map(bytes([199]), b""))
    assert caught.value.code == TYPE_UNKNOWN


@pytest.mark.parametrize(
    "images",
    [b"\x00" + ONE[:-1], b"\x00" + ONE + b"\x00", b"\x00" + ONE[:2], b"\x00" + ONE[:4] + b"\xff" + b"a"],
)
def test_a_row_that_is_cut_short_is_refused(images: bytes) -> None:
    with pytest.raises(CdcError) as caught:
        bodies(table_map(INTS, META, FIELDS), rows(EventType.WRITE_ROWS, 2, b"\x03", images))
    assert caught.value.code == MALFORMED_EVENT


def test_rows_with_other_columns_than_their_table_are_refused() -> None:
    with pytest.raises(CdcError, match="other columns"):
        bodies(table_map(INTS, META, FIELDS), rows(EventType.WRITE_ROWS, 3, b"\x07", b"\x00" + ONE))


def test_the_checksum_of_a_format_description_leaves_out_that_its_file_is_being_written() -> None:
    data = bytearray(made.format_description(checksum=Checksum.CRC32))
    data[17] |= IN_USE
    reader = EventReader()
    (found,) = reader.read(bytes(data))
    assert found.body.checksum is Checksum.CRC32
    data[30] ^= 1
    with pytest.raises(CdcError) as caught:
        list(reader.read(bytes(data)))
    assert caught.value.code == CHECKSUM


def test_places_beyond_4_gib_go_on() -> None:
    reader = EventReader()
    made.read(reader=reader)
    list(reader.read(event(EventType.ROTATE, struct.pack("<Q", (1 << 32) - 50) + b"log.7", flags=ARTIFICIAL)))
    list(reader.read(event(EventType.XID, bytes(8), log_pos=(1 << 32) - 23)))
    list(reader.read(event(EventType.XID, bytes(8), log_pos=4)))
    assert reader.place == EventPlace("log.7", (1 << 32) + 4)
    list(reader.read(event(EventType.ROTATE, struct.pack("<Q", 4) + b"log.8")))
    assert reader.place == EventPlace("log.8", 4)
    (again,) = reader.read(event(EventType.ROTATE, struct.pack("<Q", 4) + b"log.8", flags=ARTIFICIAL))
    assert again.body == Rotate("log.8", 4)


def test_a_statement_that_loads_a_file_is_a_statement() -> None:
    head = struct.pack("<IIBHH", 7, 0, 4, 0, 7)
    data = head + bytes(13) + b"\x04\xff\x00\xff\x00\xff\x00" + b"shop\0" + b"load data infile 'x' into table t"
    (body,) = bodies(event(EventType.EXECUTE_LOAD_QUERY, data))
    assert isinstance(body, Query)
    assert (body.thread_id, body.schema, body.collation) == (7, "shop", 255)
    assert body.statement.endswith(b"into table t")
