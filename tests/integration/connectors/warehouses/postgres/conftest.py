"""One database for the tests of a module, empty for each of them: to make one takes longer than what most do in it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql


@pytest.fixture(scope="module")
def shared_database(postgres):
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture
def emptied(shared_database):
    """Its dsn."""
    own = "select nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'"
    with psycopg.connect(shared_database, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        for (name,) in connection.execute(own).fetchall():
            connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(name)))
        connection.execute("create schema public")
    return shared_database
