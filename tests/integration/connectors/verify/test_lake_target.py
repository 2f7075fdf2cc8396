"""Verify with a lake as the target: its texts are those of PostgreSQL, and planted differences are found."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import POSITION
from cdcworker.connectors.postgres.doctor.compared_source import PostgresSourceSide
from cdcworker.connectors.postgres.transport.server_functions import END_OF_LOG
from cdcworker.connectors.verify import lake_texts as laketexts
from cdcworker.connectors.verify.canonical_text import SESSION, SourceModes, VerifiedColumn
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.databases import VerifyLimits
from cdcworker.connectors.verify.plan import plan
from cdcworker.connectors.warehouses.lake.statements import type_of
from cdcworker.connectors.warehouses.lake.tables import LakeName, TableVersion
from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget
from cdcworker.connectors.warehouses.parquet.verify_tables import ParquetTables
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import Manifest, schema_text
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests import change_streams
from tests.contract import warehouses as contract

from .test_compare import Now, summary

pytestmark = pytest.mark.postgres
UTC = dt.UTC
VALUES = [
    ("bool", "'t'", "boolean", True),
    ("int8", "-5", "bigint", -5),
    ("int4", "7", "string", "7"),
    ("numeric", "1.50", "decimal(9,2)", Decimal("1.50")),
    ("numeric", "-0.00", "decimal(9,2)", Decimal("-0.00")),
    ("numeric", "100", "decimal(9,2)", Decimal("100.00")),
    ("numeric", "1e30", "string", "1E+30"),
    ("numeric", "'NaN'", "string", "NaN"),
    ("numeric", "'NaN'", "decimal(9,2)", None),
    ("float8", "'1e15'", "double", 1e15),
    ("float8", "'NaN'", "double", float("-nan")),
    ("float8", "'-0'", "double", -0.0),
    ("float4", "0.1", "float", 0.10000000149011612),
    ("date", "'2024-02-29'", "date", dt.date(2024, 2, 29)),
    ("date", "'infinity'", "date", dt.date(9999, 12, 31)),
    ("date", "'0044-03-15 BC'", "date", dt.date(1, 1, 1)),
    ("timestamp", "'2024-01-01 00:00:00.120'", "timestamp_ntz", dt.datetime(2024, 1, 1, 0, 0, 0, 120000)),
    ("timestamp", "'-infinity'", "timestamp_ntz", dt.datetime(1, 1, 1)),
    ("timestamptz", "'2024-01-01 01:00:00+01'", "timestamp", dt.datetime(2024, 1, 1, tzinfo=UTC)),
    ("timestamptz", "'infinity'", "timestamp", dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ("time", "'12:34:56.7'", "string", "12:34:56.700000"),
    ("bytea", r"'\x00ff'", "binary", b"\0\xff"),
    ("text", "'wörd'", "string", "wörd"),
    ("bpchar", "'a '", "string", "a  "),
    ("jsonb", """'{"b": 1.50, "a": "é"}'""", "string", '{"a": "é", "b": 1.50}'),
    ("uuid", "'6f0d6c0e-0000-4000-8000-000000000001'", "string", "6f0d6c0e-0000-4000-8000-000000000001"),
    ("inet", "'10.0.0.1/8'", "string", "10.0.0.1/8"),
    ("interval", "'1 day 2 microseconds'", "string", "86400000002 microseconds"),
    ("varbit", "B'0101'", "string", "101"),
    ("bit", "B'1'", "boolean", True),
    ("varbit", "B'1'", "boolean", True),
    ("varbit", "B''", "boolean", False),
    ("_int4", "'{1,NULL,3}'", "array<int>", [1, None, 3]),
    ("_text", """'{"a\\"b",NULL}'""", "array<string>", ['a"b', None]),
]


def column(type_):
    return VerifiedColumn("c", type_, element=type_[1:] if type_.startswith("_") else "")


@pytest.fixture
def source(postgres, database):
    """A side that reads; `.db` writes."""
    from cdcworker.connectors.postgres.errors import translate

    with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
        side = PostgresSourceSide(psycopg.connect(postgres.dsn(database), autocommit=True), translate, END_OF_LOG)
        side.prepare(VerifyLimits())
        side.db = db
        yield side
        side.close()


def test_a_value_has_one_text_on_both_sides(source):
    assert SESSION["TimeZone"] == "UTC"
    for type_, literal, held, value in VALUES:
        pair = laketexts.pair(column(type_), VerifiedColumn("c", held, laketexts.LAKE), SourceModes())
        assert not isinstance(pair, str), (type_, held, pair)
        name = "bit varying" if type_ == "varbit" else f"{type_[1:]}[]" if type_.startswith("_") else type_
        query = f"SELECT {pair.source.format(f'({literal}::{name})')}".replace("%", "%%")
        ((text,),) = source.connection.execute(query).fetchall()
        assert text == (None if value is None else laketexts.TEXTS[pair.target](value)), (type_, literal)


@pytest.mark.parametrize(
    ("type_", "held"), [("hstore", "string"), ("point", "string"), ("jsonb", "int"), ("_bit", "string")]
)
def test_what_has_no_common_text_is_left_out_with_the_reason(type_, held):
    assert "no common text" in laketexts.pair(column(type_), VerifiedColumn("c", held, laketexts.LAKE), SourceModes())


class Memory:
    """A writer over Arrow tables, which reads as Spark's processes do."""

    def __init__(self):
        self.tables = {}
        self.offset = 0
        self.looks = self.reads = 0

    def place(self, schema, table):
        return LakeName(schema, table)

    def found(self):
        self.looks += 1
        for place, table in self.tables.items():
            columns = schema_text(table.schema)
            state = Manifest(
                "sink", f"p.{place.table}", (1, 0), offsets={"0": self.offset}, key=("id",), schema=columns
            )
            yield place, TableVersion(state, {field.name: type_of(field.type) for field in table.schema}, 1, False)

    def read(self, place, found, names, work, columns):
        self.reads += 1
        return pa.Table.from_batches(work(iter(self.tables[place].select(names).to_batches(max_chunksize=37))))

    def close(self):
        pass


