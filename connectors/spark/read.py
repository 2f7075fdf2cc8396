"""The Kafka source of a sink's query: which topics, from where, and how much at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
EARLIEST = -2
FETCH_WAIT_MS = "5"
"""With Kafka's default of 500 every small batch waits out the previous long poll."""


def starting_offsets(partitions: Mapping[str, int], ledger: Mapping[tuple[str, int], int]) -> str:
    """Where the ledger stands; a partition it does not know from its first record."""
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
        **{f"kafka.{name}": value for name, value in kafka.items()},
    }
    return session.readStream.format("kafka").options(**options).load().select(*COLUMNS)
