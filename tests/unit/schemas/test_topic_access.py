"""The rule for connectors' topics: what is a cluster's own, what looks so and is a table's, and what a grant covers."""

from __future__ import annotations

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topic_access import NOT_GRANTED, OWN_TOPIC, TopicAccess, is_of_cluster, relatives

PARTS = ("configs", "offsets", "status", "schemas", "coordination")
OWN = TopicAccess(frozenset({"cdc.configs", "cdc.audit"}))


@pytest.mark.parametrize("topic", ["cdc.configs", "cdc.audit", "__consumer_offsets", "__", "__debezium-heartbeat"])
def test_own_topics_are_neither_read_nor_written(topic):
    assert not OWN.may_read(topic)
    assert not OWN.may_write(topic)


@pytest.mark.parametrize(
    "topic", ["shop.public.orders", "cdc.status", "configs", "cdc_configs", "__debezium-heartbeat.shop"]
)
def test_other_topics_are_read_and_written(topic):
    assert OWN.may_read(topic)
    assert OWN.may_write(topic)


@pytest.mark.parametrize("separator", [".", "-", "_"])
@pytest.mark.parametrize("group", ["connect", "connect-cluster", "my_connect"])
def test_the_topics_of_kafka_connect_are_known_by_each_other(group, separator):
    there = {f"{group}{separator}{part}" for part in PARTS[:3]}
    for topic in there:
        assert relatives(topic) >= there - {topic}
        assert not TopicAccess().may_read(topic, there)
        assert not TopicAccess().may_write(topic, there)
        assert TopicAccess().may_read(topic, {topic, *sorted(there - {topic})[:1]})
        assert TopicAccess(open=(f"{group}{separator}*",)).may_read(topic, there)


@pytest.mark.parametrize("topic", ["other.audit", "other-audit", "other_audit", "a.b.audit"])
def test_the_audit_topic_of_another_cluster_is_known_by_the_others(topic):
    there = {topic, *(f"{topic[:-6]}.{part}" for part in PARTS)}
    assert relatives(topic) == there - {topic}
    for missing in sorted(there - {topic}):
        assert not TopicAccess().may_read(topic, there - {missing})
    assert TopicAccess().may_read(topic, sorted(there - {topic})[:3])


def test_tables_with_underscores_in_their_names_are_tables():
    tables = {f"shop.public.app_{part}" for part in PARTS[:3]}
    assert all(TopicAccess().may_read(topic, tables) for topic in tables)


@pytest.mark.parametrize("separator", [".", "-"])
def test_the_topics_of_another_cluster_are_known_by_each_other(separator):
    parts = PARTS if separator == "." else PARTS[:3]
    there = {f"other{separator}{part}" for part in parts}
    for topic in there:
        assert relatives(topic) == there - {topic}
        assert not TopicAccess().may_read(topic, there)
        assert not TopicAccess().may_write(topic, there)


def test_a_cluster_is_known_also_without_one_of_its_topics_that_has_another_name():
    for missing in PARTS:
        there = {f"other.{part}" for part in PARTS if part != missing}
        assert all(is_of_cluster(topic, there) for topic in there)


def test_tables_with_such_names_are_tables_until_four_of_one_schema_have_them():
    tables = {f"shop.public.{part}" for part in ("configs", "offsets", "status")}
    assert all(TopicAccess().may_read(topic, tables) for topic in tables)
    assert TopicAccess().may_write("shop.public.status", {"shop.public.configs", "shop.private.offsets"})


def test_the_operator_opens_tables_that_look_like_a_cluster_and_never_own_topics():
    there = {f"shop.public.{part}" for part in PARTS}
    assert not TopicAccess().may_write("shop.public.status", there)
    assert TopicAccess(open=("shop.public.*",)).may_write("shop.public.status", there)
    assert not TopicAccess(frozenset({"cdc.configs"}), open=("cdc.*",)).may_read("cdc.configs")


def test_the_operator_closes_topics_by_name_and_by_beginning():
    access = TopicAccess(closed=("audit", "billing.*"))
    assert not access.may_read("audit")
    assert not access.may_write("billing.public.invoices")
    assert access.may_read("audits")
    assert access.may_read("billing")


def test_a_bound_covers_topics_that_begin_with_one_of_its_prefixes():
    access = TopicAccess(prefixes=("shop-", "ref."))
    for topic in ("shop-a.public.t", "ref.rates", "__debezium-heartbeat.shop-a"):
        assert access.may_read(topic)
        assert access.may_write(topic)
    for topic in ("shop.public.t", "Shop-a", "billing-shop-", "__debezium-heartbeat.billing", "ref"):
        assert not access.may_read(topic)
        assert not access.may_write(topic)


def test_a_pattern_chooses_among_readable_topics_that_are_not_internal():
    there = ["a", "cdc.configs", "__x", "__debezium-heartbeat.a", *(f"other.{part}" for part in PARTS)]
    assert OWN.readable(there) == {"a"}


def test_a_refusal_names_the_topic_and_why():
    with pytest.raises(CdcError) as own:
        OWN.check_read(["a", "cdc.configs"], frozenset)
    assert (own.value.code, own.value.where) == (OWN_TOPIC, {"topic": "cdc.configs"})
    with pytest.raises(CdcError) as foreign:
        OWN.bounded(("shop-",)).check_write(["billing"], frozenset)
    assert (foreign.value.code, foreign.value.where) == (NOT_GRANTED, {"topic": "billing"})
    assert "shop-" in foreign.value.message


def test_only_names_that_may_be_a_clusters_are_looked_up():
    asked = []
    TopicAccess().check_write(["shop.public.orders"], lambda names: asked.append(names) or names)
    assert not asked
    with pytest.raises(CdcError):
        TopicAccess().check_write(["other.status"], lambda names: asked.append(names) or names)
    assert asked == [relatives("other.status")]
