"""Whatever bytes come, the reader gives events or raises an error with a code, in a bounded time and memory."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pytest
from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.errors import MalformedError, UndecodableError
from cdcworker.connectors.mysql.types import json_diff, json_text
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

from . import made
from .test_mysql_events import FIELDS, INNER, INTS, JSON_TABLE, META, TAGGED, payload, tagged

GENUINE = made.recorded() + made.recorded(made.RECORDED_MYSQL)
BY_HAND = [tagged(TAGGED), *INNER, JSON_TABLE, payload(b"".join(INNER)), made.table_map(INTS, META, FIELDS)]
KINDS = st.sampled_from([int(kind) for kind in EventType]) | st.integers(0, 255)


def unchecked(data: bytes) -> bytes:
    """An event of the recording as it is where nothing is checked, with the size that it then has."""
    return data[:9] + struct.pack("<I", len(data) - 4) + data[13:-4]


PLAIN = [unchecked(data) for data in GENUINE if data[4] != EventType.FORMAT_DESCRIPTION] + BY_HAND[:-2]


def read_all(reader: EventReader, events: list[bytes]) -> None:
    for data in events:
        with suppress(CdcError):
            for _ in reader.read(data):
                pass


def resized(data: bytes) -> bytes:
    return data[:9] + struct.pack("<I", len(data)) + data[13:] if len(data) >= 19 else data


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An event with some bytes changed, taken out or put in; mostly of the size that it then says."""
    data = bytearray(draw(st.sampled_from(PLAIN)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1)) if data else 0
        how = draw(st.integers(0, 3))
        if how == 0:
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif how == 1:
            data[at : at + draw(st.integers(1, 8))] = b""
        elif how == 2:
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            data[at : at + 4] = draw(st.sampled_from([b"\xff" * 4, b"\xfe\xff\xff\xff", bytes(4)]))
    return resized(bytes(data)) if draw(st.booleans()) or draw(st.booleans()) else bytes(data)


@given(st.lists(damaged() | st.sampled_from(PLAIN), max_size=6), st.booleans())
def test_damaged_events_are_read_or_refused(events: list[bytes], is_mariadb: bool) -> None:
    reader = EventReader()
    version = "11.4.5-MariaDB" if is_mariadb else "9.1.0"
    maps = [data for data in PLAIN if data[4] == EventType.TABLE_MAP][:3]
    read_all(reader, [made.format_description(version), *maps, *events])


@given(KINDS, st.binary(max_size=200))
def test_any_body_of_any_event_is_read_or_refused(kind: int, body: bytes) -> None:
    reader = EventReader()
    read_all(reader, [made.format_description(), made.event(kind, body)])


@given(st.binary(max_size=120))
def test_any_rows_are_read_or_refused(images: bytes) -> None:
    codes = bytes([3, 15, 246, 17, 18, 19, 252, 16, 245, 10])
    metadata = struct.pack("<H", 40) + b"\x0a\x02" + b"\x03\x06\x00" + b"\x02" + b"\x05\x01" + b"\x04"
    table = made.table_map(codes, metadata, [(1, b"\x80"), (2, b"\x2d")])
    data = made.rows(EventType.WRITE_ROWS, 10, b"\xff\x03", images)
    read_all(EventReader(), [made.format_description(), table, data])


@given(st.binary(max_size=200))
def test_any_json_is_read_or_refused(data: bytes) -> None:
    for read in (json_text.to_text, json_diff.read_diff):
        with suppress(MalformedError, UndecodableError):
            read(data)


@given(st.binary(max_size=60))
def test_any_compressed_part_is_read_or_refused(data: bytes) -> None:
    body = bytes(13) + b"\0" + data
    read_all(EventReader(), [made.format_description(), made.event(EventType.QUERY_COMPRESSED, body)])


def test_a_part_that_grows_without_end_is_not_inflated() -> None:
    bomb = b"\x84" + struct.pack(">I", 10) + zlib.compress(bytes(1 << 20))
    body = bytes(13) + b"\0" + bomb
    read_all(EventReader(), [made.format_description(), made.event(EventType.QUERY_COMPRESSED, body)])


def test_json_that_points_to_itself_again_and_again_is_refused() -> None:
    """Arrays whose elements are all the same array, over and over: printed, it would be larger than any memory."""
    levels, width = 20, 20
    size = 4 + 3 * width
    entries = [struct.pack("<BH", 2, size)] * (levels - 1) + [struct.pack("<BH", 5, 1)]
    containers = [
        struct.pack("<HH", width, size * (levels - level)) + entry * width for level, entry in enumerate(entries)
    ]
    with pytest.raises(MalformedError, match="overlap"):
        json_text.to_text(b"\x02" + b"".join(containers))
