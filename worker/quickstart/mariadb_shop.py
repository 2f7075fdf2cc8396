"""The shop in MariaDB: its user, its config, and the proof that compares its rows with those of the warehouse.

Nothing of the proof is shared with the sink, whose work it judges: each value is read by the database's client, and its text is made
here. A row's text is its columns in source order, each as its length, a colon and its text, or `~` for NULL; the row's hash is the first
64 bits of the text's MD5; a table's checksum is the sum of the hashes modulo 2^64.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from cdcworker.worker.quickstart import proof
from cdcworker.worker.quickstart.catch_up import POLL_S, CatchUpDeadline
from cdcworker.worker.quickstart.cluster_client import ClusterClient
from cdcworker.worker.quickstart.shop import PREFIX, SOURCE
from cdcworker.worker.quickstart.workload import KEY_STEP, MARIADB, TABLES, Dialect, LoadStatement

if TYPE_CHECKING:
    import pymysql
    from pymysql.cursors import Cursor

READER: Final = "shop_reader"
SERVER_ID: Final = "4711"


class MariaDbShop:
    """The tables in one database, whose name is the schema in topics and in the warehouse."""

    title: ClassVar[str] = "MariaDB"
    dialect: ClassVar[Dialect] = MARIADB

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = unquote(urlsplit(url).path.lstrip("/"))

    def prepared(self) -> tuple[int, int, bool] | None:
        with self._connection() as connection:
            columns = _columns(connection, self.schema, "customers")
            if not columns:
                return None
            query = f"SELECT coalesce(max(id % {KEY_STEP}), 0) FROM customers UNION ALL SELECT coalesce(max(id), 0) FROM orders"
            (customers,), (orders,) = _rows(connection, query)
        return customers, orders, "loyalty" in columns

    @contextmanager
    def session(self) -> Iterator[MariaDbSession]:
        with self._connection() as connection:
            yield MariaDbSession(connection)

    def counts(self) -> Mapping[str, int | None]:
        import pymysql

        try:
            with self._connection() as connection:
                return {table: self._count(connection, table) for table in TABLES}
        except pymysql.Error:
            return {}

    def _count(self, connection: pymysql.Connection[Cursor], table: str) -> int | None:
        if not _columns(connection, self.schema, table):
            return None
        ((count,),) = _rows(connection, f"SELECT count(*) FROM {table}")
        return int(count)

    def make_reader(self, password: str) -> None:
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER IF NOT EXISTS {READER} IDENTIFIED BY %s", (password,))
            cursor.execute(f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {READER}")
            for table in TABLES:
                cursor.execute(f"GRANT SELECT ON {self.schema}.{table} TO {READER}")

    def source_config(self, password: str) -> dict[str, str]:
        parts = urlsplit(self.url)
        return {
            "connector.class": "mariadb",
            "tasks.max": "1",
            "topic.prefix": PREFIX,
            "database.hostname": parts.hostname or "localhost",
            "database.port": str(parts.port or 3306),
            "database.user": READER,
            "database.password": password,
            "database.server.id": SERVER_ID,
            "table.include.list": ",".join(f"{self.schema}.{table}" for table in TABLES),
        }

    def state(self) -> proof.SourceState:
        with self._connection() as connection:
            ((gtids,),) = _rows(connection, "SELECT @@global.gtid_binlog_pos")
            names = {table: _columns(connection, self.schema, table) for table in TABLES}
            sums = {table: checksum(_table(connection, table, names[table])) for table in TABLES}
        columns = {table: tuple(proof.ProofColumn(name, "") for name in names[table]) for table in TABLES}
        return proof.SourceState(0, columns, sums, str(gtids))

    def wait_until_read(
        self, kafka: str, workers: Sequence[str], state: proof.SourceState, deadline: CatchUpDeadline
    ) -> str:
        """The stored position comes with the rows, in one transaction of Kafka."""
        del kafka
        client, stored = ClusterClient(workers), ""
        try:
            while stored != state.gtids:
                deadline.check(f"the source task has stored {stored or 'nothing'} of the position {state.gtids}")
                status, body = client.request("GET", f"/connectors/{SOURCE}/offsets")
                offsets = body["offsets"] if status == 200 else []
                stored = next((str(item["offset"].get("gtids")) for item in offsets), "")
                if stored != state.gtids:
                    time.sleep(POLL_S)
        finally:
            client.close()
        return stored

    def compare(self, warehouse: str, state: proof.SourceState) -> list[proof.TableResult]:
        import psycopg

        results = []
        with proof.snapshot(warehouse) as connection:
            for table, expected in state.checksums.items():
                present = {column.name for column in proof.columns_of(connection, self.schema, table)}
                wanted = [column.name for column in state.columns[table]]
                if absent := [name for name in wanted if name not in present]:
                    what = "no column " + ", ".join(absent) if present else "the table is not in the warehouse"
                    results.append(proof.TableResult(table, expected, None, what))
                    continue
                query = psycopg.sql.SQL("SELECT {} FROM {}").format(
                    psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, wanted)),
                    psycopg.sql.Identifier(self.schema, table),
                )
                results.append(proof.TableResult(table, expected, checksum(connection.execute(query))))
        return results

    @contextmanager
    def _connection(self) -> Iterator[pymysql.Connection[Cursor]]:
        import pymysql

        parts = urlsplit(self.url)
        with pymysql.connect(
            host=parts.hostname or "localhost",
            port=parts.port or 3306,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=self.schema,
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00'",
        ) as connection:
            yield connection


class MariaDbSession:
    """One connection of the load."""

    def __init__(self, connection: pymysql.Connection[Cursor]) -> None:
        self._connection = connection

    def run(self, statements: Sequence[LoadStatement]) -> None:
        self._connection.begin()
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.sql, statement.parameters)
        self._connection.commit()


def checksum(rows: Iterable[Sequence[Any]]) -> proof.Checksum:
    count = total = 0
    for row in rows:
        count += 1
        total += int.from_bytes(hashlib.md5("".join(map(_part, row)).encode(), usedforsecurity=False).digest()[:8])
    return proof.Checksum(count, total % proof.MODULUS)


def _part(value: Any) -> str:
    if value is None:
        return "~"
    text = text_of(value)
    return f"{len(text)}:{text}"


def text_of(value: Any) -> str:
    """Returns one text for values that are equal, whichever client has read them."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dt.datetime):
        return (value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)).isoformat()
    return str(value)


def _columns(connection: pymysql.Connection[Cursor], schema: str, table: str) -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        " ORDER BY ordinal_position"
    )
    return [str(name) for (name,) in _rows(connection, query, (schema, table))]


def _table(connection: pymysql.Connection[Cursor], table: str, columns: Sequence[str]) -> Sequence[Sequence[Any]]:
    return _rows(connection, f"SELECT {', '.join(f'`{name}`' for name in columns)} FROM `{table}`")


def _rows(
    connection: pymysql.Connection[Cursor], query: str, parameters: Sequence[Any] | None = None
) -> Sequence[Sequence[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return tuple(cursor.fetchall())
