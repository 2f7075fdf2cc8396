"""Values by hand: forms that a newer or older server has, and bytes that are no value."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from cdcworker.connectors.mysql.errors import MalformedError, MissingMetadataError, UnknownTypeError
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from cdcworker.connectors.mysql.types.readers import reader_of
from cdcworker.connectors.mysql.types.times import ZERO_TIMESTAMP, InvalidDate, InvalidDateTime

T = TypeCode


def value(column: ColumnType, data: bytes) -> Any:
    found, end = reader_of(column)(data, 0)
    assert end == len(data)
    return found


@pytest.mark.parametrize(
    ("column", "data", "expected"),
    [
        (ColumnType(T.VECTOR, 4), struct.pack("<I2f", 8, 1.5, -2.0), (1.5, -2.0)),
        (
            ColumnType(T.VARCHAR, 8, collation=63, declared="vector"),
            b"\x08" + struct.pack("<2f", 1.5, -2.0),
            (1.5, -2.0),
        ),
        (ColumnType(T.TIMESTAMP), struct.pack("<I", 86_400), datetime(1970, 1, 2, tzinfo=UTC)),
        (ColumnType(T.TIMESTAMP), bytes(4), ZERO_TIMESTAMP),
        (ColumnType(T.TIMESTAMP2, 0), b"\xff\xff\xff\xff", datetime(2106, 2, 7, 6, 28, 15, tzinfo=UTC)),
        (ColumnType(T.DATETIME), struct.pack("<Q", 20240229123456), datetime(2024, 2, 29, 12, 34, 56)),
        (ColumnType(T.DATETIME), bytes(8), InvalidDateTime(InvalidDate(0, 0, 0), 0, 0, 0, 0)),
        (ColumnType(T.TIME), (8385959).to_bytes(3, "little"), timedelta(hours=838, minutes=59, seconds=59)),
        (ColumnType(T.TIME), (-10203).to_bytes(3, "little", signed=True), -timedelta(hours=1, minutes=2, seconds=3)),
        (ColumnType(T.TIME2, 1), b"\x7f\xff\xff\xf6", -timedelta(milliseconds=100)),
        (ColumnType(T.DATE), struct.pack("<I", 2024 << 9 | 2 << 5 | 29)[:3], date(2024, 2, 29)),
        (ColumnType(T.STRING, 12, collation=35), b"\x03\x00a\x00", "a"),
        (ColumnType(T.STRING, 4, collation=63), b"\x01x", b"x\0\0\0"),
        (ColumnType(T.ENUM, 1, members=("a", "b")), b"\x00", ""),
        (ColumnType(T.ENUM, 2, members=("a", "b")), b"\x02\x00", "b"),
        (ColumnType(T.SET, 8, members=("a", "b")), b"\x03" + bytes(7), "a,b"),
        (ColumnType(T.NEWDECIMAL, 4, 2), b"\x8c\x22", Decimal("12.34")),
        (ColumnType(T.LONGLONG, is_unsigned=True), b"\xff" * 8, 2**64 - 1),
    ],
)
def test_a_value(column: ColumnType, data: bytes, expected: Any) -> None:
    assert value(column, data) == expected


INET6 = ColumnType(T.STRING, 16, collation=63, declared="inet6")


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ("00000002000300040005000600070008", "::2:3:4:5:6:7:8"),
        ("0001000200030004000500060007", "1:2:3:4:5:6:7::"),
        ("00010000000300000005000600070008", "1::3:0:5:6:7:8"),
        ("00010000000300000000000600070008", "1:0:3::6:7:8"),
        ("00010002000300040005000600070008", "1:2:3:4:5:6:7:8"),
        ("", "::"),
    ],
)
def test_an_address_of_version_6_is_as_short_as_the_server_prints_it(groups: str, text: str) -> None:
    data = bytes.fromhex(groups)
    assert value(INET6, bytes([len(data)]) + data) == text


@pytest.mark.parametrize(
    ("column", "data"),
    [
        (ColumnType(T.NEWDECIMAL, 9, 0), b"\xff\xff\xff\xff"),
        (ColumnType(T.BIT, 3), b"\x08"),
        (ColumnType(T.ENUM, 1, members=("a",)), b"\x02"),
        (ColumnType(T.SET, 1, members=("a",)), b"\x02"),
        (ColumnType(T.DATE), b"\xff\xff\xff"),
        (ColumnType(T.DATETIME2, 0), b"\x00\x00\x00\x00\x00"),
        (ColumnType(T.DATETIME2, 0), b"\x99\x00\x00\x0f\xff"),
        (ColumnType(T.DATETIME2, 6), b"\x99\x00\x00\x00\x00\xff\xff\xff"),
        (ColumnType(T.DATETIME), b"\xff" * 8),
        (ColumnType(T.TIME2, 0), b"\xff\xff\xff"),
        (ColumnType(T.TIMESTAMP2, 2), b"\x00\x00\x00\x01\xff"),
        (ColumnType(T.GEOMETRY, 1), b"\x03abc"),
        (ColumnType(T.VECTOR, 1), b"\x03abc"),
        (ColumnType(T.STRING, 4, collation=63, declared="inet4"), b"\x05abcde"),
        (ColumnType(T.BLOB_COMPRESSED, 1, collation=63), b"\x02\x81\x05"),
        (ColumnType(T.BLOB_COMPRESSED, 1, collation=63), b"\x01\x11"),
        (ColumnType(T.BLOB_COMPRESSED, 1, collation=63), b"\x05\x84\xff\xff\xff\xff"),
    ],
)
def test_bytes_that_are_no_value_are_refused(column: ColumnType, data: bytes) -> None:
    with pytest.raises(MalformedError):
        value(column, data)


@pytest.mark.parametrize(
    ("column", "error"),
    [
        (ColumnType(T.LONG), MissingMetadataError),
        (ColumnType(T.VARCHAR, 4), MissingMetadataError),
        (ColumnType(T.ENUM, 1), MissingMetadataError),
        (ColumnType(T.DECIMAL), UnknownTypeError),
        (ColumnType(T.NULL), UnknownTypeError),
        (ColumnType(T.VARCHAR, 4, collation=999), UnknownTypeError),
        (ColumnType(T.VARCHAR, 4, collation=63, declared="colour"), UnknownTypeError),
        (ColumnType(T.BLOB, 5, collation=63), MalformedError),
        (ColumnType(T.TIME2, 7), MalformedError),
    ],
)
def test_a_type_of_which_too_little_is_known_has_no_reader(column: ColumnType, error: type[Exception]) -> None:
    with pytest.raises(error):
        reader_of(column)


def test_what_is_no_date_is_printed_as_the_server_prints_it() -> None:
    assert str(InvalidDateTime(InvalidDate(2023, 2, 31), 1, 2, 3, 0)) == "2023-02-31 01:02:03"
    assert str(InvalidDateTime(InvalidDate(0, 0, 0), 0, 0, 0, 5)) == "0000-00-00 00:00:00.000005"
