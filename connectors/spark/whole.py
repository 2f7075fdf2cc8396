"""Whole transactions only: what a driver does with a batch of records where the warehouse is to show nothing else."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api import SinkBatch
from cdcworker.connectors.spark import arrays, dead
from cdcworker.connectors.spark.config import watermark_topics
from cdcworker.connectors.spark.cutting import Cut, Cutter, Records, Watermark
from cdcworker.connectors.spark.decode import Plan, Undecodable, decode
from cdcworker.connectors.spark.errors import NO_WATERMARK
from cdcworker.connectors.spark.schemas import Shapes
from cdcworker.connectors.spark.spool import Piece, Spool
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

Partition = tuple[str, int]
Build = Callable[[Any, Mapping[Partition, int], int], SinkBatch]
NO_WATERMARK_S: Final = 60.0
"""A source that has written records has said before how far it is."""
AHEAD_ROWS_MAX: Final = 200_000
"""More than that is built piece by piece, while the target takes them."""


@dataclass(slots=True)
class Whole:
    """Batches of one cut, to be applied in one step. Each pass over them builds them again, unless they are few."""

    pieces: Sequence[Piece]
    build: Callable[[pa.Table], SinkBatch]
    last: SinkBatch
    rows: int = 0
    built: list[SinkBatch] = field(default_factory=list)

    def __iter__(self) -> Iterator[SinkBatch]:
        if self.built or not self.pieces:
            yield from self.built
        else:
            for piece in self.pieces:
                yield self.build(piece.read())
        yield self.last

    def ahead(self) -> None:
        """Build it now, if it is not too much to be held."""
        if self.rows <= AHEAD_ROWS_MAX and self.pieces:
            self.built = [self.build(_joined(self.pieces))]

    def drop(self) -> None:
        for piece in self.pieces:
            piece.drop()


def _joined(pieces: Sequence[Piece]) -> pa.Table:
    import pyarrow as pa

    return pieces[0].read() if len(pieces) == 1 else pa.concat_tables([piece.read() for piece in pieces])


class WholeTransactions:
    """Of one task. `begin` comes with each query; `take` with each of its batches, in one thread; what it returns is
    passed over in another."""

    def __init__(
        self,
        topics: Sequence[str],
        shapes: Shapes,
        build: Build,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = set(watermark_topics(topics)) - set(topics)
        self._shapes = shapes
        self._build = build
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        """Of the schemas, which are asked for in both threads."""
        self._cutter = Cutter({}, Spool(folder))
        self._ledger: Mapping[Partition, int] = {}
        self._ends: Callable[[], Mapping[Partition, int]] = dict
        self._lacking: float | None = None
        self._batches = 0

    @property
    def topics(self) -> list[str]:
        """To be read besides those of tables."""
        return sorted(self._control)

    def begin(
        self,
        shown: Mapping[str, int],
        ledger: Mapping[Partition, int],
        ends: Callable[[], Mapping[Partition, int]],
        ahead: Mapping[str, int] | None = None,
    ) -> None:
        """`ends` asks for the ends of all partitions that there are now, with what is not committed."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._cutter = Cutter(shown, Spool(self._folder), ahead)
        self._ledger = dict(ledger)
        self._ends = ends
        self._lacking = None

    def take(self, raw: pa.Table, read_to: Mapping[Partition, int]) -> Whole | None:
        """What is complete with these records; None: nothing new."""
        import pyarrow as pa
        import pyarrow.compute as pc

        raw = raw.unify_dictionaries().combine_chunks() if raw.num_rows else raw
        said = pc.is_in(raw["topic"], pa.array(sorted(self._control), pa.string()))
        watermarks = list(_watermarks(raw.filter(said)))
        rows = raw.filter(pc.invert(said)) if watermarks else raw
        with self._lock:
            records = positions(rows, self._shapes)
        self._cutter.add(records, watermarks, read_to)
        self._cutter.claim(self._ends)
        cut = self._cutter.cut()
        return None if cut is None else self._whole(cut)

    def lacks(self, partitions: Mapping[str, int], ends: Mapping[Partition, int]) -> None:
        """CdcError when a source has written records for long and never a watermark."""
        wanted = set(watermark_topics(topic for (topic, _), end in ends.items() if end > 0))
        missing = sorted(wanted - partitions.keys())
        if not missing:
            self._lacking = None
            return
        self._lacking = self._clock() if self._lacking is None else self._lacking
        if self._clock() - self._lacking > NO_WATERMARK_S:
            raise CdcError(NO_WATERMARK, "there is no watermark topic", where={"topic": missing[0]})

    def _whole(self, cut: Cut) -> Whole:
        self._batches += 1
        number = self._batches

        def build(table: pa.Table) -> SinkBatch:
            with self._lock:
                return self._build(table, self._ledger, number)

        last = SinkBatch([], dict(cut.marks), number, through=dict(cut.through))
        whole = Whole(cut.pieces, build, last, cut.rows)
        whole.ahead()
        return whole


def positions(table: pa.Table, shapes: Shapes) -> Records:
    """Where in the source's log each record stands. Of what cannot be read nothing is said here: it is found later."""
    import numpy as np

    n = table.num_rows
    position, ts_ms = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    if n:
        value = arrays.one(table["value"])
        ids = arrays.frame_ids(value)
        for id in np.unique(ids[ids > 0]).tolist():
            rows = np.flatnonzero(ids == id)
            where = {name: table[name][int(rows[0])].as_py() for name in ("topic", "partition", "offset")}
            try:
                plan = shapes.value(id, where).place_plan
            except CdcError as exc:
                if exc.code not in dead.CODES:
                    raise
                continue
            for part, found in _decoded(plan, value, rows):
                for name, out in (("commit_lsn", position), ("ts_ms", ts_ms)):
                    if found.type.get_field_index(name) >= 0:
                        out[part] = arrays.ints(found.field(name))
    return Records(table, position, ts_ms)


def _decoded(plan: Plan, value: Any, rows: Any) -> Iterator[tuple[Any, Any]]:
    """Row numbers with their source blocks, without the rows that cannot be decoded."""
    import pyarrow as pa

    while len(rows):
        data, ends = arrays.slices(value if len(rows) == len(value) else value.take(pa.array(rows)))
        try:
            yield rows, decode(plan, data, ends).field("source")
            return
        except Undecodable as exc:
            if exc.row:
                yield rows[: exc.row], decode(plan, data, ends[: exc.row + 1]).field("source")
            rows = rows[exc.row + 1 :]


def _watermarks(rows: pa.Table) -> Iterator[Watermark]:
    for row in rows.to_pylist():
        try:
            key, value = json.loads(row["key"] or b"{}"), json.loads(row["value"] or b"{}")
            yield Watermark(
                (row["topic"], row["partition"]),
                row["offset"],
                str(key.get("connector", "")),
                int(key.get("task", 0)),
                int(value.get("commit_lsn") or 0),
                int(value.get("ts_ms") or 0),
                tuple(map(str, value.get("loading") or ())),
                int(value.get("tasks") or 1),
            )
        except (ValueError, TypeError, AttributeError):
            # Not ours: it says nothing.
            continue
