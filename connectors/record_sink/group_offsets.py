"""The offsets of a sink without a ledger in its target: in a group of its own, committed in Kafka transactions.

- A transaction holds the offsets of what the target has taken and the dead letters before them: both or none.
- Each partition's offset carries a note: the epoch of the task that committed it, and its transactional id. A task that finds
  the note of a higher epoch has lost its place and ends.
- A new owner first takes over its own transactional id and those that it finds in the notes of its partitions, then writes its
  own notes. Whatever a former owner commits after that is refused by the broker.

Nobody joins the group, so Kafka's tools show the sink's lag as any consumer's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cdcworker.connectors.record_sink.errors import (
    COMMIT_DENIED,
    COMMIT_FAILED,
    DEAD_LETTERS_UNWRITABLE,
    SINK_FENCED,
)
from cdcworker.connectors.sink_engine.kafka.brokers import DENIED
from cdcworker.schemas.errors import CdcError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

log = logging.getLogger(__name__)

Partition = tuple[str, int]
Epoch = tuple[int, int]
ANSWER_S: Final = 20.0
STEP_S: Final = 0.5
TAKE_OVER_TRIES: Final = 5
_OUTDATED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, 90}  # 90: PRODUCER_FENCED
)
_PASSING: Final = frozenset({KafkaError._TIMED_OUT, KafkaError.CONCURRENT_TRANSACTIONS, 14, 15, 16})
"""Also a group whose broker is being chosen."""
_TOO_LARGE: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
)


class Letter(NamedTuple):
    """A dead letter on its way: the bytes and headers of a record for the topic of dead letters."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int = -1
    """-1: the client chooses one."""


