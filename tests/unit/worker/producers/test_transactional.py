"""The task's transactional producer over a client that fails."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.producers import transactional as kafka_tx
from cdcworker.worker.producers.client_watchdog import GRACE_S, ClientWatchdog
from cdcworker.worker.producers.transactional import TransactionalProducer
from confluent_kafka import KafkaError, KafkaException


class Client:
    """Stands for confluent_kafka.Producer: raises what is planned for a call."""

    def __init__(self, config) -> None:
        self.config = config
        self.calls: list[str] = []
        self.plan: dict[str, list[Exception]] = {}
        self.sent: list[tuple] = []
        self.queued = 1

    def __len__(self) -> int:
        return self.queued

    def _call(self, name: str) -> None:
        self.calls.append(name)
        planned = self.plan.get(name)
        if planned:
            raise planned.pop(0)

    def produce(self, *args, headers=None) -> None:
        self._call("produce")
        self.sent.append((*args, headers))

    def __getattr__(self, name):
        return lambda *args: self._call(name)


@pytest.fixture
def client(monkeypatch):
    made: list[Client] = []

    def make(config):
        made.append(Client(config))
        return made[-1]

    monkeypatch.setattr(kafka_tx, "make_producer", make)
    return made


def open_producer(**more) -> TransactionalProducer:
    properties = {"bootstrap.servers": "k:1", **more}
    return TransactionalProducer(properties, "g:c:0", client_id="c", transaction_timeout_ms=60_000)


def kafka_error(code: int, *, fatal: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "text", fatal))


def test_it_is_initialised_when_it_is_made_and_has_no_callbacks(client):
    open_producer()
    assert client[0].calls == ["init_transactions"]
    assert client[0].config["transactional.id"] == "g:c:0"
    assert client[0].config["transaction.timeout.ms"] == 60_000
    assert not [name for name in client[0].config if name.endswith("_cb")]


def test_what_the_operator_set_counts_under_whichever_of_its_names(client):
    open_producer(**{"producer.queue.buffering.max.ms": "9"})
    open_producer()
    assert [made.config["linger.ms"] for made in client] == ["9", kafka_tx.LINGER_MS]


def planned(monkeypatch, *outcomes: Exception | None) -> list[Client]:
    """Clients whose `init_transactions` fails as planned, over all of them."""
    made: list[Client] = []
    left = [outcome for outcome in outcomes if outcome is not None]

    def make(config):
        made.append(Client(config))
        made[-1].plan["init_transactions"] = left
        return made[-1]

    monkeypatch.setattr(kafka_tx, "make_producer", make)
    return made


def test_over_an_open_transaction_a_new_client_asks_at_once(monkeypatch):
    made = planned(monkeypatch, *[kafka_error(KafkaError.CONCURRENT_TRANSACTIONS)] * 2)
    open_producer()
    assert [client.calls for client in made] == [["init_transactions"]] * 3


def test_a_slow_answer_is_waited_for_by_the_same_client(monkeypatch):
    """A second client would fence the first when its request arrives late."""
    made = planned(monkeypatch, *[kafka_error(KafkaError._TIMED_OUT)] * 3)
    open_producer()
    assert [client.calls for client in made] == [["init_transactions"] * 4]


def test_a_refused_id_is_not_asked_for_again(monkeypatch):
    made = planned(monkeypatch, kafka_error(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    with pytest.raises(CdcError):
        open_producer()
    assert len(made) == 1


def test_an_id_that_stays_busy_is_given_up_in_time(monkeypatch):
    planned(monkeypatch, *[kafka_error(KafkaError.CONCURRENT_TRANSACTIONS)] * 3)
    monkeypatch.setattr(kafka_tx, "INIT_TIMEOUT_S", 0.0)
    with pytest.raises(CdcError) as caught:
        open_producer()
    assert caught.value.retriable


def test_records_carry_an_explicit_partition(client):
    producer = open_producer()
    producer.begin()
    producer.produce("t", b"k", b"v", 2, [("h", b"x")])
    producer.commit()
    assert client[0].sent == [("t", b"v", b"k", 2, [("h", b"x")])]
    assert producer.opened_at is None


def test_many_records_are_produced_each_once_whatever_the_queue_does(client):
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [BufferError(), BufferError()]
    records = [("t", b"v%d" % n, b"k", n) for n in range(5)]
    producer.produce_all(records)
    assert [sent[:4] for sent in client[0].sent] == records
    # Twice for room in the queue, and once at the end.
    assert client[0].calls.count("poll") == 3


def test_many_records_end_at_the_first_that_fails(client):
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [kafka_error(KafkaError.MSG_SIZE_TOO_LARGE)]
    with pytest.raises(CdcError) as caught:
        producer.produce_all([("t", b"v", b"k", 0)] * 3)
    assert (caught.value.code, caught.value.where) == (e.RECORD_TOO_LARGE, {"topic": "t"})
    assert client[0].sent == []


@pytest.mark.parametrize(
    ("code", "fatal", "expected"),
    [
        (KafkaError._TIMED_OUT, False, e.TIMEOUT),
        (KafkaError._FENCED, True, e.FENCED),
        (KafkaError.INVALID_PRODUCER_EPOCH, False, e.FENCED),
        (KafkaError.MSG_SIZE_TOO_LARGE, False, e.RECORD_TOO_LARGE),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True, e.AUTHORIZATION),
        (KafkaError.INVALID_TXN_STATE, True, kafka_tx.BROKEN),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, True, kafka_tx.BROKEN),
    ],
)
@pytest.mark.parametrize("call", ["begin_transaction", "produce", "commit_transaction"])
def test_after_any_error_it_is_spent(client, call, code, fatal, expected):
    producer = open_producer()
    client[0].plan[call] = [kafka_error(code, fatal=fatal)]

    def transaction() -> None:
        producer.begin()
        producer.produce("t", None, b"v", 0)
        producer.commit()

    with pytest.raises(CdcError) as caught:
        transaction()
    assert caught.value.code == expected
    with pytest.raises(CdcError) as again:
        producer.produce("t", None, b"v", 0)
    assert again.value.code == kafka_tx.SPENT
    assert again.value.retriable


def test_a_transaction_that_has_failed_says_why_at_the_next_record(client):
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [kafka_error(KafkaError._STATE)]
    client[0].plan["begin_transaction"] = [kafka_error(KafkaError.INVALID_RECORD)]
    with pytest.raises(CdcError) as caught:
        producer.produce("t", None, b"v", 0)
    # The record that was refused may be of another topic than this one.
    assert (caught.value.code, caught.value.where) == (e.RECORD_REFUSED, {})


@pytest.mark.parametrize(
    ("call", "act"),
    [("flush", lambda producer: producer.flush(1.0)), ("poll", lambda producer: producer.serve())],
)
def test_a_flush_or_a_poll_that_fails_spends_it_too(client, call, act):
    producer = open_producer()
    client[0].plan[call] = [kafka_error(KafkaError._FENCED, fatal=True)]
    with pytest.raises(CdcError) as caught:
        act(producer)
    assert caught.value.kind == "fenced"
    with pytest.raises(CdcError) as again:
        producer.serve()
    assert again.value.code == kafka_tx.SPENT


def test_a_client_that_is_fenced_while_its_queue_is_full_says_so(client):
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [BufferError()]
    client[0].plan["poll"] = [kafka_error(KafkaError._FENCED, fatal=True)]
    with pytest.raises(CdcError) as caught:
        producer.produce_all([("t", b"v", b"k", 0)])
    assert caught.value.kind == "fenced"


def test_a_fatal_error_met_while_producing_is_told_by_its_cause(client):
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [kafka_error(KafkaError._FATAL)]
    client[0].plan["abort_transaction"] = [kafka_error(KafkaError._FENCED, fatal=True)]
    with pytest.raises(CdcError) as caught:
        producer.produce("t", None, b"v", 0)
    assert caught.value.kind == "fenced"


def test_a_full_queue_is_waited_out_in_order(client):
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [BufferError(), BufferError()]
    producer.produce("t", None, b"v", 0)
    assert client[0].calls[-4:] == ["poll", "produce", "poll", "produce"]
    assert len(client[0].sent) == 1


def test_a_queue_that_stays_full_is_a_passing_error(client, monkeypatch):
    monkeypatch.setattr(kafka_tx, "QUEUE_FULL_TIMEOUT_S", 0.01)
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [BufferError()] * 1_000_000
    with pytest.raises(CdcError) as caught:
        producer.produce("t", None, b"v", 0)
    assert caught.value.code == e.TIMEOUT


def test_a_record_that_an_empty_queue_has_no_room_for_is_too_large(client):
    producer = open_producer()
    producer.begin()
    client[0].plan["produce"] = [BufferError()] * 2
    client[0].queued = 0
    with pytest.raises(CdcError) as caught:
        producer.produce("t", None, b"v", 0)
    assert (caught.value.code, caught.value.where) == (e.RECORD_TOO_LARGE, {"topic": "t"})
    assert "queue.buffering.max.kbytes" in caught.value.hint


def test_an_abort_never_raises_and_happens_only_to_an_open_transaction(client):
    producer = open_producer()
    producer.abort()
    assert "abort_transaction" not in client[0].calls
    producer.begin()
    client[0].plan["abort_transaction"] = [kafka_error(KafkaError._TIMED_OUT)]
    producer.abort()
    producer.close()
    producer.close()
    producer.abort()
    assert client[0].calls.count("abort_transaction") == 1


def test_a_refused_initialisation_is_translated(client, monkeypatch):
    def make(config):
        made = Client(config)
        made.plan["init_transactions"] = [kafka_error(KafkaError.INVALID_TRANSACTION_TIMEOUT)]
        return made

    monkeypatch.setattr(kafka_tx, "make_producer", make)
    with pytest.raises(CdcError) as caught:
        open_producer()
    assert caught.value.kind == "config"


def test_a_call_that_does_not_return_is_noticed_by_what_it_was_doing(client):
    now, hung = [0.0], []
    watchdog = ClientWatchdog(hung.append, lambda: now[0])
    producer = TransactionalProducer(
        {"bootstrap.servers": "k:1"}, "id", client_id="c", transaction_timeout_ms=60_000, watchdog=watchdog
    )

    def hang(*args) -> None:
        now[0] += kafka_tx.COMMIT_TIMEOUT_S + GRACE_S
        watchdog.check()
        assert hung == []
        now[0] += 1.0
        watchdog.check()

    client[0].commit_transaction = hang
    producer.begin()
    producer.commit()
    assert hung == ["commit the transaction"]
    now[0] += 1000.0
    watchdog.check()
    assert len(hung) == 1
