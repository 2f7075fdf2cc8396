"""The Kafka source of a sink's query: which topics, from where, and how much at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.sink_errors import QUERY_FAILED
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
EARLIEST = -2
TOUCH_MS = 3_000
TOUCH_CODE = "public class Touch { public Object get(Object[] row) { return java.util.Arrays.asList(row).get(0); } }"
FETCH_WAIT_MS = "5"
"""With Kafka's default of 500 every small batch waits out the previous long poll."""

POLL_RECORDS = "10000"
"""A batch takes thousands of a partition; Kafka's default of 500 makes many calls of it."""


def starting_offsets(partitions: Mapping[str, int], ledger: Mapping[tuple[str, int], int]) -> str:
    """Returns Spark's option `startingOffsets`: the ledger's offsets, and the first record of a partition that it does not
    know."""
    return json.dumps(
        {
            topic: {str(number): ledger.get((topic, number), EARLIEST) for number in range(count)}
            for topic, count in sorted(partitions.items())
        }
    )


def stream(
    session: SparkSession,
    kafka: Mapping[str, str],
    partitions: Mapping[str, int],
    ledger: Mapping[tuple[str, int], int],
    records_max: int,
) -> DataFrame:
    options = {
        "subscribe": ",".join(sorted(partitions)),
        "startingOffsets": starting_offsets(partitions, ledger),
        "maxOffsetsPerTrigger": str(records_max),
        # A topic that lost records ends the query: never a silent gap.
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
        "kafka.max.poll.records": POLL_RECORDS,
        **{f"kafka.{name}": value for name, value in kafka.items()},
    }
    return session.readStream.format("kafka").options(**options).load().select(*COLUMNS)


def toucher(kafka: Mapping[str, str], topic: str) -> Callable[[Any], None]:
    """Loads what a first batch needs besides Spark, while Spark's session starts on another core: half a second less."""

    def touch(jvm: Any) -> None:
        jvm.org.codehaus.janino.SimpleCompiler().cook(TOUCH_CODE)
        properties = jvm.java.util.Properties()
        reader = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        fixed = {"key.deserializer": reader, "value.deserializer": reader, "allow.auto.create.topics": "false"}
        for name, value in {**kafka, **fixed, "fetch.max.wait.ms": FETCH_WAIT_MS}.items():
            properties.setProperty(name, value)
        wait = jvm.java.time.Duration.ofMillis(TOUCH_MS)
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        try:
            if not consumer.partitionsFor(topic, wait):
                return
            partitions = jvm.java.util.Collections.singletonList(jvm.org.apache.kafka.common.TopicPartition(topic, 0))
            consumer.assign(partitions)
            consumer.seekToBeginning(partitions)
            consumer.poll(jvm.java.time.Duration.ofMillis(int(FETCH_WAIT_MS)))
        finally:
            consumer.close()
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            admin.describeCluster().nodes().get(TOUCH_MS, jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
        finally:
            admin.close()

    return touch


def read_to(checkpoint: Path, batch_id: int) -> dict[tuple[str, int], int]:
    """Returns where a batch ends in each partition, control records included, from the checkpoint: Spark writes it before
    the batch runs."""
    try:
        text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
        found = json.loads(text.strip().splitlines()[-1])
    except (OSError, ValueError, IndexError) as exc:
        raise CdcError(QUERY_FAILED, "the offsets of a batch cannot be read") from exc
    return {(topic, int(number)): int(end) for topic, parts in found.items() for number, end in parts.items()}
