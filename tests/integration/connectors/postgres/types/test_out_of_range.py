"""With default settings stock readers take every value that the server can hold, and read what the server says of it.

The server is the oracle: it computes the nearest value that readers have. Rows come from a snapshot and from the stream, natively
and by the decoder in Python.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.verify.bounded_texts import bounded
from cdcworker.connectors.verify.canonical_text import SourceModes, VerifiedColumn, pair
from cdcworker.schemas.change import Change
from cdcworker.schemas.envelope import key_schema, value_schema
from hypothesis import strategies as st

from tests.conftest import unless_built
from tests.unit.connectors.native_records import Registry
from tests.unit.connectors.postgres.stock_readers import read_avro

from .. import postgres_reader
from . import test_types as types

pytestmark = [pytest.mark.postgres, unless_built(native_path.native())]

MOMENTS = (
    "infinity",
    "-infinity",
    "0044-03-15 01:02:03 BC",
    "10000-01-01 00:00:00",
    "294276-12-31 23:59:59.999999",
    "4713-11-24 00:00:00 BC",
)
DATES = ("infinity", "-infinity", "4713-11-24 BC", "5874897-12-31", "10000-01-01")
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e40", "-1e-20")


def millis_back(value: int) -> str:
    """Milliseconds since 1970 as the server's text, of any year."""
    days, rest = divmod(value, 86_400_000)
    era, of_era = divmod(days + 719_468, 146_097)
    of_era_years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * of_era_years + of_era_years // 4 - of_era_years // 100)
    month_from_march = (5 * of_year + 2) // 153
    month = month_from_march + (3 if month_from_march < 10 else -9)
    year = of_era_years + 400 * era + (month <= 2)
    day = of_year - (153 * month_from_march + 2) // 5 + 1
    clock = (dt.datetime.min + dt.timedelta(milliseconds=rest)).time().isoformat()
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02} {clock}{' BC' * (year <= 0)}"


@dataclass(frozen=True)
class Bounded:
    """A column type, values of it as text, how what was read becomes text, and what the server says of a value `{0}`."""

    type: str
    extremes: tuple[str, ...]
    values: st.SearchStrategy[str]
    back: Callable[[Any], str]
    oracle: str


BETWEEN = "least(greatest({0}, '0001-01-01'), '9999-12-31 23:59:59.999999')"
FINITE = "(case {0} when 'infinity' then '9999-12-31' when '-infinity' then '0001-01-01' else {0} end - '1970-01-01')"
NUMBER = "case when {0} in ('NaN', 'Infinity', '-Infinity') then %s else {0} end"
MOST = "case when {0} = '-Infinity' then -99999999999999999999999999999999999999 else 99999999999999999999999999999999999999 end"
INFINITE = "(case {0} when 'infinity' then '9999-12-31 23:59:59' when '-infinity' then '0001-01-01' else {0} end)"
KINDS = [
    Bounded("timestamp", MOMENTS, types.moment(), str, BETWEEN),
    Bounded("timestamp(3)", (*MOMENTS[:4], MOMENTS[5]), types.moment(), millis_back, INFINITE),
    Bounded("date", DATES, types.day(5_000_000), str, FINITE),
    Bounded("time", ("24:00:00", "23:59:59.999999"), types.clock, dt.time.isoformat, "least({0}, '23:59:59.999999')"),
    Bounded("time(5)", ("24:00:00", "23:59:59.99999"), types.clock, dt.time.isoformat, "least({0}, '23:59:59.999999')::time(5)"),
    Bounded("timetz", ("24:00:00+02", "24:00:00-15:59"), types.clock.map(lambda text: f"{text}+01"), str,
            "regexp_replace({0}::text, '^24:00:00', '23:59:59.999999')::timetz"),
    Bounded("numeric(8,3)", ("NaN",), types.numbers(8, 3), str, "nullif({0}, 'NaN')"),
    Bounded("numeric(8,3) not null", ("NaN",), types.numbers(8, 3), str, "coalesce(nullif({0}, 'NaN'), 99999.999)"),
    Bounded("numeric", NUMBERS, types.free_numbers, types.variable_back, NUMBER % "null"),
    Bounded("numeric not null", NUMBERS, types.free_numbers, types.variable_back, NUMBER % MOST),
    Bounded("timestamptz", tuple(f"{text} UTC" if "inf" not in text else text for text in MOMENTS), types.moment("+00"), types.iso_back, "{0}"),
]  # fmt: skip
ARRAYS = [kind for kind in KINDS if "not null" not in kind.type]


