"""Dead letters of a PostgreSQL warehouse sent again: rows change and letters go in one transaction, while the sink runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.sink_errors import from_psycopg
from cdcworker.connectors.warehouses.dead_letters import (
    AT_ONCE,
    BYTES_MAX,
    Place,
    RedriveWork,
    StoredLetter,
    headers_of,
    of_one_step,
)
from cdcworker.connectors.warehouses.postgres import statements
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.sql.redrive import LetterStatements, SqlLetters

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.postgres.client import Connection

LOCK_TIMEOUT: Final = "set local lock_timeout = '15s'"
_PASSED: Final = """ from _cdcworker.dead_letter d join _cdcworker.ledger l using (sink, topic, partition)
    where d.sink = %(sink)s and l.next_offset > d."offset" and (%(topic)s = '' or d.topic = %(topic)s)"""
"""Not those that the ledger stands before: they are read again by themselves."""
_NEXT: Final = f"""select d.topic {_PASSED} and (d.topic, d.partition, d."offset") > (%(after)s, %(number)s, %(offset)s)
    order by d.topic, d.partition, d."offset" limit 1"""
_SOME: Final = f"""select topic, partition, "offset", key, value, headers from (
      select d.topic, d.partition, d."offset", d.key, d.value, d.headers,
        sum(coalesce(octet_length(d.value), 0)) over (order by d.partition, d."offset") - coalesce(octet_length(d.value), 0)
          as before {_PASSED}
        and (d.topic, d.partition, d."offset") > (%(after)s, %(number)s, %(offset)s)
      order by d.partition, d."offset" limit %(limit)s) found
    where before < %(bytes)s order by partition, "offset" """
STATEMENTS: Final = LetterStatements(
    listed="""select topic, partition, "offset", code, cause, (extract(epoch from at) * 1000)::bigint,
          octet_length(key), octet_length(value) from _cdcworker.dead_letter
        where sink = %s and (%s = '' or topic = %s) and (topic, partition, "offset") > (%s, %s, %s)
        order by topic, partition, "offset" limit %s""",
    delete="""delete from _cdcworker.dead_letter
        where sink = %s and topic = %s and partition = %s and "offset" = %s""",
    note="""update _cdcworker.dead_letter set code = %s, cause = %s
        where sink = %s and topic = %s and partition = %s and "offset" = %s""",
    tombstone="select 1 from _cdcworker.tombstone where sink = %s and topic = %s and key = %s and position > %s",
)


class PostgresLetters(SqlLetters["Connection", statements.TargetTable], PostgresWriter):
    """The letters of one sink in PostgreSQL."""

    letters = STATEMENTS

    @contextlib.contextmanager
    def _created(self) -> Iterator[Connection]:
        with self._transaction() as connection:
            self._ledger.create(connection)
            yield connection

    @contextlib.contextmanager
    def _step_transaction(self, work: RedriveWork, topic: str, after: Place, dry_run: bool) -> Iterator[Connection]:
        with self._transaction() as connection:
            connection.execute(LOCK_TIMEOUT)
            # Who asked is told that it is done.
            connection.execute("set local synchronous_commit = on")
            self._catalog.begin()
            yield connection

    @contextlib.contextmanager
    def _refusable(self, connection: Connection) -> Iterator[None]:
        import psycopg

        try:
            with connection.transaction():
                yield
        except psycopg.Error as exc:
            raise from_psycopg(exc) from exc

    def _undone(self, connection: Connection) -> None:
        self._forget()

    def _do_each(self, connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    def _held(self, connection: Connection, topic: str, after: Place) -> list[StoredLetter]:
        asked = {"sink": self._ledger.sink, "topic": topic, "after": after[0], "number": after[1], "offset": after[2]}
        found = connection.execute(_NEXT, asked).fetchone()
        if found is None:
            return []
        self._ledger.hold(connection, [found[0]])
        rows = connection.execute(_SOME, {**asked, "topic": found[0], "limit": AT_ONCE + 1, "bytes": BYTES_MAX})
        letters = [
            StoredLetter(
                topic, partition, offset, _bytes(key), _bytes(value), None if headers is None else headers_of(headers)
            )
            for topic, partition, offset, key, value, headers in rows
        ]
        return of_one_step(letters)


def _bytes(content: Any) -> bytes | None:
    return None if content is None else bytes(content)
