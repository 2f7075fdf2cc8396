"""Tables, values and rows of every kind, and what the Python decoder and encoder make of them: the native core's oracle."""

from __future__ import annotations

import struct
from collections import Counter

from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.postgres.decode.decoder import PgoutputDecoder
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, build_plan, key_of, source_template
from cdcworker.connectors.postgres.server.catalog import ColumnInfo, TableInfo, TypeNames
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType
from cdcworker.schemas.avro import fingerprint, schema_id
from cdcworker.schemas.change import Change
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.placeholders import UNAVAILABLE
from cdcworker.schemas.record_layout import RecordLayout
from confluent_kafka import Producer
from hypothesis import strategies as st

from tests.conftest import unless_built

from . import messages as m

native = native_path.native()
needs_native = unless_built(native)
PARTITIONS = 7
CLOCK_NS = 1_700_000_000_123_456_789

TYPES = {
    oid: PgType(oid, name)
    for oid, name in {
        16: "bool", 17: "bytea", 20: "int8", 21: "int2", 23: "int4", 25: "text", 26: "oid", 114: "json", 700: "float4",
        701: "float8", 790: "money", 1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz", 1186: "interval",
        1560: "bit", 1700: "numeric", 2950: "uuid", 600: "point", 1266: "timetz",
    }.items()
} | {1007: PgType(1007, "_int4", element=23), 1009: PgType(1009, "_text", element=25)}  # fmt: skip
KNOWN = TypeNames(TYPES, {})

