"""Every type from a PostgreSQL source through the envelope into a PostgreSQL target: the same text in the end."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.warehouses.lake import statements as lakesql
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import Manifests

from tests import change_streams
from tests.integration.connectors.postgres import postgres_reader as reader

pytestmark = pytest.mark.postgres

VALUES = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "0"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295"],
    "real": ["1.17549435e-38", "NaN", "-Infinity", "3.4028235e38"],
    "double precision": ["0.1", "NaN", "Infinity", "-0", "5e-324", "1.7976931348623157e308"],
    "numeric(12,2)": ["-1234567890.12", "0.00", "NaN"],
    "numeric(60,20)": ["-1234567890123456789012345678901234567890.12345678901234567891"],
    "numeric": ["0", "-0.000000000000000000000000000001", "NaN", "Infinity", "-Infinity", "1e40", "12.3400"],
    "text": ["", "a,b", 'q"uote', "back\\slash", "\\.", "tab\tnewline\nreturn\r", "ünïcødé 😀", "NULL", "\\N"],
    "character varying(20)": ["short", ""],
    "character(5)": ["ab"],
    "bytea": ["\\x", "\\x00ff5c", "\\x27"],
    "date": ["2024-02-29", "0001-01-01", "0044-03-15 BC", "infinity", "-infinity", "5874897-12-31"],
    "time": ["00:00:00", "23:59:59.999999", "24:00:00"],
    "time(3)": ["01:02:03.004"],
    "time with time zone": ["04:05:06.789-08", "04:05:06+05:30"],
    "timestamp": [
        "2024-02-29 12:34:56.789012",
        "0044-03-15 01:02:03 BC",
        "infinity",
        "-infinity",
        "1969-12-31 23:59:59.5",
    ],
    "timestamp(3)": ["2024-02-29 12:34:56.789", "0001-01-01 00:00:00"],
    "timestamp with time zone": [
        "2024-02-29 12:34:56.789012+02",
        "12024-01-01 00:00:00+00",
        "0044-03-15 01:02:03+00 BC",
        "infinity",
    ],
    # Days and months are hours in Debezium's MicroDuration.
    "interval": ["26:03:04.5", "-72:00:00", "00:00:00"],
    "uuid": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    "json": ['{"b": 1,  "a": [true, null]}'],
    "jsonb": ['{"a": [true, null], "b": 1.50}', '"text"'],
    "inet": ["192.168.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit(3)": ["101", "000"],
    "bit(1)": ["1"],
    "point": ["(1.5,-2)"],
    "box": ["(2,2),(1,1)"],
    "int4range": ["[1,5)", "empty"],
    "tstzrange": ['["2024-01-01 00:00:00+00",)'],
    "tsvector": ["'a':1 'b':2"],
    "integer[]": ["{1,NULL,3}", "{}"],
    "text[]": ['{a,"b,c","q\\"",NULL,"NULL",""}'],
    "numeric(10,2)[]": ["{1.50,NULL}"],
    "timestamp[]": ['{"2024-01-01 00:00:00.5",NULL}'],
    "uuid[]": ["{b68a35a7-17ad-35b3-af2a-ae46edb4545a}"],
    "boolean[]": ["{t,f,NULL}"],
    "mood": ["happy", "very sad"],
    "percent": ["42"],
    "xml": ["<a>b</a>"],
}
OTHER_TEXT = {"bit(1)": "case c when true then '1' when false then '0' end"}
"""Where the target has another type on purpose: a bit of one is a boolean."""
DECLARED = {
    "oid": "bigint",
    "time": "time without time zone",
    "time(3)": "time(3) without time zone",
    "timestamp": "timestamp without time zone",
    "timestamp(3)": "timestamp(3) without time zone",
    "timestamp[]": "timestamp without time zone[]",
    "bit(1)": "boolean",
    "mood": "text",
    "percent": "integer",
    "xml": "text",
}
"""Types of a PostgreSQL warehouse that are others than the source's, or have longer names."""
CLAMPED = {"numeric(12,2)", "numeric", "date", "time", "timestamp"}
"""Types with values that readers do not hold."""
IN_FILES = {
    **dict.fromkeys(("boolean", "bit(1)"), "boolean"),
    **dict.fromkeys(("smallint", "integer", "percent"), "int"),
    **dict.fromkeys(("bigint", "oid"), "bigint"),
    "real": "float",
    "double precision": "double",
    "numeric(12,2)": "decimal(12,2)",
    "bytea": "binary",
    "date": "date",
    **dict.fromkeys(("timestamp", "timestamp(3)"), "timestamp_ntz"),
    "timestamp with time zone": "timestamp",
    "integer[]": "array<int>",
    "boolean[]": "array<boolean>",
    **dict.fromkeys(("text[]", "uuid[]"), "array<string>"),
}
"""Of files and lakes, in the words of Spark's SQL; all others are text."""
COMPARE = "set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres'; set extra_float_digits = 1"


