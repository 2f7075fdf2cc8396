"""Where a group that reads the source goes on in the copy: never behind a record that it has not read."""

from __future__ import annotations

from typing import NamedTuple

from cdcworker.connectors.targets.kafka.ledger import Copied, Entry


class CopyPlace(NamedTuple):
    """A place in a copy."""

    topic: str
    partition: int
    offset: int


def translated(copied: Copied, offset: int) -> CopyPlace | None:
    """Returns the place in a copy that stands for the next offset of a group on the source; None where nothing is known of the copy.

    Every record of the source from `offset` on that is copied, or will be, lies at this place or behind it. What lies between the place
    and the first of them the group reads again.
    """
    since = 0 if copied.newest is None else copied.newest.since
    known = [entry for entry in copied.entries.values() if entry.target_first >= 0 and entry.batch >= since]
    before = [entry for entry in known if entry.first <= offset]
    if before:
        newest = max(before, key=lambda entry: entry.batch)
        return CopyPlace(newest.topic, newest.partition, _within(newest, offset))
    first = next((entry for entry in known if entry.batch == since), None)
    if first is not None:
        # All that is copied is newer than what the group has read.
        return CopyPlace(first.topic, first.partition, first.target_first)
    return None


def _within(entry: Entry, offset: int) -> int:
    if offset > entry.last:
        return entry.target_last + 1
    if entry.target_last - entry.target_first + 1 != entry.count:
        # Somebody else writes to the copy too.
        return entry.target_first
    # At most so many of its records have an offset that is not lower, and they are the last ones.
    return max(entry.target_first, entry.target_last - (entry.last - offset))
