"""Dead letters of a sink of records: shown from their topic, and sent again the way that their records came.

What is done with is behind the offset that the sink's own group has of the topic of dead letters. A step writes some letters to the target
and moves that offset; a letter that fails again goes to the end of its partition, with its new cause, in the same transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.sink import DeadLetterFilter
from cdcworker.connectors.record_sink.dead_letters import LetterForm
from cdcworker.connectors.record_sink.errors import LETTER_WITHOUT_PLACE, TARGET_UNAVAILABLE
from cdcworker.connectors.record_sink.group_offsets import GroupClients, GroupOffsets, Letter, Owner, committed
from cdcworker.connectors.record_sink.lane import Lane
from cdcworker.connectors.record_sink.letter_topic import (
    LetterReader,
    Origin,
    RecordAgain,
    StoredLetter,
    letter_of,
    partitions_of,
)
from cdcworker.connectors.record_sink.ownership import Ownership
from cdcworker.connectors.record_sink.progress import Progress
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

CAUSES_MAX: Final = 20
LOOK_S: Final = 0.01
END_S: Final = 5.0
NO_HEADERS: Final = "the letter does not say where its record was"


class RedrivenForm(LetterForm):
    """How a letter looks that has failed again: it says where the record was at first."""

    def _context(self, refused: Any) -> Mapping[str, str]:
        topic, partition, offset = refused.message.origin
        found = super()._context(refused)
        return {**found, "topic": topic, "partition": str(partition), "offset": str(offset)}


class RedriveParts(NamedTuple):
    """What a request about letters works with."""

    connector: str
    topic: str
    """The topic of dead letters."""
    brokers: SinkBrokers
    clients: GroupClients
    open_lane: Callable[[Ownership, Progress, bool], Lane]
    """Makes what reads, transforms and writes; the last argument says whether nothing is to be written."""
    by_letter: bool
    """Whether the target knows a record by the place of its letter: it keeps offsets, and takes no earlier one."""


@dataclass(slots=True)
class Outcome:
    redriven: int = 0
    rows: int = 0
    failed: int = 0
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def fail(self, code: str, cause: str) -> None:
        self.failed += 1
        self.causes[code, cause] += 1


def listed(parts: RedriveParts, asked: DeadLetterFilter) -> dict[str, Any]:
    """Returns how many letters are not done with, and those that are wanted, without what is in them."""
    deadline = time.monotonic() + asked.seconds
    found: list[dict[str, Any]] = []
    with contextlib.closing(parts.clients.open_consumer()) as group:
        begins, ends = _bounds(parts, group)
    with contextlib.closing(LetterReader(parts.clients.consumer, parts.topic)) as reader:
        for (_, number), end in sorted(ends.items()):
            for letters, _ in reader.read(number, begins[parts.topic, number], end):
                found += [one.told() for one in letters if _is_meant(parts, one, asked.topic)]
                if time.monotonic() > deadline:
                    break
    found.sort(key=_place)
    behind = [one for one in found if _place(one) > asked.after]
    return {"total": len(found), "letters": behind[: asked.limit]}


def redriven(parts: RedriveParts, asked: DeadLetterFilter) -> dict[str, Any]:
    """Sends letters again, in their order, as many as the request has time for. CdcError of kind `transient` where the target takes
    nothing: what was done is done."""
    deadline, out = time.monotonic() + asked.seconds, Outcome()
    stopped: tuple[str, int, int] | None = None
    with (
        contextlib.closing(_Committed(parts, asked.dry_run)) as done,
        contextlib.closing(_Way(parts, asked.dry_run)) as way,
    ):
        for number, begin, end in _shares(done, asked.after):
            for letters, behind in done.reader.read(number, begin, end):
                again = way.send([one for one in letters if _is_meant(parts, one, "")], out, deadline)
                hit("letters.before_commit")
                done.move(number, behind, again)
                if time.monotonic() >= deadline and behind < end:
                    stopped = (parts.topic, number, end)
                    break
            if stopped:
                break
    left = listed(parts, DeadLetterFilter(limit=0))["total"]
    causes = [{"code": code, "cause": cause, "letters": count} for (code, cause), count in out.causes.most_common()]
    numbers = {"redriven": out.redriven, "rows": out.rows, "failed": out.failed, "left": left}
    return {**numbers, "causes": causes[:CAUSES_MAX], "next": stopped}


class _Committed:
    """How far the letters are done with."""

    def __init__(self, parts: RedriveParts, dry_run: bool) -> None:
        self.topic = parts.topic
        self._offsets: GroupOffsets | None = None
        self._group = parts.clients.open_consumer()
        self.begins, self.ends = _bounds(parts, self._group)
        if not dry_run:
            # Of two requests at a time the later one goes on.
            owner = Owner((time.time_ns() // 1_000_000, 0), f"{parts.clients.group}:redrive")
            self._offsets = GroupOffsets(parts.clients, owner, parts.brokers.firsts)
            self.begins |= self._offsets.take_over(sorted(self.ends))
        self.reader = LetterReader(parts.clients.consumer, parts.topic)

    def move(self, number: int, offset: int, again: Sequence[Letter]) -> None:
        """Moves the offset of a partition; letters that have failed again go to its end."""
        if self._offsets is not None:
            self._offsets.commit({(self.topic, number): offset}, [one._replace(partition=number) for one in again])

    def close(self) -> None:
        self.reader.close()
        self._group.close()
        if self._offsets is not None:
            self._offsets.close()


class _Way:
    """Reads, transforms and writes, as the task does."""

    def __init__(self, parts: RedriveParts, dry_run: bool) -> None:
        self._parts = parts
        self._progress = Progress()
        # The proof of ownership is the task's: whoever sends letters has the transactional id of that.
        ownership = Ownership(lambda: 0.0)
        ownership.proven(0.0)
        self._lane = parts.open_lane(ownership, self._progress, dry_run)
        self._lane.start()
        self._ids: dict[str, str] = {}

    def send(self, letters: Sequence[StoredLetter], out: Outcome, deadline: float) -> list[Letter]:
        """Returns those that have failed again."""
        placed = [(one, one.origin) for one in letters if one.origin is not None]
        for _ in range(len(letters) - len(placed)):
            out.fail(LETTER_WITHOUT_PLACE, NO_HEADERS)
        before = self._progress.changes
        if placed:
            self._lane.offer([self._again(one, origin) for one, origin in placed])
            self._wait(deadline)
        _, again = self._progress.take()
        for one in again:
            said = letter_of(_Said(one))
            out.fail(said.code, said.cause)
        out.redriven += len(placed) - len(again)
        out.rows += self._progress.changes - before
        return again

    def close(self) -> None:
        self._lane.end()
        self._lane.join(END_S)

    def _again(self, letter: StoredLetter, origin: Origin) -> tuple[RecordAgain, str]:
        message = letter.message
        if self._parts.by_letter:
            place = Origin(message.topic(), message.partition(), message.offset())
            return RecordAgain(letter, origin, place), self._id(place.topic)
        return RecordAgain(letter, origin, origin), self._id(origin.topic)

    def _id(self, topic: str) -> str:
        """Returns what ids of the topic's records begin with, as the task has it."""
        if topic not in self._ids:
            self._ids[topic] = self._parts.brokers.id_of(topic) or topic
        return self._ids[topic]

    def _wait(self, deadline: float) -> None:
        while not self._lane.is_idle:
            self._progress.raise_failed()
            self._lane.watch()
            if time.monotonic() > deadline and self._progress.numbers().get("retrying"):
                raise CdcError(TARGET_UNAVAILABLE, "the target takes no records now; the letters are still there")
            time.sleep(LOOK_S)
        self._progress.raise_failed()


