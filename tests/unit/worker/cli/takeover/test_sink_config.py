"""Configs of Kafka Connect's sinks: what comes from the worker, and what is in the way."""

from __future__ import annotations

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.takeover.former_connector import of_topics
from cdcworker.worker.cli.takeover.sink_config import taken_sink

JSON = "org.apache.kafka.connect.json.JsonConverter"
SINK = {
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "topics": "shop.orders",
    "connection.password": "p",
}


def effects(found):
    return [(one.key, one.effect) for one in found.findings]


def test_a_sink_has_the_converters_of_its_worker_and_no_group_of_its_own():
    worker = {"value.converter": JSON, "value.converter.schemas.enable": "false", "group.id": "connect"}
    found = taken_sink({**SINK, "consumer.override.group.id": "mine"}, "ours", worker)
    assert found.config == {**SINK, "name": "ours", "value.converter": JSON, "value.converter.schemas.enable": "false"}
    assert not found.refused
    assert ("consumer.override.group.id", "set") in effects(found)
    assert "'p'" not in repr(found)


@pytest.mark.parametrize(
    ("config", "key"),
    [(SINK, "value.converter"), ({"connector.class": "x", "value.converter": JSON, "topics": ""}, "topics")],
)
def test_what_is_in_the_way(config, key):
    assert [one.key for one in taken_sink(config, "ours", {}).refused] == [key]


def test_a_sink_that_never_ran_has_no_offsets():
    item = {"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": 1}}
    assert of_topics([{**item, "offset": None}, item]) == [item]
    with pytest.raises(CdcError, match="connect_offsets_missing"):
        of_topics([{**item, "offset": None}])
