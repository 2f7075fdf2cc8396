"""Positions of source tasks in the offsets log: read to the end, altered behind the fence of the tasks that own them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cdcworker.connectors.registry import lookup
from cdcworker.coordinator import kafka_errors
from cdcworker.coordinator.api import Record
from cdcworker.coordinator.kafka_log import CompactedLog
from cdcworker.coordinator.model import ClusterState, Connector, JsonObject
from cdcworker.coordinator.offsets import (
    StoredPosition,
    offset_key,
    offset_value,
    offsets_partition,
    parse_offset_key,
    parse_offset_value,
)
from cdcworker.coordinator.state import fold_all, task_set_of
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.kafka_tx import TxProducer
from cdcworker.worker.offsets import BAD_POSITION, INTERRUPTED, UNKNOWN_PARTITION, Offset
from cdcworker.worker.source_kafka import FETCH_WAIT_MS
from cdcworker.worker.taskspec import DATA_IDS, Topics

log = logging.getLogger(__name__)

READ_S: Final = 20.0
TRANSACTION_TIMEOUT_MS: Final = 30_000
SHOWN_MAX: Final = 5
POSITION_KEYS: Final = b"["
"""How every key of the offsets log begins: only the last record of each is decoded."""


@dataclass(frozen=True)
class Place:
    """Where the cluster keeps its positions."""

    kafka: Mapping[str, str] = field(repr=False)
    group_id: str
    topics: Topics
    client_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One position: its record's key and partition in the offsets log, and whose task writes it."""

    partition: Mapping[str, Any]
    key: str
    number: int
    task: int
    position: Mapping[str, Any] | None = None


class Pen(Protocol):
    def begin(self) -> None: ...
    def produce(self, topic: str, key: bytes | None, value: bytes | None, partition: int) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


Read = Callable[[str], Sequence[Record]]
"""All committed records of a topic, by its name."""


