"""Dead letters of a lake, or of Parquet files, sent again beside a sink that goes on: each step is one more state of a table.

A state says which letters it has: a letter whose rows are in, and that is still kept because somebody died, is done with by
the next one who looks. The sink's own next batch goes on from such a state, for its offsets are the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from cdcworker.connectors.api.table_batch import TableBatch
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.warehouses.dead_letters import (
    AT_ONCE,
    INCOMPLETE,
    START,
    UNPLACED,
    Failed,
    Place,
    Redriven,
    RedriveResult,
    RedriveWork,
    StoredLetter,
    applied,
    follows,
    of_one_step,
    of_today,
    refused_at_build,
    since,
    table_of,
    waves,
)
from cdcworker.connectors.warehouses.table_state import Manifest
from cdcworker.connectors.warehouses.target_columns import COLID
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

TRIES: Final = 8
"""Of a table that its sink commits to meanwhile."""
Listed = tuple[str, int, int, str, str, int, int | None, int | None]
"""Topic, partition, offset, code, cause, time, and how long key and value are."""


class KeptLetters(Protocol):
    """The store of one sink's dead letters."""

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[Listed]]:
        """Returns how many there are, and some of them, in the order of topic, partition and offset."""

    def some(self, topic: str, after: Place, limit: int) -> list[StoredLetter]:
        """The next ones of the first topic that has any."""

    def there(self, places: Sequence[Place]) -> set[Place]:
        """Returns those of the places, all of one topic, whose letters are still stored."""

    def drop(self, places: Sequence[Place]) -> None: ...

    def note(self, failed: Sequence[Failed]) -> None:
        """Why they are still there, where they are."""


class OfflineTables(Protocol):
    """The sink's tables, as somebody who is not its task writes to them."""

    def state(self, topic: str) -> Manifest | None: ...

    def put(
        self, state: Manifest, parts: Sequence[TableBatch], letters: tuple[tuple[int, int], ...], dry_run: bool
    ) -> int:
        """Applies parts to the table and returns how many rows have changed. CdcError LEDGER_MOVED when the table is not in
        this state any more, ROWLESS when a part of a row finds none; then nothing has changed."""


