"""Rows of result sets in the native core against the converters and the encoder: the same records, byte for byte; and packets as no
server should send them."""

from __future__ import annotations

import io
import random
from typing import Any

import pymysql
import pytest
from cdcworker.connectors.mysql.errors import VALUE
from cdcworker.connectors.mysql.snapshot import row_packets
from cdcworker.connectors.mysql.snapshot.row_emitter import SelectedRowWriter
from cdcworker.connectors.mysql.snapshot.row_layouts import CALL, kind_of
from cdcworker.connectors.mysql.snapshot.row_packets import payload_at, values_of, walk_rows
from cdcworker.connectors.mysql.snapshot.selected_rows import SelectedRows, form_of, selected_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.connectors.native_records import Registry

from ..decode.row_events import (
    BINARY,
    KINDS,
    MODES,
    MODES_IN_PART,
    UTF8,
    Kind,
    Logged,
    T,
    native,
    needs_native,
)
from ..decode.row_events import ColumnType as Type
from .selected import END, answer, answers, outcome, packed, payload, plan_of, sample, stamp_of

ERROR = b"\xff\x9a\x05#HY000the server stops"
INT = next(kind for kind in KINDS if kind.name == "long")
TEXT = Kind(Type(T.VARCHAR, 400, collation=UTF8), "varchar(100)", st.none())
NUMBERED = plan_of(Logged((INT, TEXT), (False, True), (0,)), {})
NAMED = plan_of(Logged((INT, TEXT), (True, False), (1, 0)), {})


def check(found: Any) -> None:
    plan, payloads, gone = found
    expected = outcome(plan, payloads, fast=False, gone=gone.__contains__)
    assert outcome(plan, payloads, fast=True, gone=gone.__contains__) == expected


@needs_native
@given(answers(MODES))
@settings(max_examples=80, deadline=None)
def test_the_core_writes_what_the_converters_and_the_encoder_write(found):
    check(found)


@needs_native
@given(answers(MODES_IN_PART))
@settings(max_examples=40, deadline=None)
def test_the_core_writes_what_the_converters_and_the_encoder_write_of_some_columns_and_masked_ones(found):
    check(found)


@needs_native
@pytest.mark.long
@given(answers(MODES), answers(MODES_IN_PART))
@settings(max_examples=5_000, deadline=None)
def test_the_core_writes_what_the_converters_and_the_encoder_write_of_many_tables(found, partly):
    check(found)
    check(partly)


@needs_native
def test_a_sample_of_every_kind_of_column_is_written_by_the_core():
    plan, values = sample()
    row = payload(values)
    data = bytearray(answer([row]))
    layout, core = SelectedRowWriter(Registry(), native).layout(stamp_of(plan)), native.Selected()
    walk_rows(data, 0, len(data), 0)
    assert core.write(data, 0, len(data), layout, (b"s", b"t"), 0) == (len(data), 1)
    for size in range(len(row)):
        short = bytearray(answer([row[:size]]))
        assert core.write(short, 0, len(short), layout, (b"s", b"t"), 0)[1] == 0


def test_common_types_are_native():
    """All but old times, what is an array or a record, addresses of bytes, and decimals of many digits."""
    columns = sample()[0].table.columns
    left = {k.name for k, column in zip(KINDS, columns, strict=True) if kind_of(k.type, column.type)[0] == CALL}
    assert left == {"decimal(30,9)", "decimal(65,30)", "timestamp", "datetime", "time", "geometry", "vector(2)"}


WALKS = [pytest.param(walk_rows, id="python")]
if native is not None:
    WALKS.append(pytest.param(native.walk_rows, id="native"))


@pytest.mark.parametrize("walk", WALKS)
def test_rows_are_walked_up_to_the_first_that_is_none_or_is_not_whole(walk):
    rows = [payload([b"1"]), payload([b"22", None]), payload([None])]
    starts = [0, 6, 14]
    for first in (0, 254):
        plain = answer([*rows, END], first)
        for end in range(len(plain) + 1):
            data = bytearray(plain)
            whole = [at for at in starts if at + 4 + plain[at] <= end]
            expected = (whole[-1] + 4 + plain[whole[-1]] if whole else 0, len(whole), whole[-1] if whole else -1)
            assert walk(data, 0, end, first) == (*expected, (first + len(whole)) & 255)
            assert [data[at + 3] for at in whole] == [0] * len(whole)
    for other in (ERROR, END, b"", b"\xfe"):
        data = bytearray(answer([other]))
        assert walk(data, 0, len(data), 0) == (0, 0, -1, 0)
    data = bytearray(answer([rows[0]], 3))
    assert walk(data, 0, len(data), 2) == (0, 0, -1, 2)


@needs_native
def test_a_walk_stays_in_its_buffer():
    data = bytearray(answer([payload([b"1"])]))
    for start, end in ((-1, 5), (0, 99), (6, 5)):
        with pytest.raises(ValueError):
            native.walk_rows(data, start, end, 0)
        with pytest.raises(ValueError):
            native.keyed(data, start, end, KEYED)
    with pytest.raises(BufferError):
        native.walk_rows(bytes(data), 0, len(data), 0)


