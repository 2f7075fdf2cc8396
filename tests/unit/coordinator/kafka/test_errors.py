import pytest
from cdcworker.coordinator.api import TermOver, WriterFenced, WriteUnknown
from cdcworker.coordinator.kafka import errors as e
from cdcworker.schemas.errors import CODES
from confluent_kafka import KafkaError, KafkaException, Producer


def abortable(code: int) -> KafkaError:
    return KafkaError(code, "x", txn_requires_abort=True)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (KafkaError._ALL_BROKERS_DOWN, e.UNREACHABLE),
        (KafkaError._TIMED_OUT, e.TIMEOUT),
        (KafkaError.SASL_AUTHENTICATION_FAILED, e.AUTHENTICATION),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, e.AUTHORIZATION),
        (KafkaError.MSG_SIZE_TOO_LARGE, e.RECORD_TOO_LARGE),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, e.TRANSIENT),
        (KafkaError.PRODUCER_FENCED, e.FENCED),
        (KafkaError._FENCED, e.FENCED),
    ],
)
def test_each_known_error_has_one_code_of_ours(number, code):
    assert e.translate(KafkaException(KafkaError(number)), "try").code == code


@pytest.mark.parametrize("code", [KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP])
def test_a_record_that_is_refused_for_good_is_a_data_error_of_its_topic(code):
    text = "ProduceRequest for shop.public.a-b_1 [3] with 2 message(s) failed: Broker: … (broker 1 PID{Id:0,Epoch:0}, base seq 0)"
    error = KafkaError(code, text)
    assert CODES[e.code_of(error)].kind == "data"
    assert e.topic_of(error) == "shop.public.a-b_1"
    assert e.topic_of(KafkaError(code, "something else")) == ""


def test_what_a_broker_quotes_of_a_record_is_left_out():
    quoted = "Record validation failed: Unrecognized token '4711-hush': was expecting JSON"
    own = "ProduceRequest for shop.public.a [3] with 2 message(s) failed: Broker: … (broker 1 PID{Id:0,Epoch:0}, base seq 0)"
    for code in (KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._FAIL):
        error = KafkaError(code, quoted)
        assert "hush" not in str(e.translate(error, "produce").to_dict())
        assert "hush" not in str(e.write_outcome(error, in_commit=True))
        assert own in e.translate(KafkaError(code, own), "produce").message
    other = KafkaError(KafkaError.POLICY_VIOLATION, "'retention.ms' is closed")
    assert "'retention.ms'" in e.translate(other, "create a topic").message


def test_the_error_of_a_record_that_is_not_delivered_does_not_have_its_value_for_its_text():
    """librdkafka has both in one place."""
    told = []
    producer = Producer({"on_delivery": lambda error, message: told.append((error, message.value()))})
    producer.produce("t", b"4711-hush", b"key-hush")
    producer.purge()
    producer.flush(10)
    ((error, value),) = told
    assert value == b"4711-hush"
    assert "hush" not in f"{error!r} {error} {error.str()}"


def test_an_error_nobody_foresaw_halts():
    assert CODES[e.code_of(KafkaError(KafkaError.INVALID_TXN_STATE))].kind == "internal"


def test_an_unknown_error_that_kafka_calls_retriable_is_tried_again():
    assert e.code_of(KafkaError(KafkaError.INVALID_TXN_STATE, "x", retriable=True)) == e.TRANSIENT


def test_a_full_queue_is_transient():
    assert e.translate(BufferError("full"), "produce").retriable


def test_of_many_reports_the_cause_is_chosen_and_not_the_symptom():
    timed_out = KafkaError(KafkaError._TIMED_OUT)
    login = KafkaError(KafkaError._AUTHENTICATION)
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    assert e.most_telling([login, down], timed_out).code() == KafkaError._AUTHENTICATION
    assert e.most_telling([down], timed_out).code() == KafkaError._ALL_BROKERS_DOWN
    assert e.most_telling([], timed_out).code() == KafkaError._TIMED_OUT


@pytest.mark.parametrize("number", [22, 25, 82])
def test_a_refused_proof_is_stale(number):
    assert isinstance(e.write_outcome(abortable(number), in_commit=False), TermOver)


@pytest.mark.parametrize("number", [KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH])
def test_a_newer_producer_is_fenced(number):
    assert isinstance(e.write_outcome(KafkaError(number, "x", fatal=True), in_commit=False), WriterFenced)


def test_a_commit_that_meets_a_newer_producer_is_unknown_its_first_answer_may_have_been_lost():
    error = KafkaError(KafkaError._FENCED, "x", fatal=True)
    assert isinstance(e.write_outcome(error, in_commit=True), WriteUnknown)


@pytest.mark.parametrize("number", [KafkaError._TIMED_OUT, KafkaError.NOT_COORDINATOR, KafkaError.INVALID_TXN_STATE])
@pytest.mark.parametrize("in_commit", [False, True])
def test_everything_else_is_unknown(number, in_commit):
    assert isinstance(e.write_outcome(KafkaError(number), in_commit=in_commit), WriteUnknown)


def test_a_stale_code_in_a_commit_that_need_not_be_aborted_is_unknown():
    assert isinstance(e.write_outcome(KafkaError(22), in_commit=True), WriteUnknown)
