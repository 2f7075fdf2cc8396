"""A topic that was deleted and made again under its name is not gone on with, however far it has grown meanwhile."""

from __future__ import annotations

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.connectors.sink_errors import DATA_LOST
from cdcworker.connectors.warehouses import recreated_topics as remade
from cdcworker.connectors.warehouses import table_state as manifests
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.postgres.ledger_admin import PostgresLedgerAdmin
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.schemas.errors import CdcError
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import change_streams
from tests.change_streams import NARROW
from tests.contract.warehouses import TOPIC, run

from ..spark_world import eventually, load

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


class Topic:
    """One of a real broker, with so many records."""

    def __init__(self, kafka):
        self.settings = {"bootstrap.servers": kafka.bootstrap, "log_level": 2}
        self.admin, self.brokers = AdminClient(self.settings), SinkBrokers(self.settings)

    def make(self, records):
        for future in self.admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
            future.result(30)
        # A broker may hear of a new topic later than another one.
        eventually(lambda: TOPIC in self.brokers.ids([TOPIC]), "the topic's id")
        producer = Producer(self.settings)
        for number in range(records):
            producer.produce(TOPIC, str(number).encode(), partition=0)
        assert producer.flush(30) == 0

    def delete(self):
        for future in self.admin.delete_topics([TOPIC]).values():
            future.result(30)
        eventually(lambda: not self.brokers.ids([TOPIC]), "the end of the topic")


@pytest.fixture
def topic(kafka):
    made = Topic(kafka)
    made.make(5)
    yield made
    made.delete()


LAKE = (
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(900),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
)


@pytest.fixture(params=["postgres", "parquet", pytest.param("iceberg", marks=LAKE)])
def warehouse(request, postgres, tmp_path):
    """`open(epoch)` and `alter(epoch, changes)`."""
    name = postgres.create_database()
    writers = []

    def lake():
        writer = LakeWriter(IcebergTables({"type": "hadoop", "warehouse": str(tmp_path)}), "sink")
        writer.attach(lambda: request.getfixturevalue("spark"))
        return writer

    def opened(epoch):
        made = {
            "postgres": lambda: PostgresWriter(postgres.dsn(name), "sink"),
            "parquet": lambda: ParquetWriter(LocalDisk(tmp_path), "sink"),
            "iceberg": lake,
        }
        writers.append(made[request.param]())
        writers[-1].fence((epoch, 0))
        writers[-1].claim([TOPIC])
        return writers[-1]

    def alter(epoch, changes):
        place = LedgerAccess("sink", (epoch, 0))
        if request.param == "postgres":
            PostgresLedgerAdmin(postgres.dsn(name), place).alter(changes)
        elif request.param == "parquet":
            manifests.alter(LocalDisk(tmp_path), place, changes)
        else:
            writers.append(lake())
            writers[-1].alter(place.epoch, changes)

    yield opened, alter
    for writer in writers:
        writer.close()
    postgres.drop_database(name)


def begin(writer, topic):
    """As a driver does before it reads."""
    ledger = dict(writer.ledger())
    topic.brokers.check({TOPIC: 1}, ledger)
    remade.check(writer, topic.brokers, ledger, [TOPIC])


def filled(writer, topic, before=begin):
    stream = change_streams.Stream(1)
    for number in range(3):
        stream.insert(NARROW, (number, 1, "a", "b"))
    before(writer, topic)
    run(stream, writer)


def again(topic):
    topic.delete()
    topic.make(9)


def test_the_topic_goes_on_while_it_is_the_same_and_is_refused_once_it_is_another(topic, warehouse):
    opened, alter = warehouse
    filled(opened(1), topic)
    begin(opened(2), topic)
    again(topic)
    for epoch in (3, 4):
        with pytest.raises(CdcError) as caught:
            begin(opened(epoch), topic)
        assert (caught.value.code, caught.value.where) == (DATA_LOST, {"topic": TOPIC})
    # Somebody has looked and says where to go on.
    alter(5, {(TOPIC, 0): 2})
    begin(opened(6), topic)


def test_all_offsets_may_be_forgotten_and_the_new_topic_read_from_its_beginning(topic, warehouse):
    opened, alter = warehouse
    filled(opened(1), topic)
    again(topic)
    alter(2, None)
    writer = opened(3)
    begin(writer, topic)
    assert not any(writer.ledger().values())


def test_a_ledger_from_before_takes_the_topic_that_is_there(topic, warehouse):
    opened, _ = warehouse
    filled(opened(1), topic, before=lambda writer, topic: None)
    assert opened(2).topic_ids() == {}
    writer = opened(3)
    begin(writer, topic)
    stream = change_streams.Stream(1)
    for number in range(5):
        stream.insert(NARROW, (number, 1, "a", "b"))
    run(stream, writer)
    again(topic)
    with pytest.raises(CdcError) as caught:
        begin(opened(4), topic)
    assert caught.value.code == DATA_LOST


def test_a_topic_that_nothing_was_read_of_may_be_made_again(topic, warehouse):
    opened, _ = warehouse
    begin(opened(1), topic)
    again(topic)
    begin(opened(2), topic)


@pytest.mark.long
@pytest.mark.spark
def test_a_driver_does_not_go_on_with_a_topic_that_was_made_again(world):
    topic = world.topic(NARROW)
    world.create(topic)
    load(world, 0, 20)
    world.send()
    process = world.start([topic])
    eventually(lambda: world.rows() == world.model.rows, "the first rows")
    world.stop(process)
    world.admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in world.admin.list_topics(timeout=10).topics, "the end of the topic")
    world.create(topic)
    load(world, 100, 200)
    world.send()
    rows = world.rows()
    process = world.start([topic])
    error = eventually(lambda: [line["error"] for line in world.said() if "error" in line], "a refusal")[0]
    assert (error["code"], error["where"]["topic"]) == (DATA_LOST, topic)
    process.wait(30)
    assert world.rows() == rows
