"""The real ports of a source task: Kafka, the connector's task, the encoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.config.common_keys import EXACTLY_ONCE
from cdcworker.connectors.transform_chain.config import chain_of, format_of
from cdcworker.connectors.transform_chain.encoder import encoder_of
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.log.config_fold import fold_all, task_set_of
from cdcworker.coordinator.log.offset_records import OffsetRecord, parse_offset_value
from cdcworker.coordinator.model import ClusterState
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_object
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.producers.alternating import AlternatingProducer
from cdcworker.worker.producers.at_least_once import AtLeastOnceProducer, DataProducer, message_timeout_ms
from cdcworker.worker.producers.client_watchdog import ClientWatchdog
from cdcworker.worker.producers.transactional import TransactionalProducer, record_bytes_max
from cdcworker.worker.protocol.control import TaskControl, TaskReporter
from cdcworker.worker.protocol.heartbeat import HEARTBEAT
from cdcworker.worker.protocol.task_spec import (
    TaskSpec,
    other_transactional_id,
    schema_transactional_id,
    transactional_id,
)
from cdcworker.worker.security.topic_rules import access_of
from cdcworker.worker.source.context_headers import HeaderProducer, headers_bytes
from cdcworker.worker.source.data_topics import DataTopics
from cdcworker.worker.source.open_transactions import OpenTransactionSettler
from cdcworker.worker.source.registries import external_of, routed
from cdcworker.worker.source.runner import Registering
from cdcworker.worker.source.schema_registrar import PARTITION, SchemaRegistrar
from cdcworker.worker.source.session import ChangeEncoder, RecordProducer, RecordTargets, require_lease
from cdcworker.worker.source.settings import SourceSettings
from cdcworker.worker.source.start_reader import StartReader, ahead, drop
from cdcworker.worker.source.task_identity import client_id, owns, position_key, position_partition, quick, same_key
from cdcworker.worker.source.topic_guard import guarded
from confluent_kafka import Message

CLIENT_HANGS = declare(
    "source.client_hangs",
    "transient",
    "The Kafka client did not come back from a call",
    "Nothing: the task is started again in a new process.",
)

EXIT_FAILED = 1
SCHEMA_TRANSACTION_TIMEOUT_MS = 15_000
SCHEMA_QUEUE_KBYTES_MAX = 8_192

MakeTask = Callable[[Mapping[str, str], TaskContext], SourceTask]


class SourcePorts:
    """`config` is the spec's with references resolved; it stays in this process."""

    def __init__(
        self,
        spec: TaskSpec,
        config: Mapping[str, str],
        make_task: MakeTask,
        reporter: TaskReporter,
        context: TaskContext,
        control: TaskControl,
    ) -> None:
        self._spec = spec
        self._control = control
        self._config = config
        self._make_task = make_task
        self._context = context
        self._watchdog = ClientWatchdog(lambda doing: _end(reporter, doing)).start()
        # A guard watches one call at a time, and all ids are taken at the same time.
        self._schema_watchdog = ClientWatchdog(lambda doing: _end(reporter, doing)).start()
        self._other_watchdog = ClientWatchdog(lambda doing: _end(reporter, doing)).start()
        self._reader: StartReader | None = None
        self._pair: AlternatingProducer | None = None
        self.committed: JsonObject | None = None
        self._is_alone = False
        """The connector has no other task."""
        self._settler = OpenTransactionSettler(spec.kafka, client_id=client_id(spec, "left-open"))
        self._schema_producer: Future[TransactionalProducer] | None = None
        self._other: Future[TransactionalProducer] | None = None
        self._settings = SourceSettings.from_config(config)
        self._external = external_of(config, HEARTBEAT.beat, spec.state_dir)
        """What they have registered is known to the sessions that follow."""
        self.limits = self._settings.limits
        self.place = place_of(spec, self._settings)
        self._headers = self._settings.headers(spec.task)
        self.topics = DataTopics(
            spec.kafka,
            beside_bytes=headers_bytes(self._headers),
            client_id=client_id(spec, "topics"),
            plan=self._settings.plan,
            on_use=lambda topic: reporter.topics((topic,)),
            access=access_of(spec.providers, spec.topic_prefixes),
            foreign=self._settler.foreign,
        )

    def prepare(self) -> None:
        """Begin with what takes time and does not depend on the first fence: connections, and the other ids."""
        self.release()
        self._reader = StartReader(self._spec)
        self._schema_producer = ahead(self._open_schema_producer, "schema-producer")
        self._other = ahead(
            lambda: self._open_data_producer(other_transactional_id, self._other_watchdog), "other-producer"
        )

    def release(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        for opening in (self._schema_producer, self._other):
            if opening is not None:
                drop(opening, TransactionalProducer.close)
        self._schema_producer = self._other = None

    def producer(self) -> RecordProducer:
        producer = self._bare_producer()
        return (
            HeaderProducer(producer, self._headers, (self.place.watermark_topic, self.place.offsets_topic))
            if self._headers
            else producer
        )

    def _bare_producer(self) -> RecordProducer:
        spec = self._spec
        fenced = self._data_producer()
        if self._settings.delivery == EXACTLY_ONCE:
            return fenced
        data = DataProducer(
            spec.kafka,
            client_id=client_id(spec, "loose"),
            timeout_ms=message_timeout_ms(spec.session_timeout_s),
            watchdog=self._watchdog,
        )
        undivided = (self.place.watermark_topic, self.place.offsets_topic)
        return AtLeastOnceProducer(fenced, data, undivided, partial(require_lease, self._control))

    def _data_producer(self) -> AlternatingProducer:
        """With both ids taken, whether or not both may be used: the owner before may have used both."""
        first = self._open_data_producer(transactional_id, self._watchdog)
        try:
            assert self._other is not None
            second, self._other = self._other.result(), None
        except BaseException:
            first.close()
            raise
        self._pair = AlternatingProducer(first, second, takes_turns=self._control.may_alternate)
        return self._pair

    def _open_data_producer(
        self, name: Callable[[str, str, int], str], watchdog: ClientWatchdog
    ) -> TransactionalProducer:
        spec = self._spec
        return TransactionalProducer(
            spec.kafka,
            name(spec.group_id, spec.connector, spec.task),
            client_id=client_id(spec, "data"),
            transaction_timeout_ms=self.limits.transaction_timeout_ms,
            watchdog=watchdog,
        )

    def _open_schema_producer(self) -> TransactionalProducer:
        spec = self._spec
        return TransactionalProducer(
            spec.kafka,
            schema_transactional_id(spec.group_id, spec.connector, spec.task),
            client_id=client_id(spec, "schema"),
            transaction_timeout_ms=SCHEMA_TRANSACTION_TIMEOUT_MS,
            queue_kbytes_max=SCHEMA_QUEUE_KBYTES_MAX,
            watchdog=self._schema_watchdog,
        )

    def registrar(self) -> Registering:
        assert self._schema_producer is not None
        producer, self._schema_producer = self._schema_producer.result(), None
        spec, topic = self._spec, self._spec.topics.schemas
        try:
            if self._reader is not None:
                self._settler.settle_log(self._reader.admin, (topic, PARTITION), (producer,))
        except BaseException:
            producer.close()
            raise
        made = SchemaRegistrar(
            producer, topic, lambda: KafkaCompactedLog(quick(spec), topic, client_id=client_id(spec, "schemas"))
        )
        made.warm()
        return routed(made, self._external, self._settings.prefix)

    def assigned(self) -> bool:
        assert self._reader is not None
        state, spec = fold_all(ClusterState(), self._reader.configs()), self._spec
        tasks = task_set_of(state, spec.connector)
        self._is_alone = tasks is not None and len(tasks.tasks) == 1
        return owns(state, spec)

    def position(self) -> OffsetRecord | None:
        """Returns the stored position. What the task's predecessors left open is ended before and after it is read."""
        assert self._reader is not None
        reader, producers, place = self._reader, self._pair.producers if self._pair else (), self.place
        counts = self._is_committed if self.committed is not None else None
        self._settler.settle_log(reader.admin, (place.offsets_topic, place.offsets_partition), producers, counts)
        found = reader.position()
        self.topics.lend(reader.admin)
        self._settler.settle_data(reader.admin, self._written(), producers, reader.stored_at_ms)
        return found

    def _is_committed(self, message: Message) -> bool:
        """A hidden position of which this process knows that its transaction was committed: the source knows it too."""
        key, value = message.key(), message.value()
        if not isinstance(key, bytes) or not isinstance(value, bytes):
            return False
        if not same_key(key.decode(errors="replace"), self.place.offsets_key):
            return False
        try:
            return parse_offset_value(parse_object(value)).position == self.committed
        except (CdcError, JsonRefused):
            return False

    def _written(self) -> list[tuple[str, int]]:
        """The partitions that nobody but this task writes to. Of several tasks each knows what it has written itself."""
        places = self.topics.existing(self._settings.prefix if self._is_alone else "")
        return [place for place in places if self._is_alone or place[0] != self.place.watermark_topic]

    def encoder(self, register: Registering) -> ChangeEncoder:
        settings = self._settings
        options = {"tombstones": settings.tombstones, "unavailable": settings.unavailable}
        form, chain = format_of(self._config), chain_of(self._config)
        return encoder_of(chain, form, settings.prefix, guarded(register, self.topics.check), **options)

    def task(self) -> SourceTask:
        return self._make_task(self._config, self._context)


def _end(reporter: TaskReporter, doing: str) -> None:
    reporter.status("FAILED", CdcError(CLIENT_HANGS, f"{doing}: the call did not return"))
    os._exit(EXIT_FAILED)


def place_of(spec: TaskSpec, settings: SourceSettings) -> RecordTargets:
    return RecordTargets(
        connector=spec.connector,
        task=spec.task,
        incarnation=spec.incarnation,
        task_epoch=spec.task_epoch,
        offsets_topic=spec.topics.offsets,
        offsets_partition=position_partition(spec),
        offsets_key=position_key(spec),
        watermark_topic=settings.watermark_topic,
    )


def context_of(
    spec: TaskSpec, control: TaskControl, report: Callable[[dict[str, Any]], None], stopping: Callable[[], bool]
) -> TaskContext:
    """`stopping` differs by kind: a source also ends its long waits to pause, a sink only to stop."""
    return TaskContext(
        connector=spec.connector,
        task=spec.task,
        task_epoch=spec.task_epoch,
        incarnation=spec.incarnation,
        state_dir=spec.state_dir,
        stopping=stopping,
        ending=lambda: control.stopping,
        report=report,
        beat=HEARTBEAT.beat,
        jobs=partial(getattr, control, "jobs"),
        file_roots=file_roots(spec.providers),
        attempt=spec.attempt,
        group=spec.group_id,
        record_bytes_max=record_bytes_max(spec.kafka),
    )
