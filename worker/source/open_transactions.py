"""Ends what the broker left open of a source task's earlier transactions, before the task writes anything.

Behind the fence nobody else of the task writes, so whatever of it is open will never be ended by whoever began it. Which
way to end it, the committed position says: it is the last record of its transaction. Records that are older than it
belong to transactions that were committed; younger ones do not, and the task sends them again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.client_shutdown import close_client
from cdcworker.coordinator.kafka.clients import make_consumer, reader_config
from cdcworker.coordinator.kafka.end_offsets import OpenTransaction, left_open
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.producers.transactional import TransactionalProducer
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

UNDECIDED: Final = declare(
    "source.left_open_undecided",
    "environment",
    "A transaction that the broker did not end may have been committed or not",
    "The topic has the broker's times, which do not tell. Look at the records behind its last stable offset: where they "
    "are older than the stored position they count, and `kafka-transactions.sh abort` would lose them.",
)

ANSWER_S: Final = 15.0
READ_S: Final = 30.0
STEP_S: Final = 0.1
BATCH_MAX: Final = 1_000
LAST_WINDOW: Final = 50_000
"""How far back from the end the last committed record is looked for, before everything that is open is read."""

Place = tuple[str, int]
Ranges = Mapping[Place, tuple[int, int]]


class OpenTransactionSettler:
    """One per process: what is found to be somebody else's is not tried again."""

    def __init__(self, properties: Mapping[str, str], *, client_id: str) -> None:
        self._properties = properties
        self._client_id = client_id
        self.foreign: set[tuple[str, int, int]] = set()

    def settle_log(
        self,
        admin: AdminClient,
        place: Place,
        producers: Sequence[TransactionalProducer],
        counts: Callable[[Message], bool] | None = None,
    ) -> None:
        """Called for a log that tasks share, where an open transaction of ours holds back them and us. It is aborted,
        since what it says is said again, unless it has a record that `counts`."""
        found = left_open(admin, [place], ANSWER_S)
        if not found:
            return
        counting: list[Message] = []
        if counts is not None:
            first, stop = found[0][2:]
            counting = [one for one in self._read({place: (max(first, stop - LAST_WINDOW), stop)}) if counts(one)]
        for producer in producers:
            if counting and _still(admin, found):
                _commit_through(producer, counting[-1:])
            elif not counting:
                producer.void(found)
        self._tell(() if counting else found, found if counting else (), _still(admin, found))

    def settle_data(
        self,
        admin: AdminClient,
        places: Sequence[Place],
        producers: Sequence[TransactionalProducer],
        stored_at_ms: int | None,
    ) -> None:
        """Called for topics that this task alone writes to. `stored_at_ms`: when the committed position was written;
        None: there is none."""
        found = [one for one in left_open(admin, places, ANSWER_S) if one[:3] not in self.foreign]
        if not found:
            return
        firsts = {one[:2]: (one.stable, one.stable + 1) for one in found}
        committed = {
            (message.topic(), message.partition())
            for message in self._read(firsts)
            if _is_committed(message, stored_at_ms)
        }
        kept = [one for one in found if one[:2] in committed]
        dropped = [one for one in found if one[:2] not in committed]
        lasts = self._lasts(kept, stored_at_ms)
        for producer in producers:
            if dropped:
                producer.void(dropped)
            if still := _still(admin, kept):
                _commit_through(producer, [lasts[one[:2]] for one in still])
        self._tell(dropped, kept, _still(admin, found))

    def _lasts(self, kept: Sequence[OpenTransaction], stored_at_ms: int | None) -> dict[Place, Message]:
        """Returns the last committed record of each partition. Behind it there may be others, of transactions that were
        not committed."""
        found: dict[Place, Message] = {}
        for window in (LAST_WINDOW, None):
            left = [one for one in kept if one[:2] not in found]
            ranges = {one[:2]: (max(one.stable, one.end - window) if window else one.stable, one.end) for one in left}
            for message in self._read(ranges):
                if _is_committed(message, stored_at_ms):
                    found[message.topic() or "", message.partition() or 0] = message
        return found

    def _tell(
        self, dropped: Sequence[OpenTransaction], kept: Sequence[OpenTransaction], left: Sequence[OpenTransaction]
    ) -> None:
        ended = [len([one for one in part if one not in left]) for part in (dropped, kept)]
        log.warning("what the broker had left open is ended aborted=%d committed=%d", *ended)
        for one in left:
            self.foreign.add(one[:3])
            log.warning(
                "another producer's transaction is open topic=%s partition=%d records=%d",
                one.topic,
                one.partition,
                one.end - one.stable,
            )

    def _read(self, ranges: Ranges) -> Iterator[Message]:
        """Every record in these ranges of offsets, committed or not."""
        if not ranges:
            return
        config = reader_config(self._properties, client_id=self._client_id) | {"isolation.level": "read_uncommitted"}
        consumer = make_consumer(config)
        try:
            yield from _records(consumer, ranges)
        except KafkaException as exc:
            raise e.translate(exc, "read an open transaction") from exc
        finally:
            close_client(consumer.close, "reader of open transactions")


def _is_committed(message: Message, stored_at_ms: int | None) -> bool:
    kind, written_ms = message.timestamp()
    if stored_at_ms is None:
        return False
    if kind == TIMESTAMP_LOG_APPEND_TIME:
        where: dict[str, str | int] = {"topic": message.topic() or "", "partition": message.partition() or 0}
        raise CdcError(UNDECIDED, "an open transaction may have been committed", where=where)
    return bool(written_ms <= stored_at_ms)


def _still(admin: AdminClient, places: Sequence[OpenTransaction]) -> list[OpenTransaction]:
    left = {one[:3] for one in left_open(admin, [one[:2] for one in places], ANSWER_S)}
    return [one for one in places if one[:3] in left]


def _records(consumer: Any, ranges: Ranges) -> Iterator[Message]:
    at = {place: first for place, (first, _) in ranges.items()}
    consumer.assign([TopicPartition(topic, number, first) for (topic, number), first in at.items()])
    deadline = time.monotonic() + READ_S
    while behind := [place for place, (_, stop) in ranges.items() if at[place] < stop]:
        if time.monotonic() >= deadline:
            where: dict[str, str | int] = {"topic": behind[0][0], "partition": behind[0][1]}
            raise CdcError(e.TIMEOUT, "an open transaction could not be read in time", where=where)
        for message in consumer.consume(BATCH_MAX, STEP_S):
            error = message.error()
            if error is not None:
                if error.fatal() or e.code_of(error) in e.TELLING:
                    raise KafkaException(error)
            elif message.offset() < ranges[message.topic(), message.partition()][1]:
                yield message
        # position() moves past markers, which never arrive as messages.
        for place in consumer.position([TopicPartition(*key) for key in behind]):
            at[place.topic, place.partition] = max(at[place.topic, place.partition], place.offset)


def _commit_through(producer: TransactionalProducer, last: Sequence[Message]) -> None:
    """A commit ends what is open of this producer; it needs a record in each partition. The last one once more changes
    nothing for whoever goes by keys, and has the position of one that is known for whoever goes by positions."""
    producer.begin()
    for message in last:
        key: Any = message.key()
        value: Any = message.value()
        headers: Any = message.headers()
        producer.produce(message.topic() or "", key, value, message.partition() or 0, headers)
    producer.commit()