class _Said:
    """A letter that is on its way, as a message."""

    def __init__(self, letter: Letter) -> None:
        self._letter = letter

    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        return self._letter.headers


def _bounds(parts: RedriveParts, group: Any) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Returns from where on letters are not done with, and where they end now."""
    places = partitions_of(parts.topic, parts.brokers.partitions([parts.topic]).get(parts.topic, 0))
    firsts = parts.brokers.firsts(places) if places else {}
    known = committed(group, places)
    begins = {place: max(firsts[place], known[place].offset if place in known else 0) for place in places}
    return begins, parts.brokers.ends([parts.topic]) if places else {}


def _shares(done: _Committed, after: tuple[str, int, int]) -> Iterator[tuple[int, int, int]]:
    """Yields each partition with where its letters begin and end. `after` is of an earlier answer: the partition that was under way,
    and where it ended then. What has failed again since is behind that."""
    for (topic, number), end in sorted(done.ends.items()):
        if after[0] == topic and number < after[1]:
            continue
        bound = min(end, after[2]) if (after[0], after[1]) == (topic, number) else end
        yield number, done.begins[topic, number], bound


def _is_meant(parts: RedriveParts, letter: StoredLetter, topic: str) -> bool:
    """Several connectors may share a topic of dead letters."""
    return letter.connector in ("", parts.connector) and topic in ("", letter.place.topic)


def _place(told: Mapping[str, Any]) -> tuple[str, int, int]:
    return told["topic"], told["partition"], told["offset"]
