"""The sink into MariaDB, with a real Kafka: the suite of all targets of records."""

from __future__ import annotations

import pytest
from cdcworker.connectors.transforms.data import ConnectSchema, struct
from cdcworker.schemas.errors import CdcError

from tests.contract.databases_of_records import *  # noqa: F403 - what databases have to do besides
from tests.contract.databases_of_records import opened, record, write
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.integration.connectors.targets.jdbc_receivers import MariaDbReceiver

pytestmark = [pytest.mark.kafka, pytest.mark.mysql]


@pytest.fixture
def receiver(mysql):
    made = MariaDbReceiver(mysql)
    yield made
    made.close()


@pytest.mark.parametrize("more", ["a varchar(50)) engine = MyISAM", "a varchar(50), late int not null)"])
def test_a_table_that_would_keep_half_a_batch_or_no_row_at_all_is_refused(receiver, more):
    receiver.do(f"create table orders (id bigint primary key, {more}")
    target = opened(receiver)
    with pytest.raises(CdcError) as caught:
        write(target, record(0, {"id": 1, "a": "x"}))
    assert caught.value.code == "sink.table_unfit"
    target.close()


def test_a_key_that_takes_two_texts_for_one_is_refused(receiver):
    receiver.do(
        "create table orders (id bigint, a varchar(255) character set utf8mb4 collate utf8mb4_general_ci primary key)"
    )
    target = opened(receiver, primary__key__mode="record_value", primary__key__fields="a", delete__enabled="false")
    with pytest.raises(CdcError, match="takes different texts for one") as caught:
        write(target, record(0, {"id": 1, "a": "x"}))
    assert caught.value.code == "sink.table_unfit"
    target.close()


def test_a_row_that_is_longer_than_a_packet_is_refused(receiver):
    ((before,),) = receiver.ask("select @@global.max_allowed_packet")
    receiver.do("set global max_allowed_packet = 1048576")
    try:
        target = opened(receiver)
        schema = struct(("id", ConnectSchema("int64")), ("a", ConnectSchema("bytes")))
        with pytest.raises(CdcError) as caught:
            write(target, record(0, {"id": 1, "a": bytes(700_000)}, schema))
        assert caught.value.code == "sink.record_refused"
        write(target, record(1, {"id": 1, "a": bytes(500_000)}, schema))
        assert len(receiver.rows()) == 1
        target.close()
    finally:
        receiver.do(f"set global max_allowed_packet = {before}")
