"""Positions of source tasks in the offsets log: read to the log's end, and altered behind the fence of the tasks that own them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from cdcworker.connectors.api.source import ChecksPositions, HidesKeys, NamesPartitions
from cdcworker.connectors.config.common_keys import tasks_max_of
from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka import errors as kafka_errors
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.log.config_fold import fold_all, task_set_of
from cdcworker.coordinator.log.offset_records import (
    OffsetRecord,
    offset_key,
    offset_value,
    offsets_partition,
    parse_offset_key,
    parse_offset_value,
)
from cdcworker.coordinator.model import ClusterState, Connector, JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets.model import BAD_POSITION, INTERRUPTED, UNKNOWN_PARTITION, ConnectorOffset
from cdcworker.worker.producers.transactional import TransactionalProducer
from cdcworker.worker.protocol.task_spec import DATA_IDS, ClusterTopics
from cdcworker.worker.source.task_identity import FETCH_WAIT_MS

log = logging.getLogger(__name__)

READ_S: Final = 20.0
TRANSACTION_TIMEOUT_MS: Final = 30_000
SHOWN_MAX: Final = 5
POSITION_KEYS: Final = b"["
"""How every key of the offsets log begins: only the last record of each is decoded."""


@dataclass(frozen=True)
class OffsetsTopic:
    """The topic in which the cluster keeps its positions."""

    kafka: Mapping[str, str] = field(repr=False)
    group_id: str
    topics: ClusterTopics
    client_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """One position: its source partition, the key and the partition (`number`) of its record in the offsets log, and the task
    that writes it."""

    partition: Mapping[str, Any]
    key: str
    number: int
    task: int
    position: Mapping[str, Any] | None = None
    error: CdcError | None = None
    """Why the stored position cannot be read. It can be replaced and removed all the same."""
    is_forgotten: bool = False
    """Whether there was a position until it was forgotten."""


class PositionProducer(Protocol):
    def begin(self) -> None: ...
    def produce(self, topic: str, key: bytes | None, value: bytes | None, partition: int) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


Read = Callable[[str], Sequence[LogRecord]]
"""All committed records of a topic, by its name."""


class SourceOffsets:
    """Reads and alters positions. Every call opens clients of its own: this is done by people, rarely."""

    def __init__(
        self, place: OffsetsTopic, read: Read | None = None, producer: Callable[[str], PositionProducer] | None = None
    ) -> None:
        self._place = place
        self._records = read or self._read_topic
        self._producer = producer or self._open_producer

    def read(self, connector: Connector) -> list[ConnectorOffset]:
        stored = self._stored(connector)
        for entry in stored:
            if entry.error is not None:
                raise entry.error
        found = (ConnectorOffset(entry.partition, dict(entry.position)) for entry in stored if entry.position)
        return sorted(found, key=lambda item: json.dumps(dict(item.partition), sort_keys=True))

    def read_own(self, connector: Connector) -> list[ConnectorOffset]:
        """Returns the positions from which the connector's tasks would start. Under the same name an earlier one, say with another
        topic.prefix, may have left others."""
        own = [dict(entry.partition) for entry in self._own(connector)]
        return [item for item in self.read(connector) if dict(item.partition) in own]

    def alter(
        self, connector: Connector, barrier: int, changes: Sequence[ConnectorOffset] | None, *, dry_run: bool = False
    ) -> bool:
        """Alters positions in one transaction under the id of the first task, behind the fences of all tasks that are concerned
        (INV-5).

        The log is read behind the fences and again behind the commit: whoever started meanwhile either fences this
        writer or has been seen.
        """
        stored = self._stored(connector)
        source = _instance(connector)
        check = source.check_position if isinstance(source, ChecksPositions) else None
        if changes is None:
            wanted: list[tuple[PositionRecord, Mapping[str, Any] | None]] = [
                (entry, None) for entry in stored if not entry.is_forgotten
            ]
        else:
            # Positions that were forgotten may come back, also those of tasks that tasks.max does not allow any more.
            forgotten = [entry for entry in stored if entry.is_forgotten]
            known = [*(entry for entry in stored if not entry.is_forgotten), *self._own(connector), *forgotten]
            wanted = [(_record_of(item, known, number), item.offset) for number, item in enumerate(changes)]
        for number, (_, position) in enumerate(wanted):
            if check is not None and position is not None:
                _require_valid(check, position, number)
        if wanted and not dry_run:
            self._write(connector, barrier, wanted)
        return check is not None or changes is None

    def tasks_of(
        self, connector: Connector, changes: Sequence[ConnectorOffset]
    ) -> list[tuple[int, int, Mapping[str, Any]]]:
        """Returns the positions among these changes: the number of each, its task, and what is to be stored."""
        known = [*self._stored(connector), *self._own(connector)]
        found = ((number, _record_of(item, known, number), item.offset) for number, item in enumerate(changes))
        return [(number, entry.task, offset) for number, entry, offset in found if offset is not None]

    def _write(
        self, connector: Connector, barrier: int, wanted: Sequence[tuple[PositionRecord, Mapping[str, Any] | None]]
    ) -> None:
        tasks = sorted({entry.task for entry, _ in wanted})
        ids = [make(self._place.group_id, connector.name, task) for task in tasks for make in DATA_IDS]
        producers = [self._producer(name) for name in ids]
        try:
            self._require_stopped(connector, barrier)
            producer = producers[0]
            producer.begin()
            for entry, position in wanted:
                stored = OffsetRecord(connector.incarnation, barrier, dict(position)) if position is not None else None
                value = _json(offset_value(stored)) if stored is not None else None
                producer.produce(self._place.topics.offsets, entry.key.encode(), value, entry.number)
            producer.commit()
            self._require_stopped(connector, barrier)
        except CdcError as exc:
            if exc.code in (kafka_errors.FENCED, INTERRUPTED):
                raise _interrupted(connector) from exc
            raise
        finally:
            for opened in producers:
                opened.close()
        log.info("offsets altered connector=%s positions=%d", connector.name, len(wanted))

    def _require_stopped(self, connector: Connector, barrier: int) -> None:
        state = fold_all(ClusterState(), self._records(self._place.topics.configs))
        now, tasks = state.connectors.get(connector.name), task_set_of(state, connector.name)
        same = now is not None and now.incarnation == connector.incarnation and now.target_state == "STOPPED"
        if not same or tasks is None or tasks.task_epoch != barrier:
            raise _interrupted(connector)

    # -- what there is ------------------------------------------------------------------------------------------------

    def _stored(self, connector: Connector) -> list[PositionRecord]:
        """Returns the last record of each of the connector's keys, also of keys whose JSON is written as Connect writes it."""
        last: dict[tuple[int, str], LogRecord] = {}
        for record in self._records(self._place.topics.offsets):
            last[record.partition, record.key] = record
        own = list(self._own(connector))
        return [entry for record in last.values() for entry in self._entries(connector, record, own)]

    def _entries(
        self, connector: Connector, record: LogRecord, own: Sequence[PositionRecord]
    ) -> Iterable[PositionRecord]:
        try:
            key = parse_offset_key(record.key)
        except CdcError:
            log.warning("offsets record left out partition=%d offset=%d", record.partition, record.offset)
            return
        if key.connector != connector.name:
            return
        partition = dict(key.partition)
        known = next((entry for entry in own if dict(entry.partition) == partition), None)
        task = key.task if key.task is not None else known.task if known else 0
        if record.value is None:
            yield PositionRecord(partition, record.key, record.partition, max(0, task), is_forgotten=True)
            return
        try:
            position, error = parse_offset_value(record.value).position, None
        except CdcError as exc:
            position, error = None, exc
        yield PositionRecord(partition, record.key, record.partition, max(0, task), position, error)

    def _own(self, connector: Connector) -> Iterator[PositionRecord]:
        """Yields the records of every task that the connector would have."""
        instance, config, number = _instance(connector), connector.config, self._place.partitions
        for task, share in enumerate(instance.split(tasks_max_of(config))):
            own: Mapping[str, str | int] = {"server": {**config, **share}.get("topic.prefix", ""), "task": task}
            partition = instance.partition(task) if isinstance(instance, NamesPartitions) else own
            log_partition = offsets_partition(connector.name, task, number)
            yield PositionRecord(partition, offset_key(connector.name, partition), log_partition, task)

    # -- Kafka --------------------------------------------------------------------------------------------------------

    def _read_topic(self, topic: str) -> Sequence[LogRecord]:
        place = self._place
        properties = {"consumer.fetch.wait.max.ms": FETCH_WAIT_MS, **place.kafka}
        counters = POSITION_KEYS if topic == place.topics.offsets else b""
        reader = KafkaCompactedLog(properties, topic, client_id=f"{place.client_id}-offsets", counters=counters)
        try:
            return reader.read_to_end(READ_S)
        finally:
            reader.close()

    def _open_producer(self, name: str) -> PositionProducer:
        place = self._place
        return TransactionalProducer(
            place.kafka,
            name,
            client_id=f"{place.client_id}-offsets-producer",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )


