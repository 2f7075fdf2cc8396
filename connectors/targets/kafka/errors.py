"""What an error of the other cluster means: not now, never this record, or never anything."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final, TypeVar

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.sink_engine.kafka.brokers import DENIED
from cdcworker.schemas.errors import CdcError, declare
from confluent_kafka import KafkaError, KafkaException

SAME_CLUSTER: Final = declare(
    "sink.same_cluster",
    "config",
    "The target cluster of a mirror is the cluster that is read",
    "Name the brokers of the other cluster in target.bootstrap.servers: copies within one cluster would be copied again.",
)
LEDGER_UNFIT: Final = declare(
    "sink.ledger_unfit",
    "config",
    "The topic of a mirror's ledger loses records",
    "Set cleanup.policy=compact for the topic that the message names. Where it has lost records already, see to it that no copy is there"
    " twice: delete the copies and the ledger, and reset the sink's offsets.",
)

Answer = TypeVar("Answer")
ANSWER_S: Final = 20.0
"""How long an admin client is waited for."""
LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
_OF_RECORD: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_MSG,
        87,  # INVALID_RECORD
    }
)
_OF_CONFIG: Final = frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError._INVALID_ARG,
    }
)


def answer_of(future: Future[Answer]) -> Answer:
    """Returns the answer to a request of an admin client. KafkaException also where there is none in time."""
    try:
        return future.result(ANSWER_S)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def error_of(error: Any, doing: str, **where: str | int) -> CdcError:
    """Returns the error that a target raises."""
    code, text = error.code(), f"{doing} ({error.name()})"
    if code in _OF_RECORD:
        return CdcError(RECORD_REFUSED, text, where=where)
    if code in LOGIN or code in DENIED or code in _OF_CONFIG:
        return CdcError(TARGET_REFUSES, text, where=where)
    return TargetUnavailable(TARGET_UNAVAILABLE, text, where=where)


def as_target_error(error: CdcError) -> CdcError:
    """Returns what an error of the engine's own clients means where they were used on the other cluster."""
    text = f"the target cluster: {error.message}"
    if error.kind == "transient":
        return TargetUnavailable(TARGET_UNAVAILABLE, text, where=error.where)
    return CdcError(TARGET_REFUSES, text, where=error.where)
