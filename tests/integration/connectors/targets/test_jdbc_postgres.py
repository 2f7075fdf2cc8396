"""The sink into PostgreSQL, with a real Kafka: the suite of all targets of records."""

from __future__ import annotations

import pytest
from cdcworker.connectors.targets.jdbc.ledger import Partition
from cdcworker.schemas.errors import CdcError

from tests.contract.databases_of_records import *  # noqa: F403 - what databases have to do besides
from tests.contract.databases_of_records import opened, record, write
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.integration.connectors.targets.jdbc_receivers import PostgresReceiver

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture
def receiver(postgres):
    made = PostgresReceiver(postgres)
    yield made
    made.close()


def test_a_process_that_stops_within_a_transaction_keeps_nobody_waiting(receiver):
    old, new = opened(receiver), opened(receiver, (2, 0))
    write(old, record(0, {"id": 1, "a": "x"}))
    connection = old._database.connection
    connection.execute("begin")
    old._ledger.lock(connection, [Partition("topic", 0)])
    # Nobody goes on with that transaction: the other one waits until the server ends it.
    write(new, record(1, {"id": 1, "a": "y"}))
    codes = []
    for _ in range(2):
        with pytest.raises(CdcError) as caught:
            write(old, record(2, {"id": 1, "a": "z"}))
        codes.append(caught.value.code)
    assert codes == ["sink.target_unavailable", "sink.fenced"]
    assert receiver.rows() == [{"id": 1, "a": "y"}]
    for target in (old, new):
        target.close()
