"""Every type, with the server as the oracle: the snapshot's value, the stream's value and the server's are the same.

Values are generated, written as text, read by two connectors (default and other modes) from the snapshot and from the
stream, and written back as text: cast to the column's type by the server, that has to be what stands in the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from cdcworker.connectors.postgres.types.text_values import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY_US,
    TIMESTAMP_MINUS_INFINITY_US,
)
from cdcworker.schemas.encode import Encoder
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from .. import postgres_reader

pytestmark = pytest.mark.postgres

EXAMPLES = 25
OTHER_MODES = {
    "decimal_handling_mode": "string",
    "time_precision_mode": "isostring",
    "binary_handling_mode": "hex",
    "hstore_handling_mode": "map",
    "interval_handling_mode": "string",
    "composite_handling_mode": "record",
    "bit_varying_handling_mode": "text",
}


# -- what is generated ------------------------------------------------------------------------------------------------

words = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
plain = st.text("abcxyz", min_size=1, max_size=5)


def text_of(strategy: st.SearchStrategy) -> st.SearchStrategy[str]:
    return strategy.map(str)


def floats(width: int) -> st.SearchStrategy[str]:
    return st.floats(width=width).map(repr)


def numbers(digits: int, places: int) -> st.SearchStrategy[str]:
    whole = st.integers(-(10**digits) + 1, 10**digits - 1)
    return st.one_of(whole.map(lambda n: f"{n}e-{places}"), st.just("NaN"))


free_numbers = st.one_of(
    st.tuples(st.integers(-(10**40), 10**40), st.integers(-20, 20)).map(lambda pair: f"{pair[0]}e{pair[1]}"),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "0", "1.500", "-0.00"]),
)


def bits(least: int, most: int) -> st.SearchStrategy[str]:
    return st.text("01", min_size=least, max_size=most)


def day(year_max: int) -> st.SearchStrategy[str]:
    def write(parts: tuple[int, int, int]) -> str:
        year, month, number = parts
        return f"{year:04d}-{month:02d}-{number:02d}" if year > 0 else f"{1 - year:04d}-{month:02d}-{number:02d} BC"

    years = st.one_of(st.integers(1900, 2100), st.integers(-4711, year_max))
    return st.one_of(
        st.tuples(years, st.integers(1, 12), st.integers(1, 28)).map(write), st.sampled_from(["infinity", "-infinity"])
    )


clock = st.one_of(
    st.times().map(lambda time: time.isoformat()), st.sampled_from(["24:00:00", "00:00:00", "23:59:59.999999"])
)
zones = st.integers(-15 * 60, 15 * 60).map(lambda m: f"{'-' if m < 0 else '+'}{abs(m) // 60:02d}:{abs(m) % 60:02d}")


def moment(zone: str = "") -> st.SearchStrategy[str]:
    def write(pair: tuple[str, Any]) -> str:
        date, time = pair
        if "infinity" in date:
            return date
        plain_date, _, bc = date.partition(" ")
        return f"{plain_date} {time.isoformat()}{zone} {bc}".strip()

    return st.tuples(day(290_000), st.times()).map(write)


def interval(years: int) -> st.SearchStrategy[str]:
    parts = st.tuples(
        st.integers(-years * 12, years * 12), st.integers(-(10**6), 10**6), st.integers(-(10**15), 10**15)
    )
    written = parts.map(lambda p: f"{p[0]} mons {p[1]} days {p[2]} microseconds")
    return st.one_of(written, st.sampled_from(["infinity", "-infinity", "0", "-00:00:01.5", "1 year -1 day"]))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
).map(json.dumps)


def quoted(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def arrays(items: st.SearchStrategy[str], delimiter: str = ",", dims: tuple[int, ...] = (1, 1, 2, 3)):
    """Array literals of any dimension, with NULLs and with lower bounds."""

    @st.composite
    def literal(draw: Any) -> str:
        count = draw(st.sampled_from(dims))
        sizes = [draw(st.integers(0 if count == 1 else 1, 3)) for _ in range(count)]
        if 0 in sizes:
            return "{}"
        lower = [draw(st.sampled_from([1, 1, 0, -2, 5])) for _ in sizes]

        def level(at: int) -> str:
            if at == count:
                return quoted(draw(st.one_of(st.none(), items)))
            return "{" + delimiter.join(level(at + 1) for _ in range(sizes[at])) + "}"

        body = level(0)
        bounds = "".join(f"[{low}:{low + size - 1}]" for low, size in zip(lower, sizes, strict=True))
        return f"{bounds}={body}" if any(low != 1 for low in lower) else body

    return literal()


def vectors(width: int) -> st.SearchStrategy[str]:
    most = 2.0**15 if width == 16 else 2.0**99
    numbers = st.floats(-most, most, width=width)  # type: ignore[arg-type]
    return st.lists(numbers, min_size=3, max_size=3).map(lambda many: f"[{','.join(map(repr, many))}]")


sparse = st.dictionaries(st.integers(1, 9), st.floats(-(2.0**99), 2.0**99, width=32), max_size=9).map(
    lambda items: f"{{{','.join(f'{key}:{number!r}' for key, number in sorted(items.items()))}}}/9"
)

hstores = st.dictionaries(words, st.one_of(st.none(), words), max_size=4).map(
    lambda items: ",".join(f"{quoted(k)}=>{quoted(x)}" for k, x in items.items())
)
small = st.integers(-1000, 1000)


def pair_literal(parts: tuple[int | None, str | None]) -> str:
    """A composite with what needs quotes in it."""
    number, text = parts
    inner = "" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
    return f"({'' if number is None else number},{inner})"


pairs = st.tuples(st.one_of(st.none(), small), st.one_of(st.none(), words)).map(pair_literal)


def ranges(items: st.SearchStrategy[Any], shown: Callable[[Any], str] = str) -> st.SearchStrategy[str]:
    def write(parts: tuple[Any, Any, str, str]) -> str:
        low, high = sorted(parts[:2])
        return f"{parts[2]}{shown(low)},{shown(high)}{parts[3]}"

    return st.one_of(
        st.tuples(items, items, st.sampled_from("[("), st.sampled_from("])")).map(write),
        st.sampled_from(["empty", "(,)"]),
    )


coordinates = st.integers(-1000, 1000).map(lambda n: n / 8)
points = st.tuples(coordinates, coordinates).map(lambda p: f"({p[0]},{p[1]})")
xml_texts = words.map(lambda text: "<a>" + re.sub(r"[^\w ]", "", text) + "</a>")


# -- and written back -------------------------------------------------------------------------------------------------

Back = Callable[[Any], str]


def decimal_back(scale: int) -> Back:
    def back(value: Any) -> str:
        if isinstance(value, str):
            return {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}.get(value, value)
        return f"{int.from_bytes(value, 'big', signed=True)}e-{scale}" if value else "NaN"

    return back


def variable_back(value: Any) -> str:
    if isinstance(value, str):
        return decimal_back(0)(value)
    if not value["value"]:
        return {0: "NaN", 1: "Infinity", -1: "-Infinity"}[value["scale"]]
    return f"{int.from_bytes(value['value'], 'big', signed=True)}e-{value['scale']}"


def bytea_back(value: Any) -> str:
    return "\\x" + (value if isinstance(value, str) else value.hex())


def bits_back(size: int) -> Back:
    return lambda value: (
        ("1" if value else "0") if isinstance(value, bool) else f"{int.from_bytes(value, 'little'):0{size}b}"[-size:]
    )


def number_of_bits(value: bytes) -> str:
    return f"{int.from_bytes(value, 'little'):b}".lstrip("0")


def any_bits(value: Any) -> str:
    return value if isinstance(value, str) else number_of_bits(value)


def vector_back(value: list[float]) -> str:
    return f"[{','.join(map(repr, value))}]"


def sparse_back(value: dict[str, Any]) -> str:
    items = ",".join(f"{item['key']}:{item['value']!r}" for item in value["vector"])
    return f"{{{items}}}/{value['dimensions']}"


def iso_back(value: str) -> str:
    """ISO 8601 with signed years as PostgreSQL reads it."""
    if "infinity" in value:
        return value
    found = re.fullmatch(r"([+-]?)(\d+)(-.*?)(Z?)", value)
    assert found, value
    sign, year, rest, _ = found.groups()
    number = -int(year) if sign == "-" else int(year)
    text = f"{number:04d}{rest}" if number > 0 else f"{1 - number:04d}{rest} BC"
    return text.replace("T", " ")


def array_back(item: Back, delimiter: str = ",") -> Back:
    def write(value: Any, sizes: list[int]) -> str:
        if not sizes:
            return "NULL" if value is None else quoted(item(value))
        width = len(value) // sizes[0]
        rows = [value[i * width : (i + 1) * width] if sizes[1:] else value[i] for i in range(sizes[0])]
        return "{" + delimiter.join(write(row, sizes[1:]) for row in rows) + "}"

    def back(value: Any) -> str:
        if not value:
            return "{}"
        bounds, flat = getattr(value, "bounds", ""), list(value)
        if bounds:
            while len(flat) == 1 and isinstance(flat[0], list):
                flat = flat[0]
            found = [(int(low), int(high)) for low, high in re.findall(r"\[(-?\d+):(-?\d+)\]", bounds)]
            return f"{bounds}={write(flat, [high - low + 1 for low, high in found])}"
        sizes, first = [], value
        while isinstance(first, list):
            sizes.append(len(first))
            first = first[0]
        for _ in sizes[1:]:
            flat = [part for row in flat for part in row]
        return write(flat, sizes)

    return back


def hstore_back(value: Any) -> str:
    items = json.loads(value) if isinstance(value, str) else value
    return ",".join(f"{quoted(k)}=>{quoted(x)}" for k, x in items.items())


def composite_back(value: Any) -> str:
    return value if isinstance(value, str) else pair_literal((value["a"], value["b"]))


def point_back(value: dict[str, Any]) -> str:
    return f"({value['x']!r},{value['y']!r})"


def boolean_back(value: bool) -> str:
    return "t" if value else "f"


EPOCH_US = "case when isfinite({0}) then (extract(epoch from {0}) * 1000000)::bigint::text else {0}::text end"


def infinite(low: int, high: int) -> Back:
    return lambda value: {low: "-infinity", high: "infinity"}.get(value, str(value))


micros = infinite(TIMESTAMP_MINUS_INFINITY_US, TIMESTAMP_INFINITY_US)


@dataclass(frozen=True)
class Kind:
    """A column type, values for it as text, and how a value that was read becomes text again.

    `oracle` is an expression over the column for forms that PostgreSQL cannot read; `back` then gives its text.
    `other` is the same for the connector with the other modes; None where it is as in the default mode.
    """

    type: str
    values: st.SearchStrategy[str]
    back: Back = str
    oracle: str = ""
    other: tuple[Back, str] | None = None


FAMILIES: dict[str, list[Kind]] = {
    "numbers": [
        Kind("boolean", st.sampled_from(["t", "f"]), boolean_back),
        Kind("smallint", text_of(st.integers(-(2**15), 2**15 - 1))),
        Kind("integer", text_of(st.integers(-(2**31), 2**31 - 1))),
        Kind("bigint", text_of(st.integers(-(2**63), 2**63 - 1))),
        Kind("oid", text_of(st.integers(0, 2**32 - 1))),
        Kind("real", floats(32)),
        Kind("double precision", floats(64), repr),
    ],
    "numerics": [
        Kind("numeric", free_numbers, variable_back),
        Kind("numeric(10,2)", numbers(10, 2), decimal_back(2)),
        Kind("numeric(6,0)", numbers(6, 0), decimal_back(0)),
        Kind("numeric(5,-2)", text_of(small), variable_back),
        Kind("numeric(2,6)", numbers(2, 6), variable_back),
        Kind("money", numbers(12, 2).filter(lambda text: text != "NaN").map(lambda t: f"{int(t[:-3]) / 100:.2f}"),
             lambda value: value if isinstance(value, str) else f"{int.from_bytes(value, 'big', signed=True) / 100:.2f}"),
    ],
    "texts": [
        Kind("text", words), Kind("varchar(12)", words), Kind("char(12)", words), Kind("public.citext", words),
        Kind("name", words), Kind('"char"', st.sampled_from("az09")),
        Kind("json", json_values), Kind("jsonb", json_values.filter(lambda text: "\\u0000" not in text)),
        Kind("xml", xml_texts), Kind("uuid", text_of(st.uuids())), Kind("mood", st.sampled_from(["sad", "so, so"])),
    ],
    "bytes and bits": [
        Kind("bytea", st.binary(max_size=40).map(lambda data: "\\x" + data.hex()), bytea_back),
        Kind("bit(1)", bits(1, 1), bits_back(1)), Kind("bit(11)", bits(11, 11), bits_back(11)),
        Kind("varbit(1)", bits(1, 1), bits_back(1), other=(str, "{0}::text")),
        # The size of a varbit, and so its leading zeros, are not in Debezium's form.
        Kind("varbit(17)", bits(0, 17), number_of_bits, "ltrim({0}::text, '0')", (str, "{0}::text")),
        Kind("bit varying", bits(0, 40), number_of_bits, "ltrim({0}::text, '0')", (str, "{0}::text")),
        Kind("varbit(2)[]", arrays(st.sampled_from(["1", "10", "11"])), array_back(any_bits)),
    ],
    "dates and times": [
        Kind("date", day(5_000_000), infinite(DATE_MINUS_INFINITY, DATE_INFINITY),
             "case when isfinite({0}) then ({0} - date '1970-01-01')::text else {0}::text end", (iso_back, "")),
        Kind("time", clock, str, "(extract(epoch from {0}) * 1000000)::bigint::text", (lambda text: text[:-1], "")),
        Kind("time(3)", clock, str, "(extract(epoch from {0}) * 1000)::bigint::text", (lambda text: text[:-1], "")),
        Kind("timetz", st.tuples(clock, zones).map("".join)),
        Kind("timestamp", moment(), micros, EPOCH_US, (iso_back, "")),
        Kind("timestamp(3)", moment(), infinite(TIMESTAMP_MINUS_INFINITY_US // 1000, TIMESTAMP_INFINITY_US // 1000),
             EPOCH_US.replace("1000000", "1000"), (iso_back, "")),
        Kind("timestamptz", moment("+05:30"), iso_back),
    ],
    "intervals": [
        Kind("interval", interval(1000), infinite(-(2**63), 2**63 - 1),
             "case when isfinite({0}) then ((extract(year from {0}) * 12 + extract(month from {0})) * 2629800000000"
             " + extract(day from {0}) * 86400000000 + extract(hour from {0}) * 3600000000"
             " + extract(minute from {0}) * 60000000 + extract(microseconds from {0}))::bigint::text else {0}::text end",
             (str, "")),
    ],
    "nets": [
        Kind("inet", text_of(st.ip_addresses())), Kind("cidr", text_of(st.ip_addresses())),
        Kind("macaddr", st.binary(min_size=6, max_size=6).map(bytes.hex)),
        Kind("macaddr8", st.binary(min_size=8, max_size=8).map(bytes.hex)),
    ],
    "geometry": [
        Kind("point", points, point_back), Kind("box", st.tuples(points, points).map(",".join)),
        Kind("lseg", st.tuples(points, points).map(",".join)), Kind("circle", points.map(lambda p: f"<{p},2.5>")),
        Kind("line", coordinates.map(lambda n: f"{{{n},1,-1}}")),
        Kind("path", st.lists(points, min_size=1, max_size=4).map(lambda many: "[" + ",".join(many) + "]")),
        Kind("polygon", st.lists(points, min_size=1, max_size=4).map(lambda many: "(" + ",".join(many) + ")")),
    ],
    "searching": [
        Kind("tsvector", st.lists(plain, max_size=4).map(" ".join)), Kind("tsquery", plain.map(lambda w: f"{w} & !x")),
        Kind("public.ltree", st.lists(plain, min_size=1, max_size=4).map(".".join)),
        Kind("pg_lsn", st.integers(0, 2**64 - 1).map(lambda n: f"{n >> 32:X}/{n & 0xFFFFFFFF:X}")),
        Kind("xid8", text_of(st.integers(0, 2**63))), Kind("int2vector", st.just("1 2 3")),
        Kind("public.cube", coordinates.map(lambda n: f"({n}, 2)")),
    ],
    "vectors": [
        Kind("public.vector(3)", vectors(32), vector_back), Kind("public.vector", vectors(32), vector_back),
        Kind("public.halfvec(3)", vectors(16), vector_back),
        Kind("public.sparsevec(9)", sparse, sparse_back),
    ],
    "hstore": [Kind("public.hstore", hstores, hstore_back)],
    "ranges": [
        Kind("int4range", ranges(small)), Kind("int8range", ranges(small)), Kind("numrange", ranges(coordinates)),
        Kind("daterange", ranges(st.dates())), Kind("tsrange", ranges(st.datetimes(), lambda d: f'"{d}"')),
        Kind("tstzrange", ranges(st.datetimes(), lambda d: f'"{d}+00"')), Kind("floatrange", ranges(coordinates)),
        Kind("int4multirange", st.lists(ranges(small), max_size=3).map(lambda many: "{" + ",".join(many) + "}")),
        Kind("floatmultirange", ranges(coordinates).map(lambda one: "{" + one + "}")),
    ],
    "domains": [
        Kind("positive", text_of(st.integers(1, 9))), Kind("price", numbers(5, 3), decimal_back(3)),
        Kind("int_list", arrays(text_of(small), dims=(1,)), array_back(str)), Kind("feeling", st.just("sad")),
        Kind("price[]", arrays(numbers(5, 3)), array_back(decimal_back(3))),
    ],
    "composites": [
        Kind("pair", pairs, composite_back), Kind("pair[]", arrays(pairs), array_back(composite_back)),
        Kind("nest", st.tuples(pairs, small).map(lambda p: f'("{p[0].replace(chr(92), chr(92) * 2).replace(chr(34), chr(34) * 2)}",{p[1]})'),
             other=(lambda v: "|".join(str(x) for x in (*v["inner"].values(), v["n"]) if x is not None),
                    "concat_ws('|', (({0}).inner).a, (({0}).inner).b, ({0}).n)")),
    ],
    "arrays": [
        Kind("int[]", arrays(text_of(small)), array_back(str)), Kind("int[][]", arrays(text_of(small)), array_back(str)),
        Kind("text[]", arrays(words), array_back(str)), Kind("text[][][]", arrays(words), array_back(str)),
        Kind("boolean[]", arrays(st.sampled_from("tf")), array_back(boolean_back)),
        Kind("numeric[]", arrays(free_numbers), array_back(variable_back)),
        Kind("timestamptz[]", arrays(moment("+00")), array_back(iso_back)),
        Kind("bytea[]", arrays(st.binary(max_size=5).map(lambda data: "\\x" + data.hex())), array_back(bytea_back)),
        Kind("mood[]", arrays(st.sampled_from(["sad", "so, so"])), array_back(str)),
        Kind("box[]", arrays(st.tuples(points, points).map(",".join), ";"), array_back(str, ";")),
        Kind("jsonb[]", arrays(json_values.filter(lambda text: "\\u0000" not in text)), array_back(str)),
        Kind("public.hstore[]", arrays(hstores), array_back(hstore_back)),
        Kind("point[]", arrays(points), array_back(point_back)),
        Kind("bit(3)[]", arrays(bits(3, 3)), array_back(bits_back(3))),
        Kind("uuid[]", arrays(text_of(st.uuids())), array_back(str)),
        Kind("double precision[]", arrays(floats(64)), array_back(repr)),
    ],
}  # fmt: skip
KINDS = [kind for kinds in FAMILIES.values() for kind in kinds]
EXTENSIONS = ("hstore", "citext", "ltree", "cube", "vector")
SETUP = """
create type mood as enum ('sad', 'so, so'); create type pair as (a int, b text); create type nest as ("inner" pair, n int);
create domain positive as int check (value > 0); create domain price0 as numeric(8,3); create domain price as price0;
create domain int_list as int[]; create domain feeling as mood; create type floatrange as range (subtype = float8)
"""


def generated(strategy: st.SearchStrategy[str]) -> list[str]:
    found: list[str] = []

    @settings(max_examples=EXAMPLES, database=None, phases=[Phase.explicit, Phase.generate])
    @given(strategy)
    def collect(value: str) -> None:
        found.append(value)

    collect()
    return found


def fitting(db: Any, kind: Kind, values: list[str]) -> list[str]:
    """Intervals have no infinity before PostgreSQL 17, and before 15 fewer hours."""
    if kind.type != "interval" or db.info.server_version >= 170000:
        return values
    values = [value.replace("-infinity", "-1 day").replace("infinity", "1 day") for value in values]
    return [value if is_known(db, kind, [value]) else "1 day" for value in values]


def is_known(db: Any, kind: Kind, values: list[str]) -> bool:
    """Some builds of the server are without a library or an extension; scales below zero came with PostgreSQL 15."""
    lacking = (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue)
    try:
        db.execute(f"select %s::{kind.type}", (values[0],))
    except (*lacking, psycopg.errors.IntervalFieldOverflow):
        return False
    return True


@dataclass
class Read:
    """What one connector read, by row number; `columns` by the number of the kind."""

    snapshot: dict[int, tuple]
    stream: dict[int, tuple]
    reader: Any


def rows_of_v(one: Any, op: str) -> dict[int, tuple]:
    """A copy of the table has its columns, and not their dimensions."""
    return {c.after[0]: c.after for c in one.events(op) if c.table.path[1] == "v"}


@pytest.fixture(scope="module")
def world(postgres):
    name = postgres.create_database()
    # A table made in between comes into view and is loaded, sooner or later: here soon, on any machine.
    often = {"table.discovery.interval.ms": "20", "out.of.range.handling.mode": "exact"}
    readers = [postgres_reader.Reader(postgres, name, slot_name=f"types_{i}", **often) for i in range(2)]
    readers[1].config |= {key.replace("_", "."): value for key, value in OTHER_MODES.items()}
    with psycopg.connect(postgres.dsn(name), autocommit=True) as db:
        for extension in EXTENSIONS:
            with suppress(psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
                db.execute(f"create extension {extension}")
        db.execute(SETUP)
        columns = [fitting(db, kind, generated(kind.values)) for kind in KINDS]
        known = [is_known(db, kind, values) for kind, values in zip(KINDS, columns, strict=True)]
        types = [kind.type if there else "text" for kind, there in zip(KINDS, known, strict=True)]
        columns = [values if there else [] for values, there in zip(columns, known, strict=True)]
        db.execute(f"create table v(id int primary key, {', '.join(f'c{i} {type}' for i, type in enumerate(types))})")
        rows = [(i, *(column[i] if i < len(column) else None for column in columns)) for i in range(EXAMPLES)]
        holes = ", ".join(["%s", *(f"%s::{type}" for type in types)])
        with db.cursor() as cursor:
            cursor.executemany(f"insert into v values ({holes})", rows)
        for one in readers:
            one.start().until(one.loaded)
        db.execute("create table copied as select * from v")
        db.execute("delete from v; insert into v select * from copied")
        reads = []
        for one in readers:
            one.catch_up(db)
            reads.append(Read(*(rows_of_v(one, op) for op in "rc"), one))
            one.task.close()
        yield db, reads, [kind for kind, there in zip(KINDS, known, strict=True) if not there]
    postgres.drop_database(name)


@pytest.mark.parametrize("family", FAMILIES)
def test_snapshot_and_stream_and_the_server_agree_on(family, world):
    db, reads, unknown = world
    for kind in FAMILIES[family]:
        if kind in unknown:
            continue
        at = KINDS.index(kind) + 1
        for number, read in enumerate(reads):
            snapshot = {i: row[at] for i, row in read.snapshot.items()}
            assert len(snapshot) == EXAMPLES
            assert described(snapshot) == described({i: row[at] for i, row in read.stream.items()}), kind.type
            check_back(db, kind, at, snapshot, other=bool(number))
    lacking = ", ".join(kind.type for kind in FAMILIES[family] if kind in unknown)
    if lacking:
        pytest.skip(f"missing part of this server: {lacking} (the rest of the family agrees)")


def described(values: dict[int, Any]) -> list[str]:
    return [f"{i} {value!r} {getattr(value, 'bounds', '')}" for i, value in sorted(values.items())]


def check_back(db: Any, kind: Kind, at: int, values: dict[int, Any], *, other: bool) -> None:
    back, oracle = kind.other if other and kind.other else (kind.back, kind.oracle)
    column = f"v.c{at - 1}"
    left, right = ("x.t", oracle.format(column)) if oracle else (f"x.t::{kind.type}::text", f"{column}::text")
    texts = [None if value is None else back(value) for value in values.values()]
    wrong = db.execute(
        f"select x.t, {column}::text from unnest(%s::int[], %s::text[]) x(id, t) join v on v.id = x.id"
        f" where {left} is distinct from {right}",
        (list(values), texts),
    ).fetchall()
    assert wrong == [], (kind.type, other)


def test_every_value_can_be_encoded(world):
    for read in world[1]:
        ids: dict[str, int] = {}
        encoder = Encoder("shop", lambda many, ids=ids: [ids.setdefault(str(one), len(ids) + 1) for one in many])
        records = encoder.encode([change for change in read.reader.log if change.table.path[1] == "v"])
        headers = {name for record in records for name, _ in record.headers or ()}
        assert len(records) == EXAMPLES * 4
        assert headers == {"cdc.bounds"}
