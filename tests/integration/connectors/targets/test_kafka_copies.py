"""What the sink into another Kafka writes: the same bytes in the same partitions, topics like those of the source, and who may write."""

from __future__ import annotations

import dataclasses
import time
import uuid

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetUnavailable
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.config import allowed_hosts
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.connectors.targets.kafka.config import CONFIG_DEF
from cdcworker.connectors.targets.kafka.connector import KafkaSink
from cdcworker.connectors.targets.kafka.target import KafkaTarget
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.ports import free_ports
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from tests.contract.record_targets import QUICK
from tests.integration.connectors.targets.kafka_mirror import config_to, read_all, told
from tests.record_sinks import TaskProcess, Topics, running, wait

pytestmark = pytest.mark.kafka
RECENT = int(time.time() * 1000) - 3_600_000
"""Brokers delete what is older than their retention."""


@pytest.fixture
def alias():
    return f"a{uuid.uuid4().hex[:8]}"


def same(kafka, topics, target, copy):
    """Whether the copy has all that the topic has; it never has anything else."""
    source = read_all(kafka, topics.topic)
    try:
        copies = read_all(target, copy)
    except KeyError:
        return False
    for number, messages in copies.items():
        assert list(map(told, messages)) == list(map(told, source[number][: len(messages)]))
    return {number: len(found) for number, found in copies.items()} == {
        number: len(found) for number, found in source.items()
    }


def send(topics, *records):
    """Writes (partition, key, value, headers, timestamp), in one transaction."""
    topics.producer.begin_transaction()
    for partition, key, value, headers, timestamp in records:
        topics.producer.produce(topics.topic, value, key, partition, headers=headers, timestamp=timestamp)
    topics.producer.commit_transaction(30)


def test_copies_have_the_bytes_headers_times_and_partitions_of_their_records(kafka, target, alias, tmp_path):
    topics = Topics(kafka, 2, cleanup_policy="compact,delete", retention_ms="-1", min_insync_replicas="1")
    old = 1_000_000_000_000
    send(
        topics,
        (0, b"a", b"\0\xff no JSON", [("h", b"\xff"), ("h", None), ("", b"")], old),
        (0, b"", b"", [], old + 1),
        (1, b"a", None, [("t", b"1")], old + 2),
    )
    topics.producer.begin_transaction()
    topics.producer.produce(topics.topic, b"never", b"n", 0)
    topics.producer.flush(30)
    topics.producer.abort_transaction(30)
    send(topics, (0, b"b", b"x" * 100_000, [], old - 5))
    copy = f"{alias}.{topics.topic}"
    task = TaskProcess(topics, config_to(target, alias) | QUICK, (1, 0), tmp_path)
    with running(task):
        wait(lambda: same(kafka, topics, target, copy), "all copies")
        topics.admin.create_partitions([NewPartitions(topics.topic, 4)])[topics.topic].result(30)
        wait(
            lambda: len(topics.producer.list_topics(topics.topic, 10.0).topics[topics.topic].partitions) == 4,
            "the partitions",
        )
        send(topics, (3, b"c", b"in a new partition", [], old))
        again = TaskProcess(topics, config_to(target, alias) | QUICK, (2, 0), tmp_path)
        with running(again):
            wait(lambda: same(kafka, topics, target, copy), "the copy in the new partition")
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, copy)]).values()
    assert {name: found.result(10)[name].value for name in ("cleanup.policy", "retention.ms")} == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
    }


def test_a_task_that_dies_around_a_commit_leaves_each_record_once(kafka, target, alias, tmp_path, monkeypatch):
    topics = Topics(kafka, 2)
    copy = f"{alias}.{topics.topic}"
    send(topics, *((n % 2, b"%d" % n, b"v%d" % n, [], RECENT + n) for n in range(200)))
    for epoch, place in ((1, "mirror.before_commit"), (2, "mirror.after_commit")):
        with monkeypatch.context() as patch:
            # The first transaction is the claim of the partitions.
            patch.setenv("CDC_FAILPOINTS", f"{place}=kill@3")
            task = TaskProcess(topics, config_to(target, alias) | QUICK, (epoch, 0), tmp_path)
        with running(task):
            wait(lambda task=task: task.process.poll() is not None, "its death")
        assert not same(kafka, topics, target, copy)
    again = TaskProcess(topics, config_to(target, alias) | QUICK, (3, 0), tmp_path)
    with running(again):
        wait(lambda: same(kafka, topics, target, copy), "all copies")
        again.stop()


