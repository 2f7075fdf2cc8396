"""The matrix of types: a table with a column of every type, plain and as an array, and its rows as the stream brings them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.config.message_keys import MessageKeys
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.postgres.decode.decoder import PgoutputDecoder
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, build_plan, key_of, source_template
from cdcworker.connectors.postgres.server.catalog import ColumnInfo, TableInfo, TypeNames
from cdcworker.connectors.postgres.types.mapping import ENTRIES, HandlingModes, PgType
from cdcworker.schemas.avro import canonical
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, OutRecord, Position
from cdcworker.schemas.envelope import former_key_schemas, key_schema, value_schema
from cdcworker.schemas.format_encoder import make_encoder
from cdcworker.schemas.placeholders import UNAVAILABLE
from cdcworker.schemas.record_format import RecordFormat
from cdcworker.schemas.record_layout import RecordLayout

from . import messages as m

MODES = {
    "default": HandlingModes(),
    "text": HandlingModes("string", "isostring", "hex", "map", "string", composite="record", varbit="text"),
    "connect": HandlingModes("double", "connect", "base64", unknown="bytes"),
    "microseconds": HandlingModes(time="microseconds", composite="record"),
    "nanoseconds": HandlingModes(time="nanoseconds"),
}
TYPMODS = {"numeric": (-1, (12 << 16 | 2) + 4, (38 << 16) + 4), "bit": (1, 9), "varbit": (-1, 12), "time": (-1, 3), "timestamp": (-1, 3)}  # fmt: skip
SPECIAL = {"numeric": "12.50", "money": "$12.50", "date": "2024-02-29", "time": "24:00:00", "timetz": "12:00:00+02", "uuid": "b68a35a7-17ad-35b3-af2a-ae46edb4545a",
    "timestamp": "infinity", "timestamptz": "2024-02-29 12:00:00+00", "interval": "1 day", "bytea": "\\x0102", "bool": "t",
    "point": "(1,2)", "geometry": "0101000020e6100000000000000000f03f0000000000000040", "hstore": '"a"=>"b"', "bit": "1", "varbit": "101",
    "geography": "0101000000000000000000f03f0000000000000040", "vector": "[1,2]", "halfvec": "[1,2]", "sparsevec": "{1:1.5}/5",
    "json": '{"a": 1}', "jsonb": '{"a": 1}', "mood": "sad", "pair": '(1,"x y")', "price": "1.250", "size": "a,b", "xml": "<a/>"}  # fmt: skip
RECORDS = ("numeric", "point", "geometry", "geography", "pair")
NUMBERS = ("int2", "int4", "int8", "oid", "float4", "float8")


DATES = (
    "infinity",
    "-infinity",
    "4713-01-01 BC",
    "0001-01-01 BC",
    "0001-01-01",
    "9999-12-31",
    "10000-01-01",
    "5874897-12-31",
)
MOMENTS = (
    *("infinity", "-infinity", "4713-01-01 00:00:00 BC", "0001-12-31 23:59:59.999999 BC", "0001-01-01 00:00:00"),
    *("9999-12-31 23:59:59.999999", "10000-01-01 00:00:00", "294247-01-10 04:00:54.775807", "294276-12-31 23:59:59.999999"),
    *("1677-09-21 00:12:43.145224", "2262-04-11 23:47:16.854775", "2262-04-11 23:47:16.854776", "2024-02-29 12:00:00"),
)  # fmt: skip
EXTREMES = {
    "date": DATES,
    "time": ("00:00:00", "23:59:59.999999", "24:00:00"),
    "timetz": ("24:00:00+00", "24:00:00-15:59", "23:59:59.999999+02"),
    "timestamp": MOMENTS,
    "timestamptz": tuple(f"{text[:-3]}+00 BC" if text.endswith("BC") else text if "inf" in text else f"{text}+00" for text in MOMENTS),
    "interval": ("infinity", "-infinity", "178000000 years", "-178000000 years"),
    "numeric": ("NaN", "Infinity", "-Infinity", "0", "-1", "1.50"),
    "float4": ("NaN", "Infinity", "-Infinity", "-0"),
    "float8": ("NaN", "Infinity", "-Infinity", "5e-324"),
    "money": ("-$92,233,720,368,547,758.08", "$92,233,720,368,547,758.07"),
    "int8": (str(-(2**63)), str(2**63 - 1)),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "price": ("NaN", "99999.999"),
    "pair": ('(1,infinity)', '(,"0044-03-15 00:00:00 BC")'),
}  # fmt: skip


def _types() -> dict[int, PgType]:
    """Every type of the mapping, an enum, a composite and a domain, a type that nobody knows, and arrays of them all."""
    names = dict(enumerate(sorted(ENTRIES), 1000))
    numbers = {name: number for number, name in names.items()}
    types = [PgType(number, name) for number, name in names.items()]
    types += [
        PgType(2000, "mood", "e", labels=("sad", "so so")),
        PgType(2001, "pair", "c", attributes=(("a", numbers["int4"], -1), ("b", numbers["timestamp"], -1))),
        PgType(2002, "price", "d", base=numbers["numeric"], base_typmod=(8 << 16 | 3) + 4),
        PgType(2003, "cube", schema="public"),
        PgType(2004, "size", "e", labels=("a,b", "c")),
    ]
    arrays = [PgType(pg.oid + 5000, f"_{pg.name}", element=pg.oid) for pg in types]
    return {pg.oid: pg for pg in (*types, *arrays)}


TYPES = _types()


@dataclass(frozen=True)
class MatrixColumn:
    """One column: its type, whether it may be null, and its default as text."""

    name: str
    oid: int
    typmod: int = -1
    required: bool = False
    in_key: bool = False
    default: str | None = None


def text_of(pg: PgType, typmod: int = -1) -> str:
    """A value of a type; of bits as many as the type has."""
    if pg.element:
        inner = text_of(TYPES[pg.element], typmod).replace("\\", "\\\\").replace('"', '\\"')
        return f'{{"{inner}",NULL}}'
    if pg.name == "bit" and typmod > 1:
        return "101010101"[:typmod]
    return SPECIAL.get(pg.name, "7" if pg.name in NUMBERS else "x")


def columns(*, required: bool, defaults: bool = False, in_key: bool = False) -> list[MatrixColumn]:
    """A key and a column of every type, which are of the key as well where that is wanted."""
    out = [MatrixColumn("id", _oid("int4"), required=True, in_key=True)]
    # Records of one name twice: the second refers to the first.
    again = [pg for pg in TYPES.values() if pg.name in RECORDS]
    for pg in (*TYPES.values(), *again):
        for typmod in TYPMODS.get(TYPES[pg.element].name if pg.element else pg.name, (-1,)):
            text = text_of(pg, typmod) if defaults else None
            out.append(MatrixColumn(f"c{len(out)}_{pg.name}", pg.oid, typmod, required, in_key, text))
    return out


def _oid(name: str) -> int:
    return next(pg.oid for pg in TYPES.values() if pg.name == name)


@dataclass
class Stream:
    """A stream of one table's rows, and the encoder of its records."""

    columns: Sequence[MatrixColumn]
    modes: HandlingModes = field(default_factory=HandlingModes)
    form: RecordFormat = field(default_factory=RecordFormat)
    schemas: dict[int, JsonObject] = field(default_factory=dict)
    """By id."""
    chosen: str = ""
    """`message.key.columns`: other columns than those of the table's key, which a full identity logs."""

    def __post_init__(self) -> None:
        self.encoder = make_encoder(self.form, "shop", self._register, clock_ns=lambda: 1_700_000_000_000_000_000)

    @property
    def clock_ns(self) -> Callable[[], int]:
        return self.encoder.clock_ns

    def _register(self, registrations: Any) -> list[int]:
        first = len(self.schemas) + 1
        self.schemas.update(enumerate((json.loads(one.canonical) for one in registrations), first))
        return list(range(first, first + len(registrations)))

    def decoder(self) -> PgoutputDecoder:
        facts = {
            c.name: ColumnInfo(i, c.name, c.oid, c.typmod, c.required, None if c.default is None else quoted(c.default))
            for i, c in enumerate(self.columns, 1)
        }
        key = tuple(c.name for c in self.columns if c.in_key)
        info = TableInfo(1, "public", "t", "d", facts, key)
        keys = MessageKeys.parse(self.chosen)
        planner = TableDecodePlanner(None, self.modes, TableFilters(), keys=keys)  # type: ignore[arg-type]
        known = TypeNames(TYPES, {})

        def resolve(relation: Any) -> Any:
            return build_plan(relation, info, known, key_of(relation, info), planner)

        return PgoutputDecoder(resolve, source_template("shop", "db"))

    def description(self) -> bytes:
        identity = b"f" if self.chosen else b"d"
        head = struct.pack(">cI", b"R", 1) + b"public\0t\0" + identity + struct.pack(">H", len(self.columns))
        for column in self.columns:
            flags = bytes([column.in_key or bool(self.chosen)])
            head += flags + column.name.encode() + b"\0" + struct.pack(">Ii", column.oid, column.typmod)
        return m.frame(head)

    def changes(self, *rows: bytes) -> list[Change]:
        """What the decoder in Python makes of these messages."""
        made = self.decoder()
        for message in (m.begin(1000), self.description(), *rows, m.commit(1000)):
            made.feed(message)
        return [item for item in made.out if isinstance(item, Change)]

    def records(self, *rows: bytes) -> list[OutRecord]:
        """The records, as Python makes them."""
        return self.encoder.encode(self.changes(*rows))

    def values(self, *rows: bytes) -> list[bytes]:
        """The records' values, as Python makes them."""
        return [record.value for record in self.records(*rows) if record.value is not None]

    def native_values(self, *rows: bytes) -> list[bytes]:
        """The records' values as the native core makes them; it must have made them all."""
        made = self._native(*rows)
        records = [item for item in made if isinstance(item, EncodedRecords)]
        assert len(records) == len(made), "rows were left to the decoder in Python"
        return [record[1] for item in records for record in item.records if record[1] is not None]

    def mixed(self, *rows: bytes) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values as the native core makes them, and the decoder those that the core leaves to it."""
        out: list[tuple[bytes | None, bytes | None]] = []
        for item in self._native(*rows):
            if isinstance(item, EncodedRecords):
                out += [(record[2], record[1]) for record in item.records]
            elif isinstance(item, Change):
                out += [(record.key, record.value) for record in self.encoder.encode([item])]
        return out

    def _native(self, *rows: bytes) -> list[Any]:
        made = self.decoder()
        path = native_path.NativePath(made, self, native_path.native())  # type: ignore[arg-type]
        for message in (m.begin(1000), self.description(), *rows):
            path.feed(message)
        path.flush()
        return made.out

    # What the native path is lent.

    @property
    def version(self) -> int:
        return self.encoder.version

    def tails(self) -> dict[str, bytes]:
        return self.encoder.tails()

    def layout(self, table: Any, position: Position) -> RecordLayout:
        return RecordLayout(self.encoder.plan(table, position), 1, 1 << 24, True, UNAVAILABLE)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'::text"


def schemas() -> Iterator[tuple[str, JsonObject]]:
    """The schemas of the matrix in all modes as a registry hands them out, by a name: of values with and without nulls and
    defaults, and of keys."""
    for mode, modes in MODES.items():
        for required in (False, True):
            for defaults in (False, True):
                stream = Stream(columns(required=required, defaults=defaults), modes)
                [change] = stream.changes(m.delete(1, [b"1", *[None] * (len(stream.columns) - 1)]))
                name = f"{mode}{' required' * required}{' defaults' * defaults}"
                yield name, registered(value_schema("shop", change.table))
        stream = Stream(columns(required=True, in_key=True), modes)
        [change] = stream.changes(m.delete(1, [b"1", *map(usual, stream.columns[1:])]))
        key = key_schema("shop", change.table)
        assert key
        yield f"{mode} key", registered(key)
        yield from (
            (f"{mode} key {i}", registered(one)) for i, one in enumerate(former_key_schemas("shop", change.table))
        )


def registered(schema: JsonObject) -> JsonObject:
    """A schema as a registry hands it out."""
    return json.loads(canonical(schema))  # type: ignore[no-any-return]


def usual(column: MatrixColumn) -> bytes:
    """A value of a column's type that has a form in each mode."""
    pg = TYPES[column.oid]
    inner = TYPES[pg.element].name if pg.element else pg.name
    text = {"timestamp": "2024-02-29 12:00:00", "time": "12:00:00", "pair": "(1,)"}.get(
        inner, text_of(TYPES.get(pg.element, pg), column.typmod)
    )
    return ("{NULL}" if pg.element else text).encode()