PEOPLE = "select g::bigint id, 'name ' || g as name, (g * 1.5)::numeric(12,2) amount, (g / 3.0)::float8 w from generate_series(1, 400) g"


@pytest.fixture
def both(source):
    source.db.execute(f"create table people as {PEOPLE}; alter table people add primary key (id); analyze people")
    rows = source.db.execute("select id, name, amount, w from people").fetchall()
    kinds = [("id", pa.int64()), ("name", pa.string()), ("amount", pa.decimal128(12, 2)), ("w", pa.float64())]
    data = {name: pa.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(kinds)}
    memory = Memory()
    memory.tables[LakeName("public", "people")] = pa.table(
        {**data, POSITION: pa.array([b"\0" * 16] * 400, pa.binary())}
    )
    return source, memory


def compared(both, goal=lambda position, deadline: Now()):
    source, memory = both
    target = LakeTarget(memory, "sink")
    made = plan("p.people", source.table("public", "people", ("id",)), target.table("public", "people"), SourceModes())
    assert (made.reason, made.left_out, made.is_ordered) == ("", (), False)
    return Comparison(source, target, goal, CompareSettings(VerifyLimits(range_rows=150, rows_per_s=0))).run([made])


def test_equal_tables_are_equal(both):
    tally = compared(both)
    (state,) = tally.tables
    assert (tally.verdict, state.source_rows, state.target_rows) == ("equal", 400, 400)
    assert state.source_sum == state.target_sum != 0


@pytest.mark.parametrize(
    ("statement", "expected", "columns"),
    [
        ("update people set name = 'nbme 77' where id = 77", {"different": 1}, ("name",)),
        ("delete from people where id = 400", {"extra": 1}, ()),
        ("insert into people values (100000)", {"missing": 1}, ()),
        ("update people set name = null where id = 4", {"different": 1}, ("name",)),
        ("update people set w = w + 1e-13 where id = 9", {"different": 1}, ("w",)),
        ("update people set amount = amount + 1, w = w + 1 where id in (5, 6)", {"different": 2}, ("amount", "w")),
    ],
)
def test_a_planted_difference_is_found(both, statement, expected, columns):
    both[0].db.execute(statement)
    tally = compared(both)
    assert summary(tally) == {"people": expected}
    assert tally.tables[0].found[0].columns == columns


def test_a_lake_that_is_behind_is_waited_for(both):
    asked = []

    class Later(Now):
        def reached(self, ledger):
            asked.append(dict(ledger))
            both[1].offset = 5
            return ledger["p.people", 0] == 5

    assert compared(both, lambda position, deadline: Later()).verdict == "equal"
    assert asked[:2] == [{("p.people", 0): 0}, {("p.people", 0): 5}]


def test_a_lake_is_looked_at_once_for_all_its_tables_and_a_table_read_once_for_all_keys(both):
    source, memory = both
    target = LakeTarget(memory, "sink")
    (place,) = memory.tables
    memory.tables[place._replace(table="more")] = memory.tables[place]
    assert [target.table("public", name) is None for name in ("people", "more", "none")] == [False, False, True]
    assert memory.looks == 1
    source.db.execute("update people set name = 'other'")
    tally = compared(both)
    assert summary(tally) == {"people": {"different": 400}}
    # Sums, sums of the parts, rows, and one look at all keys between two of the source.
    assert memory.reads == 4


def test_a_parquet_warehouse_is_compared_by_its_files(source, tmp_path):
    stream = change_streams.Stream()
    writer = ParquetWriter(LocalDisk(tmp_path), "sink", output=OutputForm(soft=True))
    writer.fence((1, 0))
    for number in range(300):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b" * (number % 5)))
    stream.delete(change_streams.NARROW, (299,))
    contract.run(stream, writer, [100])
    source.db.execute("create table orders (id bigint primary key, n int, a text, big text)")
    source.db.execute("insert into orders select g, 1, 'a', repeat('b', g % 5) from generate_series(0, 298) g")
    target = LakeTarget(ParquetTables(LocalDisk(tmp_path), "sink"), "sink")

    def compare():
        ours = source.table("public", "orders", ("id",))
        made = plan(contract.TOPIC, ours, target.table("public", "orders"), SourceModes())
        settings = CompareSettings(VerifyLimits(range_rows=50, rows_per_s=0))
        return Comparison(source, target, lambda *_: Now(), settings).run([made])

    tally = compare()
    assert (tally.verdict, tally.tables[0].source_rows) == ("equal", 299)
    source.db.execute("update orders set big = null where id = 5; delete from orders where id = 7")
    source.db.execute("insert into orders values (1000, 1, 'a', 'b')")
    tally = compare()
    assert summary(tally) == {"orders": {"different": 1, "extra": 1, "missing": 1}}
