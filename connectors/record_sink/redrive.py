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
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.api.sink import DeadLetterFilter
from cdcworker.connectors.record_sink.dead_letters import LetterForm, unplaced_again
from cdcworker.connectors.record_sink.errors import LETTER_WITHOUT_PLACE, TARGET_UNAVAILABLE
from cdcworker.connectors.record_sink.group_offsets import GroupClients, GroupOffsets, Letter, committed
from cdcworker.connectors.record_sink.lane import Lane
from cdcworker.connectors.record_sink.letter_offsets import NOTES, next_owner, record_ids
from cdcworker.connectors.record_sink.letter_topic import (
    LetterOrigin,
    LetterReader,
    RecordAgain,
    TopicLetter,
    letter_of,
    partitions_of,
)
from cdcworker.connectors.record_sink.ownership import Ownership
from cdcworker.connectors.record_sink.progress import LETTER_BYTES_MAX, Progress
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

CAUSES_MAX: Final = 20
LOOK_S: Final = 0.01
END_S: Final = 5.0
STEP_MAX: Final = 200
FAST_S: Final = 0.5
"""A step that is done with sooner is followed by a larger one."""
NO_HEADERS: Final = "the letter does not say where its record was"


class RedrivenForm(LetterForm):
    """How a letter looks that has failed again: it says where the record was at first."""

    def _place(self, refused: Any) -> Mapping[str, str | int]:
        message = refused.message
        return {**message.origin._asdict(), "topic_id": message.topic_id}


class RedriveParts(NamedTuple):
    """What a request about letters works with."""

    connector: str
    topic: str
    """The topic of dead letters."""
    brokers: SinkBrokers
    clients: GroupClients
    open_lane: Callable[[Ownership, Progress, bool], Lane]
    """Makes what reads, transforms and writes; the last argument says whether nothing is to be written."""
    by: Literal["record", "row", "letter", ""]
    """By which place the target knows a record, as `RecordSink.redrives_by` says."""


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
        for share in _shares(done, asked):
            number, begin, end = share
            is_late = bool(out.redriven or out.failed) and time.monotonic() >= deadline
            at = begin if is_late else _sent_to(done, way, share, out, deadline)
            if at < end:
                # A trial moves no offset, so it says itself where it is.
                stopped = (parts.topic, number, at if asked.dry_run else end)
                break
    left = listed(parts, DeadLetterFilter(limit=0))["total"]
    causes = [{"code": code, "cause": cause, "letters": count} for (code, cause), count in out.causes.most_common()]
    numbers = {"redriven": out.redriven, "rows": out.rows, "failed": out.failed, "left": left}
    return {**numbers, "causes": causes[:CAUSES_MAX], "next": stopped}


def _sent_to(done: _Committed, way: _Way, share: tuple[int, int, int], out: Outcome, deadline: float) -> int:
    """Sends the letters of a partition until the deadline; returns the offset behind those that are done with."""
    number, begin, end = share
    for letters, behind in done.reader.read(number, begin, end):
        for step in way.steps(letters, behind, out, deadline):
            hit("letters.before_commit")
            done.move(number, step.behind, step.again)
            if step.error is not None:
                raise step.error
            if time.monotonic() >= deadline and step.behind < end:
                return step.behind
    return end


class _Committed:
    """How far the letters are done with."""

    def __init__(self, parts: RedriveParts, dry_run: bool) -> None:
        self.topic = parts.topic
        self._offsets: GroupOffsets | None = None
        self._group = parts.clients.open_consumer()
        self.begins, self.ends = _bounds(parts, self._group)
        if not dry_run:
            owner = next_owner(parts.clients, committed(self._group, sorted(self.ends), NOTES))
            self._offsets = GroupOffsets(parts.clients, owner, parts.brokers.firsts)
            taken = self._offsets.take_over(sorted(self.ends))
            self.begins |= {place: at for place, at in taken.items() if at <= self.ends[place]}
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


class Step(NamedTuple):
    """Letters that are done with."""

    behind: int
    """The offset behind the last of them."""
    again: Sequence[Letter]
    """Those that have failed again."""
    error: CdcError | None
    """Why no more of them are done with."""


