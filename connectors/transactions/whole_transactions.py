"""Makes batches of whole source transactions only, for a warehouse that is to show nothing else."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.arrow import array_ops, undecodable
from cdcworker.connectors.arrow.decode import DecodePlan, UndecodableRow, decode
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.sink_errors import NO_WATERMARK
from cdcworker.connectors.transactions.record_spool import RecordSpool, SpooledRecords
from cdcworker.connectors.transactions.transaction_cutter import (
    PositionedRecords,
    SourceWatermark,
    TransactionCut,
    TransactionCutter,
)
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import watermark_topics

if TYPE_CHECKING:
    import pyarrow as pa

Partition = tuple[str, int]
Build = Callable[[Any, Mapping[Partition, int], int], SinkBatch]
NO_WATERMARK_S: Final = 60.0
"""A source that has written records for so long must have written a watermark."""
AHEAD_ROWS_MAX: Final = 200_000
"""A cut of more rows is built piece by piece, while the target takes them."""


@dataclass(slots=True)
class WholeBatches:
    """Batches of one cut, to be applied in one step. Each pass over them builds them again, unless they are few."""

    pieces: Sequence[SpooledRecords]
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
        """Builds the batches now, before they are applied, if they are few enough to be held."""
        if self.rows <= AHEAD_ROWS_MAX and self.pieces:
            self.built = [self.build(_joined(self.pieces))]

    def drop(self) -> None:
        for piece in self.pieces:
            piece.drop()


def _joined(pieces: Sequence[SpooledRecords]) -> pa.Table:
    import pyarrow as pa

    return pieces[0].read() if len(pieces) == 1 else pa.concat_tables([piece.read() for piece in pieces])


class TopicEnds(Protocol):
    """The topics of a sink in Kafka, as they are now."""

    def ends(self) -> Mapping[Partition, int]:
        """Returns the end of each partition of the tables' topics, behind records that are not committed too."""

    def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Returns the number of partitions of those topics that exist."""


class WholeTransactions:
    """The whole transactions of one task's topics. `begin` comes with each query; `take` with each of its batches, in one
    thread; another thread iterates over what it returns."""

    def __init__(
        self,
        topics: Sequence[str],
        shapes: EnvelopeSchemas,
        build: Build,
        folder: Path,
        topic_ends: TopicEnds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`build` makes table batches of records; `folder` takes records that wait and are too many for memory."""
        self._topic_ends = topic_ends
        self._control = set(watermark_topics(topics)) - set(topics)
        self._shapes = shapes
        self._build = build
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        """Of the schemas, which are asked for in both threads."""
        self._cutter = TransactionCutter({}, RecordSpool(folder))
        self._ledger: Mapping[Partition, int] = {}
        self._lacking: float | None = None
        self._batches = 0

    @property
    def topics(self) -> list[str]:
        """The topics of watermarks, which are read besides those of tables."""
        return sorted(self._control)

    def begin(
        self,
        shown: Mapping[str, int],
        ledger: Mapping[Partition, int],
        ahead: Mapping[str, int] | None = None,
    ) -> None:
        """Starts anew from the ledger's offsets. `shown` and `ahead` are positions by source: before which readers see every
        transaction whole, and how far the target's furthest table is."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._cutter = TransactionCutter(shown, RecordSpool(self._folder), ahead)
        self._ledger = dict(ledger)
        self._lacking = None

    def take(self, raw: pa.Table, read_to: Mapping[Partition, int]) -> WholeBatches | None:
        """Returns the batches of the transactions that are complete with these records; None when none has become so."""
        import pyarrow as pa
        import pyarrow.compute as pc

        raw = raw.unify_dictionaries().combine_chunks() if raw.num_rows else raw
        is_control = pc.is_in(raw["topic"], pa.array(sorted(self._control), pa.string()))
        watermarks = list(_watermarks(raw.filter(is_control)))
        rows = raw.filter(pc.invert(is_control)) if watermarks else raw
        with self._lock:
            records = positions(rows, self._shapes)
        self._cutter.add(records, watermarks, read_to)
        self._cutter.claim(self._ends)
        cut = self._cutter.cut()
        return None if cut is None else self._whole(cut)

    def _ends(self) -> Mapping[Partition, int]:
        """Returns the ends of all partitions. CdcError NO_WATERMARK when a source has written records for long and never a
        watermark."""
        ends = self._topic_ends.ends()
        partitions = self._topic_ends.partitions(self.topics)
        missing = sorted(
            set(watermark_topics(topic for (topic, _), end in ends.items() if end > 0)) - partitions.keys()
        )
        if not missing:
            self._lacking = None
            return ends
        self._lacking = self._clock() if self._lacking is None else self._lacking
        if self._clock() - self._lacking > NO_WATERMARK_S:
            raise CdcError(NO_WATERMARK, "there is no watermark topic", where={"topic": missing[0]})
        return ends

    def _whole(self, cut: TransactionCut) -> WholeBatches:
        self._batches += 1
        number = self._batches

        def build(table: pa.Table) -> SinkBatch:
            with self._lock:
                return self._build(table, self._ledger, number)

        last = SinkBatch([], dict(cut.marks), number, through=dict(cut.through))
        whole = WholeBatches(cut.pieces, build, last, cut.rows)
        whole.ahead()
        return whole


def positions(table: pa.Table, shapes: EnvelopeSchemas) -> PositionedRecords:
    """Returns the commit position and time of each record. A record that cannot be decoded has none here; the error is found
    later."""
    import numpy as np

    n = table.num_rows
    position, ts_ms = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    if n:
        value = array_ops.one(table["value"])
        ids = array_ops.frame_ids(value)
        for id in np.unique(ids[ids > 0]).tolist():
            rows = np.flatnonzero(ids == id)
            where = {name: table[name][int(rows[0])].as_py() for name in ("topic", "partition", "offset")}
            try:
                plan = shapes.value(id, where).place_plan
            except CdcError as exc:
                if exc.code not in undecodable.CODES:
                    raise
                continue
            for part, found in _decoded(plan, value, rows):
                for name, out in (("commit_lsn", position), ("ts_ms", ts_ms)):
                    if found.type.get_field_index(name) >= 0:
                        out[part] = array_ops.ints(found.field(name))
    return PositionedRecords(table, position, ts_ms)


def _decoded(plan: DecodePlan, value: Any, rows: Any) -> Iterator[tuple[Any, Any]]:
    """Row numbers with their source blocks, without the rows that cannot be decoded."""
    import pyarrow as pa

    while len(rows):
        data, ends = array_ops.slices(value if len(rows) == len(value) else value.take(pa.array(rows)))
        try:
            yield rows, decode(plan, data, ends).field("source")
            return
        except UndecodableRow as exc:
            if exc.row:
                yield rows[: exc.row], decode(plan, data, ends[: exc.row + 1]).field("source")
            rows = rows[exc.row + 1 :]


def _watermarks(rows: pa.Table) -> Iterator[SourceWatermark]:
    for row in rows.to_pylist():
        try:
            key, value = json.loads(row["key"] or b"{}"), json.loads(row["value"] or b"{}")
            yield SourceWatermark(
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
            # No source of this product has written it.
            continue
