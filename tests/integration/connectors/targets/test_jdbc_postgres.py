"""The sink into PostgreSQL, with a real Kafka: the suite of all targets of records."""

from __future__ import annotations

import pytest
from cdcworker.connectors.targets.jdbc.ledger import Partition
from cdcworker.connectors.transforms.data import struct
from cdcworker.schemas.errors import CdcError

from tests.contract.databases_of_records import *  # noqa: F403 - what databases have to do besides
from tests.contract.databases_of_records import LONG, TEXT, opened, record, write
from tests.contract.letters.of_records import *  # noqa: F403 - the suite of their dead letters
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


def test_names_that_the_server_cuts_off_are_refused(receiver):
    for number, name in enumerate(("x" * 64, "\u00fc" * 32)):
        target = opened(receiver, collection__name__format=name)
        with pytest.raises(CdcError) as caught:
            write(target, record(0, {"id": number, "a": "x"}))
        assert caught.value.code == "sink.table_unfit"
        target.close()
    target = opened(receiver)
    schema = struct(("id", LONG), ("x" * 64, TEXT))
    with pytest.raises(CdcError) as caught:
        write(target, record(0, {"id": 1, "x" * 64: "x"}, schema))
    assert caught.value.code == "sink.table_unfit"
    assert receiver.rows() == []
    target.close()
