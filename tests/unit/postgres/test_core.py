"""The native core against the Python decoder and encoder: the same records, byte for byte, and no bytes make it crash."""

from __future__ import annotations

import random
import struct

import pytest
from cdcworker.connectors.postgres import kinds, lane
from cdcworker.connectors.postgres.catalog import ColumnInfo, TableInfo, TypeNames
from cdcworker.connectors.postgres.changes import Changes
from cdcworker.connectors.postgres.config import Filters
from cdcworker.connectors.postgres.relations import Planner, build_plan, key_of, source_template
from cdcworker.connectors.postgres.types import Modes, PgType
from cdcworker.schemas.absent import UNAVAILABLE
from cdcworker.schemas.avro import fingerprint, schema_id
from cdcworker.schemas.change import Change
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.shape import Shape
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from . import messages as m

native = lane.native()
needs_native = pytest.mark.skipif(native is None, reason="the extension was not built")
PARTITIONS = 7
HEADER_BYTES = 25
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
TYPMODS = {1700: [-1, (12 << 16 | 2) + 4, (10 << 16) + 4, (38 << 16 | 10) + 4], 1083: [-1, 3], 1114: [-1, 0, 3, 6]}


@st.composite
def relations(draw):
    """A relation's columns, what the catalog says of them, and the modes."""
    count = draw(st.integers(1, 6))
    columns = []
    for i in range(count):
        oid = draw(st.sampled_from(sorted(TEXTS)))
        typmod = draw(st.sampled_from(TYPMODS.get(oid, [-1])))
        columns.append((f"c{i}", oid, typmod, draw(st.booleans()), draw(st.booleans())))
    modes = Modes(
        decimal=draw(st.sampled_from(["precise", "double", "string"])),
        time=draw(st.sampled_from(["adaptive", "connect", "microseconds", "nanoseconds", "isostring"])),
        binary=draw(st.sampled_from(["bytes", "hex", "base64"])),
    )
    excluded = draw(st.sampled_from([(), (), (r"public\.t\.c1",)]))
    return columns, modes, Filters(column_exclude=excluded)


def value_of(draw, column):
    if not draw(st.integers(0, 9)):
        return draw(st.sampled_from([None, "u"]))
    text = draw(TEXTS[column[1]]).encode("utf-8", "replace")
    return draw(st.binary(max_size=12)) if not draw(st.integers(0, 30)) else text


