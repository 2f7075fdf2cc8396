"""Rows of result sets, as a server sends them, of tables with columns of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, TablePlanner
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace, GtidVisibility
from cdcworker.connectors.mysql.snapshot.row_emitter import RowEmitter, SelectedPositions
from cdcworker.connectors.mysql.snapshot.row_packets import walk_rows
from cdcworker.connectors.mysql.snapshot.selected_rows import SelectedRows, form_of
from cdcworker.connectors.mysql.snapshot.selected_values import is_octets
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.transport.packets import packets
from cdcworker.connectors.mysql.types.column import ColumnType
from cdcworker.schemas.errors import CdcError
from hypothesis import strategies as st

from tests.unit.connectors.native_records import Registry

from ..decode.row_events import KINDS, TEMPLATE, Logged, T, native, settings_of, tables

PLACE = GtidPlace.parse("", is_mariadb=False)
VIEW = ReadView(GtidVisibility(PLACE, exact=True), PLACE, 1_700_000_000_654_321)
END = b"\xfe\0\0\2\0"
BITS = {T.TINY: 8, T.SHORT: 16, T.INT24: 24, T.LONG: 32, T.LONGLONG: 64}


def value(data: bytes | None) -> bytes:
    """With its length in front."""
    if data is None:
        return b"\xfb"
    size = len(data)
    for most, head, width in ((250, b"", 1), (0xFFFF, b"\xfc", 2), (0xFFFFFF, b"\xfd", 3)):
        if size <= most:
            return head + size.to_bytes(width, "little") + data
    return b"\xfe" + size.to_bytes(8, "little") + data


def payload(values: Sequence[bytes | None]) -> bytes:
    return b"".join(map(value, values))


def answer(payloads: Sequence[bytes], number: int = 0) -> bytes:
    """Packets that follow each other."""
    out = []
    for one in payloads:
        made = packets(one, number)
        number += len(one) // 0xFFFFFF + 1
        out.append(made)
    return b"".join(out)


def packed(plan: TablePlan, payloads: Sequence[bytes], module: ModuleType | None = None) -> SelectedRows:
    data = bytearray(answer(payloads))
    end, count, last, _ = walk_rows(data, 0, len(data), 0)
    assert (end, count) == (len(data), len(payloads))
    return SelectedRows(data, end, count, last, True, form_of(plan, module))


def plan_of(table: Logged, config: dict[str, str]) -> TablePlan:
    settings = settings_of(tuple(config.items()))
    plan = TablePlanner(settings, source_schema("mysql"), table.catalog).plan(table.map)
    assert plan is not None
    return plan


def outcome(
    plan: TablePlan, payloads: Sequence[bytes], *, fast: bool, gone: Callable[[int], bool] = lambda number: False
) -> tuple[Any, ...]:
    """Records and numbers that were given, or the error."""
    registry, progress = Registry(), SnapshotProgress()
    rows = packed(plan, payloads, native if fast else None)
    for number, at in enumerate(list(rows.offsets())):
        if gone(number):
            rows.data[at + rows.mark] = rows.gone
    emitter = RowEmitter(progress, TEMPLATE, CommitNumbers(77), lambda: VIEW.snap, is_mariadb=False)
    if fast:
        assert native is not None
        emitter.use_layouts(registry, native)
    try:
        return registry.produced(emitter.rows(VIEW, rows)), progress.e, progress.n, progress.rows
    except CdcError as exc:
        return exc.code, exc.message, dict(exc.where)


SAMPLES = {
    **dict.fromkeys((T.DATETIME, T.DATETIME2, T.TIMESTAMP), b"2024-02-29 12:34:56"),
    T.TIMESTAMP2: b"2024-02-29 12:34:56",
    T.DATE: b"2024-02-29",
    T.TIME: b"12:34:56",
    T.TIME2: b"-838:59:59",
    T.VECTOR: b"0000803F00000040",
    T.GEOMETRY: bytes(4) + b"\1\1\0\0\0" + bytes(16),
}


def sample() -> tuple[TablePlan, list[bytes]]:
    """A table with a column of every kind, and the values of a row of it."""
    table = Logged(KINDS, (False,) + (True,) * (len(KINDS) - 1), (0,))
    return plan_of(table, {}), [SAMPLES.get(kind.type.code, b"1") for kind in KINDS]


def stamp_of(plan: TablePlan) -> SelectedPositions:
    return SelectedPositions(SnapshotProgress(), TEMPLATE, plan, VIEW.ts_us, 5)


def texts_of(kind: ColumnType, name: str) -> st.SearchStrategy[bytes]:
    """Texts of a type, and some that are none of it."""
    some = st.sampled_from(
        [b"", b"0", b"-0", b"00", b"-", b"0.0", b"-0.00", b"1e5", b"NaN", b"99999999999999999999", b"\xff"]
    )
    return st.one_of(_usual(kind, name), _usual(kind, name), _usual(kind, name), some)


def _usual(kind: ColumnType, name: str) -> st.SearchStrategy[bytes]:
    code = kind.code
    if code in BITS:
        bits = BITS[code]
        low, high = (0, 2**bits - 1) if kind.is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        numbers = st.one_of(st.integers(low, high), st.sampled_from([low, high]))
        return st.one_of(numbers.map(lambda n: b"%d" % n), st.integers(0, 9).map(lambda n: b"%010d" % n))
    if code is T.BIT:
        return st.integers(0, 2**kind.length).map(lambda n: b"%d" % n)
    if code is T.YEAR:
        return st.sampled_from([b"0000", b"1901", b"2155"])
    if code in (T.FLOAT, T.DOUBLE):
        floats = st.floats(width=32 if code is T.FLOAT else 64, allow_nan=False, allow_infinity=False)
        return floats.map(lambda n: repr(n).encode())
    if code is T.NEWDECIMAL:
        numbers = st.integers(-(10**kind.length) + 1, 10**kind.length - 1)
        return st.one_of(numbers, st.integers(-99, 99)).map(lambda n: _decimal(n, kind.scale))
    if code in (T.DATE, T.NEWDATE):
        days = st.dates().map(lambda d: d.isoformat().encode())
        return st.one_of(
            days, st.sampled_from([b"0000-00-00", b"2023-02-29", b"2024-02-29", b"2021-13-01", b"2021x01-01"])
        )
    if code in (T.DATETIME, T.DATETIME2, T.TIMESTAMP, T.TIMESTAMP2):
        return st.one_of(
            _moments(kind.length),
            st.sampled_from([b"0000-00-00 00:00:00", b"2023-02-29 00:00:00.5", b"2024-01-01 24:00:00"]),
        )
    if code in (T.TIME, T.TIME2):
        return st.builds(_span, st.integers(-838 * 3600, 838 * 3600), st.integers(0, 999_999), st.integers(0, 6))
    return _octets(kind, name)  # fmt: skip


def _octets(kind: ColumnType, name: str) -> st.SearchStrategy[bytes]:
    if kind.code is T.GEOMETRY:
        return st.just(bytes(4) + b"\1\1\0\0\0" + bytes(16))
    if kind.code is T.VECTOR:
        return st.just(b"0000803F00000040")
    if kind.code in (T.ENUM, T.SET):
        return st.sampled_from([b"", *(member.encode() for member in kind.members or ())])
    return st.binary(max_size=300) if is_octets(kind) else st.text(max_size=300).map(str.encode)


def _decimal(number: int, scale: int) -> bytes:
    digits = f"{abs(number):0{scale + 1}}"
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"{'-' if number < 0 else ''}{text}".encode()


def _moments(digits: int) -> st.SearchStrategy[bytes]:
    def shown(found: Any) -> bytes:
        text = f"{found.year:04}-{found.month:02}-{found.day:02} {found.hour:02}:{found.minute:02}:{found.second:02}"
        return f"{text}.{found.microsecond:06}"[: 20 + digits if digits else 19].encode()

    return st.datetimes().map(shown)


def _span(seconds: int, us: int, digits: int) -> bytes:
    size = abs(timedelta(seconds=seconds)) // timedelta(seconds=1)
    text = f"{'-' if seconds < 0 else ''}{size // 3600:02}:{size // 60 % 60:02}:{size % 60:02}"
    return f"{text}.{us:06}"[: len(text) + 1 + digits].encode() if digits else text.encode()


@st.composite
def answers(draw: st.DrawFn, configs: st.SearchStrategy[dict[str, str]]) -> tuple[TablePlan, list[bytes], set[int]]:
    """A plan, payloads of its rows, and which rows are gone. Some rows have nulls where none may be, or are damaged."""
    table, config = draw(tables()), draw(configs)
    try:
        plan = plan_of(table, config)
    except CdcError:
        # A mask of values that are not written as text.
        plan = plan_of(table, {name: value for name, value in config.items() if "mask" not in name})
    payloads = []
    for _ in range(draw(st.integers(0, 6))):
        values = [
            None
            if draw(st.integers(0, 4 if table.nullable[place] else 60)) == 0
            else draw(texts_of(kind, table.kinds[place].name))
            for place, kind in zip(plan.taken, plan.types, strict=True)
        ]
        payloads.append(payload(values))
    if payloads and not draw(st.integers(0, 12)):
        payloads[-1] = draw(st.binary(min_size=1, max_size=30).filter(lambda data: data[0] not in (0xFE, 0xFF)))
    return plan, payloads, {number for number in range(len(payloads)) if not draw(st.integers(0, 4))}