class Committed(NamedTuple):
    """What is committed of a partition; `epoch` and `id` are those of the task that did it."""

    offset: int
    epoch: Epoch
    id: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who commits."""

    epoch: Epoch
    id: str
    """The transactional id, which every owner of the task has."""
    notes: str = ""
    """What its notes begin with: owners of another kind read past them."""


@dataclass(frozen=True, slots=True)
class GroupClients:
    """Makes the clients of a group; `letters_topic` is where dead letters go."""

    consumer: Mapping[str, Any]
    producer: Mapping[str, Any]
    group: str
    letters_topic: str = ""

    def open_consumer(self) -> Any:
        return Consumer({**self.consumer, "group.id": self.group, "enable.auto.commit": False, "log_level": 3})

    def open_producer(self, transactional_id: str) -> Any:
        """Returns a producer that has taken the id over: every other one that has it is fenced. Raises CdcError."""
        return taken_over(self.producer, transactional_id)


def taken_over(settings: Mapping[str, Any], transactional_id: str) -> Any:
    """Returns a producer that has taken the id over: every other one that has it is fenced. Raises CdcError."""
    deadline = time.monotonic() + ANSWER_S
    producer = Producer({**settings, "transactional.id": transactional_id})
    while True:
        try:
            producer.init_transactions(STEP_S)
            return producer
        except KafkaException as exc:
            error = exc.args[0]
            is_passing = error.retriable() or error.code() in _PASSING
            if not is_passing or time.monotonic() >= deadline:
                raise failed(error, "the transactional id cannot be taken over") from exc
            if error.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                # The client would wait for long; a new one asks at once.
                producer = Producer({**settings, "transactional.id": transactional_id})


class GroupOffsets:
    """The offsets of one task's partitions. One thread uses it."""

    def __init__(
        self,
        clients: GroupClients,
        owner: Owner,
        firsts: Callable[[Sequence[Partition]], Mapping[Partition, int]],
    ) -> None:
        """`firsts` tells the first offset that is kept of each of some partitions."""
        self._clients = clients
        self._owner = owner
        self._firsts = firsts
        self._consumer: Any = clients.open_consumer()
        self._producer: Any = None
        self._partitions: frozenset[Partition] = frozenset()

    def take_over(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Returns where each partition is to be read from; from here on former owners commit nothing. CdcError of kind
        `fenced` when this task is a former owner itself."""
        self._partitions = frozenset(partitions)
        found = self._reopened()
        for other in sorted({one.id for one in found.values() if one.id and one.id != self._owner.id}):
            log.info("taking over partitions of transactional_id=%s", other)
            self._clients.open_producer(other)
        for left in reversed(range(TAKE_OVER_TRIES)):
            offsets = {place: one.offset for place, one in found.items()}
            missing = sorted(self._partitions - offsets.keys())
            offsets |= self._firsts(missing) if missing else {}
            try:
                if offsets:
                    self._transact(offsets, ())
                break
            except CdcError as error:
                # A former owner that commits between has taken the id back, until it finds this one's notes. What it has
                # committed counts.
                if error.code != SINK_FENCED or not left:
                    raise
                self._noted()
                found = self._reopened()
        return offsets

    def add(self, partitions: Iterable[Partition]) -> None:
        """Takes partitions that have come since."""
        self._partitions |= frozenset(partitions)

    def commit(self, offsets: Mapping[Partition, int], letters: Sequence[Letter]) -> Collection[Partition]:
        """Commits in one transaction; returns the partitions that were left out, since they do not exist any more. CdcError: of
        kind `fenced` for a former owner, of kind `transient` when it is not known whether it was committed; the same, no more
        and no less, may then be committed again."""
        gone: Collection[Partition] = ()
        if self._producer is None:
            # A transaction with the offset of a topic that was deleted is refused as a whole.
            gone = offsets.keys() - self._there(offsets)
            offsets = {place: offset for place, offset in offsets.items() if place not in gone}
            self._partitions -= frozenset(gone)
            found = self._reopened()
            has_happened = all(place in found and found[place].offset >= at for place, at in offsets.items())
            if has_happened and (offsets or not letters):
                return gone  # the commit whose answer was lost
        self._commit(offsets, letters)
        return gone

    def _there(self, places: Iterable[Partition]) -> frozenset[Partition]:
        """Returns those of the partitions that exist. Raises CdcError."""
        try:
            topics = self._consumer.list_topics(timeout=ANSWER_S).topics
        except KafkaException as exc:
            raise failed(exc.args[0], "the topics cannot be listed") from exc
        return frozenset(
            (topic, number)
            for topic, number in places
            if topic in topics and (topics[topic].error is not None or number in topics[topic].partitions)
        )

    def _commit(self, offsets: Mapping[Partition, int], letters: Sequence[Letter]) -> None:
        try:
            self._transact(offsets, letters)
        except CdcError as error:
            self._producer = None
            if error.code != SINK_FENCED:
                raise
            # Who has fenced it may be a former owner that woke up late, and ends by the notes: these decide. They are read
            # before the id is taken over, which would fence a newer owner for a moment.
            self._noted()
            self._reopened()
            self._transact(offsets, letters)

    def close(self) -> None:
        self._producer = None
        self._consumer.close()

    def _reopened(self) -> dict[Partition, Committed]:
        """Takes the own id over and returns what is committed. CdcError `sink.fenced` when a note is of a higher epoch."""
        self._producer = self._clients.open_producer(self._owner.id)
        return self._noted()

    def _noted(self) -> dict[Partition, Committed]:
        """Returns what is committed. CdcError `sink.fenced` when a note is of a higher epoch."""
        found = committed(self._consumer, sorted(self._partitions), self._owner.notes)
        newer = next((place for place, one in found.items() if one.epoch > self._owner.epoch), None)
        if newer is not None:
            self._producer = None
            raise CdcError(
                SINK_FENCED, "a newer owner has committed offsets", where={"topic": newer[0], "partition": newer[1]}
            )
        return found

    def _transact(self, offsets: Mapping[Partition, int], letters: Sequence[Letter]) -> None:
        note = note_of(self._owner)
        parts = [TopicPartition(topic, number, at, note) for (topic, number), at in offsets.items()]
        producer = self._producer
        try:
            producer.begin_transaction()
            for letter in letters:
                self._produce(letter)
            producer.send_offsets_to_transaction(parts, self._consumer.consumer_group_metadata(), ANSWER_S)
            producer.commit_transaction(ANSWER_S)
        except KafkaException as exc:
            error = exc.args[0]
            self._producer = None
            raise failed(self._cause(producer, error), "offsets cannot be committed", bool(letters)) from exc

    def _produce(self, letter: Letter) -> None:
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                self._producer.produce(
                    self._clients.letters_topic,
                    letter.value,
                    letter.key,
                    letter.partition,
                    headers=list(letter.headers),
                )
                return
            except BufferError:
                if time.monotonic() >= deadline:
                    raise CdcError(COMMIT_FAILED, "dead letters wait too long for the broker") from None
                self._producer.poll(STEP_S)

    def _cause(self, producer: Any, error: Any) -> Any:
        """Returns what has failed a transaction where the error says only that it has failed. What is open is aborted."""
        try:
            producer.purge()
            producer.abort_transaction(STEP_S)
        except KafkaException as exc:
            return exc.args[0] if exc.args[0].code() in _OUTDATED else error
        return error


def note_of(owner: Owner) -> str:
    return f"{owner.notes}{owner.epoch[0]}.{owner.epoch[1]} {owner.id}"


def parse_note(text: str, notes: str = "") -> tuple[Epoch, str]:
    """Returns epoch and transactional id; those of nobody for a note that somebody else has written, or an owner of another kind."""
    if not text.startswith(notes):
        return (-1, -1), ""
    epoch, _, id = text[len(notes) :].partition(" ")
    first, _, second = epoch.partition(".")
    if first.isdecimal() and second.isdecimal():
        return (int(first), int(second)), id
    return (-1, -1), ""


def committed(consumer: Any, partitions: Sequence[Partition], notes: str = "") -> dict[Partition, Committed]:
    """Returns what is committed of these partitions. Raises CdcError."""
    deadline = time.monotonic() + ANSWER_S
    while partitions:
        try:
            found = consumer.committed([TopicPartition(*place) for place in partitions], ANSWER_S)
            error = next((part.error for part in found if part.error is not None), None)
        except KafkaException as exc:
            found, error = [], exc.args[0]
        if error is None:
            return {
                (part.topic, part.partition): Committed(
                    part.offset, *parse_note(part.metadata or "", notes), part.metadata or ""
                )
                for part in found
                if part.offset >= 0
            }
        if not (error.retriable() or error.code() in _PASSING) or time.monotonic() >= deadline:
            raise failed(error, "the offsets of the sink's group cannot be read")
        time.sleep(0.05)
    return {}


def failed(error: Any, doing: str, has_letters: bool = False) -> CdcError:
    """Returns the error for what Kafka has refused or not answered."""
    text = f"{doing} ({error.name()})"
    if error.code() in _OUTDATED:
        return CdcError(SINK_FENCED, text)
    if has_letters and (error.code() in _TOO_LARGE or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED):
        return CdcError(DEAD_LETTERS_UNWRITABLE, text)
    return CdcError(COMMIT_DENIED if error.code() in DENIED else COMMIT_FAILED, text)
