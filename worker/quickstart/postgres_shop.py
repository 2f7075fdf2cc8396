"""The shop in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from cdcworker.worker.quickstart import catch_up, proof
from cdcworker.worker.quickstart.roles import address_of, as_role, make_reader
from cdcworker.worker.quickstart.shop import PREFIX, WATERMARK_TOPIC
from cdcworker.worker.quickstart.workload import KEY_STEP, POSTGRES, TABLES, Dialect, LoadStatement

if TYPE_CHECKING:
    import psycopg

READER = "shop_reader"
PUBLICATION = "shop"


class PostgresShop:
    """The tables in the schema `public` of one database."""

    title: ClassVar[str] = "PostgreSQL"
    dialect: ClassVar[Dialect] = POSTGRES
    schema = "public"

    def __init__(self, url: str) -> None:
        self.url = url

    def prepared(self) -> tuple[int, int, bool] | None:
        import psycopg

        query = "SELECT coalesce(max(id %% %s), 0) FROM customers UNION ALL SELECT coalesce(max(id), 0) FROM orders"
        with psycopg.connect(self.url) as connection:
            columns = proof.columns_of(connection, self.schema, "customers")
            if not columns:
                return None
            (customers,), (orders,) = connection.execute(query, (KEY_STEP,)).fetchall()
        return customers, orders, any(column.name == "loyalty" for column in columns)

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        import psycopg

        with psycopg.connect(self.url, application_name="shop") as connection:
            yield PostgresSession(connection)

    def counts(self) -> Mapping[str, int | None]:
        import psycopg

        try:
            return proof.count_rows(self.url, self.schema, TABLES)
        except psycopg.Error:
            return {}

    def make_reader(self, password: str) -> None:
        make_reader(self.url, READER, password, [(self.schema, table) for table in TABLES], PUBLICATION)

    def source_config(self, password: str) -> dict[str, str]:
        return {
            "connector.class": "postgres",
            "tasks.max": "1",
            "topic.prefix": PREFIX,
            **address_of("database", as_role(self.url, READER, ""), password),
            "table.include.list": ",".join(f"{self.schema}.{table}" for table in TABLES),
            "slot.name": "shop",
            "publication.name": PUBLICATION,
            "publication.autocreate.mode": "disabled",
        }

    def state(self) -> proof.SourceState:
        return proof.read_source(self.url, self.schema, TABLES)

    def wait_until_read(
        self, kafka: str, workers: Sequence[str], state: proof.SourceState, deadline: catch_up.CatchUpDeadline
    ) -> str:
        catch_up.wait_for_watermark(kafka, WATERMARK_TOPIC, state.lsn, deadline)
        return f"{state.lsn >> 32:X}/{state.lsn & 0xFFFFFFFF:X}"

    def compare(self, warehouse: str, state: proof.SourceState) -> list[proof.TableResult]:
        return proof.compare(warehouse, self.schema, state)


class PostgresSession:
    """One connection of the load."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def run(self, statements: Sequence[LoadStatement]) -> None:
        with self._connection.transaction(), self._connection.pipeline():
            for statement in statements:
                self._connection.execute(_sql(statement.sql), statement.parameters)


def _sql(text: str) -> Any:
    """Returns the text for psycopg: all of it is ours, no part comes from outside."""
    return text
