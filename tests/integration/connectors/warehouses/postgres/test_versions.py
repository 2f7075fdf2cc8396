"""Versions of rows in a PostgreSQL warehouse (`output.mode=scd2`)."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def dsn(postgres):
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture
def clean(dsn):
    execute(dsn, "set client_min_messages = warning")
    execute(dsn, "drop schema if exists _cdcworker, public cascade")
    execute(dsn, "create schema public")
    return dsn


def execute(dsn, text, values=()):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        found = connection.execute(text, values)
        return found.fetchall() if found.description else []


@pytest.fixture
def open_writer(clean):
    writers = []

    def make(epoch=(1, 0), **output):
        writers.append(PostgresWriter(clean, "sink", output=OutputForm(**{"versions": True, **output})))
        writers[-1].fence(epoch)
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


class TestVersions(contract.Versions):
    @pytest.fixture(autouse=True)
    def _place(self, clean):
        self.dsn = clean

    def rewind(self, partition):
        execute(
            self.dsn,
            "update _cdcworker.ledger set next_offset = 0, applied = null where topic = %s and partition = %s",
            (TOPIC, partition),
        )

    def drop_table(self, writer):
        execute(self.dsn, "drop table public.orders")
        execute(self.dsn, "delete from _cdcworker.ledger where topic = %s", (TOPIC,))
