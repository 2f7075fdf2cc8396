"""The contract of warehouses against real servers."""

from __future__ import annotations

from typing import ClassVar

import psycopg
import pytest
from cdcworker.connectors.spark import parallel
from cdcworker.connectors.spark.postgres import PostgresWriter
from cdcworker.connectors.spark.shaping import Output
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..unit.spark import column_scripts, support
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

    def test_a_column_of_the_destination_gives_its_name_to_no_other(self, dsn, open_writer):
        stream, writer = support.Stream(), open_writer()
        stream.insert(shape(old=2), (1, "a"))
        contract.run(stream, writer)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("alter table public.orders add column mine text default 'me'")
            connection.execute("alter table public.orders add column old_dropped_2 text default 'me'")
        stream.insert(shape(old=3), (2, "b"))
        contract.run(stream, writer)
        wanted = [(1, "a", None, "me", "me"), (2, None, "b", "me", "me")]
        assert contract.rows(writer, "id", "old_dropped_2_", "old", "mine", "old_dropped_2") == wanted
        stream.insert(shape(mine=3), (3, "c"))
        with pytest.raises(CdcError) as caught:
            contract.run(stream, writer)
        assert (caught.value.code, caught.value.where["column"]) == ("spark.schema_refused", "mine")
        assert contract.rows(writer, "id", "old", "mine") == [(1, None, "me"), (2, "b", "me")]

    def test_of_a_table_that_is_made_anew_no_column_is_one_from_before(self, dsn, open_writer):
        stream, writer = support.Stream(), open_writer()
        stream.insert(shape(a=2), (1, "a"))
        contract.run(stream, writer)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("drop table public.orders")
            connection.execute("delete from _cdcworker.ledger")
        stream = support.Stream()
        stream.insert(shape(a=3), (2, "b"))
        contract.run(stream, writer)
        assert contract.rows(writer, "id", "a") == [(2, "b")]
        assert "a_dropped_2" not in contract.columns(writer)


def shape(**ids):
    columns = [support.column(name, "string", "text", column_id=id) for name, id in ids.items()]
    return support.table(support.column("id", "long", "bigint", False, column_id=1), *columns)


@pytest.mark.long
@pytest.mark.postgres
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(column_scripts.changes, max_size=12), st.lists(st.integers(0, 12)))
def test_any_changes_of_columns_leave_rows_as_the_source_has_them(postgres, script, cuts):
    name = postgres.create_database()
    writer = PostgresWriter(postgres.dsn(name), "sink")
    try:
        writer.fence((1, 0))
        column_scripts.play(script, writer, cuts)
    finally:
        writer.close()
        postgres.drop_database(name)


class TestPostgresStagedOverSeveralConnections(TestPostgres):
    more: ClassVar = {"staging": parallel.Plan(2, 1, parallel.in_threads(2))}
