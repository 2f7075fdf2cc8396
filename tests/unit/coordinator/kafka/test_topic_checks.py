"""Internal topics as somebody may have made them, and who else is in the group."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.errors import OTHER_CLUSTER
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.internal_topics import TopicNames, internal_topics
from cdcworker.coordinator.kafka.leadership import check_group_members, flagged_client_id
from cdcworker.coordinator.kafka.topic_checks import FoundTopic, check_in_sync, check_partitions, check_policy, warnings
from cdcworker.schemas.errors import CdcError

FLAG, OTHER = "0123456789ab", "ba9876543210"


def found(name="t", partitions=1, replicas=3, **config):
    return FoundTopic(name, partitions, replicas, {key.replace("_", "."): value for key, value in config.items()})


def refused(check, *arguments):
    with pytest.raises(CdcError) as caught:
        check(*arguments)
    assert caught.value.code == e.TOPIC_MISCONFIGURED
    assert caught.value.where == {"topic": "t"}
    return caught.value


def test_another_number_of_partitions_is_refused_with_the_property_that_names_the_topic():
    assert "config.storage.topic" in refused(check_partitions, found(partitions=2), 1, "config.storage.topic").hint
    check_partitions(found(), 1, "config.storage.topic")


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_forgets_by_age_is_refused_with_the_command_that_helps(policy):
    error = refused(check_policy, found(cleanup_policy=policy), "kafka:9092")
    assert error.hint == (
        "Run: kafka-configs --bootstrap-server kafka:9092 --alter --entity-type topics --entity-name t"
        " --add-config cleanup.policy=compact"
    )
    check_policy(found(cleanup_policy="compact"), "kafka:9092")
    check_policy(FoundTopic("t", 1, 1, None), "kafka:9092")


def test_more_replicas_in_sync_than_there_are_is_refused():
    error = refused(check_in_sync, found(replicas=1, min_insync_replicas="2"), "kafka:9092")
    assert "--add-config min.insync.replicas=1" in error.hint
    check_in_sync(found(replicas=3, min_insync_replicas="3"), "kafka:9092")
    check_in_sync(found(replicas=3), "kafka:9092")


def test_what_would_cost_data_on_a_bad_day_is_said():
    topics = [found("a", replicas=3, min_insync_replicas="1"), found("b", replicas=1, delete_retention_ms="1000")]
    said = "\n".join(warnings(topics, 3, {"b": 86_400_000}))
    for text in (
        "a=3 b=1",
        "1 replicas on 3 brokers",
        "min.insync.replicas is 1 topic=a",
        "delete.retention.ms is 1000",
    ):
        assert text in said
    good = [found("a", min_insync_replicas="2", delete_retention_ms="86400000")]
    assert warnings(good, 3, {"a": 86_400_000}) == []
    assert warnings([found("a", replicas=1, min_insync_replicas="1")], 1, {}) == []


def test_two_internal_topics_of_one_name_are_refused():
    names = TopicNames.of_group("g", {"status.storage.topic": "g.configs"})
    with pytest.raises(CdcError, match=r"config.storage.topic and status.storage.topic") as caught:
        internal_topics(names)
    assert caught.value.code == e.TOPIC_MISCONFIGURED


def test_a_start_reads_no_more_than_minutes_of_leases_and_positions():
    specs = {spec.key: spec.config for spec in internal_topics(TopicNames.of_group("g"))}
    for key in ("status.storage.topic", "offset.storage.topic"):
        assert int(specs[key]["segment.ms"]) <= 600_000
        assert int(specs[key]["segment.bytes"]) <= 4 << 20
        assert int(specs[key]["max.compaction.lag.ms"]) <= 1_800_000
    assert int(specs["offset.storage.topic"]["delete.retention.ms"]) <= 600_000
    # Half of this is how long a worker may be away before it reads the log again from its start.
    for key in ("status.storage.topic", "config.storage.topic"):
        assert int(specs[key]["delete.retention.ms"]) >= 86_400_000


# --- the group ------------------------------------------------------------------------------------------------------


def test_workers_of_the_same_cluster_and_of_older_versions_are_welcome():
    check_group_members([flagged_client_id("cdcworker-w1", FLAG), "cdcworker-w2"], "g", FLAG)
    check_group_members([], "g", FLAG)


@pytest.mark.parametrize(
    ("name", "words"),
    [(flagged_client_id("cdcworker-w9", OTHER), "worker w9"), ("console-consumer", "client 'console-consumer'")],
)
def test_whoever_else_uses_the_group_id_is_named(name, words):
    with pytest.raises(CdcError, match=words) as caught:
        check_group_members([flagged_client_id("cdcworker-w1", FLAG), name], "g", FLAG)
    assert caught.value.code == OTHER_CLUSTER
    assert caught.value.where == {"group.id": "g"}
