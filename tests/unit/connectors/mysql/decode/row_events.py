"""Tables with columns of every kind, rows events of them, and what the Python decoder and encoder make of these: the oracle of the
native core."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.binlog.table_map import Column, KeyPart, TableMap
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.catalog.tables import CatalogColumn, CatalogTable
from cdcworker.connectors.mysql.config.settings import MySqlSettings, parse
from cdcworker.connectors.mysql.decode import native_layouts, native_rows
from cdcworker.connectors.mysql.decode.captured_plans import CapturedPlans
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, TablePlanner
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from cdcworker.connectors.mysql.types.readers import width_of
from cdcworker.schemas.change import Position
from cdcworker.schemas.errors import CdcError
from hypothesis import strategies as st

from tests.conftest import unless_built
from tests.unit.connectors.native_records import Registry

from ..binlog import made

T = TypeCode
native = native_rows.native()
needs_native = unless_built(native)
TEMPLATE = {"version": "v", "connector": "mysql", "name": "shop", "snapshot": "false", "sequence": None}
CONFIG = {
    "name": "shop",
    "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    "database.hostname": "h",
    "database.user": "u",
    "database.server.id": "1",
    "topic.prefix": "shop",
}
UTF8, LATIN1, GBK, ASCII, SJIS, UTF16, BINARY = 45, 8, 28, 11, 13, 54, 63


def fixed(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def among(*values: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(values)


def prefixed(size: int, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return values.map(lambda value: len(value).to_bytes(size, "little") + value)


def times(head: int, fraction: int, *known: bytes) -> st.SearchStrategy[bytes]:
    """Valid ones and any: of many bytes few are a time."""
    return st.one_of(among(*(value + bytes(fraction) for value in known)), fixed(head + fraction))


@st.composite
def datetimes(draw: st.DrawFn, digits: int) -> bytes:
    found = draw(st.datetimes())
    days = (found.year * 13 + found.month) << 5 | draw(st.sampled_from([found.day, found.day, found.day, 0, 31]))
    packed = (days << 17 | found.hour << 12 | found.minute << 6 | found.second) + (1 << 39)
    size = (digits + 1) // 2
    return packed.to_bytes(5, "big") + (found.microsecond // 10 ** (6 - 2 * size)).to_bytes(size, "big")


@st.composite
def spans(draw: st.DrawFn, digits: int) -> bytes:
    size = (digits + 1) // 2
    us = draw(st.integers(0, 838 * 3600 * 10**6))
    seconds, fraction = divmod(us, 10**6)
    packed = (seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60) << 8 * size
    packed |= fraction // 10 ** (6 - 2 * size)
    return ((0x800000 << 8 * size) + (packed if draw(st.booleans()) else -packed)).to_bytes(3 + size, "big")


@st.composite
def decimals(draw: st.DrawFn, precision: int, scale: int) -> bytes:
    highest = 10**precision - 1
    number = draw(st.one_of(st.integers(0, highest), st.integers(0, min(highest, 1000))))
    negative, text = draw(st.booleans()), f"{number:0{precision}}"
    whole, fraction = text[: precision - scale], text[precision - scale :]
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    groups = [whole[: len(whole) % 9], *(whole[i : i + 9] for i in range(len(whole) % 9, len(whole), 9))]
    groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    packed = bytearray(b"".join(int(group or "0").to_bytes(sizes[len(group)], "big") for group in groups))
    if negative:
        packed = bytearray(byte ^ 0xFF for byte in packed)
    packed[0] ^= 0x80
    return bytes(packed)


def text(encoding: str, size: int = 30) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.text(max_size=size).map(lambda value: value.encode(encoding, "replace")),
        st.text("ab ", max_size=12).map(lambda value: value.encode(encoding)),
    )


class Kind(NamedTuple):
    """A type, how the catalog calls it, and values as the log has them."""

    type: ColumnType
    name: str
    values: st.SearchStrategy[bytes]

    @property
    def width(self) -> int:
        return width_of(self.type)


def _integer(code: TypeCode, size: int, *, unsigned: bool) -> Kind:
    return Kind(ColumnType(code, is_unsigned=unsigned), code.name.lower(), st.one_of(fixed(size), among(bytes(size))))


ENUM = ("small", "medium", "größer")
KINDS = (
    *(
        _integer(code, size, unsigned=unsigned)
        for code, size in ((T.TINY, 1), (T.SHORT, 2), (T.INT24, 3), (T.LONG, 4), (T.LONGLONG, 8))
        for unsigned in (False, True)
    ),
    Kind(ColumnType(T.FLOAT, 4), "float", st.floats(width=32).map(lambda f: struct.pack("<f", f))),
    Kind(ColumnType(T.FLOAT, 4), "float(7,2)", st.floats(width=32).map(lambda f: struct.pack("<f", f))),
    Kind(ColumnType(T.DOUBLE, 8), "double", st.floats().map(lambda f: struct.pack("<d", f))),
    Kind(ColumnType(T.YEAR), "year(4)", fixed(1)),
    Kind(ColumnType(T.BIT, 1), "bit(1)", fixed(1)),
    Kind(ColumnType(T.BIT, 11), "bit(11)", among(b"\0\0", b"\x07\xff", b"\x01\x02", b"\x08\0")),
    Kind(ColumnType(T.BIT, 64), "bit(64)", fixed(8)),
    *(
        Kind(ColumnType(T.NEWDECIMAL, p, s), f"decimal({p},{s})", st.one_of(decimals(p, s), decimals(p, s), decimals(p, s)))
        for p, s in ((10, 2), (18, 4), (18, 18), (9, 0), (5, 5), (1, 0), (30, 9), (65, 30))
    ),
    Kind(ColumnType(T.NEWDECIMAL, 9, 2), "decimal(9,2)", fixed(5)),
    Kind(ColumnType(T.DATE), "date", st.one_of(
        st.dates().map(lambda d: (d.year << 9 | d.month << 5 | d.day).to_bytes(3, "little")), fixed(3))),
    *(Kind(ColumnType(T.DATETIME2, d), f"datetime({d})", st.one_of(datetimes(d), datetimes(d), fixed(5 + (d + 1) // 2)))
      for d in (0, 1, 3, 4, 6)),
    *(Kind(ColumnType(T.TIMESTAMP2, d), f"timestamp({d})",
           times(4, (d + 1) // 2, bytes(4), b"\x65\xd0\x11\x22", b"\0\0\0\1", b"\xff" * 4)) for d in (0, 1, 2, 3, 5, 6)),
    *(Kind(ColumnType(T.TIME2, d), f"time({d})", st.one_of(spans(d), spans(d), fixed(3 + (d + 1) // 2))) for d in (0, 2, 3, 6)),
    Kind(ColumnType(T.TIMESTAMP), "timestamp", among(bytes(4), b"\1\2\3\4")),
    Kind(ColumnType(T.DATETIME), "datetime", among(bytes(8), struct.pack("<Q", 20240229123456))),
    Kind(ColumnType(T.TIME), "time", among(bytes(3), (8385959).to_bytes(3, "little"))),
    *(Kind(ColumnType(T.VARCHAR, 120, collation=c), "varchar(30)", prefixed(1, text(e)))
      for c, e in ((UTF8, "utf-8"), (LATIN1, "latin1"), (GBK, "gbk"), (ASCII, "ascii"), (SJIS, "shift_jis"), (UTF16, "utf-16-be"))),
    Kind(ColumnType(T.VARCHAR, 900, collation=UTF8), "varchar(225)", prefixed(2, st.one_of(text("utf-8"), st.binary(max_size=9)))),
    *(Kind(ColumnType(T.STRING, 40, collation=c), "char(10)", prefixed(1, text(e)))
      for c, e in ((UTF8, "utf-8"), (LATIN1, "latin1"), (UTF16, "utf-16-be"))),
    Kind(ColumnType(T.STRING, 9, collation=BINARY), "binary(9)", prefixed(1, st.binary(max_size=10))),
    Kind(ColumnType(T.VARCHAR, 90, collation=BINARY), "varbinary(90)", prefixed(1, st.binary(max_size=40))),
    *(Kind(ColumnType(T.BLOB, n, collation=c), "text", prefixed(n, text("utf-8")))
      for n, c in ((1, BINARY), (2, UTF8), (3, UTF8), (4, BINARY))),
    Kind(ColumnType(T.BLOB_COMPRESSED, 2, collation=UTF8), "text", prefixed(2, among(b"", b"\0plain", b"\x11"))),
    Kind(ColumnType(T.ENUM, 1, members=ENUM), "enum('a')", among(b"\0", b"\1", b"\3", b"\4")),
    Kind(ColumnType(T.ENUM, 2, members=ENUM), "enum('a')", among(b"\2\0", b"\2\1")),
    Kind(ColumnType(T.SET, 1, members=ENUM), "set('a')", among(b"\0", b"\5", b"\7", b"\x08")),
    Kind(ColumnType(T.SET, 2, members=tuple("abcdefghij")), "set('a')", among(b"\0\0", b"\xff\3", b"\0\4")),
    Kind(ColumnType(T.JSON, 4), "json", prefixed(4, among(b"", b"\x05\x07\x00", b"\x00\x00\x00\x04\x00", b"\x0c\x01a"))),
    Kind(ColumnType(T.GEOMETRY, 4), "geometry", prefixed(4, among(b"", bytes(4) + b"\1\1\0\0\0" + bytes(16)))),
    Kind(ColumnType(T.VECTOR, 4), "vector(2)", prefixed(4, fixed(8))),
    Kind(ColumnType(T.STRING, 16, collation=BINARY, declared="uuid"), "uuid", prefixed(1, st.binary(max_size=17))),
    Kind(ColumnType(T.STRING, 4, collation=BINARY, declared="inet4"), "inet4", prefixed(1, st.binary(max_size=4))),
)  # fmt: skip


NEVER_BROKEN = [kind for kind in KINDS if kind.name in ("tiny", "longlong", "double", "varbinary(90)")]


class Logged(NamedTuple):
    """A table: its kinds, which columns may be null, and the places of its key."""

    kinds: tuple[Kind, ...]
    nullable: tuple[bool, ...]
    key: tuple[int, ...]

    @property
    def map(self) -> TableMap:
        columns = tuple(
            Column(f"c{i}", kind.type, optional)
            for i, (kind, optional) in enumerate(zip(self.kinds, self.nullable, strict=True))
        )
        return TableMap(9, 0, "shop", "t", columns, tuple(map(KeyPart, self.key)))

    def catalog(self, database: str, name: str) -> CatalogTable | None:
        columns = tuple(
            CatalogColumn(column.name, column.type, column.is_nullable, kind.name)
            for column, kind in zip(self.map.columns, self.kinds, strict=True)
        )
        return CatalogTable(database, name, columns, tuple(f"c{i}" for i in self.key), ())

    @property
    def events(self) -> list[bytes]:
        """What stands in front of rows; the reader is given the types beside it."""
        return [made.format_description(), BEGIN, made.table_map(bytes([T.LONG]) * len(self.kinds), b"")]


BEGIN = made.event(EventType.QUERY, struct.pack("<IIBHH", 7, 0, 4, 0, 0) + b"shop\0BEGIN", log_pos=500)
KINDS_OF_ROWS = {
    "c": EventType.WRITE_ROWS,
    "u": EventType.UPDATE_ROWS,
    "d": EventType.DELETE_ROWS,
    "C": EventType.WRITE_ROWS_V1,
    "U": EventType.UPDATE_ROWS_V1,
    "D": EventType.DELETE_ROWS_V1,
}


def bits(chosen: Sequence[bool]) -> bytes:
    return sum(1 << i for i, is_set in enumerate(chosen) if is_set).to_bytes((len(chosen) + 7) // 8, "little")


def image(values: Sequence[bytes | None], present: Sequence[bool]) -> bytes:
    shown = [value for value, is_present in zip(values, present, strict=True) if is_present]
    return bits([value is None for value in shown]) + b"".join(value for value in shown if value is not None)


def rows_event(kind: str, table: Logged, images: bytes, before: Sequence[bool], after: Sequence[bool]) -> bytes:
    lower = kind.lower()
    bitmaps = b"".join((bits(before) if lower != "c" else b"", bits(after) if lower != "d" else b""))
    return made.rows(KINDS_OF_ROWS[kind], len(table.kinds), bitmaps, images, flags=0)


@st.composite
def tables(draw: st.DrawFn) -> Logged:
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=7)))
    if len(kinds) > 1:
        # Sometimes it is not captured; what is no value in it is not looked at by the core.
        kinds = (kinds[0], draw(st.sampled_from(NEVER_BROKEN)), *kinds[2:])
    nullable = tuple(draw(st.booleans()) for _ in kinds)
    key = tuple(sorted(draw(st.sets(st.integers(0, len(kinds) - 1), max_size=2))))
    return Logged(kinds, tuple(is_null and i not in key for i, is_null in enumerate(nullable)), key)


@st.composite
def streams(draw: st.DrawFn, *, whole: bool) -> tuple[Logged, list[bytes]]:
    """A table and rows events of it; some rows hold nulls where none may be, some keys change. `whole`: each event has one row, with all
    columns; else some images lack columns."""
    table = draw(tables())
    every = [True] * len(table.kinds)

    def value(i: int) -> bytes | None:
        is_null = draw(st.integers(0, 4 if table.nullable[i] else 40)) == 0
        return None if is_null else draw(table.kinds[i].values)

    def part(*, keyed: bool) -> list[bool]:
        if whole or draw(st.integers(0, 3)):
            return every
        return [(keyed and i in table.key) or draw(st.booleans()) for i in range(len(every))]

    events = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(list(KINDS_OF_ROWS)))
        before, after, images = part(keyed=True), part(keyed=draw(st.booleans())), b""
        for _ in range(1 if whole else draw(st.integers(1, 4))):
            old = [value(i) for i in range(len(every))]
            new = old if kind.lower() == "d" else [
                known if i in table.key and draw(st.integers(0, 5)) else value(i) for i, known in enumerate(old)
            ]  # fmt: skip
            if kind.lower() != "c":
                images += image(old, before)
            if kind.lower() != "d":
                images += image(new, after)
        events.append(rows_event(kind, table, images, before, after))
    return table, events


_MODES: dict[str, st.SearchStrategy[str]] = {
    "decimal.handling.mode": st.sampled_from(["string", "double"]),
    "time.precision.mode": st.sampled_from(["connect", "isostring", "microseconds", "nanoseconds"]),
    "binary.handling.mode": st.sampled_from(["hex", "base64"]),
    "bigint.unsigned.handling.mode": st.just("precise"),
    "message.key.columns": st.just("shop.t:c0"),
    "column.propagate.source.type": st.just(r"shop\..*"),
    "tombstones.on.delete": st.just("false"),
    "table.exclude.list": st.just(r"shop\.other"),
}
_LEFT_OUT = {"column.exclude.list": st.just(r"shop\.t\.c1"), "column.mask.with.3.chars": st.just(r"shop\.t\.c2")}
MODES = st.fixed_dictionaries({}, optional=_MODES)
MODES_IN_PART = st.fixed_dictionaries({}, optional={**_MODES, **_LEFT_OUT})


@cache
def settings_of(config: tuple[tuple[str, str], ...]) -> MySqlSettings:
    return parse({**CONFIG, **dict(config)})


SAMPLE_TABLE = Logged(KINDS, tuple(i not in (0, 30) for i in range(len(KINDS))), (0, 30))


def _sample(kind: Kind) -> bytes:
    """A value: of a type with a length in front, twelve bytes; of a fixed width, that of a small number or an early time."""
    code, width = kind.type.code, kind.width
    if width < 0:
        size = {"vector(2)": 8, "binary(9)": 9, "inet4": 4}.get(kind.name, 12)
        point = b"\0\0\0\0\1\1\0\0\0" + bytes(16)
        value = {T.JSON: b"\x05\x07\x00", T.BLOB_COMPRESSED: b"\0plain", T.GEOMETRY: point}.get(code, b"b" * size)
        return len(value).to_bytes(-width, "little") + value
    if code is T.NEWDECIMAL:
        return b"\x80" + bytes(width - 1)
    if code is T.DATE:
        return (2024 << 9 | 2 << 5 | 29).to_bytes(3, "little")
    if code is T.DATETIME2:
        return ((1 << 39) + (((2024 * 13 + 2) << 5 | 29) << 17 | 12 << 12)).to_bytes(5, "big") + bytes(width - 5)
    if code is T.TIME2:
        return (0x800000 + (12 << 12)).to_bytes(3, "big") + bytes(width - 3)
    return b"\1".rjust(width, b"\0") if code in (T.BIT, T.TIMESTAMP2) else b"\1".ljust(width, b"\0")


SAMPLE = [_sample(kind) for kind in KINDS]


def plan_of(table: Logged) -> TablePlan:
    plan = TablePlanner(settings_of(()), source_schema("mysql"), table.catalog).plan(table.map)
    assert plan is not None
    return plan


def layout_of(table: Logged, module: ModuleType) -> Any:
    """The native layout of a table."""
    plan = plan_of(table)
    shape = Registry().layout(plan.out, Position(1, 0, 0))
    return module.RowLayout(*native_layouts.layout_arguments(table.map, plan, shape))


def outcome(
    table: Logged, events: Sequence[bytes], config: dict[str, str], *, fast: bool, options: DecoderOptions | None = None
) -> tuple[Any, ...]:
    """Records up to the row that cannot be decoded, its error, and how many rows were read."""
    registry, options = Registry(), options or DecoderOptions()
    settings = settings_of(tuple(config.items()))
    catalog = TableCatalog(table.catalog, is_mariadb=False)
    schema = source_schema("mysql")
    reader = EventReader(complete=lambda _: table.map)
    decoder = BinlogDecoder(
        CapturedPlans(TablePlanner(settings, schema, catalog.table), catalog), TEMPLATE, CommitNumbers(), options
    )
    if fast:
        assert native is not None
        reader.leaves_rows = True
        decoder.writer = native_rows.NativeRows(registry, native, schema)
    error = None
    try:
        for event in made.through(reader, [*table.events, *events]):
            decoder.feed(event)
    except CdcError as exc:
        error = (exc.code, exc.message, dict(exc.where))
    taken = decoder.take()
    try:
        return registry.produced(taken), error, decoder.index, len(decoder.incomplete)
    except CdcError as exc:
        return (exc.code, exc.message), error, decoder.index, len(decoder.incomplete)
