"""A start on a real broker: the position is found near the end, and what was aborted there does not count."""

from __future__ import annotations

import uuid

import pytest
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.coordinator.log.offset_records import OffsetRecord, offset_value
from cdcworker.worker.producers.transactional import TransactionalProducer
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from cdcworker.worker.source import start_reader as source_opening
from cdcworker.worker.source.session import _json
from cdcworker.worker.source.start_reader import StartReader
from cdcworker.worker.source.task_identity import position_key, position_partition

pytestmark = pytest.mark.kafka


@pytest.fixture
def spec(kafka):
    group = f"g{uuid.uuid4().hex[:8]}"
    names = TopicNames.of_group(group)
    properties = {"bootstrap.servers": kafka.bootstrap}
    ensure_topics(properties, internal_topics(names, offsets_partitions=2), client_id="test", replication_factor=1)
    return TaskSpec(
        kind="source",
        connector="shop",
        task=0,
        incarnation="inc",
        task_epoch=1,
        attempt=0,
        worker_id="w",
        boot_id="boot",
        paused=False,
        config={"topic.prefix": "p"},
        kafka=properties,
        group_id=group,
        topics=ClusterTopics(names.configs, names.offsets, names.status, names.schemas),
        offsets_partitions=2,
        session_timeout_s=10.0,
        state_dir="",
    )


def producer(spec: TaskSpec, name: str = "task") -> TransactionalProducer:
    return TransactionalProducer(spec.kafka, f"{spec.group_id}:{name}", client_id=name, transaction_timeout_ms=60_000)


def put(writer: TransactionalProducer, spec: TaskSpec, lsn: int) -> None:
    value = _json(offset_value(OffsetRecord("inc", 1, {"lsn": lsn})))
    writer.produce(spec.topics.offsets, position_key(spec).encode(), value, position_partition(spec))


def stored(spec: TaskSpec) -> int | None:
    reader = StartReader(spec)
    try:
        found = reader.position()
    finally:
        reader.close()
    return found.position["lsn"] if found else None


@pytest.mark.parametrize("window", [3, 1_000])
def test_the_last_committed_position_is_found_and_aborted_ones_are_not(spec, monkeypatch, window):
    """A window of three begins inside the aborted transaction: its first records are as void as the others."""
    monkeypatch.setattr(source_opening, "WINDOWS", (window,))
    assert stored(spec) is None
    first = producer(spec)
    first.begin()
    put(first, spec, 1)
    first.commit()
    first.begin()
    for lsn in range(2, 8):
        put(first, spec, lsn)
    first.flush(10)
    second = producer(spec)
    assert stored(spec) == 1
    second.begin()
    put(second, spec, 9)
    second.commit()
    assert stored(spec) == 9


def test_a_position_behind_an_open_transaction_of_somebody_else_is_waited_for(spec):
    stranger, owner = producer(spec, "stranger"), producer(spec)
    stranger.begin()
    stranger.produce(spec.topics.offsets, b"k", b"{}", position_partition(spec))
    stranger.flush(10)
    owner.begin()
    put(owner, spec, 1)
    owner.commit()
    waiting = source_opening.ahead(lambda: stored(spec), "test")
    stranger.commit()
    assert waiting.result(30) == 1


def test_the_id_of_a_task_that_died_in_a_transaction_is_taken_over_without_the_clients_pause(spec):
    """The client's own retry comes after half a second; the best of three leaves room for a busy machine."""
    taken = []
    for _ in range(3):
        dead = producer(spec)
        dead.begin()
        put(dead, spec, 1)
        dead.flush(10)
        began = source_opening.time.monotonic()
        producer(spec).close()
        taken.append(source_opening.time.monotonic() - began)
    assert min(taken) < 0.45
