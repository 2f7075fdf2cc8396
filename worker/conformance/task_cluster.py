"""The logs of one group, written as its leader would write them, around the processes of one connector's tasks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.coordinator.log.config_fold import assignment_record, connector_record, leader_record, task_set_record
from cdcworker.coordinator.log.offset_records import parse_offset_value
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, Leader, TaskSet
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.conformance.task_process import DEADLINE_S, NotInTime, TaskProcess
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

EPOCH: Final = 1 << 20


class TaskCluster:
    """One connector, `name`, of a group of its own. `assign` makes this worker, `w`, the owner of its tasks."""

    name: ClassVar[str] = "shop"

    def __init__(self, bootstrap: str, connector_class: str, kind: Literal["source", "sink"] = "source") -> None:
        self.group = f"g{uuid.uuid4().hex[:8]}"
        self.kafka = {"bootstrap.servers": bootstrap}
        self.names = TopicNames.of_group(self.group)
        self.connector_class, self.kind = connector_class, kind
        ensure_topics(self.kafka, internal_topics(self.names), client_id="kit", replication_factor=1)
        self.configs = KafkaCompactedLog(self.kafka, self.names.configs, client_id="kit-configs")
        self.prefix = f"p{self.group}"
        self.children: list[TaskProcess] = []

    def assign(self, epoch: int = EPOCH, boot_id: str = "boot", tasks: int = 1) -> None:
        """Writes the connector, its task set and an assignment."""
        config = {"connector.class": self.connector_class}
        connector = Connector(self.name, "inc", 1, config, "RUNNING", self.kind)
        entries = tuple(AssignedTask(self.name, "inc", number, epoch) for number in range(tasks))
        records = [
            leader_record(Leader(1, "w", "boot", "")),
            connector_record(connector),
            task_set_record(self.name, TaskSet("inc", 1, ({},) * tasks)),
            assignment_record("w", Assignment(boot_id, entries)),
        ]
        stamped = [LogRecord(record.key, record.value, {"e": "1", "w": "w", "v": "1"}) for record in records]
        self.configs.append(stamped, 10.0)

    def task_spec(self, config: Mapping[str, str], epoch: int = EPOCH, **more: Any) -> TaskSpec:
        """Returns the spec of the connector's first task."""
        return TaskSpec(
            kind=self.kind,
            connector=self.name,
            task=0,
            incarnation="inc",
            task_epoch=epoch,
            attempt=0,
            worker_id="w",
            boot_id="boot",
            paused=False,
            config={"connector.class": self.connector_class, **config},
            kafka=self.kafka,
            group_id=self.group,
            topics=ClusterTopics(self.names.configs, self.names.offsets, self.names.status, self.names.schemas),
            offsets_partitions=25,
            session_timeout_s=600.0,
            state_dir="",
            **more,
        )

    def start(self, spec: TaskSpec, failpoints: str = "", **more: Any) -> TaskProcess:
        """Starts a process of a task; it ends with this cluster at the latest."""
        self.children.append(TaskProcess(spec, failpoints, **more))
        return self.children[-1]

    def schemas(self) -> SchemaLog:
        log = KafkaCompactedLog(self.kafka, self.names.schemas, client_id="kit-schemas")
        view = SchemaLog((record.key, record.value) for record in log.read_to_end(30.0))
        log.close()
        return view

    def read(self, topic: str, isolation: str = "read_committed") -> list[tuple[int, bytes, bytes]]:
        """Returns (partition, key, value) of everything in a topic, in partition order. Raises NotInTime."""
        consumer = Consumer(
            {
                **self.kafka,
                "group.id": "kit-reader",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        try:
            return _read_all(consumer, topic)
        finally:
            consumer.close()

    def position(self) -> dict[str, Any] | None:
        """Returns the position that is stored for the connector's only task; None: nothing is."""
        log = KafkaCompactedLog(self.kafka, self.names.offsets, client_id="kit-offsets")
        records = log.read_to_end(DEADLINE_S)
        log.close()
        value = records[-1].value if records else None
        found = parse_offset_value(value) if value is not None else None
        return found.position if found else None

    def close(self) -> None:
        for child in self.children:
            child.close()
        self.configs.close()


def _read_all(consumer: Any, topic: str) -> list[tuple[int, bytes, bytes]]:
    numbers = list(consumer.list_topics(topic, 10.0).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    found: list[tuple[int, bytes, bytes]] = []
    ended: set[int] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < len(numbers):
        if time.monotonic() > deadline:
            raise NotInTime(f"the topic {topic} could not be read to its end")
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            found.append((message.partition(), message.key(), message.value()))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    return found