@pytest.mark.parametrize("walk", WALKS)
def test_a_row_of_several_packets_is_one_row(walk):
    large = b"x" * (2 * 0xFFFFFF)
    rows = [
        payload([b"1", b"a"]),
        payload([b"2", large]),
        payload([b"3", large[: 0xFFFFFF - 6]]),
        payload([b"4", None]),
    ]
    assert len(rows[2]) == 0xFFFFFF
    data = bytearray(answer([*rows, END], 250))
    end, count, last, number = walk(data, 0, len(data), 250)
    assert (count, number, bytes(data[end : end + 4])) == (4, (250 + 7) & 255, b"\5\0\0\1")
    found = SelectedRows(data, end, count, last, True, form_of(NUMBERED, native))
    assert [found.row(at) for at in found.offsets()] == [
        (1, "a"), (2, large.decode()), (3, large[: 0xFFFFFF - 6].decode()), (4, None)
    ]  # fmt: skip
    assert found.pop((2,))[1] == ("2",)
    assert [values_of(payload_at(data, at))[0] for at in found.offsets()] == [b"1", b"3", b"4"]
    cut = bytearray(answer([rows[1]]))
    assert walk(cut, 0, len(cut) - 1, 0)[1] == 0
    cut[0xFFFFFF + 4 + 3] = 7
    assert walk(cut, 0, len(cut), 0)[1] == 0


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x05abc", b"\xfc\1", b"\xfd\xff\xff\xff", b"\xfe" + b"\xff" * 8, b"\xfe\1"]
)
def test_a_value_with_a_length_beyond_the_end_is_refused(data):
    with pytest.raises(ValueError):
        values_of(data)
    made = payload([b"1"]) + data
    assert outcome(NUMBERED, [made], fast=False)[0] == VALUE
    if native is not None:
        assert outcome(NUMBERED, [made], fast=True) == outcome(NUMBERED, [made], fast=False)


@pytest.mark.parametrize(
    "module", [pytest.param(native, marks=needs_native, id="native"), pytest.param(None, id="python")]
)
def test_a_key_is_looked_up_and_its_row_leaves(module):
    payloads = [payload([b"%d" % n, b"v%d" % n]) for n in (-5, 0, 7, 2147483647)]
    rows = packed(NUMBERED, payloads, module)
    assert rows.pop((7,)) == ((7, "v7"), ("7",))
    assert rows.pop((7,)) is None
    assert rows.pop((-5,)) == ((-5, "v-5"), ("-5",))
    assert rows.pop((9,)) is None
    assert [rows.row(at) for at in rows.offsets()] == [(0, "v0"), (2147483647, "v2147483647")]
    rows.clear()
    assert list(rows.offsets()) == []
    assert rows.pop((0,)) is None
    both = packed(NAMED, [payload([b"1", "é".encode()]), payload([b"2", b""])], module)
    assert both.pop(("é", 1)) == ((1, "é"), ("é", "1"))
    assert [both.key_texts(at) for at in both.offsets()] == [("", "2")]


@needs_native
@given(answers(MODES))
@settings(max_examples=40, deadline=None)
def test_the_core_looks_up_the_keys_that_python_does(found):
    plan, payloads, gone = found
    if not plan.table.key:
        return
    fast, slow = (packed(plan, payloads, module) for module in (native, None))
    for rows in (fast, slow):
        for number, at in enumerate(list(rows.offsets())):
            if number in gone:
                rows.data[at + rows.mark] = rows.gone
    form, data = fast.form, fast.data
    known = form.keyed and form.keyed(data, 0, len(data), form.key_columns)
    if known is not None:
        assert known == slow.indexed()


KEYED = ((0, 0, 1), (2, 1, 0))


@needs_native
def test_a_key_that_the_core_does_not_know_is_looked_up_all_the_same():
    big = next(kind for kind in KINDS if kind.type == Type(T.LONGLONG, is_unsigned=True))
    plan = plan_of(Logged((big,), (False,), (0,)), {"bigint.unsigned.handling.mode": "precise"})
    rows = packed(plan, [payload([b"18446744073709551615"]), payload([b"5"])], native)
    assert rows.pop((b"\5",)) is not None

    def keyed(*values: bytes | None) -> object:
        data = bytearray(answer([payload(values)]))
        return native.keyed(data, 0, len(data), KEYED)

    assert keyed(b"12", b"x" * 300, b"a") == {("a", 12): 0}
    assert keyed(b"-12", None, "é".encode(), b"") == {("é", -12): 0}
    for values in (
        (b"12", b"x"),
        (None, b"x", b"a"),
        (b"9" * 19, b"", b"a"),
        (b"12", b"", b"\xff"),
        (b"12", b"", None),
    ):
        assert keyed(*values) is None
    assert native.keyed(bytearray(answer([payload([b"\xff"])])), 0, 6, ((0, 2, 0),)) == {(b"\xff",): 0}


