"""The topic of alerts in a real Kafka, opened again by the worker that has written to it."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace

import pytest
from cdcworker.worker.alerts.alert_topic import AlertTopic, incident_records
from cdcworker.worker.alerts.conditions import Condition
from cdcworker.worker.alerts.incidents import Incident

pytestmark = pytest.mark.kafka
EPOCH = 5
FAILED = Condition("shop", "failed", "critical", "1 of 1 task FAILED")
OPENED = Incident("0a1b", FAILED, 1_700_000_000_000)


@pytest.fixture
def opened(kafka):
    """`opened()`: the topic, read to its end."""
    with contextlib.ExitStack() as open_topics:
        name = f"a{uuid.uuid4().hex[:8]}.alerts"

        def begin():
            topic = AlertTopic({"bootstrap.servers": kafka.bootstrap}, name, "test", 1)
            open_topics.callback(topic.close)
            topic.read_to_end()
            return topic

        yield begin


def test_a_leader_that_opens_the_topic_again_goes_on_where_it_was(opened):
    first = opened()
    for stage in ("wanted", "opened"):
        first.write(incident_records([OPENED.tell("ops", stage)]), EPOCH)
    again = opened()
    assert again.fold.incidents["0a1b"].told == {"ops": "opened"}
    over = replace(OPENED, resolved_ms=1_700_000_060_000).tell("ops", "resolved")
    again.write(incident_records([over]), EPOCH)
    assert again.fold.incidents == {"0a1b": over}
    assert opened().fold.incidents == {"0a1b": over}
