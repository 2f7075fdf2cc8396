"""The sink into MariaDB, with a real Kafka: the suite of all targets of records."""

from __future__ import annotations

import pytest

from tests.contract.databases_of_records import *  # noqa: F403 - what databases have to do besides
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.integration.connectors.targets.jdbc_receivers import MariaDbReceiver

pytestmark = [pytest.mark.kafka, pytest.mark.mysql]


@pytest.fixture
def receiver(mysql):
    made = MariaDbReceiver(mysql)
    yield made
    made.close()
