"""Headers that name the writer of a record."""

from __future__ import annotations

import inspect

import pytest
from cdcworker.worker.source import context_headers as source_headers
from cdcworker.worker.source.context_headers import HeaderProducer, context_headers, headers_bytes
from cdcworker.worker.source.session import RecordProducer
from cdcworker.worker.source.settings import SourceSettings

MINE = (("__debezium.context.connectorLogicalName", b"shop"), ("__debezium.context.taskId", b"3"))
OWN = ("cdc.own", b"x")


class RecordedProducer:
    """A producer that keeps what it was given."""

    opened_at = 1.0

    def __init__(self) -> None:
        self.records: list[tuple] = []
        self.calls: list[str] = []

    def __getattr__(self, name):
        return lambda *_: self.calls.append(name)

    def produce(self, *record) -> None:
        self.records.append(record)

    def produce_all(self, records) -> None:
        self.records += records


@pytest.fixture
def recorded() -> RecordedProducer:
    return RecordedProducer()


@pytest.fixture
def producer(recorded) -> HeaderProducer:
    return HeaderProducer(recorded, MINE, ("p.watermark",))


def test_debezium_names_prefix_task_and_connector_in_this_order():
    assert context_headers("shop", 3, "postgresql") == (
        *MINE,
        ("__debezium.context.connectorName", b"postgresql"),
    )


@pytest.mark.parametrize("name", ["postgres", "io.debezium.connector.postgresql.PostgresConnector"])
def test_they_are_written_where_the_config_asks_for_them(name):
    config = {"connector.class": name, "topic.prefix": "shop"}
    assert SourceSettings.from_config(config).headers(0) == ()
    asked = SourceSettings.from_config(config | {"extended.headers.enabled": "true"}).headers(3)
    assert asked == context_headers("shop", 3, "postgresql")


def test_records_have_them_behind_their_own(producer, recorded):
    producer.produce("t", b"k", b"v", 0)
    producer.produce("t", b"k", b"v", 0, [OWN])
    assert [record[4] for record in recorded.records] == [list(MINE), [OWN, *MINE]]


def test_records_that_are_ready_have_them_too(producer, recorded):
    own = [OWN]
    producer.produce_all([("t", b"v", b"k", 0), ("t", b"v", b"k", 0, None, None, 0, own)])
    bare = ("t", b"v", b"k", 0, None, None, 0)
    assert recorded.records == [(*bare, list(MINE)), (*bare, [OWN, *MINE])]
    assert own == [OWN]


def test_positions_and_watermarks_do_not(producer, recorded):
    producer.produce("p.watermark", b"k", b"v", 0)
    assert recorded.records == [("p.watermark", b"k", b"v", 0, None)]


def test_everything_else_is_the_producers_own(producer, recorded):
    others = [
        name
        for name, _ in inspect.getmembers(RecordProducer, inspect.isfunction)
        if not name.startswith(("_", "produce"))
    ]
    for name in others:
        getattr(producer, name)(*([1.0] if name == "flush" else []))
    assert recorded.calls == others
    assert producer.opened_at == 1.0


def test_their_size_counts_for_what_a_topic_takes():
    assert headers_bytes(()) == 0
    assert headers_bytes(MINE) > sum(len(name) + len(value) for name, value in MINE)
    assert source_headers.headers_bytes((("ä", b""),)) == 12