@pytest.mark.sampled(2, "task")
def test_records_that_the_brokers_refuse_are_dead_letters_and_the_others_go_on(kafka, target, alias, tmp_path):
    topics = Topics(kafka, 1, max_message_bytes="3000000")
    copy = f"{alias}.{topics.topic}"
    large = {7, 8, 70}
    send(topics, *((0, b"%d" % n, b"x" * (300_000 if n in large else 10), [], RECENT) for n in range(100)))
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    AdminClient({"bootstrap.servers": target.bootstrap}).list_topics(timeout=10.0)
    config = config_to(target, alias, target_max_request_size="200000") | letters | QUICK
    task = TaskProcess(topics, config, (1, 0), tmp_path)
    with running(task):
        wait(lambda: task.numbers.get("dead_letters") == 3 and task.numbers.get("lag_records") == 0, "the dead letters")
        task.stop()
    assert sorted(int(letter.key()) for letter in topics.read(topics.letters)) == sorted(large)
    (found,) = read_all(target, copy).values()
    assert [int(message.key()) for message in found] == [n for n in range(100) if n not in large]


def place_of(kafka, target, alias, connector, epoch=(1, 0), writer="", **more):
    config = CONFIG_DEF.parse({"topics": "t", **config_to(target, alias, **more)})
    return TargetPlace(
        config, "kafka", connector=connector, epoch=epoch, kafka={"bootstrap.servers": kafka.bootstrap}, writer=writer
    )


@pytest.fixture
def opened(kafka, target, alias):
    made = []

    def open_target(connector="c", epoch=(1, 0), writer="", **more):
        made.append(KafkaTarget(place_of(kafka, target, alias, f"{alias}-{connector}", epoch, writer, **more)))
        return made[-1]

    yield open_target
    for each in made:
        each.close()


def records(topic, *offsets):
    from cdcworker.connectors.api.record_target import TargetRecord

    return RecordBatch([TargetRecord(f"id-0-{n}", topic, 0, n, RECENT, value=b"v%d" % n) for n in offsets])


def values(target, topic):
    (found,) = read_all(target, topic).values()
    return [message.value() for message in found]


def test_batches_that_come_again_are_not_copied_again_and_gaps_are_none(target, alias, opened):
    one = opened()
    one.write(records("t", 3, 4))
    one.write(records("t", 3, 4, 9))
    again = opened(epoch=(2, 0))
    again.write(records("t", 4, 9, 12))
    assert values(target, f"{alias}.t") == [b"v3", b"v4", b"v9", b"v12"]


@pytest.mark.parametrize("other", ["w", "another task's id"])
def test_a_former_owner_writes_nothing_whatever_id_the_newer_one_has(target, alias, opened, other):
    old, new = opened(epoch=(1, 0), writer="w"), opened(epoch=(2, 0), writer=other)
    old.write(records("t", 0))
    new.write(records("t", 0, 1))
    for _ in range(2):
        with pytest.raises(CdcError) as error:
            old.write(records("t", 1, 2))
    assert error.value.code == "sink.fenced"
    new.write(records("t", 1, 2))
    assert values(target, f"{alias}.t") == [b"v0", b"v1", b"v2"]


def test_a_former_owner_that_looked_into_the_ledger_long_ago_writes_nothing(target, alias, opened):
    old, new = opened(epoch=(1, 0), writer="w"), opened(epoch=(2, 0), writer="another task's id")
    one, other = (
        records("t", 0),
        [dataclasses.replace(each, id=f"id-1-{each.offset}", partition=1) for each in records("t", 0, 1).records],
    )
    old.write(one)
    new.write(RecordBatch(other[:1]))
    for _ in range(2):
        with pytest.raises(CdcError) as error:
            old.write(RecordBatch(other))
        assert error.value.code == "sink.fenced"
    new.write(RecordBatch(other))
    found = read_all(target, f"{alias}.t")
    assert {number: [message.value() for message in found[number]] for number in found} == {
        0: [b"v0"],
        1: [b"v0", b"v1"],
    }


