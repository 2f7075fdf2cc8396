"""MySQL's sets of GTIDs, in their text form and in the form that the protocol and the log have."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.errors import GTID_INVALID, MalformedError
from cdcworker.connectors.mysql.gtid.intervals import Intervals, holds, normalized, subtracted
from cdcworker.schemas.errors import CdcError

SEQUENCE_MAX: Final = (1 << 63) - 1
TAG_LENGTH_MAX: Final = 32
_TAG_FIRST: Final = frozenset("abcdefghijklmnopqrstuvwxyz_")
_TAG_NEXT: Final = _TAG_FIRST | frozenset("0123456789")
_HEAD: Final = struct.Struct("<Q")
_INTERVAL: Final = struct.Struct("<QQ")
_UUID_BYTES: Final = 16


class Source(NamedTuple):
    """Who numbers transactions: a server, by its UUID, and a tag, which is mostly empty."""

    server: uuid.UUID
    tag: str = ""


@dataclass(frozen=True, slots=True)
class GtidSet:
    """A set of transactions: intervals of numbers by source. Two sets of the same transactions are equal."""

    intervals: Mapping[Source, Intervals] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source, first: int, last: int | None = None) -> GtidSet:
        """Returns the set of one transaction, or of those from `first` to `last`."""
        return cls({source: ((first, first if last is None else last),)})

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Reads `uuid:1-5:7:tag:1-3, uuid:1`, with blanks and line ends anywhere between. Raises CdcError."""
        found: dict[Source, list[tuple[int, int]]] = {}
        for part in text.split(","):
            words = [word.strip() for word in part.split(":")]
            if words != [""]:
                _parse_part(words, found)
        return cls._joined(found)

    @classmethod
    def _joined(cls, found: Mapping[Source, Iterable[tuple[int, int]]]) -> GtidSet:
        return cls({source: joined for source in sorted(found) if (joined := normalized(found[source]))})

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __str__(self) -> str:
        """Returns the text as servers print it: sources in order, the tags of a server behind its own numbers."""
        servers: dict[uuid.UUID, str] = {}
        for source in sorted(self.intervals):
            text = servers.get(source.server, str(source.server)) + (f":{source.tag}" if source.tag else "")
            servers[source.server] = text + "".join(map(_interval_text, self.intervals[source]))
        return ",".join(servers.values())

    def holds(self, source: Source, number: int) -> bool:
        """Tells whether one transaction is in the set."""
        return holds(self.intervals.get(source, ()), number)

    def contains(self, other: GtidSet) -> bool:
        """Tells whether every transaction of the other set is in this one."""
        return not other.subtract(self)

    def union(self, other: GtidSet) -> GtidSet:
        sources = {*self.intervals, *other.intervals}
        return self._joined({s: (*self.intervals.get(s, ()), *other.intervals.get(s, ())) for s in sources})

    def subtract(self, other: GtidSet) -> GtidSet:
        """Returns the transactions of this set that the other one does not hold."""
        return self._joined({s: subtracted(own, other.intervals.get(s, ())) for s, own in self.intervals.items()})

    def encode(self) -> bytes:
        """Returns the form of COM_BINLOG_DUMP_GTID and of PREVIOUS_GTIDS; with the tags' form where there are tags."""
        is_tagged = any(source.tag for source in self.intervals)
        count = len(self.intervals)
        out = [_HEAD.pack(1 << 56 | count << 8 | 1 if is_tagged else count)]
        for source in sorted(self.intervals):
            own = self.intervals[source]
            out.append(source.server.bytes)
            if is_tagged:
                out.append(bytes([len(source.tag) << 1]) + source.tag.encode())
            out += (_HEAD.pack(len(own)), *(_INTERVAL.pack(first, last + 1) for first, last in own))
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> GtidSet:
        """Reads the form that `encode` returns. Raises MalformedError."""
        if len(data) < _HEAD.size:
            raise MalformedError("a set of GTIDs that is cut short")
        count, is_tagged, at = _HEAD.unpack_from(data)[0], data[7] == 1, _HEAD.size
        if is_tagged:
            count = count >> 8 & 0xFFFF_FFFF_FFFF
        found: dict[Source, list[tuple[int, int]]] = {}
        for _ in range(count):
            source, at = _decode_source(data, at, is_tagged=is_tagged)
            intervals, at = _decode_intervals(data, at)
            found.setdefault(source, []).extend(intervals)
        if at != len(data):
            raise MalformedError("a set of GTIDs with bytes left over")
        return cls._joined(found)


def _parse_part(words: list[str], found: dict[Source, list[tuple[int, int]]]) -> None:
    """Reads one server's part: its UUID, then intervals, and tags before the intervals that have them."""
    try:
        server = uuid.UUID(words[0])
    except ValueError:
        raise _invalid() from None
    if len(words[0].strip("{}")) not in (32, 36):
        raise _invalid()
    source = Source(server)
    for word in words[1:]:
        if word[:1].isdecimal():
            found.setdefault(source, []).append(_parse_interval(word))
        else:
            source = Source(server, _parse_tag(word))


def _parse_interval(word: str) -> tuple[int, int]:
    first, dash, last = (part.strip() for part in word.partition("-"))
    if not (first.isascii() and first.isdecimal() and len(first) < 20):
        raise _invalid()
    if dash and not (last.isascii() and last.isdecimal() and len(last) < 20):
        raise _invalid()
    interval = int(first), int(last or first)
    if not 0 < interval[0] <= interval[1] <= SEQUENCE_MAX:
        raise _invalid()
    return interval


def _parse_tag(word: str) -> str:
    tag = word.lower()
    if not tag or len(tag) > TAG_LENGTH_MAX or tag[0] not in _TAG_FIRST or not _TAG_NEXT.issuperset(tag):
        raise _invalid()
    return tag


def _invalid() -> CdcError:
    return CdcError(GTID_INVALID, "the text is not a set of GTIDs of MySQL")


def _interval_text(interval: tuple[int, int]) -> str:
    first, last = interval
    return f":{first}" if first == last else f":{first}-{last}"


def _decode_source(data: bytes, at: int, *, is_tagged: bool) -> tuple[Source, int]:
    end = at + _UUID_BYTES
    if end + is_tagged > len(data):
        raise MalformedError("a set of GTIDs that is cut short")
    server = uuid.UUID(bytes=data[at:end])
    if not is_tagged:
        return Source(server), end
    size, start = data[end], end + 1
    tag = data[start : start + (size >> 1)].decode("ascii", "replace")
    if size & 1 or len(tag) != size >> 1 or len(tag) > TAG_LENGTH_MAX or not _TAG_NEXT.issuperset(tag):
        raise MalformedError("a set of GTIDs with an impossible tag")
    return Source(server, tag), start + (size >> 1)


def _decode_intervals(data: bytes, at: int) -> tuple[list[tuple[int, int]], int]:
    if at + _HEAD.size > len(data):
        raise MalformedError("a set of GTIDs that is cut short")
    (count,) = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    if count * _INTERVAL.size > len(data) - at:
        raise MalformedError("a set of GTIDs that is cut short")
    found = []
    for i in range(count):
        first, after = _INTERVAL.unpack_from(data, at + i * _INTERVAL.size)
        if not 0 < first < after <= SEQUENCE_MAX + 1:
            raise MalformedError("a set of GTIDs with an impossible interval")
        found.append((first, after - 1))
    return found, at + count * _INTERVAL.size
