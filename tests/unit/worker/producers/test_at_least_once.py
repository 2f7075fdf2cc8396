"""At-least-once delivery over a client that fails: the position follows the acknowledged data, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.datagen.config import CONFIG_DEF as DATAGEN
from cdcworker.connectors.file.source import CONFIG_DEF as FILE
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF as POSTGRES
from cdcworker.coordinator.kafka import errors as e
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.producers import at_least_once as kafka_loose
from cdcworker.worker.producers.at_least_once import AtLeastOnceProducer, DataProducer, message_timeout_ms
from cdcworker.worker.producers.transactional import BROKEN, SPENT
from cdcworker.worker.source.session import LEASE_LAPSED
from cdcworker.worker.source.settings import SourceSettings
from confluent_kafka import KafkaError, KafkaException


class Client:
    """Stands for confluent_kafka.Producer; `left` is what `flush` says of one call after the other."""

    def __init__(self, config) -> None:
        self.config = config
        self.calls: list[str] = []
        self.sent: list[tuple] = []
        self.left: list[int] = []
        self.on_flush = self.on_purge = lambda: None

    def produce(self, *args, headers=None) -> None:
        self.sent.append(args)

    def flush(self, _timeout_s: float) -> int:
        self.calls.append("flush")
        self.on_flush()
        return self.left.pop(0) if self.left else 0

    def poll(self, _timeout_s: float) -> int:
        return 0

    def purge(self, **options) -> None:
        self.calls.append(f"purge {options}")
        self.on_purge()


class Fenced:
    """Stands for the transactional producer."""

    def __init__(self, calls: list[str]) -> None:
        self.calls, self.sent = calls, []

    def __getattr__(self, name):
        return lambda *_args: self.calls.append(name)

    def produce(self, topic, *_record) -> None:
        self.sent.append(topic)


@pytest.fixture
def stage(monkeypatch):
    made: list[Client] = []
    monkeypatch.setattr(kafka_loose, "make_producer", lambda config: made.append(Client(config)) or made[-1])
    data = DataProducer({"bootstrap.servers": "k:1"}, client_id="c", timeout_ms=1000)
    stage = SimpleNamespace(client=made[0], leased=True)

    def require() -> None:
        if not stage.leased:
            raise CdcError(LEASE_LAPSED, "lapsed")

    stage.fenced = Fenced(made[0].calls)
    stage.producer = AtLeastOnceProducer(stage.fenced, data, ("offsets", "watermark"), require)
    stage.producer.begin()
    return stage


def failed(client: Client, code: int = KafkaError.MSG_SIZE_TOO_LARGE, topic: str = "big") -> None:
    client.config["on_delivery"](KafkaError(code, "text"), SimpleNamespace(topic=lambda: topic))


def test_records_go_out_at_once_and_the_position_when_they_are_acknowledged(stage):
    stage.producer.produce("t", b"k", b"v", 0)
    stage.producer.produce("watermark", b"k", b"v", 0)
    stage.producer.produce("offsets", b"k", b"v", 3)
    assert [sent[0] for sent in stage.client.sent] == ["t"]
    assert stage.fenced.sent == []
    stage.client.left = [5, 1]
    stage.producer.commit()
    assert stage.client.calls == ["flush", "flush", "flush", "begin", "commit"]
    assert stage.fenced.sent == ["watermark", "offsets"]
    assert stage.producer.opened_at is None


def test_data_that_is_refused_keeps_the_position_back_and_is_named(stage):
    stage.producer.produce("t", b"k", b"v", 0)
    stage.producer.produce("offsets", b"k", b"v", 3)
    stage.client.on_flush = lambda: failed(stage.client)
    with pytest.raises(CdcError) as caught:
        stage.producer.commit()
    assert (caught.value.code, caught.value.where["topic"]) == (e.RECORD_TOO_LARGE, "big")
    assert stage.fenced.sent == []
    with pytest.raises(CdcError):
        stage.producer.produce("t", b"k", b"v", 0)


def test_a_failure_is_met_before_the_commit_too(stage):
    failed(stage.client, KafkaError._MSG_TIMED_OUT)
    with pytest.raises(CdcError) as caught:
        stage.producer.serve()
    assert caught.value.retriable


def test_a_gap_ends_the_producer_and_is_tried_again(stage):
    stage.client.config["error_cb"](KafkaError(KafkaError._GAPLESS_GUARANTEE, "text", True))
    with pytest.raises(CdcError) as caught:
        stage.producer.commit()
    assert caught.value.retriable
    assert stage.fenced.sent == []


@pytest.mark.parametrize("call", ["serve", "commit"])
def test_a_client_that_breaks_is_named_and_spent(stage, call):
    def broken(*_args) -> None:
        raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "text", True))

    stage.client.poll = stage.client.flush = broken
    for code in (BROKEN, SPENT):
        with pytest.raises(CdcError) as caught:
            getattr(stage.producer, call)()
        assert caught.value.code == code
    assert stage.fenced.sent == []


def test_acknowledgements_that_do_not_come_keep_the_position_back(stage, monkeypatch):
    monkeypatch.setattr(kafka_loose, "FLUSH_STEP_S", -2.0)
    stage.producer.produce("offsets", b"k", b"v", 3)
    stage.client.left = [7]
    with pytest.raises(CdcError) as caught:
        stage.producer.commit()
    assert caught.value.code == e.TIMEOUT
    assert stage.fenced.sent == []


def test_nothing_is_queued_without_a_lease(stage):
    stage.leased = False
    for send in (
        lambda: stage.producer.produce("t", b"k", b"v", 0),
        lambda: stage.producer.produce_all([("t", b"v", b"k", 0)]),
    ):
        with pytest.raises(CdcError) as caught:
            send()
        assert caught.value.code == "source.lease_lapsed"
    assert stage.client.sent == []


def test_what_is_on_its_way_at_an_end_gets_there_before_it_is_sent_again(stage):
    stage.producer.abort()
    assert stage.client.calls == ["purge {'in_queue': True, 'in_flight': False}", "flush", "abort"]
    assert stage.producer.opened_at is None


def test_a_client_that_turns_fatal_over_the_gap_at_an_end_is_ended_all_the_same(stage):
    def fatal() -> None:
        raise SystemError("a result with an exception set")

    stage.client.on_flush = fatal
    stage.client.on_purge = fatal
    stage.producer.abort()
    stage.producer.close()
    assert [call.split()[0] for call in stage.client.calls] == ["purge", "flush", "abort", "purge", "close"]


def test_the_client_keeps_the_order_and_waits_no_longer_than_the_lease(stage):
    config = stage.client.config
    assert config["enable.idempotence"] is True
    assert config["enable.gapless.guarantee"] is True
    assert config["delivery.timeout.ms"] == 1000
    assert "transactional.id" not in config
    assert [message_timeout_ms(seconds) for seconds in (1, 10, 600)] == [1000, 4000, 30_000]


def test_the_config_says_how_and_a_demand_that_it_cannot_meet_is_refused():
    assert SourceSettings.from_config({}).delivery == "exactly-once"
    assert SourceSettings.from_config({"delivery": "at-least-once"}).delivery == "at-least-once"
    for definition, config in (
        (POSTGRES, {"database.hostname": "d", "database.user": "u", "database.dbname": "n", "topic.prefix": "p"}),
        (FILE, {"file": "/a", "topic": "t"}),
        (DATAGEN, {"topic.prefix": "p"}),
    ):
        for support, delivery, wrong in (
            ("required", "exactly-once", []),
            ("REQUESTED", "at-least-once", []),
            ("required", "at-least-once", ["exactly.once.support"]),
            ("perhaps", "exactly-once", ["exactly.once.support"]),
        ):
            asked = {**config, "exactly.once.support": support, "delivery": delivery}
            assert [value.name for value in definition.validate(asked) if value.errors] == wrong
