"""MariaDB's tables through Kafka into a warehouse in PostgreSQL: compared row by row, each type, from the rows and from the log."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from cdcworker.worker.quickstart.roles import make_writer
from psycopg.conninfo import conninfo_to_dict

from tests.integration import one_worker

from ...sink_engine.pump_task import Task
from ...spark_world import eventually
from ..logged import LoggedServer
from .submitted import Source

pytestmark = [pytest.mark.kafka, pytest.mark.mysql, pytest.mark.postgres]
Form = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC)


def _digits(length: int) -> Form:
    return lambda value: f"{int.from_bytes(value):0{length}b}"


COLUMNS: dict[str, tuple[str, str, str, Form]] = {
    # name: the type in MariaDB, that in the warehouse, a value, and what stands for what MariaDB's client reads
    "flag": ("tinyint(1)", "integer", "1", _same),
    "tiny": ("tinyint unsigned", "integer", "255", _same),
    "small": ("smallint", "smallint", "-32768", _same),
    "medium": ("mediumint", "integer", "-8388608", _same),
    "plain": ("int", "integer", "-2147483648", _same),
    "large": ("bigint", "bigint", "9223372036854775807", _same),
    "counts": ("int unsigned", "bigint", "4294967295", _same),
    "money": ("decimal(12,2)", "numeric(12,2)", "-1234567890.12", _same),
    "fine": ("decimal(65,30)", "numeric(65,30)", "12345.000000000000000000000000000001", _same),
    "ratio": ("double", "double precision", "0.1", _same),
    "rough": ("float", "real", "0.5", _same),
    "yes": ("bit(1)", "boolean", "b'1'", lambda value: value == b"\1"),
    "bits": ("bit(9)", "bit(9)", "b'100000001'", _digits(9)),
    "season": ("year", "integer", "2026", _same),
    "born": ("date", "date", "'1969-02-28'", _same),
    "seen": ("datetime", "timestamp without time zone", "'1500-01-02 03:04:05'", _same),
    "exact": ("datetime(6)", "timestamp without time zone", "'2026-01-02 03:04:05.678901'", _same),
    "stamped": ("timestamp(3)", "timestamp with time zone", "'2026-01-02 03:04:05.678'", _utc),
    "span": ("time(6)", "interval", "'-700:59:59.000001'", _same),
    "name": ("varchar(40)", "text", "'Grüße 😀'", _same),
    "code": ("char(4)", "text", "'ab'", _same),
    "latin": ("varchar(20) character set latin1", "text", "'naïve'", _same),
    "story": ("longtext", "text", "repeat('x', 5000)", _same),
    "bytes": ("varbinary(20)", "bytea", "x'00ff'", _same),
    "blobs": ("blob", "bytea", "repeat(x'0a', 3000)", _same),
    "mood": ("enum('good', 'bad')", "text", "'bad'", _same),
    "tags": ("set('a', 'b')", "text", "'a,b'", _same),
    "doc": ("json", "jsonb", """'{"a": [1, null]}'""", json.loads),
    "ident": ("uuid", "uuid", "'123e4567-e89b-12d3-a456-426655440000'", str),
    "host": ("inet4", "text", "'10.0.0.1'", _same),
}


def values(number: int, *, of: Callable[[str], str] = _same) -> str:
    return f"({number}, {', '.join(of(text) for _, _, text, _ in COLUMNS.values())})"


def expected(server: LoggedServer) -> list[tuple[Any, ...]]:
    forms = [_same, *(form for *_, form in COLUMNS.values())]
    rows = server.ask("set time_zone = '+00:00'", "select * from shop.every order by id")
    return [
        tuple(None if value is None else form(value) for form, value in zip(forms, row, strict=True)) for row in rows
    ]


def found(dsn: str) -> list[tuple[Any, ...]]:
    names = ", ".join(f'"{name}"' for name in ("id", *COLUMNS))
    with psycopg.connect(dsn, options="-c timezone=UTC") as connection:
        if not connection.execute("select to_regclass('shop.every')").fetchall()[0][0]:
            return []
        rows = connection.execute(f"select {names} from shop.every order by id").fetchall()
    return [
        tuple(
            str(value) if name == "ident" and value else value
            for name, value in zip(("id", *COLUMNS), row, strict=True)
        )
        for row in rows
    ]


@pytest.fixture
def warehouse(postgres: Any, database: str) -> dict[str, str]:
    return dict(conninfo_to_dict(make_writer(postgres.dsn(database), f"w_{database}", "only here", ["shop"])))


def test_rows_of_every_type_arrive_from_the_rows_and_from_the_log(
    worker: one_worker.Worker,
    shop: LoggedServer,
    kafka: Any,
    postgres: Any,
    database: str,
    warehouse: dict[str, str],
    tmp_path: Path,
) -> None:
    shop.ask(
        f"create table shop.every (id int primary key, {', '.join(f'`{name}` {made}' for name, (made, *_) in COLUMNS.items())})"
    )
    shop.ask(f"insert into shop.every values {values(1)}, {values(2, of=lambda _: 'null')}")
    source = Source(worker, shop, "every")
    source.wait_for("every", "r", 2)
    keys = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    config = {
        "connector.class": "spark",
        "topics": f"{source.prefix}.shop.every",
        "warehouse": "postgres",
        **{f"warehouse.{ours}": str(warehouse[theirs]) for ours, theirs in keys.items()},
    }
    world = SimpleNamespace(kafka=kafka, name="every", schema_topic=f"{worker.group}.schemas", tmp_path=tmp_path)
    task = Task(world, 1, config)
    try:
        dsn = postgres.dsn(database)
        eventually(lambda: task.failed or len(found(dsn)) == 2, "the rows", 60)
        assert not task.failed
        assert found(dsn) == expected(shop)
        shop.ask(
            f"insert into shop.every values {values(3)}, {values(4, of=lambda _: 'null')}, {values(5)}",
            "update shop.every set id = 6, money = 7 where id = 1",
            "update shop.every set name = null, story = null where id = 5",
            "delete from shop.every where id = 2",
        )
        eventually(lambda: task.failed or found(dsn) == expected(shop), "the changes", 60)
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(
                "select attname, format_type(atttypid, atttypmod) from pg_attribute"
                " where attrelid = 'shop.every'::regclass and attnum > 0"
            ).fetchall()
        types = dict(rows)
        assert {name: types[name] for name in COLUMNS} == {name: type_ for name, (_, type_, *_) in COLUMNS.items()}
        assert found(dsn)[-1][1 + list(COLUMNS).index("money")] == Decimal(7)
    finally:
        task.stop.set()
        task.thread.join(30)
    assert not task.failed
