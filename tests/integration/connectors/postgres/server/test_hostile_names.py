"""Hundreds of hostile names in a real server: each is one table, and what else there is stays as it was."""

import psycopg
import pytest
from cdcworker.connectors.postgres.server.fixes import ident, literal
from cdcworker.connectors.postgres.transport.libpq_stream import quote as replication_quote
from cdcworker.connectors.warehouses.postgres import statements as pgsql
from psycopg import sql

from tests import hostile

pytestmark = pytest.mark.postgres


NAME_BYTES_MAX = 63
"""PostgreSQL cuts longer ones off: they never come from a server."""


def names():
    return [name for name in hostile.identifiers() if "\0" not in name and len(name.encode()) <= NAME_BYTES_MAX]


def test_every_quoting_makes_one_name_of_it_and_trips_no_wire(postgres):
    found = names()
    assert len(found) >= 500
    with psycopg.connect(postgres.dsn(postgres.create_database()), autocommit=True) as connection:
        connection.execute("create table tripwire (v text)")
        connection.execute("insert into tripwire values ('there')")
        with connection.transaction():
            for name in found:
                connection.execute(
                    sql.SQL("create table {} ({} text)").format(sql.Identifier(name), sql.Identifier(name))
                )
                table, column, value = pgsql.quote(name), ident(name), literal(name)
                connection.execute(f"insert into {table} ({column}) values ({value})".encode())
                row = connection.execute(
                    f"select {replication_quote(name)} from {ident('public', name)}".encode()
                ).fetchone()
                assert row == (name,)
        tables = connection.execute(
            "select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
        )
        assert sorted(row[0] for row in tables) == sorted([*found, "tripwire"])
        assert connection.execute("select v from tripwire").fetchall() == [("there",)]
