"""How far a sink that does not run is behind: its ledger's offsets beside the ends of the topics, without the ends of transactions."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from cdcworker.connectors.api.abilities import StandingTask
from cdcworker.connectors.file.sink import FileSink
from cdcworker.connectors.file.target import FileTarget
from cdcworker.connectors.sink_engine.kafka.standing_lag import measure, reported_offsets
from cdcworker.connectors.spark.connector import SparkSink
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(kafka):
    name = f"standing.{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    return name


def write(kafka, topic: str, records: int, *, abort: bool = False) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"t-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(topic, b"v", b"k", 0)
    producer.flush(30)
    if abort:
        producer.abort_transaction(30)
    else:
        producer.commit_transaction(30)


def task(kafka, now_s: float, memory: dict | None = None, **numbers) -> StandingTask:
    return StandingTask("c", 0, numbers, memory or {}, {"bootstrap.servers": kafka.bootstrap}, now_s)


def test_what_waits_is_told_in_records_bytes_and_seconds(kafka, topic):
    write(kafka, topic, 10)
    last = {"lag_s": 2.0, "lag_records": 4, "lag_bytes": 400}
    numbers, memory = measure(task(kafka, 1_000.0, **last), {(topic, 0): 3}, [topic])
    assert numbers["lag_records"] == 8, "seven records and the end of their transaction"
    assert numbers["topic_lag_records"] == {topic: 8}
    assert (numbers["lag_s"], numbers["lag_bytes"]) == (2.0, 800)
    numbers, _ = measure(task(kafka, 1_030.0, memory, **last), {(topic, 0): 3}, [topic])
    assert numbers["lag_s"] == 32.0, "nobody reads: what waits grows older"


@pytest.mark.parametrize("aborted", [False, True])
def test_the_end_of_a_transaction_is_nothing_that_waits(kafka, topic, aborted):
    write(kafka, topic, 10)
    if aborted:
        write(kafka, topic, 2, abort=True)
    numbers, _ = measure(task(kafka, 1_000.0, lag_s=9.0), {(topic, 0): 10}, [topic])
    assert (numbers["lag_records"], numbers["lag_s"], numbers["topic_lag_s"]) == (0, 0.0, {topic: 0.0})


def test_the_spark_sink_is_measured_by_the_offsets_that_its_task_told_last(kafka, topic):
    write(kafka, topic, 10)
    config = {"connector.class": "spark", "topics": topic, "warehouse": "parquet", "warehouse.path": "/nowhere"}
    told = {"offsets": {f"{topic}-0": 4}}
    assert reported_offsets(told) == {(topic, 0): 4}
    numbers, _ = SparkSink(config).measure_lag(task(kafka, 1_000.0, **told))
    assert numbers["lag_records"] == 7
    numbers, _ = SparkSink(config).measure_lag(task(kafka, 1_000.0))
    assert numbers["lag_records"] == 11, "a sink that has applied nothing lacks all of the topic"


def test_a_file_sink_is_measured_by_what_its_task_told_or_by_the_ledger_beside_the_file(kafka, topic, tmp_path):
    write(kafka, topic, 10)
    target = FileTarget(tmp_path / "out.txt", "c", (1, 0))
    target.open()
    target.append(b"a\nb\n", {(topic, 0): 2})
    target.close()
    sink = FileSink({"file": str(tmp_path / "out.txt"), "topics": topic})
    standing = replace(task(kafka, 1_000.0), file_roots=(str(tmp_path),))
    numbers, _ = sink.measure_lag(standing)
    assert numbers["lag_records"] == 9
    numbers, _ = sink.measure_lag(replace(standing, numbers={"offsets": {f"{topic}-0": 4}}))
    assert numbers["lag_records"] == 7
