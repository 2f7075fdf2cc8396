"""Dead letters of a MySQL warehouse sent again: rows change and letters go in one transaction, while the sink runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import TableBatch
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.warehouses.dead_letters import (
    AT_ONCE,
    BYTES_MAX,
    Place,
    RedriveWork,
    StoredLetter,
    headers_of,
    of_one_step,
    table_of,
)
from cdcworker.connectors.warehouses.mysql import statements
from cdcworker.connectors.warehouses.mysql.connection import savepoint, transaction
from cdcworker.connectors.warehouses.mysql.errors import from_pymysql
from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.sql.redrive import LetterStatements, SqlLetters, whole_waves
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

LOCK_TIMEOUT: Final = "set session innodb_lock_wait_timeout = 15"
_BEHIND: Final = "(d.topic, d.`partition`, d.`offset`) > (%s, %s, %s)"
_PASSED: Final = """ from _cdcworker.dead_letter d join _cdcworker.ledger l
    on l.sink = d.sink and l.topic = d.topic and l.`partition` = d.`partition`
    where d.sink = %s and l.next_offset > d.`offset` and (%s = '' or d.topic = %s)"""
"""Not those that the ledger stands before: they are read again by themselves."""
_NEXT: Final = f"select d.topic {_PASSED} and {_BEHIND} order by d.topic, d.`partition`, d.`offset` limit 1"
_SOME: Final = f"""select d.topic, d.`partition`, d.`offset`, coalesce(length(d.value), 0) {_PASSED} and {_BEHIND}
    order by d.`partition`, d.`offset` limit %s"""
_ONE: Final = """select `key`, value, headers from _cdcworker.dead_letter
    where sink = %s and topic = %s and `partition` = %s and `offset` = %s"""
_LETTER: Final = "where sink = %s and topic = %s and `partition` = %s and `offset` = %s"
STATEMENTS: Final = LetterStatements(
    listed="""select topic, `partition`, `offset`, code, cause,
          cast(timestampdiff(microsecond, '1970-01-01', at) / 1000 as signed), length(`key`), length(value)
        from _cdcworker.dead_letter where sink = %s and (%s = '' or topic = %s) and (topic, `partition`, `offset`) > (%s, %s, %s)
        order by topic, `partition`, `offset` limit %s""",
    delete=f"delete from _cdcworker.dead_letter {_LETTER}",
    note=f"update _cdcworker.dead_letter set code = %s, cause = %s {_LETTER}",
    tombstone="""select 1 from _cdcworker.tombstone
        where sink = %s and topic = %s and `key` = unhex(sha2(%s, 256)) and position > %s""",
)


class _LedgerOfNoTask(MySqlLedger):
    """The bookkeeping for somebody who owns no fence; who alters tables waits for tasks, and they for him."""

    def check_fence(self, connection: MySqlConnection) -> None:
        pass


class MySqlLetters(SqlLetters["MySqlConnection", statements.TargetTable], MySqlWriter):
    """The letters of one sink in MySQL."""

    letters = STATEMENTS

    def __init__(self, login: Login, sink: str, *, schema: str = "", output: OutputForm | None = None) -> None:
        super().__init__(login, sink, schema=schema, output=output, ledger=_LedgerOfNoTask(sink, 0))
        self._refused: dict[tuple[str, int], CdcError] = {}
        """By topic and shape why the table of some letters cannot take them."""

    @contextlib.contextmanager
    def _created(self) -> Iterator[MySqlConnection]:
        with self._session() as connection:
            self._ledger.create(connection)
            connection.do(LOCK_TIMEOUT)
            yield connection

    @contextlib.contextmanager
    def _step_transaction(
        self, work: RedriveWork, topic: str, after: Place, dry_run: bool
    ) -> Iterator[MySqlConnection]:
        with self._session() as connection:
            self._catalog.begin()
            self._stages.empty(connection)
            self._make_ready(connection, work, self._next(connection, topic, after), dry_run)
            with transaction(connection):
                yield connection

    @contextlib.contextmanager
    def _refusable(self, connection: MySqlConnection) -> Iterator[None]:
        import pymysql

        try:
            with savepoint(connection, "letters"):
                yield
        except pymysql.Error as exc:
            raise from_pymysql(exc) from exc

    def _undone(self, connection: MySqlConnection) -> None:
        """Tables are altered before the transaction: what is known of them holds."""
        return

    def _do_each(self, connection: MySqlConnection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            connection.do(statement, row)

    def _held(self, connection: MySqlConnection, topic: str, after: Place) -> list[StoredLetter]:
        found = connection.one(_NEXT, (self._ledger.sink, topic, topic, *after))
        if found is None:
            return []
        self._ledger.hold(connection, [found[0]])
        return self._next(connection, topic, after)

    def _next(self, connection: MySqlConnection, topic: str, after: Place) -> list[StoredLetter]:
        sink = self._ledger.sink
        found = connection.one(_NEXT, (sink, topic, topic, *after))
        if found is None:
            return []
        letters, size = list[StoredLetter](), 0
        for found_topic, partition, offset, length in connection.ask(
            _SOME, (sink, found[0], found[0], *after, AT_ONCE + 1)
        ):
            if letters and size >= BYTES_MAX:
                break
            size += length
            content = connection.one(_ONE, (sink, found_topic, partition, offset))
            if content is not None:
                key, value, headers = content
                kept = None if headers is None else headers_of(_pairs(headers))
                letters.append(StoredLetter(found_topic, partition, offset, _bytes(key), _bytes(value), kept))
        return of_one_step(letters)

    # -- one topic ----------------------------------------------------------------------------------------------------

    def _make_ready(
        self, connection: MySqlConnection, work: RedriveWork, letters: Sequence[StoredLetter], dry_run: bool
    ) -> None:
        """Alters the tables as the letters need it, before the transaction; for a dry run nothing is altered, and columns that the
        table lacks are left out."""
        self._refused = {}
        for wave in whole_waves(work, letters):
            for table in work.assembler.build(table_of(wave), {}, 0).tables:
                try:
                    today = self._today(connection, work, table)
                    self._catalog.look(connection, today) if dry_run else self._catalog.prepare(connection, today)
                except CdcError as exc:
                    if exc.kind in ("transient", "fenced"):
                        raise
                    self._refused[table.table, id(table.schema)] = exc

    def _admit(self, table: TableBatch) -> None:
        refused = self._refused.get((table.table, id(table.schema)))
        if refused is not None:
            raise refused


def _bytes(content: Any) -> bytes | None:
    return None if content is None else bytes(content)


def _pairs(text: str) -> list[list[str | None]]:
    found: list[list[str | None]] = json.loads(text)
    return found