@st.composite
def streams(draw):
    columns, modes, filters = draw(relations())
    row = lambda: [value_of(draw, column) for column in columns]  # noqa: E731
    messages = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from("iiuUDdk"))
        if kind == "i":
            messages.append(m.insert(1, *row()))
        elif kind == "u":
            messages.append(m.update(1, row()))
        elif kind == "U":
            old = row()
            new = [o if draw(st.integers(0, 2)) else n for o, n in zip(old, row(), strict=True)]
            messages.append(m.update(1, new, old, b"O"))
        elif kind == "k":
            messages.append(m.update(1, row(), row(), b"K"))
        else:
            messages.append(m.delete(1, row(), b"O" if kind == "D" else b"K"))
    head = struct.pack(">cI", b"R", 1) + b"public\0t\0d" + struct.pack(">H", len(columns))
    for name, oid, typmod, in_key, _ in columns:
        head += bytes([in_key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, typmod)
    return columns, modes, filters, [m.begin(1000), m.frame(head), *messages, m.commit(1000)]


class Registry:
    """Ids by content, and a shaper over an encoder."""

    def __init__(self) -> None:
        self.encoder = Encoder("shop", self.register, clock_ns=lambda: CLOCK_NS)

    def register(self, registrations):
        return [schema_id(fingerprint(r.schema)) for r in registrations]

    @property
    def turns(self) -> int:
        return self.encoder.turns

    def tails(self):
        return self.encoder.tails()

    def shape(self, table, position) -> Shape:
        return Shape(self.encoder.plan(table, position), PARTITIONS, 1 << 20, True, UNAVAILABLE)


def decoder(columns, modes, filters) -> Changes:
    info = TableInfo(
        *(1, "public", "t", "d"),
        {
            name: ColumnInfo(i, name, oid, typmod, not_null, None)
            for i, (name, oid, typmod, _, not_null) in enumerate(columns, 1)
        },
        tuple(name for name, _, _, in_key, _ in columns if in_key),
    )
    planner = Planner(None, modes, filters)  # type: ignore[arg-type]

    def resolve(relation):
        return build_plan(relation, info, KNOWN, key_of(relation, info), planner)

    return Changes(resolve, source_template("shop", "db"))


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
            made += [arguments(*r) for r in item.records]
            continue
        for topic, key, value, headers, key_hash in registry.encoder.encode([item]):
            partition = key_hash % PARTITIONS if key_hash is not None else 0
            made.append((topic, value, key, partition, headers))
    return made


def outcome(columns, modes, filters, messages, *, fast: bool, framed: bool = False):
    """(records, error): records up to the message that cannot be decoded, and its error."""
    registry, changes = Registry(), decoder(columns, modes, filters)
    feed = changes.feed
    if fast:
        assert native
        quick = lane.Lane(changes, registry, native)
        feed = quick.feed
    error = None
    try:
        if framed:
            feed_frames(quick, messages)
        else:
            for message in messages:
                feed(message)
    except CdcError as exc:
        error = (exc.code, exc.message, exc.where)
    if fast:
        quick.flush()
    try:
        return produced(registry, changes.out), error, changes.index
    except CdcError as exc:
        return (exc.code, exc.message), error, changes.index


def feed_frames(quick, messages) -> None:
    buffer = bytearray(b"".join(b"d" + struct.pack(">I", len(data) + 4) + data for data in messages))
    at = 0
    while at < len(buffer):
        done = quick.feed_frames(buffer, at, len(buffer))
        if done == at:
            size = int.from_bytes(buffer[at + 1 : at + 5], "big")
            quick.feed(bytes(buffer[at + 5 : at + 1 + size]))
            done = at + 1 + size
        at = done


@needs_native
@given(streams())
@settings(max_examples=150, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write(stream):
    expected = outcome(*stream, fast=False)
    assert outcome(*stream, fast=True) == expected
    assert outcome(*stream, fast=True, framed=True) == expected


@needs_native
def test_a_value_that_was_not_sent_is_named_in_a_header_that_a_client_takes():
    columns = [("id", 23, -1, True, True), ("v", 25, -1, False, False), ("n", 23, -1, False, False)]
    head = struct.pack(">cI", b"R", 1) + b"public\0t\0d" + struct.pack(">H", 3)
    for name, oid, typmod, in_key, _ in columns:
        head += bytes([in_key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, typmod)
    messages = [m.begin(1000), m.frame(head), m.update(1, [b"1", "u", b"2"]), m.commit(1000)]
    stream = (columns, Modes(), Filters(), messages)
    expected = outcome(*stream, fast=False)
    ((*_, headers),) = expected[0]
    assert headers == [("cdc.unchanged", b"1")]
    assert outcome(*stream, fast=True) == expected
    assert outcome(*stream, fast=True, framed=True) == expected


SAMPLE_COLUMNS = [
    (f"c{i}", oid, TYPMODS.get(oid, [-1])[-1], i == 0, i % 3 == 0)
    for i, oid in enumerate((20, 23, 25, 1700, 1184, 1114, 1082, 1083, 16, 17, 700, 701, 2950, 114, 1007))
]
SAMPLE = [
    b"-42", b"7", "gr\u00fc\u00df".encode(), b"-123.45", b"2024-02-29 12:34:56.7+00", b"1969-12-31 23:59:59.999", b"1600-01-01",
    b"23:59:59.5", b"t", b"\\xdeadbeef", b"1.5", b"-2.5e-300", b"7b3d7a2e-0000-4000-8000-000000000000", b'{"a": 1}', b"{1,2}",
]  # fmt: skip
INTERESTING = (
    b"",
    b"-",
    b"0",
    b"n",
    b"u",
    b"\0",
    b"\xff\xff\xff\xff",
    b"9" * 30,
    b"\xc3",
    b"\xed\xa0\x80",
    b"infinity",
)


def mutated(chosen: random.Random, data: bytes) -> bytes:
    """A message with some of its bytes behind the header changed, cut out or put in."""
    out = bytearray(data)
    for _ in range(chosen.randint(1, 3)):
        at = chosen.randrange(HEADER_BYTES, len(out) + 1)
        what = chosen.randrange(4)
        if what == 0 and at < len(out):
            out[at] = chosen.randrange(256)
        elif what == 1:
            del out[at : at + chosen.randint(1, 6)]
        elif what == 2:
            out[at:at] = chosen.choice(INTERESTING)
        else:
            del out[max(at, HEADER_BYTES + 6) :]
    return bytes(out)


def fuzzed(seed: int) -> None:
    chosen = random.Random(seed)
    head = struct.pack(">cI", b"R", 1) + b"public\0t\0d" + struct.pack(">H", len(SAMPLE_COLUMNS))
    for name, oid, typmod, in_key, _ in SAMPLE_COLUMNS:
        head += bytes([in_key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, typmod)
    rows = [m.insert(1, *SAMPLE), m.update(1, SAMPLE), m.update(1, SAMPLE, SAMPLE, b"O"), m.delete(1, SAMPLE, b"O")]
    messages = [m.begin(1000), m.frame(head), rows[0]]
    messages += [mutated(chosen, chosen.choice(rows)) for _ in range(3)]
    stream = (SAMPLE_COLUMNS, Modes(), Filters(), messages)
    expected = outcome(*stream, fast=False)
    assert outcome(*stream, fast=True) == expected, seed
    assert outcome(*stream, fast=True, framed=True) == expected, seed


@needs_native
def test_broken_bytes_give_what_the_decoder_gives_and_never_crash():
    for seed in range(150):
        fuzzed(seed)


@needs_native
@pytest.mark.long
def test_a_million_broken_messages_never_crash():
    for seed in range(1000, 1000 + 40_000):
        fuzzed(seed)
    core = native.Core("h", ())
    chosen = random.Random(1)
    for _ in range(1_000_000):
        core.one(chosen.randbytes(chosen.randrange(60)))


@needs_native
def test_bytes_of_any_kind_are_left_to_the_decoder():
    core = native.Core("h", ())
    core.ready = True
    core.set_layout(1, native.Layout())
    chosen = random.Random(7)
    for _ in range(5_000):
        data = b"w" + bytes(24) + chosen.choice([b"I", b"U", b"D", b"T"]) + chosen.choice([b"\0\0\0\1", b""])
        assert core.one(data + chosen.randbytes(chosen.randrange(40))) in (True, False)
        assert core.feed(chosen.randbytes(50), 0, 50) in range(51)
    for start, end in ((-1, 5), (0, 99), (6, 5)):
        with pytest.raises(ValueError):
            core.feed(bytearray(10), start, end)


@pytest.mark.parametrize(
    ("oid", "typmod", "kind"),
    [
        (20, -1, "LONG"), (23, -1, "INT"), (21, -1, "INT"), (25, -1, "TEXT"), (16, -1, "BOOLEAN"), (17, -1, "HEX"),
        (700, -1, "FLOAT"), (701, -1, "DOUBLE"), (1082, -1, "DATE"), (1083, -1, "TIME"), (1114, -1, "TIMESTAMP"),
        (1184, -1, "ZONED"), (1700, (12 << 16 | 2) + 4, "DECIMAL"), (1700, -1, "VARIABLE"), (2950, -1, "TEXT"),
        (114, -1, "TEXT"), (1186, -1, "CALL"),
    ],
)  # fmt: skip
def test_common_types_are_native(oid, typmod, kind):
    changes = decoder([("c", oid, typmod, False, False)], Modes(), Filters())
    head = struct.pack(">cI", b"R", 1) + b"public\0t\0d" + struct.pack(">H", 1)
    changes.feed(m.frame(head + b"\0c\0" + struct.pack(">Ii", oid, typmod)))
    plan = changes.plan(1)
    assert plan
    assert kinds.kind_of(plan.table.columns[0], plan.parsers[0])[0] == getattr(kinds, kind)