def placeholders(stream: Stream) -> tuple[bytes, bytes]:
    """A DELETE that holds the key only, and an UPDATE of which nothing else was sent."""
    rest = len(stream.columns) - 1
    return m.delete(1, [b"1", *[None] * rest]), m.update(1, [b"1", *["u"] * rest])


TOO_FAR = ("294247-01-10", "294276-12-31")
"""From the first of these days on a timestamp has more microseconds than a long, and no exact form."""


def texts_of(column: MatrixColumn, *, exact: bool = False) -> list[str]:
    """The extremes of a column's type; of a numeric with a scale those that it can have. `exact`: those with an exact form."""
    pg = TYPES[column.oid]
    texts = EXTREMES.get(TYPES[pg.element].name if pg.element else pg.name, ())
    found = [text for text in texts if not exact or not text.startswith(TOO_FAR)]
    if column.typmod >= 4 and "numeric" in column.name:
        scale = (column.typmod - 4) & 0x7FF
        found = ["NaN", f"{0:.{scale}f}", f"{-1:.{scale}f}"]
    if pg.element:
        whole = [text.replace("\\", "\\\\").replace('"', '\\"') for text in found]
        return ["{NULL," + ",".join(f'"{text}"' for text in whole) + "}"] if whole else []
    return found


def extremes(stream: Stream, *, exact: bool = False) -> list[bytes]:
    """Rows with the extremes of every type. `exact`: with those that have an exact form."""
    texts = [
        texts_of(column, exact=exact) or [text_of(TYPES[column.oid], column.typmod)] for column in stream.columns[1:]
    ]
    count = max(map(len, texts))
    return [
        m.insert(1, b"%d" % i, *(text[i % len(text)].encode() for text in texts)) for i in range(count)
    ]  # fmt: skip
