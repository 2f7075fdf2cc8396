"""Dead letters of a PostgreSQL warehouse sent again: rows change and letters go in one transaction, while the sink runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY, POSITION, TableBatch
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.sink_errors import from_psycopg
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
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

AT_ONCE: Final = 200
LOCK_TIMEOUT: Final = "set local lock_timeout = '15s'"
"""A batch of the task may run; it is waited for."""
START: Final[Place] = ("", -1, -1)
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
_LISTED: Final = """select topic, partition, "offset", code, cause, (extract(epoch from at) * 1000)::bigint,
      octet_length(key), octet_length(value) from _cdcworker.dead_letter
    where sink = %s and (%s = '' or topic = %s) and (topic, partition, "offset") > (%s, %s, %s)
    order by topic, partition, "offset" limit %s"""
_COLUMNS: Final = "select colid, name from _cdcworker.columns where sink = %s and topic = %s"


@dataclass(slots=True)
class _Done:
    letters: list[StoredLetter] = field(default_factory=list)
    failed: list[tuple[StoredLetter, CdcError]] = field(default_factory=list)
    rows: int = 0

    def add(self, other: _Done) -> None:
        self.letters += other.letters
        self.failed += other.failed
        self.rows += other.rows


class _Undone(Exception):
    """Ends a transaction that was for looking only."""


class PostgresLetters(PostgresWriter):
    """The letters of one sink. Its tasks are kept waiting for as long as a step takes, and fenced by nothing."""

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[tuple[Any, ...]]]:
        """Returns how many dead letters there are, and some of them without what is in them."""
        sink = self._ledger.sink
        with self._transaction() as connection:
            self._ledger.create(connection)
            total = connection.execute(
                "select count(*) from _cdcworker.dead_letter where sink = %s and (%s = '' or topic = %s)",
                (sink, topic, topic),
            ).fetchone()
            found = connection.execute(_LISTED, (sink, topic, topic, *after, limit)).fetchall()
        return (total[0] if total else 0), found

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
        with self._transaction() as connection:
            self._ledger.create(connection)
        while out.next is not None and time.monotonic() < deadline:
            out.next = self._step(work, topic, out, dry_run)
        out.left = self.listed(topic, START, 0)[0]
        return out

    def _step(self, work: RedriveWork, topic: str, out: Redriven, dry_run: bool) -> Place | None:
        """Letters of one topic, in one transaction; the last one's place."""
        done, last = _Done(), None
        try:
            with self._transaction() as connection:
                connection.execute(LOCK_TIMEOUT)
                # Who asked is told that it is done.
                connection.execute("set local synchronous_commit = on")
                self._catalog.begin()
                letters = self._held(connection, topic, out.next or START)
                if not letters:
                    return None
                last = letters[-1].place
                self._read_guards(connection)
                done = self._sorted_out(connection, work, letters)
                self._note(connection, done)
                hit("redrive.before_commit")
                if dry_run:
                    raise _Undone
        except _Undone:
            self._forget()
        hit("redrive.after_commit")
        out.letters += len(done.letters)
        out.rows += done.rows
        out.failed += len(done.failed)
        out.causes.update((error.code, error.message) for _, error in done.failed)
        return last

    def _held(self, connection: Connection, topic: str, after: Place) -> list[StoredLetter]:
        """The next ones, of one topic; no task applies anything from here on."""
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
        # A delete and its tombstone go together.
        if len(letters) > AT_ONCE and not follows(letters[-1], letters[-2]):
            letters.pop()
        return letters

    def _note(self, connection: Connection, done: _Done) -> None:
        sink = self._ledger.sink
        with connection.cursor() as cursor:
            cursor.executemany(
                """delete from _cdcworker.dead_letter
                   where sink = %s and topic = %s and partition = %s and "offset" = %s""",
                [(sink, *letter.place) for letter in done.letters],
            )
            cursor.executemany(
                """update _cdcworker.dead_letter set code = %s, cause = %s
                   where sink = %s and topic = %s and partition = %s and "offset" = %s""",
                [(error.code, error.message, sink, *letter.place) for letter, error in done.failed],
            )

    # -- one topic ----------------------------------------------------------------------------------------------------

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
        import psycopg

        if not letters:
            return _Done()
        try:
            with connection.transaction():
                return self._tried(connection, work, letters)
        except psycopg.Error as exc:
            error = from_psycopg(exc)
        except CdcError as exc:
            error = exc
        self._forget()
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
        batch = work.assembler.build(table_of(letters), {}, 0)
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        for table in batch.tables:
            known: dict[int, str] = dict(connection.execute(_COLUMNS, (self._ledger.sink, table.table)).fetchall())
            today = of_today(table, known, work.alive(table.table))
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
                found = connection.execute(
                    """select 1 from _cdcworker.tombstone
                       where sink = %s and topic = %s and key = %s and position > %s""",
                    (self._ledger.sink, table.table, key, position),
                ).fetchone()
                if found is None:
                    return False
        return True


def _bytes(content: Any) -> bytes | None:
    return None if content is None else bytes(content)