digits = st.integers(-(10**20), 10**20).map(str)
number = st.one_of(
    digits,
    st.decimals(allow_nan=False, allow_infinity=False, places=2, max_value=10**17, min_value=-(10**17)).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=5, max_value=10**9, min_value=-(10**9)).map(str),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "0.00", "-0.01", "0"]),
)
when = st.one_of(
    st.datetimes().map(lambda d: d.isoformat(" ")),
    st.sampled_from(["infinity", "-infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00", "0000-01-01 00:00:00"]),
    st.sampled_from(["294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "294276-12-31 23:59:59.999"]),
)
TEXTS: dict[int, st.SearchStrategy[str]] = {
    16: st.sampled_from("tf"),
    17: st.binary(max_size=40).map(lambda b: "\\x" + b.hex()),
    20: st.integers(-(2**63), 2**63 - 1).map(str),
    21: st.integers(-(2**15), 2**15 - 1).map(str),
    23: st.integers(-(2**31), 2**31 - 1).map(str),
    25: st.text(max_size=40),
    26: st.integers(0, 2**32 - 1).map(str),
    114: st.text(max_size=300),
    600: st.tuples(st.integers(), st.integers()).map(lambda p: f"({p[0]},{p[1]})"),
    700: st.floats(width=32).map(lambda f: repr(f).replace("inf", "Infinity").replace("nan", "NaN")),
    701: st.floats().map(lambda f: repr(f).replace("inf", "Infinity").replace("nan", "NaN")),
    790: st.integers(0, 10**9).map(lambda n: f"${n // 100:,}.{n % 100:02d}"),
    1007: st.lists(st.integers(-9, 9), max_size=4).map(lambda items: "{" + ",".join(map(str, items)) + "}"),
    1009: st.just('{a,"b c",NULL}'),
    1082: st.one_of(st.dates().map(str), st.sampled_from(["infinity", "0001-01-01 BC", "12345-01-01"])),
    1083: st.one_of(st.times().map(str), st.just("24:00:00")),
    1114: when,
    1184: when.map(lambda text: text.replace(" BC", "+00 BC") if "BC" in text else text + "+00"),
    1186: st.sampled_from(["1 year 2 mons", "00:00:01.5", "3 days -01:00:00"]),
    1266: st.times().map(lambda t: f"{t}+02"),
    1560: st.text("01", min_size=1, max_size=9),
    1700: number,
    2950: st.uuids().map(str),
}
TYPMODS = {
    1700: [-1, (12 << 16 | 2) + 4, (10 << 16) + 4, (38 << 16 | 10) + 4],
    1083: [-1, 3],
    1114: [-1, 0, 3, 6],
    1184: [-1, 0, 3, 6],
}


@st.composite
def relations(draw):
    """A relation's columns, what the catalog says of them, and the modes."""
    count = draw(st.integers(1, 6))
    columns = []
    for i in range(count):
        oid = draw(st.sampled_from(sorted(TEXTS)))
        typmod = draw(st.sampled_from(TYPMODS.get(oid, [-1])))
        columns.append((f"c{i}", oid, typmod, draw(st.booleans()), draw(st.booleans())))
    modes = HandlingModes(
        decimal=draw(st.sampled_from(["precise", "double", "string"])),
        time=draw(st.sampled_from(["adaptive", "connect", "microseconds", "nanoseconds", "isostring"])),
        binary=draw(st.sampled_from(["bytes", "hex", "base64"])),
        out_of_range=draw(st.sampled_from(["clamp", "exact"])),
        timestamptz=draw(st.sampled_from(["padded", "shortest"])),
        key_nan=draw(st.sampled_from(["number", "empty"])),
    )
    excluded = draw(st.sampled_from([(), (), (r"public\.t\.c1",)]))
    return columns, modes, TableFilters(column_exclude=excluded)


def value_of(draw, column):
    """A value, sometimes null, seldom bytes that are no value."""
    if not draw(st.integers(0, 40 if column[4] else 8)):
        return None
    text = draw(TEXTS[column[1]]).encode("utf-8", "replace")
    return draw(st.binary(max_size=12)) if not draw(st.integers(0, 40)) else text


class Registry:
    """Ids by content, and a shaper over an encoder."""

    def __init__(self) -> None:
        self.encoder = Encoder("shop", self.register, clock_ns=lambda: CLOCK_NS)

    def register(self, registrations):
        return [schema_id(fingerprint(r.schema)) for r in registrations]

    @property
    def version(self) -> int:
        return self.encoder.version

    @property
    def clock_ns(self):
        return self.encoder.clock_ns

    def tails(self):
        return self.encoder.tails()

    def layout(self, table, position) -> RecordLayout:
        return RecordLayout(self.encoder.plan(table, position), PARTITIONS, 1 << 20, True, UNAVAILABLE)


def decoder(columns, modes, filters) -> PgoutputDecoder:
    info = TableInfo(
        *(1, "public", "t", "d"),
        {
            name: ColumnInfo(i, name, oid, typmod, not_null, None)
            for i, (name, oid, typmod, _, not_null) in enumerate(columns, 1)
        },
        tuple(name for name, _, _, in_key, _ in columns if in_key),
    )
    planner = TableDecodePlanner(None, modes, filters)  # type: ignore[arg-type]

    def resolve(relation):
        return build_plan(relation, info, KNOWN, key_of(relation, info), planner)

    return PgoutputDecoder(resolve, source_template("shop", "db"))


CLIENT = Producer({})
"""It knows no broker, and refuses what no producer would take."""


def arguments(*record):
    CLIENT.produce(*record)
    CLIENT.purge()
    CLIENT.poll(0)
    topic, value, key, partition, *more = record
    return topic, value, key, partition, more[-1] if more else None


def produced(registry: Registry, out) -> list[tuple]:
    """Records as the arguments of produce, whoever made them."""
    made: list[tuple] = []
    for item in out:
        if not isinstance(item, Change):
            assert item.counts == Counter(record[0] for record in item.records)
            made += [arguments(*r) for r in item.records]
            continue
        for topic, key, value, headers, key_hash in registry.encoder.encode([item]):
            partition = key_hash % PARTITIONS if key_hash is not None else 0
            made.append((topic, value, key, partition, headers))
    return made


def description(columns) -> bytes:
    """The stream's description of the table."""
    head = struct.pack(">cI", b"R", 1) + b"public\0t\0d" + struct.pack(">H", len(columns))
    for name, oid, typmod, in_key, _ in columns:
        head += bytes([in_key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, typmod)
    return m.frame(head)