class SourceOffsets:
    """Reads and alters positions. Every call opens clients of its own: this is done by people, rarely."""

    def __init__(self, place: Place, read: Read | None = None, pen: Callable[[str], Pen] | None = None) -> None:
        self._place = place
        self._records = read or self._read_topic
        self._pen = pen or self._open_pen

    def read(self, connector: Connector) -> list[Offset]:
        found = (Offset(slot.partition, dict(slot.position)) for slot in self._stored(connector) if slot.position)
        return sorted(found, key=lambda item: json.dumps(dict(item.partition), sort_keys=True))

    def alter(
        self, connector: Connector, barrier: int, changes: Sequence[Offset] | None, *, dry_run: bool = False
    ) -> bool:
        """One transaction under the id of the first task, behind the fences of all tasks that are concerned (INV-5).

        The log is read behind the fences and again behind the commit: whoever started meanwhile either fences this
        writer or has been seen.
        """
        stored = self._stored(connector)
        check = getattr(_instance(connector), "check_position", None)
        if changes is None:
            wanted: list[tuple[Slot, Mapping[str, Any] | None]] = [(slot, None) for slot in stored]
        else:
            known = [*stored, *self._own(connector)]
            wanted = [(_slot_of(item, known, number), item.offset) for number, item in enumerate(changes)]
        for number, (_, position) in enumerate(wanted):
            if check is not None and position is not None:
                _checked(check, position, number)
        if wanted and not dry_run:
            self._write(connector, barrier, wanted)
        return check is not None or changes is None

    def _write(
        self, connector: Connector, barrier: int, wanted: Sequence[tuple[Slot, Mapping[str, Any] | None]]
    ) -> None:
        tasks = sorted({slot.task for slot, _ in wanted})
        ids = [make(self._place.group_id, connector.name, task) for task in tasks for make in DATA_IDS]
        pens = [self._pen(name) for name in ids]
        try:
            self._require_stopped(connector, barrier)
            pen = pens[0]
            pen.begin()
            for slot, position in wanted:
                stored = (
                    StoredPosition(connector.incarnation, barrier, dict(position)) if position is not None else None
                )
                value = _json(offset_value(stored)) if stored is not None else None
                pen.produce(self._place.topics.offsets, slot.key.encode(), value, slot.number)
            pen.commit()
            self._require_stopped(connector, barrier)
        except CdcError as exc:
            if exc.code in (kafka_errors.FENCED, INTERRUPTED):
                raise _interrupted(connector) from exc
            raise
        finally:
            for opened in pens:
                opened.close()
        log.info("offsets altered connector=%s positions=%d", connector.name, len(wanted))

    def _require_stopped(self, connector: Connector, barrier: int) -> None:
        state = fold_all(ClusterState(), self._records(self._place.topics.configs))
        now, tasks = state.connectors.get(connector.name), task_set_of(state, connector.name)
        same = now is not None and now.incarnation == connector.incarnation and now.target_state == "STOPPED"
        if not same or tasks is None or tasks.task_epoch != barrier:
            raise _interrupted(connector)

    # -- what there is ------------------------------------------------------------------------------------------------

    def _stored(self, connector: Connector) -> list[Slot]:
        """The last record of each of the connector's keys; keys of our own spelling and of Connect's are one."""
        last: dict[tuple[int, str], Record] = {}
        for record in self._records(self._place.topics.offsets):
            last[record.partition, record.key] = record
        own = list(self._own(connector))
        return [slot for record in last.values() for slot in self._slot(connector, record, own)]

    def _slot(self, connector: Connector, record: Record, own: Sequence[Slot]) -> Iterable[Slot]:
        try:
            key = parse_offset_key(record.key)
        except CdcError:
            log.warning("offsets record left out partition=%d offset=%d", record.partition, record.offset)
            return
        if key.connector != connector.name or record.value is None:
            return
        partition = dict(key.partition)
        known = next((slot for slot in own if dict(slot.partition) == partition), None)
        task = key.task if key.task is not None else known.task if known else 0
        position = parse_offset_value(record.value).position
        yield Slot(partition, record.key, record.partition, max(0, task), position)

    def _own(self, connector: Connector) -> Iterator[Slot]:
        """Of every task that the connector would have."""
        instance, config, number = _instance(connector), connector.config, self._place.partitions
        name = getattr(instance, "partition", None)
        tasks_max = config.get("tasks.max", "1")
        for task, share in enumerate(instance.split(max(1, int(tasks_max)) if tasks_max.isdigit() else 1)):
            own: Mapping[str, str | int] = {"server": {**config, **share}.get("topic.prefix", ""), "task": task}
            partition = name(task) if name else own
            place = offsets_partition(connector.name, task, number)
            yield Slot(partition, offset_key(connector.name, partition), place, task)

    # -- Kafka --------------------------------------------------------------------------------------------------------

    def _read_topic(self, topic: str) -> Sequence[Record]:
        place = self._place
        properties = {"consumer.fetch.wait.max.ms": FETCH_WAIT_MS, **place.kafka}
        counters = POSITION_KEYS if topic == place.topics.offsets else b""
        reader = CompactedLog(properties, topic, client_id=f"{place.client_id}-offsets", counters=counters)
        try:
            return reader.read_to_end(READ_S)
        finally:
            reader.close()

    def _open_pen(self, name: str) -> Pen:
        place = self._place
        return TxProducer(
            place.kafka,
            name,
            client_id=f"{place.client_id}-offsets-pen",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )


def _instance(connector: Connector) -> Any:
    return lookup(connector.config.get("connector.class", "")).load()(connector.config)


def _slot_of(item: Offset, known: Sequence[Slot], number: int) -> Slot:
    found = next((slot for slot in known if dict(slot.partition) == dict(item.partition)), None)
    if found is None:
        shown = list(dict.fromkeys(_json(slot.partition).decode() for slot in known))[:SHOWN_MAX]
        text = f"the connector has no partition {_json(item.partition).decode()}; it has {', '.join(shown) or 'none'}"
        raise CdcError(UNKNOWN_PARTITION, text, where={"index": number})
    return found


def _checked(check: Callable[[JsonObject], None], position: Mapping[str, Any], number: int) -> None:
    try:
        check(dict(position))
    except CdcError as exc:
        raise CdcError(BAD_POSITION, f"[{exc.code}] {exc.message}", where={"index": number}) from exc


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _interrupted(connector: Connector) -> CdcError:
    return CdcError(INTERRUPTED, "the connector does not stand still", where={"connector": connector.name})
