"""The contract of batch sources, of a consumer in this process."""

from __future__ import annotations

import pytest
from cdcworker.connectors.sink_engine.kafka_batch_source import KafkaBatchSource
from cdcworker.coordinator.kafka.clients import reader_config

from tests.contract import batch_sources as contract
from tests.contract.batch_sources import opened, topics  # noqa: F401 - fixtures

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def stages():
    return contract.Stages()


@pytest.fixture
def source(kafka, stages):
    settings = reader_config({"bootstrap.servers": kafka.bootstrap}, client_id="batches")
    made = KafkaBatchSource(settings, stages.telemetry.progress, stages.telemetry.metrics, 0.05)
    made.start()
    yield made
    made.close()
    made.close()


class TestKafkaConsumer(contract.Contract):
    pass
