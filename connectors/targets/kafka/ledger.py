"""What is copied, told by a compacted topic of the target cluster, in the transactions of the copies themselves.

- A transaction holds of each partition that it copies an entry: which offsets of the source lie at which offsets of the copy.
- An entry's key ends with a slot: the entry of batch n lies in slot k, where 2^k is the highest power of two that divides n. So compaction
  keeps the newest entries close together and older ones ever farther apart, which is what translating offsets needs. The newest of all says how
  far the partition is copied.
- A partition has an owner: the task epoch of who copies it, and its transactional id. Offsets that were refused before the end are noted too.

Keys and values are JSON. Who reads committed records of this topic and of the copies sees how far each partition is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import TARGET_UNAVAILABLE
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.connectors.topic_reader import TopicReader

FIRST_SLOT: Final = 63
"""That of the first batch of all."""
READ_S_MAX: Final = 30.0
REFUSED_MAX: Final = 10_000
SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.type": "CreateTime",
}
"""Of the topic when it is made: small files, so that little more than what counts is read at a start."""

Epoch = tuple[int, int]
Record = tuple[bytes, bytes]


class CopyOwner(NamedTuple):
    """Who copies a partition."""

    epoch: Epoch
    id: str


NOBODY: Final = CopyOwner((-1, -1), "")


@dataclass(frozen=True, slots=True)
class Entry:
    """Records of a partition that were copied together. `last` is the offset before the next one that is not copied."""

    batch: int
    first: int
    last: int
    topic: str = ""
    """The copy; empty where nothing was copied: the offset was set by hand."""
    partition: int = 0
    target_first: int = -1
    target_last: int = -1
    """-1: the broker has not told."""
    count: int = 0
    """How many records there are."""
    since: int = 0
    """The first batch of the copy as it is now: offsets of older ones were of another topic, or of one that was created again."""


@dataclass(slots=True)
class Copied:
    """What is known of one partition."""

    owner: CopyOwner = NOBODY
    """The newest of those that have claimed it."""
    ids: set[str] = field(default_factory=set)
    """Of all owners that were read of."""
    refused: frozenset[int] = frozenset()
    entries: dict[int, Entry] = field(default_factory=dict)
    """By slot."""

    @property
    def newest(self) -> Entry | None:
        return max(self.entries.values(), key=lambda entry: entry.batch, default=None)

    @property
    def next_offset(self) -> int:
        """The first offset that is not copied."""
        newest = self.newest
        return 0 if newest is None else newest.last + 1

    @property
    def next_batch(self) -> int:
        newest = self.newest
        return 0 if newest is None else newest.batch + 1

    def since(self, topic: str, partition: int, target_first: int) -> int:
        """Returns that of the next entry, whose records lie there. Offsets of one topic only grow."""
        newest = self.newest
        told = [entry for entry in self.entries.values() if entry.target_first >= 0]
        last = max(told, key=lambda entry: entry.batch, default=None)
        if newest is None or last is None:
            return 0
        is_same = (last.topic, last.partition) == (topic, partition)
        return newest.since if is_same and not 0 <= target_first <= last.target_last else newest.batch + 1


class Ledger:
    """The ledger of one connector, by partition: the id of the topic and the number."""

    def __init__(self, connector: str) -> None:
        self._connector = connector
        self.partitions: dict[str, Copied] = {}

    def of(self, partition: str) -> Copied:
        return self.partitions.setdefault(partition, Copied())

    # Records

    def owner_record(self, partition: str, owner: CopyOwner) -> Record:
        return self._record(partition, "owner", {"epoch": list(owner.epoch), "id": owner.id})

    def refused_record(self, partition: str, offsets: Iterable[int]) -> Record:
        return self._record(partition, "refused", {"offsets": sorted(offsets)[-REFUSED_MAX:]})

    def entry_record(self, partition: str, entry: Entry) -> Record:
        value: dict[str, Any] = {"batch": entry.batch, "source": [entry.first, entry.last]}
        if entry.topic:
            value |= {"topic": entry.topic, "partition": entry.partition}
        if entry.since:
            value["since"] = entry.since
        if entry.target_first >= 0:
            value |= {"target": [entry.target_first, entry.target_last], "count": entry.count}
        return self._record(partition, f"slot-{slot_of(entry.batch)}", value)

    def _record(self, partition: str, kind: str, value: Mapping[str, Any]) -> Record:
        return _json([self._connector, partition, kind]), _json(value)

    def read(self, key: bytes | None, value: bytes | None) -> None:
        """Takes a record. One that somebody else has written is passed over."""
        try:
            connector, partition, kind = json.loads(key or b"null")
            found = json.loads(value or b"null")
            if connector == self._connector and found is not None:
                self._take(self.of(str(partition)), kind, found)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return

    def _take(self, state: Copied, kind: str, found: Mapping[str, Any]) -> None:
        if kind == "owner":
            epoch, attempt = found["epoch"]
            owner = CopyOwner((int(epoch), int(attempt)), str(found["id"]))
            state.ids.add(owner.id)
            if owner.epoch >= state.owner.epoch:
                # A former owner may have claimed it after the newest one.
                state.owner = owner
        elif kind == "refused":
            state.refused = frozenset(map(int, found["offsets"]))
        else:
            first, last = found["source"]
            target_first, target_last = found.get("target", (-1, -1))
            topic, partition = str(found.get("topic", "")), int(found.get("partition", 0))
            count, since = int(found.get("count", 0)), int(found.get("since", 0))
            span = int(target_first), int(target_last)
            entry = Entry(int(found["batch"]), int(first), int(last), topic, partition, *span, count, since)
            state.entries[slot_of(entry.batch)] = entry


def slot_of(batch: int) -> int:
    """Returns where the entry of a batch lies, by its number."""
    return (batch & -batch).bit_length() - 1 if batch else FIRST_SLOT


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class LedgerReader:
    """Reads the ledger's topic, each time on to its end."""

    def __init__(self, settings: Mapping[str, Any], topic: str, ledger: Ledger) -> None:
        self.ledger = ledger
        self._topic = topic
        self._brokers = SinkBrokers(settings)
        own = {"group.id": "cdcworker-mirror-ledger", "enable.auto.commit": False, "isolation.level": "read_committed"}
        more = {"auto.offset.reset": "error", "queued.max.messages.kbytes": 1_024, "log_level": 3}
        self._reader = TopicReader({**settings, **own, **more}, [topic], {}, reports_ends=True)

    def read_on(self) -> None:
        """Reads what is committed now. An open transaction of somebody else is waited for, since committed records may stand behind it.
        Raises CdcError."""
        deadline = time.monotonic() + READ_S_MAX
        ends = self._brokers.ends([self._topic])
        while not ends or any(self._reader.read_to.get(place, 0) < end for place, end in ends.items()):
            if time.monotonic() > deadline:
                raise TargetUnavailable(
                    TARGET_UNAVAILABLE, "the ledger of the target cluster is not read to its end in time"
                )
            # A broker that does not tell of the topic now knows nothing of what is in it.
            ends = ends or self._brokers.ends([self._topic])
            for message in self._reader.read_soon(1_000, 0.1):
                self.ledger.read(message.key(), message.value())

    def close(self) -> None:
        self._reader.close()