def test_a_ledger_that_the_brokers_do_not_tell_of_is_waited_for(target, alias, opened, monkeypatch):
    opened(epoch=(1, 0)).write(records("t", 0, 1))
    ends, asked = SinkBrokers.ends, []

    def late(brokers, topics):
        asked.append(topics)
        return ends(brokers, topics) if len(asked) > 1 else {}

    monkeypatch.setattr(SinkBrokers, "ends", late)
    opened(epoch=(2, 0)).write(records("t", 0, 1, 2))
    assert values(target, f"{alias}.t") == [b"v0", b"v1", b"v2"]


def test_a_cut_is_tried_again_and_a_refused_record_is_refused_again(target, alias, opened):
    small = opened(target_max_request_size="1000")
    big = dataclasses.replace(records("t", 1).records[0], value=b"x" * 2000)
    small.write(records("t", 0))
    for _ in range(2):
        with pytest.raises(CdcError) as error:
            small.write(RecordBatch([big]))
        assert error.value.code == "sink.record_refused"
    small.write(records("t", 2))
    with pytest.raises(CdcError) as error:
        opened(epoch=(2, 0)).write(records("t", 1))
    assert error.value.code == "sink.record_refused", "it is known that it never came"
    small.cancel()
    assert values(target, f"{alias}.t") == [b"v0", b"v2"]


def test_what_comes_behind_records_that_the_brokers_refuse_is_written_at_once(target, alias, opened):
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    settings = {"max.message.bytes": "1000", "cleanup.policy": "compact"}
    admin.create_topics([NewTopic(f"{alias}.t", 1, 1, config=settings)])[f"{alias}.t"].result(30)
    one, good = opened(), [dataclasses.replace(each, key=b"k") for each in records("t", *range(6)).records]
    good[1] = dataclasses.replace(good[1], value=b"x" * 2000)
    good[3] = dataclasses.replace(good[3], key=None)
    with pytest.raises(CdcError) as error:
        one.write(RecordBatch(good))
    assert error.value.code == "sink.record_refused"
    for each in good:
        if each.offset in (1, 3):
            with pytest.raises(CdcError) as error:
                one.write(RecordBatch([each]))
            assert error.value.code == "sink.record_refused"
        else:
            one.write(RecordBatch([each]))
    assert values(target, f"{alias}.t") == [b"v0", b"v2", b"v4", b"v5"]


@pytest.mark.sampled(2, "task")
def test_offsets_that_are_set_back_are_copied_again(kafka, target, alias, tmp_path):
    topics = Topics(kafka, 1)
    send(topics, *((0, b"k", b"%d" % n, [], RECENT) for n in range(3)))
    config = config_to(target, alias) | QUICK
    task = TaskProcess(topics, config, (1, 0), tmp_path)
    with running(task):
        wait(lambda: task.numbers.get("lag_records") == 0 and task.numbers.get("changes") == 3, "the copies")
        task.stop()
    sink = KafkaSink({"name": topics.name, "topics": topics.topic, **config})
    access = LedgerAccess(topics.name, (2, 0), kafka={"bootstrap.servers": kafka.bootstrap})
    sink.alter_offsets(access, {(topics.topic, 0): 1})
    again = TaskProcess(topics, config, (3, 0), tmp_path)
    with running(again):
        wait(lambda: again.numbers.get("changes") == 2, "what comes again")
        again.stop()
    assert values(target, f"{alias}.{topics.topic}") == [b"0", b"1", b"2", b"1", b"2"]


def test_the_cluster_that_is_read_is_no_target(kafka, alias, target):
    with pytest.raises(CdcError) as error:
        KafkaTarget(place_of(kafka, kafka, alias, "c")).write(records("t", 0))
    assert error.value.code == "sink.same_cluster"


def test_closed_hosts_are_refused_and_clusters_that_are_away_are_waited_for(kafka, opened, target, alias):
    allowed_hosts.use(HostPolicy(loopback=False))
    try:
        with pytest.raises(CdcError) as error:
            opened().write(records("t", 0))
        assert error.value.code == "config.host_not_allowed"
    finally:
        allowed_hosts.use(HostPolicy())
    with pytest.raises(TargetUnavailable):
        opened(target_bootstrap_servers="nowhere.invalid:9092").write(records("t", 0))
    away = opened(target_bootstrap_servers=f"127.0.0.1:{free_ports(1)[0]}")
    assert [finding.severity for finding in away.check()] == ["warning"]
    assert opened().check() == []
