"""The sink into PostgreSQL, with a real Kafka: the suite of all targets of records."""

from __future__ import annotations

import pytest

from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.integration.connectors.targets.jdbc_receivers import PostgresReceiver

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture
def receiver(postgres):
    made = PostgresReceiver(postgres)
    yield made
    made.close()
