"""How far a sink is behind its topics: in records, in bytes and in seconds, all of it and by topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.telemetry.table_labels import TableLabels

if TYPE_CHECKING:
    import pyarrow as pa

Partition = tuple[str, int]
Ends = Mapping[Partition, "Future[Any]"]
ASK_EVERY_S: Final = 2.0
KEPT: Final = 0.5
"""The weight of earlier batches when the last one is added."""


@dataclass(frozen=True, slots=True)
class RecordsRead:
    """What was read of a partition: the offsets of the first and the last record, how many, and the bytes of their keys and
    values."""

    topic: str
    partition: int
    first: int
    last: int
    records: int
    bytes: int


@dataclass(slots=True)
class _Sizes:
    """The sizes of a topic's recent records. An offset may be the marker of a transaction's end, which is no record."""

    records: float = 0.0
    bytes: float = 0.0
    offsets: float = 0.0

    def add(self, records: int, size: int, offsets: int) -> None:
        self.records = self.records * KEPT + records
        self.bytes = self.bytes * KEPT + size
        self.offsets = self.offsets * KEPT + offsets


class SinkLag:
    """Told by one thread what is read, by another what is applied, and asked by both. `ask` begins to look for the ends
    of partitions; nobody waits for the answer."""

    def __init__(
        self, ask: Callable[[Mapping[str, int]], Ends], wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._ask = ask
        self._wall = wall
        self._clock = clock
        self._lock = threading.Lock()
        self._names = TableLabels()
        self._partitions: dict[str, int] = {}
        self._asked: Ends = {}
        self._asked_at = float("-inf")
        self._ends: dict[Partition, int] = {}
        self._read_to: dict[Partition, int] = {}
        self._behind_last: dict[Partition, int] = {}
        """The offset behind the last record that was read. From there to `_read_to` are only the ends of transactions."""
        self._sizes: dict[str, _Sizes] = {}
        self._applied_s: dict[str, float] = {}
        """When a topic's newest applied change was committed, or at which time nothing of it waited. Not known of a
        topic that lay behind when the task began, until something of it is applied."""

    def begin(self, partitions: Mapping[str, int]) -> None:
        """Adds the partitions that are read now. Topics that are left out for a while stay known: they fall behind."""
        with self._lock:
            self._partitions.update(partitions)

    def read(self, raw: pa.Table, read_to: Mapping[Partition, int]) -> None:
        """Takes the records of a batch, and up to where it has read each partition."""
        self.read_records(_summed(raw) if raw.num_rows else [], read_to)

    def read_records(self, found: Iterable[RecordsRead], read_to: Mapping[Partition, int]) -> None:
        """Takes what has been read of each partition, and up to where."""
        with self._lock:
            self._read_to.update(read_to)
            for one in found:
                self._behind_last[one.topic, one.partition] = one.last + 1
                self._sizes.setdefault(one.topic, _Sizes()).add(one.records, one.bytes, one.last + 1 - one.first)

    def applied(self, batch: SinkBatch) -> None:
        self.applied_changes((topic, ts_ms) for (topic, _), (_, ts_ms) in batch.applied.items())

    def applied_changes(self, changes: Iterable[tuple[str, int]]) -> None:
        """Takes topics with the time of a change of each that is in the target, in ms since the epoch."""
        with self._lock:
            for topic, ts_ms in changes:
                self._applied_s[topic] = max(self._applied_s.get(topic, 0.0), ts_ms / 1000)

    def numbers(self, ledger: Mapping[Partition, int]) -> dict[str, Any]:
        """Returns the lag as it is reported, in total and by topic; empty while the ends are not known, and without totals
        while it is not known of some topic where its first record stands."""
        with self._lock:
            self._look()
            if not self._ends:
                return {}
            records, sizes, late = dict[str, int](), dict[str, int](), dict[str, float]()
            unsaid: set[str] = set()
            topics = self._topics(dict(ledger))
            for topic, (n, size, seconds) in topics.items():
                name = self._names.of(topic)
                records[name], sizes[name] = records.get(name, 0) + n, sizes.get(name, 0) + size
                late[name] = max(late.get(name, 0.0), seconds or 0.0)
                if seconds is None:
                    unsaid.add(name)
            is_whole = topics.keys() >= {topic for topic, _ in self._ends}
            totals = {"lag_records": sum(records.values()), "lag_bytes": sum(sizes.values())} if is_whole else {}
            return {
                **totals,
                "topic_lag_records": records,
                "topic_lag_bytes": sizes,
                "topic_lag_s": {name: seconds for name, seconds in late.items() if name not in unsaid},
            }

    def _topics(self, ledger: Mapping[Partition, int]) -> dict[str, tuple[int, int, float | None]]:
        offsets: dict[str, int] = {}
        unknown: set[str] = set()
        for (topic, partition), end in self._ends.items():
            at = self._at((topic, partition), ledger)
            if at is None and end > 0:
                unknown.add(topic)
            offsets[topic] = offsets.get(topic, 0) + max(0, end - (at or 0))
        out: dict[str, tuple[int, int, float | None]] = {}
        now_s = self._wall()
        for topic, count in offsets.items():
            if topic in unknown:
                continue
            held = self._sizes.get(topic, _Sizes())
            records = max(1, round(count * held.records / held.offsets)) if count and held.offsets else count
            size = round(count * held.bytes / held.offsets) if held.offsets else 0
            if not count:
                self._applied_s[topic] = now_s
            since = self._applied_s.get(topic)
            out[topic] = (records, size, None if since is None else round(max(0.0, now_s - since), 3))
        return out

    def _at(self, place: Partition, ledger: Mapping[Partition, int]) -> int | None:
        """Returns where the next record stands that is not applied; None: that is not known yet."""
        stored, read_to = ledger.get(place), self._read_to.get(place)
        if read_to is not None and (stored or 0) >= self._behind_last.get(place, 0):
            return max(stored or 0, read_to)
        return stored

    def _look(self) -> None:
        now = self._clock()
        if self._asked and all(future.done() for future in self._asked.values()):
            for place, future in self._asked.items():
                # A broker that is away leaves what was known.
                if not future.cancelled() and future.exception() is None:
                    self._ends[place] = future.result().offset
            self._asked = {}
        if self._partitions and not self._asked and now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            self._asked = self._ask(dict(self._partitions))


def _summed(raw: pa.Table) -> list[RecordsRead]:
    import pyarrow as pa
    import pyarrow.compute as pc

    size = pc.add(*(pc.fill_null(pc.binary_length(raw[name]).cast(pa.int64()), 0) for name in ("key", "value")))
    columns = {"topic": raw["topic"].cast(pa.string()), **{name: raw[name] for name in ("partition", "offset")}}
    wanted = [("offset", "min"), ("offset", "max"), ("offset", "count"), ("size", "sum")]
    found = pa.table({**columns, "size": size}).group_by(["topic", "partition"]).aggregate(wanted)
    names = ("topic", "partition", "offset_min", "offset_max", "offset_count", "size_sum")
    return [RecordsRead(*(row[name] for name in names)) for row in found.to_pylist()]
