"""Dead letters of a warehouse that speaks SQL sent again: rows change and letters go in one transaction, while the sink runs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.api.table_batch import KEY, POSITION, TableBatch
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.warehouses.dead_letters import (
    INCOMPLETE,
    ROWLESS,
    START,
    UNPLACED,
    Place,
    Redriven,
    RedriveResult,
    RedriveWork,
    StoredLetter,
    applied,
    follows,
    of_today,
    refused_at_build,
    since,
    table_of,
    waves,
)
from cdcworker.connectors.warehouses.sql.ledger import COLUMNS
from cdcworker.connectors.warehouses.sql.writer import C, SqlWriter, T
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

_COUNTED: Final = "select count(*) from _cdcworker.dead_letter where sink = %s and (%s = '' or topic = %s)"


class _UndoneError(Exception):
    """Ends a transaction that was for looking only."""


@dataclass(frozen=True, slots=True)
class LetterStatements:
    """A server's statements over dead letters, with the sink as their first parameter."""

    listed: str
    """Some letters without what is in them: topic, topic, the place that they are behind (topic, partition, offset), limit."""
    delete: str
    """Topic, partition, offset."""
    note: str
    """Stores why a letter cannot be applied. Its first parameters are code and cause, then sink, topic, partition, offset."""
    tombstone: str
    """A row where a key has a tombstone that is newer than a position: topic, key, position."""


class SqlLetters(SqlWriter[C, T]):
    """The letters of one sink. Its tasks are kept waiting for as long as a step takes, and fenced by nothing."""

    letters: LetterStatements

    # -- what each server does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _created(self) -> AbstractContextManager[C]:
        """Opens a session with the bookkeeping made."""

    @abstractmethod
    def _step_transaction(
        self, work: RedriveWork, topic: str, after: Place, dry_run: bool
    ) -> AbstractContextManager[C]:
        """Opens the transaction of one step. A batch of the task may run; it is waited for."""

    @abstractmethod
    def _held(self, connection: C, topic: str, after: Place) -> list[StoredLetter]:
        """Returns the next letters, of one topic; no task applies anything from here on."""

    @abstractmethod
    def _refusable(self, connection: C) -> AbstractContextManager[Any]:
        """Opens a part of a transaction that is undone alone. Errors in it are translated."""

    @abstractmethod
    def _undone(self, connection: C) -> None:
        """Forgets what a part of a transaction that was undone had made known."""

    @abstractmethod
    def _do_each(self, connection: C, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Executes a statement with each of the rows as its parameters."""

    def _admit(self, table: TableBatch) -> None:
        """CdcError where the letters of a table are known to be refused."""
        return

    # -- letters ------------------------------------------------------------------------------------------------------

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[tuple[Any, ...]]]:
        """Returns how many dead letters there are, and some of them without what is in them."""
        sink = self._ledger.sink
        with self._created() as connection:
            total = connection.one(_COUNTED, (sink, topic, topic))
            found = connection.ask(self.letters.listed, (sink, topic, topic, *after, limit))
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
        work = RedriveWork(shapes, Assembler(shapes, log, tolerant=True, keeps_versions=self._output.versions), log)
        with self._created():
            pass
        while out.next is not None and time.monotonic() < deadline:
            out.next = self._step(work, topic, out, dry_run)
        out.left = self.listed(topic, START, 0)[0]
        return out

    def _step(self, work: RedriveWork, topic: str, out: Redriven, dry_run: bool) -> Place | None:
        """Letters of one topic, in one transaction; the last one's place."""
        done, last, after = RedriveResult(), None, out.next or START
        try:
            with self._step_transaction(work, topic, after, dry_run) as connection:
                letters = self._held(connection, topic, after)
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
            self._forget()
        hit("redrive.after_commit")
        out.add(done)
        return last

    def _note(self, connection: C, done: RedriveResult) -> None:
        sink = self._ledger.sink
        self._do_each(connection, self.letters.delete, [(sink, *letter.place) for letter in done.letters])
        failed = [(error.code, error.message, sink, *letter.place) for letter, error in done.failed]
        self._do_each(connection, self.letters.note, failed)

    # -- one topic ----------------------------------------------------------------------------------------------------

    def _sorted_out(self, connection: C, work: RedriveWork, letters: Sequence[StoredLetter]) -> RedriveResult:
        done = RedriveResult()
        for wave in whole_waves(work, letters):
            done.add(applied(wave, lambda some: self._attempt(connection, work, some)))
        done.failed += [(each, CdcError(INCOMPLETE, "its headers were not kept")) for each in letters if each.bare]
        add_tombstones(done, letters)
        return done

    def _attempt(self, connection: C, work: RedriveWork, letters: Sequence[StoredLetter]) -> RedriveResult:
        try:
            with self._refusable(connection):
                return self._tried(connection, work, letters)
        except CdcError:
            self._undone(connection)
            self._read_guards(connection)
            raise

    def _tried(self, connection: C, work: RedriveWork, letters: Sequence[StoredLetter]) -> RedriveResult:
        batch = work.assembler.build(table_of(letters), {}, 0)
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        for table in batch.tables:
            self._admit(table)
            today = self._today(connection, work, table)
            self._table(connection, since(today, self._floors.get(table.table)), counts)
        if counts["orphans"] and (len(letters) > 1 or not self._has_tombstones(connection, batch.tables)):
            raise CdcError(ROWLESS, "the row is not there", where=letters[0].where)
        fine, failed = refused_at_build(letters, batch.dead)
        return RedriveResult(fine, failed, counts.get("written", 0))

    def _today(self, connection: C, work: RedriveWork, table: TableBatch) -> TableBatch:
        """Returns the batch of a table with its columns as they are called now."""
        known: dict[int, str] = dict(connection.ask(COLUMNS, (self._ledger.sink, table.table)))
        return of_today(table, known, work.alive(table.table))

    def _has_tombstones(self, connection: C, tables: Sequence[TableBatch]) -> bool:
        """Returns whether the keys of all rows were deleted by newer changes."""
        for table in tables:
            for row in zip(*(table.upserts[name].to_pylist() for name in (KEY, POSITION)), strict=True):
                if connection.one(self.letters.tombstone, (self._ledger.sink, table.table, *row)) is None:
                    return False
        return True


def whole_waves(work: RedriveWork, letters: Sequence[StoredLetter]) -> list[list[StoredLetter]]:
    """Returns the letters that can be applied, in groups that are."""
    whole = [letter for letter in letters if letter.value is not None and not letter.bare]
    return [whole] if work.log else list(waves(whole))


def add_tombstones(done: RedriveResult, letters: Sequence[StoredLetter]) -> None:
    """Tombstones say nothing but that the delete before them is meant; they are done with when that one is."""
    finished = {letter.place for letter in done.letters}
    before: StoredLetter | None = None
    for letter in letters:
        if letter.value is None and follows(letter, before) and before and before.place in finished:
            done.letters.append(letter)
        elif letter.value is None:
            done.failed.append((letter, CdcError(UNPLACED, "a delete without a position")))
        before = letter