def filled(kind: Bounded, count: int) -> list[str]:
    found = [*kind.extremes, *types.generated(kind.values)]
    return [found[i % len(found)] for i in range(count)]


COUNT = types.EXAMPLES + max(len(kind.extremes) for kind in KINDS)


@pytest.fixture(scope="module")
def world(postgres):
    """The rows as each way brings them: by name the values read by stock deserializers, by row number."""
    database = postgres.create_database()
    kinds = ", ".join(
        [f"c{i} {kind.type}" for i, kind in enumerate(KINDS)] + [f"a{i} {kind.type}[]" for i, kind in enumerate(ARRAYS)]
    )
    with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
        db.execute(f"create table v (id int primary key, {kinds})")
        columns = [filled(kind, COUNT) for kind in KINDS]
        columns += [[f'{{"{text}",NULL}}' for text in columns[KINDS.index(kind)]] for kind in ARRAYS]
        holes = ", ".join(["%s", *(f"%s::{kind.type.removesuffix(' not null')}" for kind in KINDS),
                           *(f"%s::{kind.type}[]" for kind in ARRAYS)])  # fmt: skip
        with db.cursor() as cursor:
            cursor.executemany(
                f"insert into v values ({holes})", [(i, *row) for i, row in enumerate(zip(*columns, strict=True))]
            )
        rows: dict[str, dict[int, dict[str, Any]]] = {}
        for name in ("native", "python"):
            one = postgres_reader.Reader(postgres, database, slot_name=f"{name}_{database}").start()
            registry = Registry()
            if name == "native":
                one.task.use_layouts(registry)
            one.until(one.loaded)
            db.execute("create table copied as select * from v; delete from v; insert into v select * from copied; drop table copied")  # fmt: skip
            one.catch_up(db)
            native = sum(len(item.records) for item in one.log if not isinstance(item, Change))
            assert (native > COUNT) == (name == "native")
            rows |= {f"{name} {op}": found for op, found in read(registry, one.log).items()}
            one.kill()
        yield db, rows
    postgres.drop_database(database)


def read(registry: Registry, log: list[Any]) -> dict[str, dict[int, dict[str, Any]]]:
    out: dict[str, dict[int, dict[str, Any]]] = {"r": {}, "c": {}}
    made = [record[1] for record in registry.produced(log) if record[0] == "shop.public.v" and record[1] is not None]
    [schema] = [value_schema("shop", table) for table in {c.table.path: c.table for c in registry.changes(log)}.values()
                if table.path[1] == "v"]  # fmt: skip
    for framed in made:
        change = read_avro({int.from_bytes(framed[1:5], "big"): schema}, framed)
        if change["op"] in out:
            out[change["op"]][change["after"]["id"]] = change["after"]
    return out


@pytest.mark.parametrize("way", ["native r", "native c", "python r", "python c"])
def test_every_value_is_read_as_the_nearest_that_readers_have(world, way):
    db, rows = world
    assert sorted(rows[way]) == list(range(COUNT))
    for prefix, kinds in (("c", KINDS), ("a", ARRAYS)):
        for i, kind in enumerate(kinds):
            found = {number: row[f"{prefix}{i}"] for number, row in rows[way].items()}
            if prefix == "a":
                assert all(len(value) == 2 and value[1] is None for value in found.values())
                found = {number: value[0] for number, value in found.items()}
            check(db, kind, f"v.{prefix}{i}{'[1]' if prefix == 'a' else ''}", found)


MODES = SourceModes(out_of_range="clamp")
NAMES = {
    "timestamp": "timestamp without time zone",
    "timestamp(3)": "timestamp(3) without time zone",
    "time": "time without time zone",
    "timestamptz": "timestamp with time zone",
}