def table_of(number):
    return f"t{number:02d}"


@pytest.fixture
def pair(postgres):
    names = postgres.create_database(), postgres.create_database()
    yield names
    for name in names:
        postgres.drop_database(name)


def declared(dsn):
    """By type of the source the type that the sink has declared for it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(
            """select attrelid::regclass::text, format_type(atttypid, atttypmod) from pg_attribute
               where attname = 'c' and attrelid::regclass::text ~ '^t[0-9]{2}$'"""
        ).fetchall()
    return {type_: dict(found)[table_of(number)] for number, type_ in enumerate(VALUES)}


def declared_in_files(stream, folder):
    """The same of a Parquet warehouse, in the words of Spark's SQL: a lake's tables have these columns too."""
    writer = ParquetWriter(LocalDisk(folder), "sink")
    writer.fence((1, 0))
    writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 0))
    out = {}
    for number, type_ in enumerate(VALUES):
        found = Manifests(LocalDisk(folder), f"public/{table_of(number)}").newest()
        out[type_] = lakesql.type_of(found.arrow.field("c").type)
    return out


def fill(db, start):
    for number, (type_, values) in enumerate(VALUES.items()):
        for index, value in enumerate([*values, None]):
            db.execute(f"insert into {table_of(number)} values (%s, %s::{type_})", (start + index, value))


def contents(dsn, other_text):
    """{table: {id: text}}"""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(COMPARE)
        out = {}
        for number, type_ in enumerate(VALUES):
            shown = other_text.get(type_, "c::text")
            out[type_] = dict(connection.execute(f"select id, {shown} from public.{table_of(number)}").fetchall())
        return out


ALL = tuple(map(table_of, range(len(VALUES))))


def compared(postgres, source, target, modes, tables=ALL):
    """{table: verdict} of what `verify` does not call equal in every column."""
    from cdcworker.connectors.comparison.opening import ComparedConnectors, opened
    from cdcworker.connectors.verify.compare import CompareSettings, Comparison
    from cdcworker.connectors.verify.databases import VerifyLimits

    class Now:
        def reached(self, ledger):
            return True

        def lagging(self, ledger):
            return ""

    def config(prefix, name):
        parts = psycopg.conninfo.conninfo_to_dict(postgres.dsn(name))
        names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
        return {f"{prefix}.{names[key]}": str(value) for key, value in parts.items() if key in names}

    topics = [f"types.public.{name}" for name in tables]
    sink = {"connector.class": "spark", "topics": ",".join(topics), **config("warehouse", target)}
    origin = {"connector.class": "postgres", "topic.prefix": "types", **config("database", source), **modes}
    with opened(ComparedConnectors("sink", sink, origin), VerifyLimits()) as both:
        tally = Comparison(both.source, both.target, lambda *_: Now(), CompareSettings(VerifyLimits())).run(both.plans)
    verdicts = {state.plan.source.name: (state.verdict, state.plan.left_out) for state in tally.tables}
    assert len(verdicts) == len(tables)
    return {name: found[0] for name, found in verdicts.items() if found != ("equal", ())}


@pytest.mark.parametrize("out_of_range", ["exact", "clamp"])
def test_every_type_arrives_as_it_left_from_the_snapshot_and_from_the_stream(postgres, pair, tmp_path, out_of_range):
    source, target = pair
    modes = {"out.of.range.handling.mode": out_of_range}
    with psycopg.connect(postgres.dsn(source), autocommit=True) as db:
        db.execute("create type mood as enum ('happy', 'very sad')")
        db.execute("create domain percent as int check (value between 0 and 100)")
        for number, type_ in enumerate(VALUES):
            db.execute(f"create table {table_of(number)} (id int primary key, c {type_})")
        fill(db, 0)
        log = reader.Reader(postgres, source, **modes).start()
        try:
            log.until(log.loaded)
            fill(db, 100)
            log.catch_up(db)
        finally:
            log.task.close()
    stream = change_streams.Stream()
    stream.emit(*(change for change in log.log if change.op != "m"))
    writer = PostgresWriter(postgres.dsn(target), "sink")
    try:
        writer.fence((1, 0))
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 0))
    finally:
        writer.close()
    assert declared(postgres.dsn(target)) == {type_: DECLARED.get(type_, type_) for type_ in VALUES}
    assert declared_in_files(stream, tmp_path) == {type_: IN_FILES.get(type_, "string") for type_ in VALUES}
    left, right = contents(postgres.dsn(source), {}), contents(postgres.dsn(target), OTHER_TEXT)
    pairs = ((type_, id, text, right[type_].get(id)) for type_ in VALUES for id, text in left[type_].items())
    wrong = [found for found in pairs if found[2] != found[3]]
    # What readers do not hold arrives as the nearest value, which verify knows.
    assert {type_ for type_, *_ in wrong} == (CLAMPED if out_of_range == "clamp" else set())
    with psycopg.connect(postgres.dsn(target), autocommit=True) as db:
        assert compared(postgres, source, target, modes) == {}
        for number in range(len(VALUES)):
            db.execute(f"update public.{table_of(number)} set c = null where id = 0")
    differing = compared(postgres, source, target, modes)
    assert {type_ for number, type_ in enumerate(VALUES) if differing.get(table_of(number)) == "different"} == set(
        VALUES
    )


@pytest.mark.parametrize("written", ["number", "empty"])
def test_nan_in_a_key_arrives_as_such_in_either_form(postgres, pair, written):
    source, target = pair
    modes = {"key.nan.handling.mode": written}
    with psycopg.connect(postgres.dsn(source), autocommit=True) as db:
        for name, type_, values in (
            ("one", "numeric(8,3)", ("NaN", "99999.999", "-99999.999")),
            ("listed", "numeric(4,2)[]", ("{NaN}", "{99.99}", "{NULL,NaN}")),
        ):
            db.execute(f"create table {name} (c {type_} primary key, v int)")
            db.cursor().executemany(f"insert into {name} values (%s::{type_}, 0)", [(value,) for value in values])
        log = reader.Reader(postgres, source, **modes).start()
        try:
            log.until(log.loaded)
            db.execute("update one set v = 1; update listed set v = 1; update one set c = 1 where c = 'NaN'")
            db.execute("update one set c = 'NaN' where c = 1; delete from listed where c = '{NULL,NaN}'")
            log.catch_up(db)
        finally:
            log.task.close()
    stream = change_streams.Stream(prefix="types")
    stream.emit(*(change for change in log.log if change.op != "m"))
    writer = PostgresWriter(postgres.dsn(target), "sink")
    try:
        writer.fence((1, 0))
        for start in range(0, len(stream.records), 4):
            writer.apply(stream.assembler().build(change_streams.arrow(stream.records[start : start + 4]), {}, start))
    finally:
        writer.close()
    with psycopg.connect(postgres.dsn(target), autocommit=True) as db:
        found = [
            db.execute(f"select c::text, v from public.{name} order by c").fetchall() for name in ("one", "listed")
        ]
    assert found == [[("-99999.999", 1), ("99999.999", 1), ("NaN", 1)], [("{99.99}", 1), ("{NaN}", 1)]]
    assert compared(postgres, source, target, modes, ("one", "listed")) == {}
