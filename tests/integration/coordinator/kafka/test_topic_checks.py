"""What keeps a worker from starting, on a real broker: topics made otherwise, and clusters that share a group id."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.errors import OTHER_CLUSTER
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import make_admin, make_consumer, member_config
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.coordinator.kafka.leadership import members
from cdcworker.coordinator.log.leader_claim import CLUSTER
from cdcworker.schemas.errors import CdcError
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.contract import backends as contract
from tests.contract.backends import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


@pytest.fixture
def rig(kafka):
    with contract.opened(contract.KafkaRig(kafka)) as opened:
        yield opened


@pytest.fixture
def topics(rig):
    """The group's topics, made as they must be, and a way to change their settings."""
    properties = {"bootstrap.servers": rig.bootstrap}
    names = TopicNames.of_group(rig.group)
    specs = internal_topics(names, offsets_partitions=3)
    ensure_topics(properties, specs, client_id="test")

    admin = make_admin(properties, client_id="test")

    def alter(topic, name, value):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for answer in admin.incremental_alter_configs([resource]).values():
            answer.result(60)

    def check():
        try:
            ensure_topics(properties, specs, client_id="test")
        except CdcError as error:
            return error
        return None

    return names, alter, check


def others(rig, **names):
    return TopicNames.of_group(
        rig.group, {f"{key}.storage.topic": f"{rig.group}.{name}" for key, name in names.items()}
    )


def refused(rig, **more):
    with pytest.raises(CdcError) as caught:
        rig.herder("late", **more)
    assert caught.value.code == OTHER_CLUSTER
    return caught.value


# --- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["configs", "offsets", "status", "schemas"])
def test_a_topic_that_forgets_by_age_is_refused_with_its_name_and_the_command_that_helps(rig, topics, kind):
    names, alter, check = topics
    topic = getattr(names, kind)
    alter(topic, "cleanup.policy", "delete")
    error = eventually(check, what="the refusal")
    assert (error.code, error.where) == (e.TOPIC_MISCONFIGURED, {"topic": topic})
    assert f"--bootstrap-server {rig.bootstrap} " in error.hint
    assert f"--entity-name {topic} --add-config cleanup.policy=compact" in error.hint
    alter(topic, "cleanup.policy", "compact")
    eventually(lambda: check() is None, what="the topic as it must be")


def test_a_topic_that_wants_more_replicas_in_sync_than_it_has_is_refused(topics):
    names, alter, check = topics
    alter(names.offsets, "min.insync.replicas", "2")
    error = eventually(check, what="the refusal")
    assert (error.code, error.where) == (e.TOPIC_MISCONFIGURED, {"topic": names.offsets})
    assert "2 and the topic has 1 replicas" in str(error)


def test_deletions_that_are_forgotten_too_soon_are_warned_of(topics, caplog):
    names, alter, check = topics
    alter(names.configs, "delete.retention.ms", "1000")
    eventually(lambda: check() is None and "delete.retention.ms is 1000" in caplog.text, what="the warning")


# --- clusters -------------------------------------------------------------------------------------------------------


def test_the_later_of_two_clusters_with_one_group_id_and_other_topics_does_not_start(rig):
    first = rig.herder("early")
    contract.leader_of(first)
    error = refused(rig, topics=others(rig, config="c2", offset="o2", status="s2", schema="m2"))
    assert "worker early" in str(error)
    assert error.where == {"group.id": rig.group}
    rig.herder("same")


def test_a_cluster_that_elects_by_a_lock_keeps_others_out_of_its_group_too(rig, zookeeper):
    lock = {"backend": "zookeeper", "zookeeper_connect": zookeeper.connect}
    first = rig.herder("early", **lock)
    contract.leader_of(first)
    admin = make_admin({"bootstrap.servers": rig.bootstrap}, client_id="looks")
    # It leads by its lock, and comes into Kafka's group besides.
    eventually(lambda: members(admin, rig.group, 10.0), what="a member of the group")
    aside = others(rig, config="c2", offset="o2", status="s2", schema="m2")
    assert "worker early" in str(refused(rig, topics=aside))
    assert "worker early" in str(refused(rig, topics=aside, **lock))
    rig.herder("same", **lock)


def test_a_group_id_that_a_consumer_uses_is_refused_with_the_consumers_name(rig, topics):
    names, _, _ = topics
    properties = {"bootstrap.servers": rig.bootstrap}
    config = member_config(properties, client_id="reporting", group_id=rig.group, session_timeout_s=6.0)
    with contextlib.closing(make_consumer(config)) as consumer:
        consumer.subscribe([names.schemas])
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1], what="the stranger in the group")
        assert "client 'reporting'" in str(refused(rig))
    rig.herder("now")


def test_topics_that_were_copied_to_another_kafka_are_refused_until_the_move_is_meant(rig, topics):
    backend = rig.opened("reader")
    elsewhere = {**asdict(replace(backend.identity, kafka="elsewhere")), "topics": list(backend.identity.topics)}
    with contextlib.closing(backend.configs()) as log:
        log.append([LogRecord(CLUSTER, elsewhere, {"e": "3"})], 10)
    error = refused(rig)
    assert "kafka is" in str(error)
    assert "elsewhere there" in str(error)
    accept = error.hint.partition("coordination.accept=")[2].rstrip(".")
    moved = rig.herder("moved", accepted_identity=accept)
    contract.leader_of(moved)
    eventually(lambda: moved.view().state.settings[CLUSTER]["kafka"] == backend.cluster_id, what="the new identity")
    rig.herder("next")