class Answering:
    """A connection whose server sends these bytes, some at a time."""

    def __init__(self, data: bytes, number: int = 0) -> None:
        self.file, self.number, self.closed = io.BufferedReader(SlowBytes(data)), number, False

    def begin_rows(self, _: str) -> tuple[Any, int]:
        return self.file, self.number

    def _force_close(self) -> None:
        self.closed = True


class SlowBytes(io.BytesIO):
    def readinto(self, room: Any) -> int:
        return super().readinto(memoryview(room)[: max(1, len(room) // 3)])


def selected(connection: Any, bytes_max: int = 1 << 30, **more: bool) -> list[SelectedRows]:
    return list(selected_rows(connection, "select", form_of(NUMBERED, native), native, bytes_max, **more))


def test_rows_come_in_pieces_that_end_with_the_answer():
    payloads = [payload([b"%d" % n, b"x" * 1000]) for n in range(2_000)]
    connection = Answering(answer([*payloads, END], 9), 9)
    pieces = selected(connection, 100_000)
    assert [piece.whole for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [piece.row(at)[0] for piece in pieces for at in piece.offsets()] == list(range(2_000))
    assert sum(piece.count for piece in pieces) == 2_000
    assert len(pieces) > 5
    assert not connection.closed


def test_an_error_in_the_middle_of_rows_is_the_servers():
    connection = Answering(answer([payload([b"1", b"a"]), ERROR]))
    with pytest.raises(pymysql.Error) as caught:
        selected(connection)
    assert caught.value.args[0] == 1434
    assert not connection.closed


ROW = payload([b"1", b"a"])
BROKEN = {
    "an end before the end": answer([ROW]),
    "an end in a head": answer([ROW]) + b"\1\0",
    "an empty packet": answer([ROW, b"", END]),
    "a short error": answer([ROW, b"\xff\1"]),
    "a row of another number": answer([ROW]) + answer([ROW], 5),
    "an end of another number": answer([ROW]) + answer([END], 5),
    "a part of another number": answer([ROW]) + b"\xff\xff\xff\1" + b"a" * 0xFFFFFF + b"\1\0\0\7b",
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in BROKEN.items()])
def test_packets_that_no_server_sends_end_the_connection(data):
    connection = Answering(data)
    with pytest.raises(pymysql.OperationalError) as caught:
        selected(connection)
    assert caught.value.args[0] == 2013
    assert connection.closed


def test_a_row_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(row_packets, "EVENT_BYTES_MAX", 1 << 20)
    connection = Answering(b"".join(answer([b"x" * 0xFFFFFF], n)[: 4 + 0xFFFFFF] for n in range(2)))
    with pytest.raises(pymysql.OperationalError):
        selected(connection)


@pytest.mark.parametrize(("reads_all", "closed"), [(False, True), (True, False)])
def test_a_long_rest_that_nobody_wants_is_broken_off(monkeypatch, reads_all, closed):
    monkeypatch.setattr(row_packets, "LEFT_BYTES_MAX", 4 << 20)
    large = [payload([b"%d" % n, b"x" * (1 << 20)]) for n in range(12)]
    for payloads, is_closed in ((large, closed), (large[:2], False)):
        connection = Answering(answer([*payloads, END]))
        pieces = selected_rows(connection, "select", form_of(NUMBERED, native), native, 10, reads_all=reads_all)
        assert next(pieces).count >= 1
        pieces.close()
        assert connection.closed is is_closed


def shaken(seed: int) -> None:
    chosen = random.Random(seed)
    data = bytearray(answer([payload([b"%d" % n, b"-1.50", b"2024-02-29 12:34:56.7", b"b" * 300]) for n in range(4)]))
    for _ in range(chosen.randint(1, 4)):
        data[chosen.randrange(len(data))] = chosen.choice([chosen.randrange(256), 251, 252, 253, 254, 255, 0])
    again = bytearray(data)
    found = native.walk_rows(data, 0, len(data), 0)
    assert (found, data) == (walk_rows(again, 0, len(again), 0), again)
    layout, core, at = SelectedRowWriter(Registry(), native).layout(stamp_of(SHAKEN)), native.Selected(), 0
    while at < len(data) - 4:
        done, _ = core.write(data, at, len(data), layout, (b"s", b"t"), 0)
        assert at <= done <= len(data)
        native.keyed(data, at, len(data), ((0, 0, 1), (chosen.randrange(5), chosen.randrange(3), 0)))
        at = max(done + 1, at + 1)
    core.write(chosen.randbytes(60), 0, 60, layout, (b"s", b"t"), 0)


SHAKEN = plan_of(
    Logged(
        (INT, next(k for k in KINDS if k.name == "decimal(10,2)"), next(k for k in KINDS if k.name == "datetime(1)"),
         Kind(Type(T.BLOB, 2, collation=BINARY), "blob", st.none())), (False, True, True, True), (0,),
    ), {},
)  # fmt: skip


@needs_native
def test_broken_packets_never_crash_the_core():
    for seed in range(100):
        shaken(seed)


@needs_native
@pytest.mark.long
def test_many_broken_buffers_never_crash_the_core():
    for seed in range(1000, 21_000):
        shaken(seed)
