"""Translates confluent-kafka's errors into CdcErrors by one table, so that no other module interprets Kafka's codes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from cdcworker.coordinator.api import TermOver, WriterFenced, WriteUnknown
from cdcworker.schemas.errors import CdcError, Where, declare
from cdcworker.schemas.untrusted.driver_text import kept
from confluent_kafka import KafkaError, KafkaException

UNREACHABLE = declare(
    "kafka.unreachable",
    "environment",
    "No Kafka broker answers",
    "Check bootstrap.servers, that the brokers are up, and that their advertised.listeners can be reached from here.",
)
AUTHENTICATION = declare(
    "kafka.authentication",
    "config",
    "The broker refuses the worker's login",
    "Check security.protocol, sasl.mechanism and the credentials of the worker.",
)
TLS = declare(
    "kafka.tls",
    "config",
    "The TLS connection to the broker fails",
    "Check security.protocol, the listener's port, and ssl.ca.location against the broker's certificate.",
)
AUTHORIZATION = declare(
    "kafka.authorization",
    "config",
    "The broker does not allow this operation",
    "Grant the workers' principal what lacks: `cdcworker roles kafka` prints every ACL that it needs, and why.",
)
CLIENT_CONFIG = declare(
    "kafka.client_config",
    "config",
    "A Kafka client property is not valid",
    "Correct or remove the property; names are librdkafka's, common Java names are translated.",
)
TOPIC_MISSING = declare(
    "kafka.topic_missing",
    "environment",
    "A topic does not exist",
    "Create the topic, or give the worker the right to create topics.",
)
TOPIC_MISCONFIGURED = declare(
    "kafka.topic_misconfigured",
    "config",
    "An internal topic is not as it must be",
    "Change the topic as the message says, or name another topic in the worker's properties.",
)
RECORD_TOO_LARGE = declare(
    "kafka.record_too_large",
    "data",
    "A record is larger than the topic allows",
    "Raise max.message.bytes of the topic (and the broker's limit), or exclude the large column.",
)
RECORD_REFUSED = declare(
    "kafka.record_refused",
    "data",
    "The broker does not take a record",
    "Look at the topic's configuration: a compacted topic takes no record without a key, message.timestamp.before.max.ms "
    "and message.timestamp.after.max.ms bound the times of records.",
)
MALFORMED_RECORD = declare(
    "kafka.malformed_record",
    "data",
    "A record of an internal topic is not ours",
    "Find out what else writes to the topic; internal topics belong to one worker group alone.",
)
TIMEOUT = declare(
    "kafka.timeout", "transient", "Kafka did not answer in time", "It is tried again; look at the brokers if it stays."
)
TRANSIENT = declare(
    "kafka.transient", "transient", "Kafka answered with a passing error", "It is tried again by itself."
)
FENCED = declare(
    "kafka.fenced", "fenced", "Another producer took over the transactional id", "Nothing: another owner is at work."
)
STALE_TERM = declare(
    "kafka.stale_term", "fenced", "The group's generation moved on", "Nothing: the group elects again by itself."
)
UNSUPPORTED = declare(
    "kafka.unsupported",
    "environment",
    "The broker is too old or lacks a feature",
    "Use Kafka 2.5 or newer with transactions enabled.",
)
UNEXPECTED = declare(
    "kafka.unexpected",
    "internal",
    "Kafka answered with an error that the code did not foresee",
    "Report it with the log of the worker.",
)

_TABLE: dict[str, tuple[int, ...]] = {
    UNREACHABLE: (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE),
    AUTHENTICATION: (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    ),
    TLS: (KafkaError._SSL,),
    AUTHORIZATION: (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ),
    CLIENT_CONFIG: (
        KafkaError._INVALID_ARG,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
    ),
    TOPIC_MISSING: (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
    ),
    RECORD_TOO_LARGE: (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
    ),
    RECORD_REFUSED: (KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP),
    TIMEOUT: (
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._WAIT_COORD,
    ),
    TRANSIENT: (
        KafkaError._RETRY,
        # "No leaders found": how list_offsets puts a partition whose leader is being elected.
        KafkaError._NOENT,
        KafkaError._QUEUE_FULL,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.STALE_BROKER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.TRANSACTION_ABORTABLE,
    ),
    FENCED: (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    ),
    STALE_TERM: (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    ),
    UNSUPPORTED: (
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError._UNSUPPORTED_FEATURE,
    ),
}
_CODE_OF: dict[int, str] = {number: code for code, numbers in _TABLE.items() for number in numbers}

_REFUSED: Final = re.compile(r"ProduceRequest for (\S+) \[[0-9]+\]")

_OF_RECORDS = (RECORD_TOO_LARGE, RECORD_REFUSED, UNEXPECTED)
"""Codes of errors that may be about the content of a record."""

TELLING = (AUTHENTICATION, TLS, AUTHORIZATION, CLIENT_CONFIG)
"""Error codes that name the cause when a broker also seems to be unreachable."""


def kafka_error(error: KafkaException | KafkaError | BufferError) -> KafkaError:
    """Returns the KafkaError inside an exception of the client."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, BufferError):
        return KafkaError(KafkaError._QUEUE_FULL)
    inner = error.args[0] if error.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


def code_of(error: KafkaException | KafkaError | BufferError) -> str:
    """Returns the error code for a Kafka error. Unknown ones are `kafka.unexpected`, which halts, unless they are
    retriable."""
    inner = kafka_error(error)
    known = _CODE_OF.get(inner.code())
    if known is None and inner.retriable():
        return TRANSIENT
    return known or UNEXPECTED


def text_of(error: KafkaException | KafkaError | BufferError) -> str:
    """Returns the client's text of an error without values of records. librdkafka makes its texts of codes, names, offsets and sizes;
    a broker, or a proxy in its place, may quote the record that it refuses."""
    inner = kafka_error(error)
    return kept(inner.str()) if code_of(inner) in _OF_RECORDS else inner.str()


def translate(error: KafkaException | KafkaError | BufferError, doing: str, *, where: Where | None = None) -> CdcError:
    """Returns the CdcError for a Kafka error; `doing` names the failed operation. Use it with `raise … from exc`."""
    inner = kafka_error(error)
    return CdcError(code_of(inner), f"{doing}: {inner.name()} ({text_of(inner)})", where=where)


def topic_of(error: KafkaError) -> str:
    """Returns the topic whose records a broker refused, which only the text of a failed transaction names; else none."""
    found = _REFUSED.search(error.str())
    return found[1] if found else ""


def most_telling(errors: Iterable[KafkaError], fallback: KafkaError) -> KafkaError:
    """Returns the reported error that names the cause best: a failed login, for example, also ends in a time-out."""
    seen = list(errors)
    for error in reversed(seen):
        if code_of(error) in TELLING:
            return error
    for error in reversed(seen):
        if code_of(error) == UNREACHABLE:
            return error
    return fallback


def write_outcome(error: KafkaError, *, in_commit: bool) -> TermOver | WriterFenced | WriteUnknown:
    """Returns what a failed transactional write means for its writer.

    A refused proof and an abortable error before the commit are certain: nothing was written. After any other error
    during the commit the write may or may not have happened.
    """
    code = code_of(error)
    text = f"{error.name()}: {text_of(error)}"
    if code == FENCED:
        # librdkafka repeats a commit whose answer was lost; by then the next leader may have raised the epoch.
        return WriteUnknown(text) if in_commit else WriterFenced(text)
    if code == STALE_TERM and (error.txn_requires_abort() or not in_commit):
        return TermOver(text)
    return WriteUnknown(text)
