"""Tables of a warehouse that somebody else has made and that refuse a row in many ways: no error and no line of the log quotes it."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.change_streams import ID, column
from tests.contract.warehouses import run

from .canaries import Canaries

pytestmark = pytest.mark.postgres

JSON = {"type": "string", "connect.name": "io.debezium.data.Json"}
ORDERS = change_streams.table(
    ID,
    column("v", "string", "text"),
    column("n", "long", "bigint"),
    column("b", "bytes", "bytea"),
    column("j", JSON, "jsonb"),
)
TRIGGER = """
create table public.orders (id bigint primary key, v text);
create function refuse() returns trigger language plpgsql as $$ begin {0}; return new; end $$;
create trigger refuse before insert or update on public.orders for each row execute function refuse()
"""
TARGETS = {
    "a check": "create table public.orders (id bigint primary key, v text check (length(v) < 10))",
    "a unique column": "create table public.orders (id bigint primary key, v text unique, n bigint);"
    " insert into public.orders values (999, '{v}', 1)",
    "an exclusion": "create table public.orders (id bigint primary key, v text, exclude using btree (v with =));"
    " insert into public.orders values (999, '{v}')",
    "a foreign key": "create table known (v text primary key);"
    " create table public.orders (id bigint primary key, v text references known (v))",
    "a small domain": "create domain small as bigint check (value < 10);"
    " create table public.orders (id bigint primary key, n small)",
    "a number in place of bytes": "create table public.orders (id bigint primary key, b int)",
    "a generated column": "create table public.orders (id bigint primary key, v text,"
    " g int generated always as (v::int) stored)",
    "an index of an expression": "create table public.orders (id bigint primary key, v text, j jsonb);"
    " create index on public.orders (((j ->> 'k')::int))",
    "no partition": "create table public.orders (id bigint, v text, primary key (id, v)) partition by list (v)",
    "a trigger": TRIGGER.format("raise exception 'no %', new.v"),
    "a trigger with a state of its own": TRIGGER.format("raise exception 'no %', new.v using errcode = 'C0815'"),
    "a trigger about rights": TRIGGER.format("raise exception 'no %', new.v using errcode = '42501'"),
    "a trigger that names a table": TRIGGER.format("execute 'insert into part_' || new.v || ' values (1)'"),
    "a trigger with a torn statement": TRIGGER.format("execute 'insert into ' || quote_literal(new.v)"),
}  # fmt: skip


@pytest.mark.parametrize("op", ["c", "u"])
def test_what_a_target_says_of_a_row_is_not_told_again(postgres, caplog, op):
    caplog.set_level("DEBUG")
    canaries, quoted, told = Canaries(), set(), {}
    database = postgres.create_database()
    for what, statements in TARGETS.items():
        row = canaries.row(what)
        with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
            connection.execute("drop schema public cascade; create schema public")
            connection.execute(statements.replace("{v}", row.text))
        stream = change_streams.Stream()
        stream.emit(stream.change(op, ORDERS, after=(1, row.text, row.number, row.raw, row.document)))
        writer = PostgresWriter(postgres.dsn(database), what)
        try:
            writer.fence((1, 0))
            with pytest.raises(CdcError) as caught:
                run(stream, writer)
        finally:
            writer.close()
        told[what] = f"{caught.value} {caught.value.to_dict()}"
        if canaries.found(said_by_the_server(caught.value)):
            quoted.add(what)
    postgres.drop_database(database)
    assert len(quoted) >= 11, f"the server's own texts hold it: {quoted}"
    found = {what: found for what, text in told.items() if (found := canaries.found(text))}
    assert found == {}
    assert canaries.found(caplog.text) == []


def said_by_the_server(error: BaseException | None) -> str:
    """All that the causes of an error say."""
    parts = []
    while error is not None:
        diag = getattr(error, "diag", None)
        parts += [str(error), *(str(getattr(diag, name, "")) for name in ("message_detail", "context"))]
        error = error.__cause__ or error.__context__
    return " ".join(parts)