@pytest.mark.parametrize("is_array", [False, True], ids=["plain", "array"])
def test_verify_takes_what_readers_have_for_equal(world, is_array):
    """What was read stands in for a warehouse: its text has to be the source's own, as verify compares them."""
    db, rows = world
    for i, kind in enumerate(ARRAYS if is_array else KINDS):
        name = kind.type.removesuffix(" not null")
        base = name.partition("(")[0]
        declared = NAMES.get(name, name) + "[]" * is_array
        element = {"type": f"_{base}", "element": base} if is_array else {"type": base}
        column = VerifiedColumn("c", declared=declared, **element)
        made = bounded(pair(column, column, MODES), column, column, MODES, required="not null" in kind.type)
        found = {number: row[f"{'a' if is_array else 'c'}{i}"] for number, row in rows["native c"].items()}
        values = [value[0] if is_array else value for value in found.values()]
        texts = [None if value is None else kind.back(value) for value in values]
        held = "('1970-01-01'::date + x.t::int)" if name == "date" else f"x.t::{name}"
        held = f"array[{held}, null]" if is_array else held
        ours, exact = (text.format(f"v.{'a' if is_array else 'c'}{i}") for text in (made.source, made.target))
        wrong = db.execute(
            f"select v.id, {ours}, {made.target.format(held)} from unnest(%s::int[], %s::text[]) x(id, t)"
            f" join v on v.id = x.id where {ours} is distinct from {made.target.format(held)}",
            (list(found), texts),
        ).fetchall()
        assert wrong == [], kind.type
        # A warehouse may have the exact values of before.
        assert db.execute(f"select count(*) from v where {ours} is distinct from {exact}").fetchone() == (0,), kind.type


def check(db: Any, kind: Bounded, column: str, found: dict[int, Any]) -> None:
    wanted = kind.oracle.format(column)
    texts = [None if value is None else kind.back(value) for value in found.values()]
    cast = "int" if kind.type == "date" else kind.type.removesuffix(" not null")
    wrong = db.execute(
        f"select {column}::text, x.t, ({wanted})::text from unnest(%s::int[], %s::text[]) x(id, t) join v on v.id = x.id"
        f" where x.t::{cast} is distinct from {wanted}",
        (list(found), texts),
    ).fetchall()
    assert wrong == [], kind.type


@pytest.mark.parametrize("way", ["native", "python", "chosen"])
def test_keys_stay_apart_and_readers_take_them(postgres, way):
    """Keys of the server, natively and in Python, and those that `message.key.columns` chooses."""
    chosen = {"message.key.columns": "public.keyed:at,clock,day,price"} if way == "chosen" else {}
    key = "primary key (what)" if chosen else "primary key (at, clock, day, price)"
    database = postgres.create_database()
    with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
        db.execute(f"create table keyed (at timestamp, clock time, day date, what int, price numeric(8,3), {key})")
        if chosen:
            db.execute("alter table keyed replica identity full")
        db.execute(
            "insert into keyed values ('infinity', '24:00', 'infinity', 1, 1), ('9999-12-31 23:59:59.999999', '24:00', 'infinity', 2, 1),"
            " ('infinity', '23:59:59.999999', '9999-12-31', 3, 1), ('0044-03-15 BC', '12:00', '-infinity', 4, 1),"
            " ('infinity', '24:00', 'infinity', 5, 'NaN'), ('infinity', '24:00', 'infinity', 6, 99999.999)"
        )
        one = postgres_reader.Reader(postgres, database, slot_name=f"keys_{database}", **chosen).start()
        registry = Registry()
        if way != "python":
            one.task.use_layouts(registry)
        one.until(one.loaded)
        db.execute("update keyed set what = what + 10")
        one.catch_up(db)
        made = [record for record in registry.produced(one.log) if record[0] == "shop.public.keyed"]
        one.kill()
    postgres.drop_database(database)
    [table] = {c.table.path: c.table for c in registry.changes(one.log) if c.table.path[1] == "keyed"}.values()
    schemas = [value_schema("shop", table), key_schema("shop", table)]
    read_keys = [read_avro({int.from_bytes(record[2][1:5], "big"): schemas[1]}, record[2]) for record in made]
    keys = set(map(str, read_keys))
    rows = [read_avro({int.from_bytes(record[1][1:5], "big"): schemas[0]}, record[1])["after"] for record in made]
    assert (len(made), len(keys), len({record[2] for record in made})) == (12, 6, 6)
    assert {str(key["price"]) for key in read_keys} == {"1.000", "99999.999", "100000.00"}
    assert max(row["price"] or 0 for row in rows) < 100_000
    assert {row["at"].year for row in rows} == {9999, 1}
    assert max(row["clock"] for row in rows) == dt.time.max
