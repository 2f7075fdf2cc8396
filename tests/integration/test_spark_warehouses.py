"""The contract of warehouses against real servers."""

from __future__ import annotations

from typing import ClassVar

import psycopg
import pytest
from cdcworker.connectors.spark import parallel
from cdcworker.connectors.spark.postgres import PostgresWriter
from cdcworker.connectors.spark.shaping import Output

from ..unit.spark import support
from ..unit.spark import warehouse_contract as contract


@pytest.mark.postgres
class TestPostgres(contract.Contract):
    more: ClassVar = {}

    @pytest.fixture
    def dsn(self, postgres):
        name = postgres.create_database()
        self._dsn = postgres.dsn(name)
        yield self._dsn
        postgres.drop_database(name)

    def letters(self):
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(
                """select topic, partition, "offset", code, value from _cdcworker.dead_letter"""
            ).fetchall()

    @pytest.fixture
    def open_writer(self, dsn):
        writers = []

        def make(epoch=(1, 0), **output):
            writers.append(PostgresWriter(dsn, "sink", output=Output(**output), **self.more))
            writers[-1].fence(epoch)
            return writers[-1]

        yield make
        for writer in writers:
            writer.close()

    def test_columns_of_the_destination_are_left_alone(self, dsn, open_writer):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "create table public.orders (id bigint primary key, n int, a text, big text, mine text default 'me')"
            )
            connection.execute("insert into public.orders values (1, 0, 'old', 'old', 'kept')")
        stream, writer = support.Stream(), open_writer(soft=True, synced="_synced_at")
        stream.insert(support.NARROW, (1, 1, "a", "b"))
        stream.insert(support.NARROW, (2, 1, "a", "b"))
        contract.run(stream, writer)
        assert contract.rows(writer, "id", "a", "mine") == [(1, "a", "kept"), (2, "a", "me")]


class TestPostgresStagedOverSeveralConnections(TestPostgres):
    more: ClassVar = {"staging": parallel.Plan(2, 1, parallel.in_threads(2))}
