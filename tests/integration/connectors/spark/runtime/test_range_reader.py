"""Records by our own reader inside Spark's tasks, beside Spark's own source of the same batches."""

from __future__ import annotations

import threading

import pytest
from cdcworker.connectors.sink_errors import DATA_LOST
from cdcworker.connectors.spark.runtime import kafka_source as read
from cdcworker.connectors.spark.runtime import range_reader as reading
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.connectors.spark_archive import cache_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    # Spark leaves its sockets to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
WAIT_S_MAX = 150
TOPICS = {"reading.a": 3, "reading.b": 1}
RECORDS_MAX = 40


@pytest.fixture(scope="module")
def engine(tmp_path_factory, shared_spark):
    shared_spark.close()
    state = tmp_path_factory.mktemp("state")
    java, files = str(find_java().home / "bin" / "java"), tuple(str(path) for path in jars.ensure("spark"))
    made = SparkEngine(JavaRuntime(java, files, cache=cache_of(files)), state, lambda: False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def topics(kafka):
    """Transactions, one of them aborted, records without key or value, with headers, and large ones."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "reading", "log_level": 2})
    producer.init_transactions(30)
    for number in range(12):
        producer.begin_transaction()
        for at in range(30):
            topic, count = sorted(TOPICS.items())[at % 2]
            value = None if at % 7 == 0 else bytes([number, at]) * (at * 40)
            headers = [("one", b"1"), ("none", None), ("\N{SNOWMAN}", b"\x00")] if at % 11 == 0 else None
            producer.produce(topic, value, None if at % 5 == 0 else b"k%d" % at, at % count, headers=headers)
        producer.flush(30)  # where none of its records has come yet, the broker knows of no transaction
        producer.abort_transaction(30) if number == 4 else producer.commit_transaction(30)
    return TOPICS


def rows_of(table):
    columns = [table[name].to_pylist() for name in read.COLUMNS]
    rows = [[*row[:5], [tuple(pair.values()) for pair in row[5] or []]] for row in zip(*columns, strict=True)]
    return sorted(rows, key=lambda row: row[:3])


def both(engine, kafka, folder, partitions, offsets, pieces, monkeypatch):
    """Of each batch of a query what the two readers bring, until all is read."""
    settings = {"bootstrap.servers": kafka.bootstrap}
    monkeypatch.setattr(reading, "PIECE_BYTES_MAX", pieces)
    reader = reading.RangeReader(engine.session(), folder, settings, 2)
    assert reader.own
    reader.begin(offsets)
    found, failed, done = [], [], threading.Event()

    def on_batch(frame, number):
        try:
            found.append((rows_of(reader.read(frame, folder / "checkpoint", number)), rows_of(frame.toArrow())))
        except BaseException as exc:
            failed.append(exc)
            done.set()
            raise
        if sum(len(ours) for ours, _ in found) >= 330 - sum(offsets.values()):
            done.set()

    frame = read.stream(engine.session(), settings, partitions, offsets, RECORDS_MAX)
    query = frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        assert done.wait(WAIT_S_MAX)
    finally:
        query.stop()
    return found, failed


@pytest.mark.sampled(3, "readers")
@pytest.mark.parametrize(
    "pieces", [pytest.param(reading.PIECE_BYTES_MAX, id="whole", marks=pytest.mark.long), pytest.param(200, id="cut")]
)
def test_every_batch_is_what_spark_itself_reads(engine, kafka, topics, tmp_path, monkeypatch, pieces):
    found, failed = both(engine, kafka, tmp_path, topics, {("reading.b", 0): 0}, pieces, monkeypatch)
    assert not failed
    assert len(found) > 3
    for ours, theirs in found:
        assert ours == theirs


@pytest.mark.sampled(3, "readers")
def test_a_range_that_is_gone_ends_the_batch_and_the_next_query_reads_on(engine, kafka, topics, tmp_path, monkeypatch):
    reader = reading.RangeReader(engine.session(), tmp_path, {"bootstrap.servers": kafka.bootstrap}, 2)
    for start, end in ((10_000, 10_001), (5, 25)):
        monkeypatch.setattr(reading, "read_to", lambda *_, end=end: {("reading.b", 0): end, ("reading.a", 0): 0})
        reader.begin({("reading.b", 0): start, ("reading.a", 0): 0})
        if end > 10_000:
            with pytest.raises(CdcError) as raised:
                reader.read(None, tmp_path, 0)
            assert raised.value.code == DATA_LOST
        else:
            offsets = reader.read(None, tmp_path, 0)["offset"].to_pylist()
            assert offsets == sorted(offsets)
            assert 5 <= offsets[0] <= offsets[-1] < 25


@pytest.mark.long
def test_without_javas_part_spark_reads(engine, kafka, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_made", {})
    monkeypatch.setattr(reading, "SOURCE", tmp_path / "none")
    (tmp_path / "none").write_text("no class")
    reader = reading.RangeReader(engine.session(), tmp_path, {"bootstrap.servers": kafka.bootstrap}, 2)
    assert not reader.own
    reader.begin({})
    frame = engine.session().createDataFrame([("t", 0, 7)], "topic string, partition int, offset long")
    assert reader.read(frame, tmp_path, 0)["offset"].to_pylist() == [7]


@pytest.mark.sampled(3, "readers")
def test_spark_shows_no_secret_of_a_catalog_or_a_plan(engine):
    session = engine.session().newSession()
    session.conf.set("spark.sql.catalog.cdc_lake.header.Authorization", "canary")
    shown = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    assert "redacted" in shown["spark.sql.catalog.cdc_lake.header.Authorization"]
    found = session.sql("SELECT id FROM range(3) WHERE concat('password=canary', id) <> 'jdbc://u:canary@h'")
    plan = str(found._jdf.queryExecution().toString())
    assert "Filter" in plan
    assert "canary" not in plan
    assert found.count() == 3
