"""Proves that source and warehouse are equal: row count and checksum per table, computed by SQL on both sides.

Nothing here is shared with the sink, whose work it judges; the texts of values are those that `cdcworker verify` compares.
A row's text is its columns in source order, each as its length, a colon and its text, or `~` for NULL; the row's hash is
the first 64 bits of the text's MD5; a table's checksum is the sum of the hashes modulo 2^64, so that the order of rows
does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cdcworker.connectors.verify.canonical_text import FORMS, PLAIN, SESSION, joined

if TYPE_CHECKING:
    import psycopg

MODULUS = 1 << 64


class ProofColumn(NamedTuple):
    name: str
    type: str


class Checksum(NamedTuple):
    rows: int
    sum: int


@dataclass(frozen=True, slots=True)
class SourceState:
    """The source in one snapshot."""

    lsn: int
    columns: Mapping[str, tuple[ProofColumn, ...]]
    checksums: Mapping[str, Checksum]
    gtids: str = ""
    """The position in MariaDB's log."""


@dataclass(frozen=True, slots=True)
class TableResult:
    table: str
    source: Checksum
    warehouse: Checksum | None
    problem: str = ""

    @property
    def equal(self) -> bool:
        return not self.problem and self.source == self.warehouse


def read_source(dsn: str, schema: str, tables: Sequence[str]) -> SourceState:
    """Reads log position, columns and checksums of all tables in one snapshot. The load has stopped before."""
    with snapshot(dsn) as connection:
        ((lsn,),) = _rows(connection, "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")
        columns = {table: columns_of(connection, schema, table) for table in tables}
        checksums = {table: checksum(connection, schema, table, columns[table]) for table in tables}
    return SourceState(lsn, columns, checksums)


def compare(dsn: str, schema: str, source: SourceState) -> list[TableResult]:
    """Compares the warehouse's tables, in one snapshot, with the source."""
    results = []
    with snapshot(dsn) as connection:
        for table, expected in source.checksums.items():
            columns = {column.name for column in columns_of(connection, schema, table)}
            expected_columns = source.columns[table]
            absent = [column.name for column in expected_columns if column.name not in columns]
            if not columns:
                results.append(TableResult(table, expected, None, "the table is not in the warehouse"))
            elif absent:
                results.append(TableResult(table, expected, None, "no column " + ", ".join(absent)))
            else:
                results.append(_compare_table(connection, schema, table, expected_columns, expected))
    return results


def _compare_table(
    connection: psycopg.Connection[Any], schema: str, table: str, columns: Sequence[ProofColumn], expected: Checksum
) -> TableResult:
    import psycopg

    try:
        with connection.transaction():
            actual = checksum(connection, schema, table, columns)
    except psycopg.Error as error:
        # The name of the SQL state only: a message may hold a row's value.
        return TableResult(table, expected, None, f"not readable as the source's types ({type(error).__name__})")
    return TableResult(table, expected, actual)


def count_rows(dsn: str, schema: str, tables: Sequence[str]) -> dict[str, int | None]:
    """Returns the rows of each table; None for a table that does not exist yet."""
    counts: dict[str, int | None] = {}
    with snapshot(dsn) as connection:
        for table in tables:
            if columns_of(connection, schema, table):
                ((count,),) = _rows(connection, f"SELECT count(*) FROM {_name(schema, table)}")
                counts[table] = int(count)
            else:
                counts[table] = None
    return counts


def columns_of(connection: psycopg.Connection[Any], schema: str, table: str) -> tuple[ProofColumn, ...]:
    """Returns the columns in the table's order; none when there is no such table."""
    query = """
        SELECT a.attname, t.typname FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_type t ON t.oid = a.atttypid
        WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
    return tuple(ProofColumn(str(name), str(kind)) for name, kind in _rows(connection, query, (schema, table)))


def checksum(connection: psycopg.Connection[Any], schema: str, table: str, columns: Sequence[ProofColumn]) -> Checksum:
    ((rows, total),) = _rows(connection, checksum_sql(schema, table, columns))
    return Checksum(int(rows), int(total))


def checksum_sql(schema: str, table: str, columns: Sequence[ProofColumn]) -> str:
    parts = joined([text_of(column) for column in columns])
    return (
        # A bigint is signed, so the remainder is brought above zero.
        f"SELECT count(*), mod(mod(coalesce(sum(h::bigint::numeric), 0), {MODULUS}) + {MODULUS}, {MODULUS})"
        f" FROM (SELECT ('x' || left(md5({parts}), 16))::bit(64) AS h FROM {_name(schema, table)}) hashed"
    )


def text_of(column: ProofColumn) -> str:
    """Returns SQL for the documented text of the column."""
    return FORMS.get(column.type, PLAIN).format(_quoted(column.name))


@contextmanager
def snapshot(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for name, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        yield connection


def _rows(connection: psycopg.Connection[Any], query: str, parameters: Sequence[Any] | None = None) -> list[Any]:
    return connection.execute(_sql(query), parameters).fetchall()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _name(schema: str, table: str) -> str:
    return f"{_quoted(schema)}.{_quoted(table)}"


def _sql(text: str) -> Any:
    """Returns the text for psycopg, which wants literal SQL: names come from the catalog and are quoted."""
    return text
