"""Verify with a MySQL source: what its task hands on, written by a warehouse, is equal; planted differences are found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

import psycopg
import pytest
from cdcworker.connectors.comparison.opening import ComparedConnectors, OpenedComparison, opened
from cdcworker.connectors.comparison.repair import repair_json, repaired_kinds_of
from cdcworker.connectors.mysql.config.settings import parse
from cdcworker.connectors.mysql.doctor.compared_source import MySqlSourceSide
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.databases import VerifyLimits
from cdcworker.connectors.verify.report import Tally
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.schemas.change import Change
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from pymysql.converters import escape_string

from tests import change_streams

from ..logged import LoggedServer
from ..types.test_values import decimals, integers, moments, texts
from .reading import Reading, config_of

pytestmark = [pytest.mark.mysql, pytest.mark.postgres, pytest.mark.sampled(2, "comparisons")]
LIMITS = VerifyLimits(range_rows=50, rows_per_s=0)
SPANS: list[str] = ["'-838:59:59'", "'100:00:00'"]
"""More values of TIME."""
VALUES: Mapping[str, list[str]] = {
    "tinyint": ["-128", "127"],
    "smallint unsigned": ["65535"],
    "mediumint": ["-8388608"],
    "int unsigned": ["4294967295"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "bigint unsigned": ["0", "18446744073709551615"],
    "decimal(12,2)": ["-1234567890.12", "0.00"],
    "decimal(65,30)": ["12345678901234567890123456789012345.123456789012345678901234567890"],
    "float": ["0.1", "-3.4e38", "1.17549e-38"],
    "float(7,3)": ["1234.567"],
    "double": ["0.1", "-1.7976931348623157e308", "1e15", "5e-324"],
    "bit(1)": ["b'1'", "b'0'"],
    "bit(13)": ["b'1000000000001'", "0"],
    "year": ["1901", "2155", "0"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'0000-00-00'", "'2021-02-31'"],
    "time": ["'00:00:00'", "'23:59:59'"],
    "time(6)": ["'12:34:56.789012'"],
    "datetime": ["'2024-02-29 12:34:56'", "'0000-00-00 00:00:00'"],
    "datetime(6)": ["'1969-12-31 23:59:59.500000'", "'9999-12-31 23:59:59.999999'"],
    "timestamp null": ["'2024-02-29 12:34:56'", "'0000-00-00 00:00:00'"],
    "timestamp(6) null": ["'2038-01-01 00:00:00.000001'"],
    "char(5)": ["'ab'"],
    "varchar(20) character set latin1": ["'ünïcø€'", "''"],
    "longtext character set utf8mb4": ["'a,b'", "'q\"uote'", "'back\\\\slash'", "'tab\\tnew\\nline 😀'", "'NULL'"],
    "text character set ucs2": ["'漢字'"],
    "binary(3)": ["X'00ff5c'"],
    "varbinary(10)": ["X''", "X'00275c'"],
    "longblob": ["X'0001fe'"],
    "enum('happy','very, sad')": ["'happy'", "'very, sad'"],
    "set('a','b')": ["'a,b'", "''"],
    "json": ['\'{"b": 1,  "a": [true, null], "bb": 1.50, "c": "\\\\u00e4 \\\\n"}\'', "'\"text\"'", "'-0'", "'1e3'"],
    "uuid": ["'b68a35a7-17ad-35b3-af2a-ae46edb4545a'"],
    "inet6": ["'::1'"],
    "point": ["point(1.5, -2)"],
    "linestring": ["linestring(point(0, 0), point(1, 1))"],
}
NOT_COMPARED = {"linestring"}
"""Types without a common text."""


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


def repr_text(value: object) -> str:
    return f"'{value}'"


class Now:
    """A warehouse that is not fed any more is at every position."""

    def reached(self, ledger: Any) -> bool:
        return True

    def lagging(self, ledger: Any) -> str:
        return ""


@pytest.fixture
def warehouse(postgres: Any) -> Iterator[str]:
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)


def written(changes: list[Change], dsn: str) -> None:
    """What a PostgreSQL sink makes of the changes."""
    stream = change_streams.Stream(prefix="p")
    stream.emit(*(change for change in changes if change.table.plain is None))
    writer = PostgresWriter(dsn, "sink")
    try:
        writer.fence((1, 0))
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 0))
    finally:
        writer.close()


def wanted(server: LoggedServer, dsn: str, tables: list[str], **config: str) -> ComparedConnectors:
    parts = conninfo_to_dict(dsn)
    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    sink = {"connector.class": "spark", "topics.regex": r"p\.shop\..*"}
    sink |= {f"warehouse.{names[key]}": str(value) for key, value in parts.items() if key in names}
    topics = [f"p.shop.{name}" for name in tables]
    return ComparedConnectors("sink", sink, config_of(server, **config), topics)


def compared(both: OpenedComparison, limits: VerifyLimits = LIMITS, **settings: Any) -> Tally:
    found = Comparison(both.source, both.target, lambda *_: Now(), CompareSettings(limits, **settings))
    return found.run(both.plans)


MODES = [
    {},
    {"time.precision.mode": "connect", "binary.handling.mode": "hex", "decimal.handling.mode": "string"},
    {"time.precision.mode": "isostring", "bigint.unsigned.handling.mode": "precise"},
    {"time.precision.mode": "nanoseconds", "decimal.handling.mode": "double"},
]


@pytest.mark.parametrize("modes", MODES[:1])
def test_every_type_arrives_as_it_left(
    shop: LoggedServer, reading: Callable[..., Reading], warehouse: str, modes: dict[str, str]
) -> None:
    every_type(shop, reading, warehouse, modes)


@pytest.mark.long
@pytest.mark.parametrize("modes", MODES[1:])
def test_every_type_arrives_in_each_form(
    shop: LoggedServer, reading: Callable[..., Reading], warehouse: str, modes: dict[str, str]
) -> None:
    every_type(shop, reading, warehouse, modes)


def every_type(shop: LoggedServer, reading: Callable[..., Reading], warehouse: str, modes: dict[str, str]) -> None:
    # As a time of the day, a TIME beyond one is nothing that a warehouse in PostgreSQL takes.
    spans = () if modes.get("time.precision.mode") in ("isostring", "nanoseconds") else SPANS
    values = {type_: [*listed, *(spans if type_.startswith("time") and "stamp" not in type_ else ())]
              for type_, listed in VALUES.items()}  # fmt: skip
    if modes.get("time.precision.mode") == "nanoseconds":
        values["datetime(6)"] = [text for text in values["datetime(6)"] if "9999" not in text]
    types = {f"t{number:02d}": type_ for number, type_ in enumerate(values)}
    shop.ask(*(f"create table shop.{name} (id int primary key, c {type_})" for name, type_ in types.items()))
    fill(shop, 0, [*values.values()])
    one = reading(shop, **modes).start()
    one.until_loaded()
    fill(shop, 100, [*values.values()])
    rows = 2 * sum(len(listed) + 1 for listed in values.values())
    one.until(lambda: len([change for change in one.changes if change.op in "rc"]) == rows)
    one.stop()
    written(one.changes, warehouse)
    with opened(wanted(shop, warehouse, [*types], **modes), LIMITS) as both:
        found = {types[state.plan.source.name]: state for state in compared(both).tables}
    assert len(found) == len(VALUES)
    assert {type_: state.verdict for type_, state in found.items() if state.verdict != "equal"} == {}
    assert {type_ for type_, state in found.items() if state.plan.left_out} == NOT_COMPARED
    with psycopg.connect(warehouse, autocommit=True) as db:
        for name in types:
            db.execute(f"update shop.{name} set c = null where id = 0".encode())
    with opened(wanted(shop, warehouse, [*types], **modes), LIMITS) as both:
        tally = compared(both)
    differing = {types[state.plan.source.name] for state in tally.tables if state.verdict == "different"}
    assert differing == set(VALUES) - NOT_COMPARED


def fill(server: LoggedServer, start: int, values: list[list[str]]) -> None:
    statements = ["set time_zone = '+00:00'"]
    for number, listed in enumerate(values):
        rows = ", ".join(f"({start + at}, {value})" for at, value in enumerate([*listed, "null"]))
        statements.append(f"insert into shop.t{number:02d} values {rows}")
    server.ask(*statements)


COLUMNS: Mapping[str, st.SearchStrategy[str]] = {
    "bigint unsigned": integers(64, unsigned=True).map(str),
    "mediumint": integers(24, unsigned=False).map(str),
    "decimal(20,10)": decimals(20, 10).map(str),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "bit(13)": st.integers(0, 2**13 - 1).map(str),
    "date": st.dates(date(1, 1, 1)).map(repr_text),
    "time(6)": st.times().map(repr_text),
    "datetime(3)": moments(3).map(repr_text),
    "varchar(20) character set utf8mb4": texts("aé€漢😀 \t'\\\"", 20).map(lambda text: f"'{escape_string(text)}'"),
    "varbinary(20)": st.binary(max_size=20).map(lambda value: f"X'{value.hex()}'"),
    "json": st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=6,
    ).map(lambda value: f"'{escape_string(json.dumps(value))}'"),
}
ROWS_MAX = 20


@given(
    st.lists(st.tuples(*(values | st.just("null") for values in COLUMNS.values())), min_size=1, max_size=ROWS_MAX),
    st.data(),
)
@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_rows_of_any_values_are_equal_and_a_value_that_is_taken_is_missed(
    shop: LoggedServer,
    reading: Callable[..., Reading],
    warehouse: str,
    rows: list[tuple[str, ...]],
    data: st.DataObject,
) -> None:
    """A value that was there is taken from one row of the warehouse."""
    columns = ", ".join(f"c{at} {type_}" for at, type_ in enumerate(COLUMNS))
    shop.ask(f"create or replace table shop.r (id int primary key, {columns})")
    shop.ask("insert into shop.r values " + ", ".join(f"({at}, {', '.join(row)})" for at, row in enumerate(rows)))
    one = reading(shop).start()
    one.until_loaded()
    one.stop()
    with psycopg.connect(warehouse, autocommit=True) as db:
        db.execute("drop schema if exists shop cascade")
        db.execute("drop schema if exists _cdcworker cascade")
    written(one.changes, warehouse)
    config = wanted(shop, warehouse, ["r"])
    with opened(config, LIMITS) as both:
        (state,) = compared(both).tables
    assert (state.verdict, state.plan.left_out, state.source_rows) == ("equal", (), len(rows))
    there = [(row, at) for row, values in enumerate(rows) for at, value in enumerate(values) if value != "null"]
    if not there:
        return
    row, at = data.draw(st.sampled_from(there))
    with psycopg.connect(warehouse, autocommit=True) as db:
        db.execute(f"update shop.r set c{at} = null where id = {row}".encode())
    with opened(config, LIMITS) as both:
        (state,) = compared(both).tables
    assert [(found.key, found.kind, found.columns) for found in state.found] == [
        ((str(row),), "different", (f"c{at}",))
    ]


KEYS = {
    "numbers": "id bigint primary key, a varchar(20)",
    "pairs": "d date, n int unsigned, a varchar(20), primary key (d, n)",
    "words": "id varchar(20) character set utf8mb4 primary key, a varchar(20)",
    "bytes": "id varbinary(8) primary key, a varchar(20)",
    "moments": "id datetime(6) primary key, a varchar(20)",
}
ROWS = {
    "numbers": "select seq - 150, concat('a', seq) from shop.s",
    "pairs": "select '2024-01-01' + interval (seq div 7) day, seq mod 7, concat('a', seq) from shop.s",
    "words": "select concat('wörd ', seq), concat('a', seq) from shop.s",
    "bytes": "select unhex(hex(seq)), concat('a', seq) from shop.s",
    "moments": "select '2024-01-01' + interval seq * 1001 microsecond, concat('a', seq) from shop.s",
}


def test_planted_differences_are_found_and_what_would_repair_them(
    shop: LoggedServer, reading: Callable[..., Reading], warehouse: str
) -> None:
    shop.ask("create table shop.s (seq int)", "insert into shop.s select seq from shop.seq_1_to_300")
    for name, columns in KEYS.items():
        shop.ask(f"create table shop.{name} ({columns})", f"insert into shop.{name} {ROWS[name]}")
    one = reading(shop, table__exclude__list="shop.s").start()
    one.until_loaded()
    one.stop()
    written(one.changes, warehouse)
    config = {"table__exclude__list": "shop.s"}
    with opened(wanted(shop, warehouse, [*KEYS], **config), LIMITS) as both:
        assert {state.plan.source.name: state.verdict for state in compared(both).tables} == dict.fromkeys(
            KEYS, "equal"
        )
        ordered = {one.source.name for one in both.plans if one.is_ordered}
        assert ordered == {*KEYS} - {"words"}
    shop.ask(*(f"update shop.{name} set a = 'other' where a = 'a17'" for name in KEYS))
    shop.ask(*(f"delete from shop.{name} where a = 'a203'" for name in KEYS))
    with psycopg.connect(warehouse, autocommit=True) as db:
        for name in KEYS:
            db.execute(f"delete from shop.{name} where a = 'a90'".encode())
    with opened(wanted(shop, warehouse, [*KEYS], **config), LIMITS) as both:
        tally = compared(both, kept=repaired_kinds_of(both))
        found = {state.plan.source.name: dict(state.counts) for state in tally.tables}
        assert found == {name: {"different": 1, "extra": 1, "missing": 1} for name in KEYS}
        repaired = {item["table"]: item for item in repair_json(both, tally)["tables"]}
    assert {table: sorted(item["rows"]) for table, item in repaired.items()} == {
        "shop.numbers": [["-133"], ["-60"], ["53"]],
        "shop.pairs": [["2024-01-03", "3"], ["2024-01-13", "6"], ["2024-01-30", "0"]],
        "shop.words": [["wörd 17"], ["wörd 203"], ["wörd 90"]],
        "shop.bytes": [["11"], ["5a"], ["cb"]],
        "shop.moments": [
            ["2024-01-01 00:00:00.017017"], ["2024-01-01 00:00:00.09009"], ["2024-01-01 00:00:00.203203"]
        ],
    }  # fmt: skip


def test_a_position_is_reached_by_watermarks_of_the_same_server_alone(
    shop: LoggedServer, reading: Callable[..., Reading]
) -> None:
    shop.ask("create table shop.t (id int primary key)")
    one = reading(shop).start()
    one.until_loaded()
    side = MySqlSourceSide(parse(one.config))
    try:
        for statement in (
            "insert into shop.t values (1)",
            "flush binary logs",
            "create table shop.u (id int primary key)",
        ):
            shop.ask(statement)
            position = side.begin()
            side.end()
            # Nothing is written any more: the end of the log is reached all the same.
            one.until(lambda position=position: side.reached(one.watermark) >= position)
        assert side.reached({**one.watermark, "log": {**one.watermark["log"], "server": "another"}}) == -1
        assert side.reached({"commit_lsn": 7}) == -1
        assert side.position_text(position).endswith(f":{one.watermark['log']['pos']}")
    finally:
        side.close()


def test_a_snapshot_shows_what_was_committed_before_its_position(shop: LoggedServer) -> None:
    shop.ask("create table shop.t (id int primary key)", "insert into shop.t values (1)")
    side = MySqlSourceSide(parse(config_of(shop)))
    try:
        side.prepare(LIMITS)
        first = side.begin()
        shop.ask("insert into shop.t values (2)")
        table = side.keyed_table("shop", "t")
        assert table is not None
        assert (table.key, [column.type for column in table.columns]) == (("id",), ["integer"])
        assert side.has_values(table, "id")
        assert side.begin() > first
    finally:
        side.close()
