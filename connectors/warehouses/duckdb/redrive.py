"""Dead letters of a DuckDB warehouse sent again: rows change and letters go in one transaction, while the sink runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cdcworker.connectors.warehouses.dead_letters import (
    AT_ONCE,
    BYTES_MAX,
    Place,
    RedriveResult,
    RedriveWork,
    StoredLetter,
    headers_of,
    of_one_step,
)
from cdcworker.connectors.warehouses.duckdb import statements
from cdcworker.connectors.warehouses.duckdb.connection import Connection, rollback
from cdcworker.connectors.warehouses.duckdb.errors import from_duckdb
from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter
from cdcworker.connectors.warehouses.sql.redrive import LetterStatements, SqlLetters

_BEHIND: Final = '(d.topic, d.partition, d."offset") > (%s, %s, %s)'
_PASSED: Final = """ from _cdcworker.dead_letter d join _cdcworker.ledger l
    on l.sink = d.sink and l.topic = d.topic and l.partition = d.partition
    where d.sink = %s and l.next_offset > d."offset" and (%s = '' or d.topic = %s)"""
"""Not those that the ledger stands before: they are read again by themselves."""
_NEXT: Final = f'select d.topic {_PASSED} and {_BEHIND} order by d.topic, d.partition, d."offset" limit 1'
_SIZE: Final = "coalesce(octet_length(d.value), 0)"
_SOME: Final = f"""select topic, partition, "offset", key, value, headers from (
      select d.topic, d.partition, d."offset", d.key, d.value, d.headers,
        sum({_SIZE}) over (order by d.partition, d."offset") - {_SIZE} as before {_PASSED} and {_BEHIND}
      order by d.partition, d."offset" limit %s)
    where before < %s order by partition, "offset" """
_LETTER: Final = 'where sink = %s and topic = %s and partition = %s and "offset" = %s'
STATEMENTS: Final = LetterStatements(
    listed="""select topic, partition, "offset", code, cause, epoch_ms(written_at), octet_length(key), octet_length(value)
        from _cdcworker.dead_letter where sink = %s and (%s = '' or topic = %s) and (topic, partition, "offset") > (%s, %s, %s)
        order by topic, partition, "offset" limit %s""",
    delete=f"delete from _cdcworker.dead_letter {_LETTER}",
    note=f"update _cdcworker.dead_letter set code = %s, cause = %s {_LETTER}",
    tombstone="select 1 from _cdcworker.tombstone where sink = %s and topic = %s and key = %s and position > %s",
)


class DuckDbLetters(SqlLetters[Connection, statements.TargetTable], DuckDbWriter):
    """The letters of one sink in DuckDB, where no part of a transaction can be undone alone: all of it is, and what had gone well is
    done again."""

    letters = STATEMENTS
    _work: RedriveWork | None = None
    _applied: Sequence[Sequence[StoredLetter]] = ()
    """What has gone well in this transaction."""

    @contextlib.contextmanager
    def _created(self) -> Iterator[Connection]:
        with self._transaction() as connection:
            self._ledger.create(connection)
            yield connection

    @contextlib.contextmanager
    def _step_transaction(self, work: RedriveWork, topic: str, after: Place, dry_run: bool) -> Iterator[Connection]:
        self._work, self._applied = work, ()
        with self._transaction() as connection:
            yield connection

    @contextlib.contextmanager
    def _refusable(self, connection: Connection) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as exc:
            raise from_duckdb(exc) from exc

    def _attempt(self, connection: Connection, work: RedriveWork, letters: Sequence[StoredLetter]) -> RedriveResult:
        done = super()._attempt(connection, work, letters)
        self._applied = (*self._applied, letters)
        return done

    def _undone(self, connection: Connection) -> None:
        assert self._work is not None
        self._forget()
        rollback(connection)
        connection.do("begin transaction")
        self._ledger.hold(connection, ())
        for letters in self._applied:
            self._read_guards(connection)
            self._tried(connection, self._work, letters)

    def _do_each(self, connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            connection.do(statement, row)

    def _held(self, connection: Connection, topic: str, after: Place) -> list[StoredLetter]:
        sink = self._ledger.sink
        found = connection.one(_NEXT, (sink, topic, topic, *after))
        if found is None:
            return []
        self._ledger.hold(connection, (found[0],))
        rows = connection.ask(_SOME, (sink, found[0], found[0], *after, AT_ONCE + 1, BYTES_MAX))
        return of_one_step(
            [
                StoredLetter(topic, partition, offset, key, value, _headers(headers))
                for topic, partition, offset, key, value, headers in rows
            ]
        )


def _headers(text: str | None) -> Any:
    return None if text is None else headers_of(json.loads(text))
