"""Dead letters of a MySQL warehouse sent again: rows change and letters go in one transaction, while the sink runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY, POSITION, SinkBatch, TableBatch
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.warehouses.dead_letters import (
    BYTES_MAX,
    INCOMPLETE,
    ROWLESS,
    UNPLACED,
    Place,
    Redriven,
    RedriveWork,
    StoredLetter,
    follows,
    headers_of,
    of_today,
    since,
    table_of,
    waves,
)
from cdcworker.connectors.warehouses.mysql import column_changes
from cdcworker.connectors.warehouses.mysql.connection import savepoint, transaction
from cdcworker.connectors.warehouses.mysql.errors import from_pymysql
from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import Connection

AT_ONCE: Final = 200
LOCK_TIMEOUT: Final = "set session innodb_lock_wait_timeout = 15"
"""A batch of the task may run; it is waited for."""
START: Final[Place] = ("", -1, -1)
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
_LISTED: Final = """select topic, `partition`, `offset`, code, cause,
      cast(timestampdiff(microsecond, '1970-01-01', at) / 1000 as signed), length(`key`), length(value)
    from _cdcworker.dead_letter where sink = %s and (%s = '' or topic = %s) and (topic, `partition`, `offset`) > (%s, %s, %s)
    order by topic, `partition`, `offset` limit %s"""
_LETTER: Final = "where sink = %s and topic = %s and `partition` = %s and `offset` = %s"


@dataclass(slots=True)
class _Done:
    letters: list[StoredLetter] = field(default_factory=list)
    failed: list[tuple[StoredLetter, CdcError]] = field(default_factory=list)
    rows: int = 0

    def add(self, other: _Done) -> None:
        self.letters += other.letters
        self.failed += other.failed
        self.rows += other.rows


class _UndoneError(Exception):
    """Ends a transaction that was for looking only."""


class _LedgerOfNoTask(MySqlLedger):
    """The bookkeeping for somebody who owns no fence; who alters tables waits for tasks, and they for him."""

    def check_fence(self, connection: Connection) -> None:
        pass


class MySqlLetters(MySqlWriter):
    """The letters of one sink. Its tasks are kept waiting for as long as a step takes, and fenced by nothing."""

    def __init__(self, login: Login, sink: str, *, schema: str = "", output: OutputForm | None = None) -> None:
        super().__init__(login, sink, schema=schema, output=output, ledger=_LedgerOfNoTask(sink, 0))
        self._refused: dict[tuple[str, int], CdcError] = {}
        """By topic and shape why the table of some letters cannot take them."""

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[tuple[Any, ...]]]:
        """Returns how many dead letters there are, and some of them without what is in them."""
        sink = self._ledger.sink
        with self._session() as connection:
            self._ledger.create(connection)
            query = "select count(*) from _cdcworker.dead_letter where sink = %s and (%s = '' or topic = %s)"
            total = connection.one(query, (sink, topic, topic))
            found = connection.ask(_LISTED, (sink, topic, topic, *after, limit))
        return (int(total[0]) if total else 0), found

    def redrive(
        self,
        shapes: EnvelopeSchemas,
        topic: str,
        after: Place,
        seconds: float,
        *,
        log: bool = False,
        dry_run: bool = False,
    ) -> Redriven:
        """Every letter behind `after`, in the order of topic, partition and offset, as far as the time allows."""
        out, deadline = Redriven(next=after), time.monotonic() + seconds
        work = RedriveWork(shapes, Assembler(shapes, log, tolerant=True), log)
        with self._session() as connection:
            self._ledger.create(connection)
            connection.do(LOCK_TIMEOUT)
        while out.next is not None and time.monotonic() < deadline:
            out.next = self._step(work, topic, out, dry_run)
        out.left = self.listed(topic, START, 0)[0]
        return out

    def _step(self, work: RedriveWork, topic: str, out: Redriven, dry_run: bool) -> Place | None:
        """Letters of one topic, in one transaction; the last one's place."""
        done, last = _Done(), None
        try:
            with self._session() as connection:
                self._catalog.begin()
                self._stages.empty(connection)
                self._make_ready(connection, work, self._next(connection, topic, out.next or START), dry_run)
                with transaction(connection):
                    letters = self._held(connection, topic, out.next or START)
                    if not letters:
                        return None
                    last = letters[-1].place
                    self._read_guards(connection)
                    done = self._sorted_out(connection, work, letters)
                    self._note(connection, done)
                    hit("redrive.before_commit")
                    if dry_run:
                        raise _UndoneError
        except _UndoneError:
            self._catalog.forget()
        hit("redrive.after_commit")
        out.letters += len(done.letters)
        out.rows += done.rows
        out.failed += len(done.failed)
        out.causes.update((error.code, error.message) for _, error in done.failed)
        return last

    def _held(self, connection: Connection, topic: str, after: Place) -> list[StoredLetter]:
        """The next ones, of one topic; no task applies anything from here on."""
        found = connection.one(_NEXT, (self._ledger.sink, topic, topic, *after))
        if found is None:
            return []
        self._ledger.hold(connection, [found[0]])
        return self._next(connection, topic, after)

    def _next(self, connection: Connection, topic: str, after: Place) -> list[StoredLetter]:
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
        # A delete and its tombstone go together.
        if len(letters) > AT_ONCE and not follows(letters[-1], letters[-2]):
            letters.pop()
        return letters

    def _note(self, connection: Connection, done: _Done) -> None:
        sink = self._ledger.sink
        for letter in done.letters:
            connection.do(f"delete from _cdcworker.dead_letter {_LETTER}", (sink, *letter.place))
        for letter, error in done.failed:
            connection.do(
                f"update _cdcworker.dead_letter set code = %s, cause = %s {_LETTER}",
                (error.code, error.message, sink, *letter.place),
            )

    # -- one topic ----------------------------------------------------------------------------------------------------

    def _make_ready(
        self, connection: Connection, work: RedriveWork, letters: Sequence[StoredLetter], dry_run: bool
    ) -> None:
        """Alters the tables as the letters need it, before the transaction; for a dry run nothing is altered, and columns that the
        table lacks are left out."""
        self._refused = {}
        whole = [letter for letter in letters if letter.value is not None and letter.headers is not None]
        for wave in [whole] if work.log else waves(whole):
            for table in work.assembler.build(table_of(wave), {}, 0).tables:
                try:
                    today = self._today(connection, work, table)
                    self._catalog.look(connection, today) if dry_run else self._catalog.prepare(connection, today)
                except CdcError as exc:
                    if exc.kind in ("transient", "fenced"):
                        raise
                    self._refused[table.table, id(table.schema)] = exc

    def _today(self, connection: Connection, work: RedriveWork, table: TableBatch) -> TableBatch:
        known = column_changes.known(connection, (self._ledger.sink, table.table))
        return of_today(table, known, work.alive(table.table))

    def _sorted_out(self, connection: Connection, work: RedriveWork, letters: Sequence[StoredLetter]) -> _Done:
        """Tombstones say nothing but that the delete before them is meant; they are done with when that one is."""
        partial = [letter for letter in letters if letter.value is not None and letter.headers is None]
        whole = [letter for letter in letters if letter.value is not None and letter.headers is not None]
        done = _Done()
        for wave in [whole] if work.log else waves(whole):
            done.add(self._applied(connection, work, wave))
        done.failed += [(letter, CdcError(INCOMPLETE, "its headers were not kept")) for letter in partial]
        finished = {letter.place for letter in done.letters}
        before: StoredLetter | None = None
        for letter in letters:
            if letter.value is None and follows(letter, before) and before and before.place in finished:
                done.letters.append(letter)
            elif letter.value is None:
                done.failed.append((letter, CdcError(UNPLACED, "a delete without a position")))
            before = letter
        return done

    def _applied(self, connection: Connection, work: RedriveWork, letters: Sequence[StoredLetter]) -> _Done:
        """Applies letters together or, when that is refused, in halves, down to those that cannot be applied."""
        import pymysql

        if not letters:
            return _Done()
        try:
            with savepoint(connection, "letters"):
                return self._tried(connection, work, letters)
        except pymysql.Error as exc:
            error = from_pymysql(exc)
        except CdcError as exc:
            error = exc
        self._read_guards(connection)
        if error.kind in ("transient", "fenced"):
            raise error
        if len(letters) == 1:
            return _Done(failed=[(letters[0], error)])
        half = len(letters) // 2
        done = self._applied(connection, work, letters[:half])
        done.add(self._applied(connection, work, letters[half:]))
        return done

    def _tried(self, connection: Connection, work: RedriveWork, letters: Sequence[StoredLetter]) -> _Done:
        batch: SinkBatch = work.assembler.build(table_of(letters), {}, 0)
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        for table in batch.tables:
            refused = self._refused.get((table.table, id(table.schema)))
            if refused is not None:
                raise refused
            today = self._today(connection, work, table)
            self._table(connection, since(today, self._floors.get(table.table)), counts)
        if counts["orphans"] and (len(letters) > 1 or not self._has_tombstones(connection, batch.tables)):
            raise CdcError(ROWLESS, "the row is not there", where=letters[0].where)
        dead = {(letter.partition, letter.offset): CdcError(letter.code, letter.cause) for letter in batch.dead}
        failed = [(each, dead[each.place[1:]]) for each in letters if each.place[1:] in dead]
        return _Done([each for each in letters if each.place[1:] not in dead], failed, counts.get("written", 0))

    def _has_tombstones(self, connection: Connection, tables: Sequence[TableBatch]) -> bool:
        """Returns whether the keys of all rows were deleted by newer changes."""
        for table in tables:
            for key, position in zip(*(table.upserts[name].to_pylist() for name in (KEY, POSITION)), strict=True):
                found = connection.one(
                    """select 1 from _cdcworker.tombstone
                       where sink = %s and topic = %s and `key` = unhex(sha2(%s, 256)) and position > %s""",
                    (self._ledger.sink, table.table, key, position),
                )
                if found is None:
                    return False
        return True


def _bytes(content: Any) -> bytes | None:
    return None if content is None else bytes(content)


def _pairs(text: str) -> list[list[str | None]]:
    found: list[list[str | None]] = json.loads(text)
    return found