class _Way:
    """Reads, transforms and writes, as the task does."""

    def __init__(self, parts: RedriveParts, dry_run: bool) -> None:
        self._parts = parts
        self._progress = Progress()
        # The proof of ownership is the task's: whoever sends letters has the transactional id of that.
        ownership = Ownership(lambda: 0.0)
        ownership.proven(0.0)
        self._form = RedrivenForm(parts.connector, 0, True, "")
        self._lane = parts.open_lane(ownership, self._progress, dry_run)
        self._lane.start()
        self._count = 1
        """How many letters the next step has."""
        self._ids: dict[str, str] = {}

    def steps(self, letters: Sequence[TopicLetter], behind: int, out: Outcome, deadline: float) -> Iterator[Step]:
        """Sends letters, as many at a time as the target takes in a moment; `behind`: the offset behind the last of them."""
        at = 0
        while at < len(letters):
            count = _fitting(letters[at:], self._count)
            step, at = letters[at : at + count], at + count
            began = time.monotonic()
            found = self._sent(step, letters[at].message.offset() if at < len(letters) else behind, out, deadline)
            took = time.monotonic() - began
            self._count = min(STEP_MAX, 2 * self._count) if took < FAST_S else max(1, self._count // 4)
            yield found

    def close(self) -> None:
        self._lane.end()
        self._lane.join(END_S)

    def _sent(self, letters: Sequence[TopicLetter], behind: int, out: Outcome, deadline: float) -> Step:
        meant = [one for one in letters if _is_meant(self._parts, one, "")]
        placed = [(one, one.origin) for one in meant if one.origin is not None]
        changes, messages = self._progress.changes, self._progress.messages
        again: list[Letter] = []
        error: CdcError | None = None
        if placed:
            self._lane.offer([self._again(one, origin) for one, origin in placed])
            error = self._wait(deadline, again)
        count = self._progress.messages - messages
        again += self._progress.take()[1]
        for one in again:
            said = letter_of(_Said(one))
            out.fail(said.code, said.cause)
        out.redriven += count - len(again)
        out.rows += self._progress.changes - changes
        if count < len(placed):
            behind = placed[count][0].message.offset()
        for stored in meant:
            if stored.origin is None and stored.message.offset() < behind:
                out.fail(LETTER_WITHOUT_PLACE, NO_HEADERS)
                again.append(unplaced_again(self._form, stored.message, CdcError(LETTER_WITHOUT_PLACE, NO_HEADERS)))
        return Step(behind, again, error)

    def _again(self, letter: TopicLetter, origin: LetterOrigin) -> tuple[RecordAgain, str]:
        message, by = letter.message, self._parts.by
        # The topic may have been created again since the letter was written: its id now need not be the record's.
        if by == "letter" or (by == "record" and not letter.topic_id):
            place = LetterOrigin(message.topic(), message.partition(), message.offset())
            return RecordAgain(letter, origin, place), record_ids(self._id(place.topic), self._parts.connector)
        return RecordAgain(letter, origin, origin), letter.topic_id or self._id(origin.topic)

    def _id(self, topic: str) -> str:
        """Returns what ids of the topic's records begin with, as the task has it."""
        if topic not in self._ids:
            self._ids[topic] = self._parts.brokers.id_of(topic) or topic
        return self._ids[topic]

    def _wait(self, deadline: float, again: list[Letter]) -> CdcError | None:
        """Waits until the letters are done with, or those of the batch that runs at the deadline."""
        while not self._lane.is_idle:
            self._progress.raise_failed()
            self._lane.watch()
            if self._progress.is_full:
                again += self._progress.take()[1]
            if time.monotonic() > deadline:
                self._lane.withdraw()
                if self._progress.numbers().get("retrying"):
                    self.close()
                    return CdcError(TARGET_UNAVAILABLE, "the target takes no records now; the letters are still there")
            time.sleep(LOOK_S)
        self._progress.raise_failed()
        return None


def _fitting(letters: Sequence[TopicLetter], most: int) -> int:
    """Returns how many letters a step has: all of them may fail again, and wait for one commit."""
    size = 0
    for count, one in enumerate(letters[:most]):
        size += len(one.message) + len(one.message.key() or b"")
        if count and size > LETTER_BYTES_MAX:
            return count
    return min(most, len(letters))


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
    ends = parts.brokers.ends([parts.topic]) if places else {}
    begins = {place: max(firsts[place], known[place].offset if place in known else 0) for place in places}
    # An offset behind the end is of a topic that was there before this one.
    return {place: at if at <= ends.get(place, at) else firsts[place] for place, at in begins.items()}, ends


def _shares(done: _Committed, asked: DeadLetterFilter) -> Iterator[tuple[int, int, int]]:
    """Yields each partition with where its letters begin and end. `after` is of an earlier answer: the partition that was under way,
    and where it ended then, for what has failed again since is behind that; of a trial, how far it came."""
    after = asked.after
    for (topic, number), end in sorted(done.ends.items()):
        begin = done.begins[topic, number]
        if after[0] == topic and number < after[1]:
            continue
        if (after[0], after[1]) != (topic, number):
            yield number, begin, end
        elif asked.dry_run:
            yield number, max(begin, after[2]), end
        else:
            yield number, begin, min(end, after[2])


def _is_meant(parts: RedriveParts, letter: TopicLetter, topic: str) -> bool:
    """Several connectors may share a topic of dead letters."""
    return letter.connector in ("", parts.connector) and topic in ("", letter.place.topic)


def _place(told: Mapping[str, Any]) -> tuple[str, int, int]:
    return told["topic"], told["partition"], told["offset"]