def without_keys(connector: Connector, found: Sequence[ConnectorOffset]) -> list[ConnectorOffset]:
    """Returns a connector's offsets for whoever may not see rows."""
    source = _instance(connector) if connector.kind == "source" else None
    if not isinstance(source, HidesKeys):
        return list(found)
    return [replace(item, offset=source.without_keys(item.offset)) if item.offset else item for item in found]


def _instance(connector: Connector) -> Any:
    return lookup(connector.config.get("connector.class", "")).load()(connector.config)


def _record_of(item: ConnectorOffset, known: Sequence[PositionRecord], number: int) -> PositionRecord:
    """Returns the record of the source partition that a change names; `number` is the index of the change."""
    found = next((entry for entry in known if dict(entry.partition) == dict(item.partition)), None)
    if found is None:
        there = (entry.partition for entry in known if not entry.is_forgotten)
        shown = list(dict.fromkeys(_json(partition).decode() for partition in there))[:SHOWN_MAX]
        text = f"the connector has no partition {_json(item.partition).decode()}; it has {', '.join(shown) or 'none'}"
        raise CdcError(UNKNOWN_PARTITION, text, where={"index": number})
    return found


def _require_valid(check: Callable[[JsonObject], None], position: Mapping[str, Any], number: int) -> None:
    try:
        check(dict(position))
    except CdcError as exc:
        raise CdcError(BAD_POSITION, f"[{exc.code}] {exc.message}", where={"index": number}) from exc


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _interrupted(connector: Connector) -> CdcError:
    return CdcError(INTERRUPTED, "the connector did not stay stopped", where={"connector": connector.name})
