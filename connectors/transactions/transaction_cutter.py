"""Cuts a stream of records where whole transactions of the source end: what is complete goes on, the rest is held back.

Records of a partition stand in the order of the source's log, and all of a transaction carry the position of its commit.
So everything before a record's position has been read of its partition once that record has. Of a partition that was read
to an end which was asked for after some position had been seen anywhere, everything before that position has been read
too: whoever writes is one task, in order, and whatever it wrote before lies before that end, committed or not.
The cut is the least such position over all partitions of a source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import VisibleThrough
from cdcworker.connectors.transactions.record_spool import RecordSpool, SpooledRecords
from cdcworker.schemas.topics import source_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Ints = np.ndarray[Any, np.dtype[np.int64]]

Partition = tuple[str, int]
CLAIMS_MAX = 8
LEFT_OUT_MAX = 1000


@dataclass(frozen=True, slots=True)
class SourceWatermark:
    """The watermark of one of a source's `tasks`: every transaction before `position` is written; `loading` tables are not
    whole yet."""

    place: Partition
    offset: int
    connector: str
    task: int
    position: int
    ts_ms: int
    loading: tuple[str, ...] = ()
    tasks: int = 1


@dataclass(frozen=True, slots=True)
class PositionedRecords:
    """Raw records with what `positions` found of each: commit position and time, -1 where it has none."""

    table: pa.Table
    position: Ints
    ts_ms: Ints


@dataclass(slots=True)
class _Held:
    """Records that were read together: `upto` is the highest position of the partition up to and with each record."""

    piece: SpooledRecords
    places: Sequence[Partition]
    code: Ints
    upto: Ints
    ts_ms: Ints


@dataclass(slots=True)
class _Claim:
    """Everything before `position` lies before these offsets."""

    position: int
    ends: Mapping[Partition, int]


@dataclass(slots=True)
class _Source:
    """`shown` has been published; `last` is the position of the last record read of each partition."""

    shown: int = 0
    claimed: int = 0
    claims: list[_Claim] = field(default_factory=list)
    connector: str = ""
    count: int = 1
    tasks: dict[int, SourceWatermark] = field(default_factory=dict)
    marks: list[SourceWatermark] = field(default_factory=list)
    last: dict[Partition, int] = field(default_factory=dict)
    turns: list[tuple[int, int]] = field(default_factory=list)
    """Positions between which a partition was not in order: no cut there is clean."""
    ts_ms: int = 0
    is_whole: bool = False
    """Whether all partitions have been read up to `shown` by this query. One that begins anew for a table that was paused, or
    after another one, may have some behind that: nothing is told of it until they have come there."""

    @property
    def seen(self) -> int:
        """The position before which the source has written everything: the least that its tasks have said. What a single
        task has written last says so too."""
        if not self.tasks or len(self.tasks) < self.count:
            return 0
        told = min(mark.position for mark in self.tasks.values())
        return max(told, *self.last.values(), 0) if len(self.tasks) == 1 else told


@dataclass(frozen=True, slots=True)
class TransactionCut:
    """The records that may be shown, in pieces, and the watermarks that hold after them. `marks` are offsets of the
    watermarks that are done with."""

    pieces: Sequence[SpooledRecords]
    through: Mapping[str, VisibleThrough]
    marks: Mapping[Partition, tuple[int, int]]
    rows: int = 0


class TransactionCutter:
    """Cuts the records of one query, from the ledger's offsets on."""

    def __init__(self, shown: Mapping[str, int], spool: RecordSpool, ahead: Mapping[str, int] | None = None) -> None:
        """`ahead`: by source, the position that the furthest table of the target has; a cut before that would show it with others
        behind it."""
        self._spool = spool
        self._ahead = dict(ahead or {})
        self._sources: dict[str, _Source] = {}
        self._shown = dict(shown)
        self._held: list[_Held] = []
        self._ends: dict[Partition, int] = {}

    def add(
        self, records: PositionedRecords, watermarks: Sequence[SourceWatermark], ends: Mapping[Partition, int]
    ) -> None:
        """Takes the records and watermarks of a batch, and up to where it has read each partition."""
        self._ends.update(ends)
        for mark in watermarks:
            source = self._of(mark.place[0].removesuffix(".watermark"))
            source.marks.append(mark)
            if (mark.connector, mark.tasks) != (source.connector, source.count):
                # Another one took over the topics, or other slots: those that wrote before say nothing any more.
                source.connector, source.count, source.tasks = mark.connector, mark.tasks, {}
            known = source.tasks.get(mark.task)
            if known is None or known.position <= mark.position:
                source.tasks[mark.task] = mark
        if records.table.num_rows:
            self._held.append(self._hold(records))

    def claim(self, ask: Callable[[], Mapping[Partition, int]]) -> None:
        """Ask for the ends of all partitions, whether what stands there is committed or not, if more has been seen since."""
        due = [source for source in self._sources.values() if source.seen > source.claimed]
        if not due:
            return
        positions = [source.seen for source in due]
        ends = ask()
        for source, position in zip(due, positions, strict=True):
            name = next(name for name, found in self._sources.items() if found is source)
            source.claimed = position
            mine = {place: end for place, end in ends.items() if source_of(place[0]) == name}
            if len(source.claims) >= CLAIMS_MAX:
                source.claims.pop()
            source.claims.append(_Claim(position, mine))

    def cut(self) -> TransactionCut | None:
        """Returns what has become complete since the last cut; None: nothing."""
        positions = {name: self._position(source, self._ahead.get(name, 0)) for name, source in self._sources.items()}
        through: dict[str, VisibleThrough] = {}
        marks: dict[Partition, tuple[int, int]] = {}
        pieces, rows = self._release(positions)
        for name, source in self._sources.items():
            if positions[name] < self._ahead.get(name, 0):
                # A part of the target is behind that: what readers were told holds of the set that they have, of no other.
                continue
            moved = positions[name] > source.shown
            source.is_whole = source.is_whole or moved or self._has_all(source)
            if not source.is_whole:
                continue
            done = [mark for mark in source.marks if mark.position <= positions[name]]
            source.marks = [mark for mark in source.marks if mark.position > positions[name]]
            for mark in done:
                first, end = marks.get(mark.place, (mark.offset, 0))
                marks[mark.place] = (min(first, mark.offset), max(end, mark.offset + 1))
                source.ts_ms = max(source.ts_ms, mark.ts_ms)
            source.shown = positions[name]
            source.claims = [claim for claim in source.claims if claim.position > source.shown]
            source.turns = [turn for turn in source.turns if turn[1] >= source.shown]
            if moved or done:
                through[name] = VisibleThrough(source.shown, source.ts_ms, self._left_out(source))
        return TransactionCut(pieces, through, marks, rows) if pieces or through else None

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _of(self, name: str) -> _Source:
        found = self._sources.get(name)
        if found is None:
            found = self._sources[name] = _Source(shown=self._shown.get(name, 0))
        return found

    def _hold(self, records: PositionedRecords) -> _Held:
        """Holds records back, in the order of partitions and offsets. A record without a position (a tombstone) goes
        with the one before."""
        import numpy as np
        import pyarrow as pa

        table, codes, places = _ordered(records.table)
        position, ts_ms = records.position, records.ts_ms
        if table is not records.table:
            order = codes[1]
            position, ts_ms = position[order], ts_ms[order]
        code = codes[0]
        upto = np.empty(len(code), np.int64)
        edges = np.flatnonzero(np.diff(code, prepend=-1, append=-1))
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            place = places[int(code[start])]
            source = self._of(source_of(place[0]))
            before = source.last.get(place, -1)
            upto[start:end] = np.maximum(np.maximum.accumulate(position[start:end]), before)
            _note_turns(source, position[start:end], upto[start:end])
            source.last[place] = int(upto[end - 1])
        return _Held(self._spool.put(pa.table(table)), places, code, upto, ts_ms)

    def _position(self, source: _Source, least: int) -> int:
        """Returns the position of the furthest clean cut, from `least` on; else that of the last one."""
        best = source.shown
        for claim in source.claims:
            reached = self._reached(source, claim)
            if reached > best and reached >= least and not any(low < reached <= high for low, high in source.turns):
                best = reached
        return best

    def _reached(self, source: _Source, claim: _Claim) -> int:
        """Returns the position before which everything has been read, as far as the claim tells."""
        reads = (
            claim.position if self._ends.get(place, 0) >= end else source.last.get(place, 0)
            for place, end in claim.ends.items()
        )
        return min(reads, default=claim.position)

    def _has_all(self, source: _Source) -> bool:
        return any(self._reached(source, claim) >= source.shown for claim in source.claims)

    def _left_out(self, source: _Source) -> tuple[str, ...]:
        names = {name for mark in source.tasks.values() for name in mark.loading}
        return tuple(sorted(names)[:LEFT_OUT_MAX])

    def _release(self, positions: Mapping[str, int]) -> tuple[list[SpooledRecords], int]:
        import numpy as np
        import pyarrow as pa

        out, rest, rows = [], [], 0
        for held in self._held:
            limits = np.array([positions.get(source_of(topic), 0) for topic, _ in held.places], np.int64)
            done = held.upto < limits[held.code]
            if not done.any():
                rest.append(held)
                continue
            for number in np.unique(held.code[done]).tolist():
                source = self._of(source_of(held.places[number][0]))
                source.ts_ms = max(source.ts_ms, int(held.ts_ms[done & (held.code == number)].max()))
            rows += int(done.sum())
            if done.all():
                out.append(held.piece)
                continue
            table = held.piece.take()
            out.append(self._spool.put(table.filter(pa.array(done))))
            held.piece = self._spool.put(table.filter(pa.array(~done)))
            held.code, held.upto, held.ts_ms = held.code[~done], held.upto[~done], held.ts_ms[~done]
            rest.append(held)
        self._held = rest
        return out, rows


def _ordered(table: pa.Table) -> tuple[pa.Table, tuple[Any, Any], list[Partition]]:
    """Sorted by partition and offset, with the number of each record's partition (and the order, if it was another)."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    topics = pc.dictionary_encode(table["topic"].combine_chunks())
    topics = topics.combine_chunks() if isinstance(topics, pa.ChunkedArray) else topics
    number, offset = table["partition"].to_numpy(), table["offset"].to_numpy()
    code = topics.indices.to_numpy().astype(np.int64) << 32 | number
    found, code = np.unique(code, return_inverse=True)
    names = topics.dictionary.to_pylist()
    places = [(names[item >> 32], item & 0xFFFFFFFF) for item in found.tolist()]
    step = np.diff(code)
    order = None
    if not bool(((step > 0) | ((step == 0) & (np.diff(offset) > 0))).all()):
        order = np.lexsort((offset, code))
        table, code = table.take(pa.array(order)), code[order]
    return table, (code, order), places


def _note_turns(source: _Source, position: Ints, upto: Ints) -> None:
    back = (position >= 0) & (position < upto)
    if bool(back.any()):
        source.turns.append((int(position[back].min()), int(upto[back].max())))
