"""A right that the broker denies is no outage: it halts, and says what to grant."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers, refused
from cdcworker.connectors.sink_errors import KAFKA_DENIED, KAFKA_UNREACHABLE, from_spark
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException, Uuid


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KAFKA_DENIED),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, KAFKA_DENIED),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, KAFKA_DENIED),
        (KafkaError.SASL_AUTHENTICATION_FAILED, KAFKA_DENIED),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KAFKA_DENIED),
        (KafkaError._TIMED_OUT, KAFKA_UNREACHABLE),
    ],
)
def test_what_the_broker_answers_is_told_apart(number, code):
    error = refused(KafkaError(number), "the topics cannot be listed", {"topic": "t"})
    assert (error.code, error.where) == (code, {"topic": "t"})
    assert error.retriable == (code == KAFKA_UNREACHABLE)


class Admin:
    """Describes a topic `t`, and answers for `other` with an error."""

    def __init__(self, number):
        self.number = number

    def describe_topics(self, topics, request_timeout):
        found = {"t": Future(), "other": Future()}
        found["t"].set_result(type("Description", (), {"name": "t", "topic_id": Uuid(1, 2)}))
        found["other"].set_exception(KafkaException(KafkaError(self.number)))
        return found


@pytest.fixture
def brokers(monkeypatch):
    def brokers(number):
        monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: Admin(number))
        return SinkBrokers({})

    return brokers


@pytest.mark.parametrize(
    "number", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE]
)
def test_a_topic_that_is_not_there_and_an_old_broker_tell_no_id(brokers, number):
    assert brokers(number).ids(["t", "other"]) == {"t": str(Uuid(1, 2))}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KAFKA_DENIED),
        (KafkaError.LEADER_NOT_AVAILABLE, KAFKA_UNREACHABLE),
        (KafkaError._TIMED_OUT, KAFKA_UNREACHABLE),
    ],
)
def test_an_id_that_cannot_be_asked_for_is_an_error(brokers, number, code):
    """Without it nobody would see that the topic was made again."""
    with pytest.raises(CdcError) as caught:
        brokers(number).ids(["t", "other"])
    assert (caught.value.code, caught.value.retriable) == (code, code == KAFKA_UNREACHABLE)


def test_what_java_says_names_the_topic():
    text = "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [shop.public.orders]"
    error = from_spark(RuntimeError(text))
    assert (error.code, error.where) == (KAFKA_DENIED, {"topic": "shop.public.orders"})
    assert "cdcworker roles kafka" in error.hint
