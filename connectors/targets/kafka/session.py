"""One connection to the target cluster: a producer, the topics, and what the ledger says. Thrown away after any error of which nobody
knows what it has left."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetPlace
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, SINK_FENCED
from cdcworker.connectors.sink_engine.kafka.brokers import client_settings
from cdcworker.connectors.targets.kafka.cluster import TargetCluster
from cdcworker.connectors.targets.kafka.config import SERVERS
from cdcworker.connectors.targets.kafka.errors import SAME_CLUSTER, as_target_error, error_of
from cdcworker.connectors.targets.kafka.ledger import Copied, CopyOwner, Entry, Ledger, LedgerReader, Record
from cdcworker.connectors.targets.kafka.naming import TopicNames, names_of
from cdcworker.connectors.targets.kafka.producer import Copy, CopyProducer, Written
from cdcworker.connectors.targets.kafka.topics import CopiedTopics
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_S: Final = 10.0
ID_PREFIX: Final = "cdcworker-mirror"


class MirrorSession:
    """Copies of one owner. One thread uses it."""

    def __init__(self, place: TargetPlace, cancelled: threading.Event, held: Collection[str] = ()) -> None:
        """Takes the producer's id over and reads the ledger. `held`: partitions that this owner has had. Raises CdcError."""
        config = place.config
        self._names: TopicNames = names_of(config)
        cluster = TargetCluster(config)
        admin, id = cluster.connect()
        source = _cluster_id(place.kafka)
        if id and source == id:
            raise CdcError(SAME_CLUSTER, f"both are the cluster {id}", where={"key": SERVERS})
        self._owner = CopyOwner(place.epoch, f"{ID_PREFIX}:{source}:{place.writer or place.connector}")
        self._settings = producer_settings(cluster.settings, config)
        self._cancelled = cancelled
        self._topics = CopiedTopics(place.kafka, admin, config, self._names)
        self._topics.prepare_ledger(self._names.ledger)
        self._ledger = Ledger(place.connector)
        self._claimed: set[str] = set()
        self._read = LedgerReader(cluster.settings, self._names.ledger, self._ledger)
        try:
            if held:
                # Who has lost them is to know that before it takes the id from a newer owner.
                self._read_on()
                self._not_newer(held)
            self._producer = CopyProducer(self._settings, self._owner.id, cancelled)
            self._read_on()
        except BaseException:
            self._read.close()
            raise

    def close(self) -> None:
        self._read.close()
        self._producer.close()

    # Owners

    def claim(self, firsts: Mapping[str, int]) -> None:
        """Makes partitions this owner's, of each the offset of the first record that it is given: what was refused before it does
        not come again. CdcError `sink.fenced` where a newer owner has one."""
        fresh = [partition for partition in firsts if partition not in self._claimed]
        if not fresh:
            return
        self._not_newer(fresh)
        states = [self._ledger.of(partition) for partition in fresh]
        for state in states:
            state.ids = {state.owner.id}
        # Before the note as well: who dies behind it leaves nobody who knows of the former owner.
        self._take_over(states)
        self._note(
            self._ledger.owner_record(partition, self._owner)
            for partition, state in zip(fresh, states, strict=True)
            if state.owner != self._owner
        )
        # The ledger may have been read long ago: who has claimed a partition since is found now, who does so later finds this owner.
        self._read_on()
        self._not_newer(fresh)
        if self._take_over(states):
            self._read_on()
            self._not_newer(fresh)
        for partition, state in zip(fresh, states, strict=True):
            state.refused = frozenset(offset for offset in state.refused if offset >= firsts[partition])
        self._claimed.update(fresh)

    def _take_over(self, states: Iterable[Copied]) -> bool:
        """Takes the ids of former owners over: what they write now is refused, and when they take their ids again they find the new
        owner. Returns whether there are any."""
        others = {id for state in states for id in state.ids} - {"", self._owner.id}
        for other in sorted(others):
            CopyProducer(self._settings, other, self._cancelled).close()
        return bool(others)

    def _not_newer(self, partitions: Iterable[str]) -> None:
        for partition in partitions:
            if self._ledger.of(partition).owner.epoch > self._owner.epoch:
                raise CdcError(SINK_FENCED, "a newer owner copies to the target cluster")

    def _read_on(self) -> None:
        try:
            self._read.read_on()
        except CdcError as error:
            raise as_target_error(error) from error
        self._not_newer(self._claimed)

    # Copies

    def fresh(self, copies: Sequence[Copy]) -> list[Copy]:
        """Returns the records that are not copied yet. CdcError for one that was refused before: what came behind it is there already."""
        states = {place: self._ledger.of(place) for place in {copy.place for copy in copies}}
        ends = {place: state.next_offset for place, state in states.items()}
        known = [copy for copy in copies if copy.offset < ends[copy.place]]
        if any(copy.offset in states[copy.place].refused for copy in known):
            raise CdcError(RECORD_REFUSED, "the target cluster has refused the record before")
        return [copy for copy in copies if copy.offset >= ends[copy.place]] if known else list(copies)

    def write(self, copies: Sequence[Copy], refused: Mapping[str, frozenset[int]]) -> None:
        """Copies records that are new. `refused`: offsets of partitions that this owner has given up. Raises CdcError."""
        for topic, partition in {(copy.source, copy.partition) for copy in copies}:
            if self._topics.prepare(topic, partition):
                self._producer.wait_for_partition(self._names.on_target(topic), partition)
        named = {topic: self._names.on_target(topic) for topic in {copy.source for copy in copies}}

        def noted(written: Written) -> list[Record]:
            by_place: dict[str, list[Copy]] = {}
            for copy in copies:
                by_place.setdefault(copy.place, []).append(copy)
            records = [self._entry(together, named[together[0].source], written) for together in by_place.values()]
            for partition in by_place:
                if given_up := refused.get(partition):
                    known = self._ledger.of(partition).refused | given_up
                    records.append(self._ledger.refused_record(partition, known))
            return records

        self._transact([(named[copy.source], copy) for copy in copies], noted)

    def move(self, offsets: Mapping[str, int]) -> None:
        """Sets the next offsets of partitions, as a person asks for it. Raises CdcError."""
        self.claim(offsets)
        records: list[Record] = []
        for partition, offset in offsets.items():
            state = self._ledger.of(partition)
            since = state.newest.since if state.newest else 0
            records.append(
                self._ledger.entry_record(partition, Entry(state.next_batch, offset, offset - 1, since=since))
            )
        self._note(records)

    def _entry(self, copies: Sequence[Copy], topic: str, written: Written) -> Record:
        first, last = copies[0], copies[-1]
        span = written.get((topic, first.partition), (-1, -1))
        state = self._ledger.of(first.place)
        since = state.since(topic, first.partition, span[0])
        entry = Entry(state.next_batch, first.offset, last.offset, topic, first.partition, *span, len(copies), since)
        return self._ledger.entry_record(first.place, entry)

    def _note(self, records: Iterable[Record]) -> None:
        made = list(records)
        if made:
            self._transact([], lambda _: made)

    def _transact(self, copies: Sequence[tuple[str, Copy]], noted: Any) -> None:
        for record in self._producer.transact(copies, self._names.ledger, noted):
            self._ledger.read(*record)


def producer_settings(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of a producer of copies, without its id."""
    return {
        **settings,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "compression.type": config["target.compression.type"],
        "batch.size": config["target.batch.size"],
        "message.max.bytes": config["target.max.request.size"],
        "transaction.timeout.ms": config["target.transaction.timeout.ms"],
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": 131_072,
    }


def _cluster_id(kafka: Mapping[str, str]) -> str:
    """Returns the id of the cluster that is read. Raises CdcError."""
    try:
        return AdminClient({**client_settings(kafka), "log_level": 3}).list_topics(timeout=ANSWER_S).cluster_id or ""
    except KafkaException as exc:
        raise error_of(exc.args[0], "the cluster that is read does not answer") from exc
