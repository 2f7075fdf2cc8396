"""A right that the broker denies is no outage: it halts, and says what to grant."""

from __future__ import annotations

import pytest
from cdcworker.connectors.spark.errors import KAFKA_DENIED, KAFKA_UNREACHABLE, from_spark
from cdcworker.connectors.spark.kafka import refused
from confluent_kafka import KafkaError


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


def test_what_java_says_names_the_topic():
    text = "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [shop.public.orders]"
    error = from_spark(RuntimeError(text))
    assert (error.code, error.where) == (KAFKA_DENIED, {"topic": "shop.public.orders"})
    assert "cdcworker roles kafka" in error.hint