class OfflineLetters:
    """The letters of one sink, and its tables."""

    def __init__(self, kept: KeptLetters, tables: OfflineTables, keeps_versions: bool = False) -> None:
        self._kept = kept
        self._tables = tables
        self._keeps_versions = keeps_versions
        self._dropped: dict[str, tuple[tuple[int, int], ...]] = {}
        """By topic, the letters that its last state has and that are dropped for that."""

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, list[Listed]]:
        return self._kept.listed(topic, after, limit)

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
        work = RedriveWork(shapes, Assembler(shapes, log, tolerant=True, keeps_versions=self._keeps_versions), log)
        while out.next is not None and time.monotonic() < deadline:
            out.next = self._step(work, topic, out, dry_run)
        out.left = self._kept.listed(topic, START, 0)[0]
        return out

    def _step(self, work: RedriveWork, topic: str, out: Redriven, dry_run: bool) -> Place | None:
        """Letters of one topic; the last one's place."""
        letters = self._kept.some(topic, out.next or START, AT_ONCE + 1)
        if not letters:
            return None
        letters = of_one_step(letters)
        last = letters[-1].place
        state = self._tables.state(last[0])
        if state is None:
            return last
        there = set(state.redriven)
        if not dry_run:
            self._finish(state)
        # Those that the offsets stand before are read again by themselves.
        passed = [each for each in letters if state.offsets.get(str(each.partition), 0) > each.offset]
        # Their rows were put in before somebody died.
        again = [each for each in passed if each.place[1:] in there]
        done = self._sorted_out(work, [each for each in passed if each.place[1:] not in there], dry_run)
        if not dry_run:
            known = {each.place: each for each in letters}
            self._kept.note([pair for pair in done.failed if not known[pair[0].place].says(pair[1])])
        out.add(done)
        out.letters += len(again)
        return last

    def _sorted_out(self, work: RedriveWork, letters: Sequence[StoredLetter], dry_run: bool) -> RedriveResult:
        """Tombstones say nothing but that the delete before them is meant; they are done with when that one is."""
        done = RedriveResult(
            failed=[(each, CdcError(INCOMPLETE, "its headers were not kept")) for each in letters if each.bare]
        )
        tombs: dict[Place, StoredLetter] = {}
        before: StoredLetter | None = None
        for letter in letters:
            if letter.value is None and before is not None and follows(letter, before):
                tombs[before.place] = letter
            elif letter.value is None:
                done.failed.append((letter, CdcError(UNPLACED, "a delete without a position")))
            before = letter
        whole = [each for each in letters if each.value is not None and not each.bare]
        for wave in [whole] if work.log else waves(whole):
            done.add(applied(wave, lambda some: self._tried(work, some, tombs, dry_run)))
        finished = {each.place for each in (*done.letters, *done.others)}
        lone = [each for place, each in tombs.items() if place not in finished]
        done.failed += [(each, CdcError(UNPLACED, "a delete without a position")) for each in lone]
        return done

    def _tried(
        self, work: RedriveWork, letters: Sequence[StoredLetter], tombs: Mapping[Place, StoredLetter], dry_run: bool
    ) -> RedriveResult:
        topic = letters[0].topic
        for left in reversed(range(TRIES)):
            state = self._tables.state(topic)
            if state is None:
                break
            ours = self._ours(state, letters, dry_run)
            try:
                done = self._put(work, state, ours, tombs, dry_run)
            except CdcError as exc:
                # The sink has committed, or another owner has begun, or somebody else sends letters again.
                if exc.kind != "fenced" or not left:
                    raise
                continue
            done.others += [each for each in letters if each not in ours]
            return done
        return RedriveResult(others=list(letters))

    def _ours(self, state: Manifest, letters: Sequence[StoredLetter], dry_run: bool) -> list[StoredLetter]:
        """Returns the letters that nobody has put in, by a state that must still be there when they are: whoever puts
        letters in drops them before the state forgets which they were."""
        if not dry_run:
            self._finish(state)
        kept = self._kept.there([each.place for each in letters])
        passed = {each.place for each in letters if state.offsets.get(str(each.partition), 0) > each.offset}
        return [each for each in letters if each.place in kept & passed and each.place[1:] not in state.redriven]

    def _finish(self, state: Manifest) -> None:
        """Whoever put these in may have died before they were dropped; the next state does not have them."""
        if state.redriven != self._dropped.get(state.topic, ()):
            self._kept.drop([(state.topic, *place) for place in state.redriven])
        self._dropped[state.topic] = state.redriven

    def _put(
        self,
        work: RedriveWork,
        state: Manifest,
        letters: Sequence[StoredLetter],
        tombs: Mapping[Place, StoredLetter],
        dry_run: bool,
    ) -> RedriveResult:
        if not letters:
            return RedriveResult()
        batch = work.assembler.build(table_of(letters), {}, 0)
        fine, failed = refused_at_build(letters, batch.dead)
        fine += [tombs[each.place] for each in fine if each.place in tombs]
        done = RedriveResult(fine, failed)
        places = tuple(each.place[1:] for each in fine)
        if fine:
            columns, alive = _columns(state), work.alive(state.topic)
            floor = bytes.fromhex(state.floor)
            parts = [since(of_today(part, columns, alive), floor) for part in batch.tables]
            hit("redrive.before_commit")
            done.rows = self._tables.put(state, parts, places, dry_run)
        if fine and not dry_run:
            hit("redrive.after_commit")
            self._kept.drop([each.place for each in fine])
            self._dropped[state.topic] = places
        return done


def _columns(state: Manifest) -> dict[int, str]:
    """Returns the columns by the source's identity of them."""
    fields: Iterator[Any] = iter(state.arrow or ())
    noted = ((each.name, (each.metadata or {}).get(COLID)) for each in fields)
    return {int(id): name for name, id in noted if id}
