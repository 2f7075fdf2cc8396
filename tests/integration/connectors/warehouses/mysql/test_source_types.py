"""Every type from a PostgreSQL source through the envelope into a MySQL target: `verify` finds the same values in the end."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.comparison.opening import ComparedConnectors, opened
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.databases import VerifyLimits
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter

from tests import change_streams
from tests.integration.connectors.postgres import postgres_reader as reader
from tests.integration.connectors.warehouses.test_source_types import VALUES, fill, pair, table_of

__all__ = ["pair"]
pytestmark = [pytest.mark.mysql, pytest.mark.postgres, pytest.mark.long]

DECLARED = {
    **dict.fromkeys(("boolean", "bit(1)"), "tinyint(1)"),
    "smallint": "smallint",
    **dict.fromkeys(("integer", "percent"), "int"),
    **dict.fromkeys(("bigint", "oid", "interval"), "bigint"),
    **dict.fromkeys(("real", "double precision"), "double"),
    "numeric(12,2)": "decimal(12,2)",
    "numeric(60,20)": "decimal(60,20)",
    "character varying(20)": "varchar(20)",
    "character(5)": "varchar(5)",
    "bytea": "longblob",
    "date": "date",
    **dict.fromkeys(("time", "time(3)"), "time(6)"),
    **dict.fromkeys(("timestamp", "timestamp(3)", "timestamp with time zone"), "datetime(6)"),
    "uuid": "char(36)",
}
"""All others are long texts; JSON is one in MariaDB."""
NOT_COMPARED = {"point", "time with time zone", "numeric(10,2)[]", "timestamp[]"}
"""Types without a common text."""


class _Now:
    def reached(self, ledger):
        return True

    def lagging(self, ledger):
        return ""


def compared(postgres, mysql, source, modes):
    """{type: verdict} of what `verify` does not call equal in every column, and the columns that it leaves out."""
    parts = psycopg.conninfo.conninfo_to_dict(postgres.dsn(source))
    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    origin = {f"database.{names[key]}": str(value) for key, value in parts.items() if key in names}
    origin |= {"connector.class": "postgres", "topic.prefix": "types", **modes}
    topics = [f"types.public.{table_of(number)}" for number in range(len(VALUES))]
    target = {"hostname": "127.0.0.1", "port": str(mysql.port), "user": mysql.login().user, "password": mysql.password}
    sink = {"connector.class": "spark", "warehouse": "mysql", "topics": ",".join(topics)}
    sink |= {f"warehouse.{key}": value for key, value in target.items()}
    with opened(ComparedConnectors("sink", sink, origin), VerifyLimits()) as both:
        tally = Comparison(both.source, both.target, lambda *_: _Now(), CompareSettings(VerifyLimits())).run(both.plans)
    types = {table_of(number): type_ for number, type_ in enumerate(VALUES)}
    found = {types[state.plan.source.name]: (state.verdict, state.plan.left_out) for state in tally.tables}
    assert len(found) == len(VALUES)
    left_out = {type_ for type_, (_, columns) in found.items() if columns}
    return {type_: verdict for type_, (verdict, _) in found.items() if verdict != "equal"}, left_out


@pytest.mark.parametrize("out_of_range", ["exact", "clamp"])
def test_every_type_arrives_as_it_left_from_the_snapshot_and_from_the_stream(postgres, mysql, pair, out_of_range):
    mysql.wipe()
    source, _ = pair
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
    writer = MySqlWriter(mysql.login(), "sink")
    try:
        writer.fence((1, 0))
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 0))
    finally:
        writer.close()
    declared = dict(
        mysql.ask(
            """select table_name, regexp_replace(column_type, '^((small|big)?int)[(][0-9]+[)]$', '\\\\1')
               from information_schema.columns where table_schema = 'public' and column_name = 'c'"""
        )
    )
    wanted = {table_of(number): DECLARED.get(type_, "longtext") for number, type_ in enumerate(VALUES)}
    assert declared == wanted
    assert compared(postgres, mysql, source, modes) == ({}, NOT_COMPARED)
    mysql.ask(*(f"update public.{table_of(number)} set c = null where id = 0" for number in range(len(VALUES))))
    differing, _ = compared(postgres, mysql, source, modes)
    assert set(differing.items()) == {(type_, "different") for type_ in set(VALUES) - NOT_COMPARED}
