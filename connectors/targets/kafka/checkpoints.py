"""Translates what consumer groups of the source have committed, and tells it on the target: as checkpoints, and as offsets of the same
groups where nobody reads by them."""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers, client_settings
from cdcworker.connectors.targets.kafka.cluster import TargetCluster
from cdcworker.connectors.targets.kafka.errors import ANSWER_S, answer_of, error_of
from cdcworker.connectors.targets.kafka.ledger import Ledger, LedgerReader
from cdcworker.connectors.targets.kafka.naming import names_of
from cdcworker.connectors.targets.kafka.topics import CopiedTopics
from cdcworker.connectors.targets.kafka.translation import translated
from cdcworker.schemas import patterns
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

END_S: Final = 3.0
"""How long the end of a task waits for a request that runs."""
SETTINGS: Final = {"cleanup.policy": "compact"}
_HAS_MEMBERS: Final = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}
)


class Checkpoint(NamedTuple):
    """What a group has committed of a partition, on both sides."""

    group: str
    topic: str
    """The copy."""
    partition: int
    source_offset: int
    offset: int
    metadata: str


def encoded(one: Checkpoint) -> tuple[bytes, bytes]:
    """Returns key and value of a checkpoint in MirrorMaker's form, version 0."""
    key = struct.pack(">h", 0) + _text(one.group) + _text(one.topic) + struct.pack(">i", one.partition)
    return key, struct.pack(">hqq", 0, one.source_offset, one.offset) + _text(one.metadata)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Checkpoints:
    """Looks at the groups again and again, on a thread of its own, beside a task. Only its topics count."""

    def __init__(self, spec: SinkSpec, config: Mapping[str, Any]) -> None:
        self._spec, self._config = spec, config
        self._names = names_of(config)
        self._source = AdminClient({**client_settings(spec.kafka), "log_level": 3})
        self._brokers = SinkBrokers(spec.kafka)
        self._told: dict[tuple[str, str, int], Checkpoint] = {}
        self._ending = threading.Event()
        self._thread = SupervisedThread(self._run, name="checkpoints")

    def __enter__(self) -> Checkpoints:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        every_s = self._config["emit.checkpoints.interval.seconds"]
        while not self._ending.is_set():
            try:
                self._follow(every_s)
            except CdcError as error:
                log.warning("offsets of groups are translated again later error=%s", error)
            except KafkaException as exc:
                text = "offsets of groups are translated again later error=%s"
                log.warning(text, error_of(exc.args[0], "Kafka does not tell or take offsets of groups"))
            self._ending.wait(every_s)

    def _follow(self, every_s: float) -> None:
        cluster = TargetCluster(self._config)
        target, _ = cluster.connect()
        if self._config["emit.checkpoints.enabled"]:
            topics = CopiedTopics(self._spec.kafka, target, self._config, self._names)
            topics.make(self._names.checkpoints, 1, SETTINGS)
        producer = Producer({**cluster.settings, "enable.idempotence": True})
        reader = LedgerReader(cluster.settings, self._names.ledger, Ledger(self._spec.connector))
        try:
            while not self._ending.is_set():
                reader.read_on()
                found = self._found(reader.ledger)
                if self._config["emit.checkpoints.enabled"]:
                    self._emit(producer, found)
                if self._config["sync.group.offsets.enabled"]:
                    for group in sorted({one.group for one in found}):
                        with _telling_of(group):
                            _set_forward(cluster.settings, group, [one for one in found if one.group == group])
                self._ending.wait(every_s)
        finally:
            reader.close()

    def _found(self, ledger: Ledger) -> list[Checkpoint]:
        """Returns what can be translated of each group that the config names."""
        ids = self._brokers.ids(self._spec.topics)
        counts = self._brokers.partitions(self._spec.topics)
        places = [(topic, number) for topic, count in counts.items() for number in range(count)]
        found: list[Checkpoint] = []
        for group in self._groups() if places else ():
            with _telling_of(group):
                for part in _committed(client_settings(self._spec.kafka), group, places):
                    copied = ledger.of(f"{ids.get(part.topic, part.topic)}-{part.partition}")
                    place = translated(copied, part.offset)
                    if place is not None:
                        found.append(Checkpoint(group, *place[:2], part.offset, place.offset, part.metadata or ""))
        return found

    def _groups(self) -> Iterable[str]:
        listed = answer_of(self._source.list_consumer_groups(request_timeout=ANSWER_S))
        for group in sorted(one.group_id for one in listed.valid):
            named = patterns.matches_any(self._config["groups"], group)
            if named and not patterns.matches_any(self._config["groups.exclude"], group):
                yield group

    def _emit(self, producer: Producer, found: Sequence[Checkpoint]) -> None:
        for one in found:
            place = (one.group, one.topic, one.partition)
            if self._told.get(place) != one:
                key, value = encoded(one)
                producer.produce(self._names.checkpoints, value, key, 0)
                self._told[place] = one
        if producer.flush(ANSWER_S):
            self._told.clear()


@contextlib.contextmanager
def _telling_of(group: str) -> Iterator[None]:
    """Logs why the offsets of one group are not told or not taken: other groups are not kept from theirs."""
    try:
        yield
    except KafkaException as exc:
        error = error_of(exc.args[0], "Kafka does not tell or take offsets of the group", group=group)
        log.warning("offsets of a group are translated again later error=%s", error)


def _committed(settings: Mapping[str, Any], group: str, places: Sequence[tuple[str, int]]) -> Sequence[TopicPartition]:
    """Returns what a group has committed of these partitions. A consumer that joins nothing asks: an admin client that asks a group's
    broker ends the process when that one goes away."""
    with contextlib.closing(_member(settings, group)) as consumer:
        found: list[TopicPartition] = consumer.committed([TopicPartition(*place) for place in places], ANSWER_S)
    return [part for part in found if part.error is None and part.offset >= 0]


def _set_forward(settings: Mapping[str, Any], group: str, wanted: Sequence[Checkpoint]) -> None:
    """Commits offsets of a group, each only where it is ahead of what is there. The broker refuses that where the group has a member."""
    found = _committed(settings, group, [(one.topic, one.partition) for one in wanted])
    there = {(part.topic, part.partition): part.offset for part in found}
    ahead = [
        TopicPartition(one.topic, one.partition, one.offset, one.metadata)
        for one in wanted
        if one.offset > there.get((one.topic, one.partition), -1)
    ]
    if not ahead:
        return
    try:
        with contextlib.closing(_member(settings, group)) as consumer:
            consumer.commit(offsets=ahead, asynchronous=False)
    except KafkaException as exc:
        if exc.args[0].code() not in _HAS_MEMBERS:
            raise


def _member(settings: Mapping[str, Any], group: str) -> Consumer:
    return Consumer({**settings, "group.id": group, "enable.auto.commit": False, "log_level": 2})
