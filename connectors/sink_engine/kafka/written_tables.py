"""What Kafka remembers of a sink whose ledger lies with its tables: which of them it has written. Where they are missing
later, their file system is not there; without these offsets that would look like a first start.

Offsets are committed to a group of the sink's own that nobody joins, so Kafka's tools show the sink's lag as any consumer's.
Where a task goes on the ledger alone decides.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from cdcworker.connectors.api.sink import SinkOffsets
from cdcworker.connectors.sink_errors import KAFKA_DENIED
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

Partition = tuple[str, int]
GROUP: Final = "cdcworker-sink-"
"""What the group's name begins with, before the connector's."""
EVERY_S: Final = 10.0
AGAIN_S: Final = 3600.0
"""How often all markers are committed again: a broker forgets what was committed long ago."""


class MarkerCommit(Protocol):
    """A commit of offsets that has been begun."""

    def done(self) -> bool: ...

    def error(self) -> CdcError | None:
        """Waits until it is done."""


class MarkerGroup(Protocol):
    """Committed offsets of a group without members."""

    def committed(self, topics: Collection[str] | None) -> Mapping[Partition, tuple[int, str]]:
        """Offset and note of each partition of these topics, or of all. CdcError KAFKA_DENIED, KAFKA_UNREACHABLE."""

    def commit(self, offsets: Mapping[Partition, int], note: str) -> MarkerCommit: ...

    def close(self) -> None: ...


def group_of(connector: str) -> str:
    return GROUP + connector


def note_of(incarnation: str, target: str) -> str:
    """Returns the metadata that marks the offsets of one connector and one target: those of another one do not count."""
    return f"{incarnation} {hashlib.sha256(target.encode()).hexdigest()[:16]}"


class WrittenTables:
    """Marks in Kafka which topics of one task have been written to its target."""

    def __init__(
        self, group: MarkerGroup, note: str, topics: Collection[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._group = group
        self._note = note
        self._topics = frozenset(topics)
        self._clock = clock
        self._lock = threading.Lock()
        self._denied = False
        self._told: dict[Partition, int] = {}
        self._at = self._all_at = self._not_before = -AGAIN_S
        self._running: MarkerCommit | None = None

    def written(self) -> set[str]:
        """Topics of which the sink has written something to this target."""
        try:
            found = self._group.committed(self._topics)
        except CdcError as exc:
            if exc.code != KAFKA_DENIED:
                raise
            self._deny(exc)
            return set()
        there = {place: note for place, (offset, note) in found.items() if offset and place[0] in self._topics}
        if any(note and note != self._note for note in there.values()):
            log.warning("the markers of written tables belong to another sink of this name, or to another target")
        return {topic for (topic, _), note in there.items() if note == self._note}

    def tell(self, ledger: Mapping[Partition, int]) -> None:
        """Commits markers for what the ledger has, now and then, without waiting for the broker. Called from any thread."""
        if self._denied or not self._lock.acquire(blocking=False):
            return
        try:
            self._tell({place: at for place, at in dict(ledger).items() if at and place[0] in self._topics})
        finally:
            self._lock.release()

    def _tell(self, ledger: dict[Partition, int]) -> None:
        if self._running is not None and not self._over(self._running):
            return
        now = self._clock()
        if now < self._not_before:
            return
        whole = now - self._all_at >= AGAIN_S
        news = ledger if whole else {place: at for place, at in ledger.items() if self._told.get(place) != at}
        # A table is told of at once; how far it is, now and then.
        first = any(place not in self._told for place in news)
        if not news or not (whole or first or now - self._at >= EVERY_S):
            return
        self._at, self._all_at = now, now if whole else self._all_at
        self._told.update(news)
        self._running = self._group.commit(news, self._note)

    def _over(self, commit: MarkerCommit) -> bool:
        """Returns whether another one may be begun."""
        if not commit.done():
            return False
        self._running, error = None, commit.error()
        if error is not None and error.code == KAFKA_DENIED:
            self._deny(error)
        elif error is not None:
            # All of it, in a while.
            self._told.clear()
            self._not_before = self._clock() + EVERY_S
            log.warning("committing the markers of written tables failed, they are committed again error=%s", error)
        return error is None

    def _deny(self, error: CdcError) -> None:
        self._denied = True
        log.warning("markers of written tables cannot be committed, so an empty target will look new error=%s", error)

    def close(self) -> None:
        self._group.close()


def forget(group: MarkerGroup, changes: SinkOffsets | None) -> None:
    """A person has altered the offsets of these topics, or of all: their tables may be begun anew."""
    topics = None if changes is None else {topic for topic, _ in changes}
    try:
        gone = {place: 0 for place, (offset, _) in group.committed(topics).items() if offset}
        error = group.commit(gone, "").error() if gone else None
    except CdcError as exc:
        error = exc
    # Who may not read the group has never written to it.
    if error is not None and error.code != KAFKA_DENIED:
        raise error
