"""Dead letters as their topic has them: read back, with the place that each record had and why it was set aside."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.record_sink.dead_letters import OWN, PREFIX, headers_of
from cdcworker.connectors.record_sink.group_offsets import Partition
from cdcworker.connectors.topic_reader import READ_FAILED
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_object
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

READ_COUNT: Final = 200
READ_S: Final = 0.5
TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_PARTITION: Final = re.compile(r"[0-9]{1,9}")
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,600}")
_CODE: Final = re.compile(r"[A-Za-z0-9_.$]{1,200}")
TEXT_MAX: Final = 1_000
"""So much is shown of what a header says, which anybody may have written."""


class LetterOrigin(NamedTuple):
    """Where a record was before it was set aside."""

    topic: str
    partition: int
    offset: int


class TopicLetter(NamedTuple):
    """A letter in its topic. `origin` None: it does not say where its record was."""

    message: Any
    origin: LetterOrigin | None
    connector: str
    code: str
    cause: str
    topic_id: str = ""
    """What the id of the record began with; empty for a letter that does not say it."""
    timestamp_ms: int | None = None
    """The time of the record; None for a letter that does not say it."""

    @property
    def place(self) -> LetterOrigin:
        """Where the record was, or else where the letter is."""
        return self.origin or LetterOrigin(self.message.topic(), self.message.partition(), self.message.offset())

    def told(self) -> dict[str, Any]:
        """Returns what may be shown of it: nothing that is in the record."""
        message = self.message
        key, value = message.key(), message.value()
        return {
            **self.place._asdict(),
            "code": self.code,
            "cause": self.cause,
            "at_ms": message.timestamp()[1],
            "key_bytes": None if key is None else len(key),
            "value_bytes": None if value is None else len(value),
        }


class RecordAgain:
    """The record of a letter, as Kafka's client would return it."""

    def __init__(self, letter: TopicLetter, origin: LetterOrigin, place: LetterOrigin) -> None:
        """`place`: the partition and the offset by which its target knows it."""
        self._message, self.origin, self._place = letter.message, origin, place
        self.topic_id = letter.topic_id
        self._timestamp_ms = letter.timestamp_ms
        self._headers = [each for each in headers_of(letter.message) if not each[0].startswith((PREFIX, OWN))]

    def topic(self) -> str:
        return self.origin.topic

    def partition(self) -> int:
        return self._place.partition

    def offset(self) -> int:
        return self._place.offset

    def key(self) -> bytes | None:
        found: bytes | None = self._message.key()
        return found

    def value(self) -> bytes | None:
        found: bytes | None = self._message.value()
        return found

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        if self._timestamp_ms is not None:
            return 1, self._timestamp_ms
        found: tuple[int, int] = self._message.timestamp()
        return found

    def __len__(self) -> int:
        return len(self._message)


def letter_of(message: Any) -> TopicLetter:
    """Returns what the headers of a message say. Those that Kafka Connect has written say the same, but for what the record's id was
    and its time."""
    headers = headers_of(message)
    said = {name[len(PREFIX) :]: value for name, value in headers if name.startswith(PREFIX)}
    texts = {name: value.decode(errors="replace")[:TEXT_MAX] for name, value in said.items() if value is not None}
    own = _own(headers)
    named = texts.get("exception.class.name", "")
    code = str(own.get("code", named))
    # Other programs tell values in theirs.
    is_ours = code in CODES and code == named
    topic_id, timestamp_ms = str(own.get("topic_id", "")), own.get("timestamp")
    return TopicLetter(
        message,
        _origin(own if "topic" in own else texts),
        str(own.get("connector", texts.get("connector.name", "")))[:TEXT_MAX],
        code if _CODE.fullmatch(code) else "",
        texts.get("exception.message", "") if is_ours else "",
        topic_id if _TOPIC_ID.fullmatch(topic_id) else "",
        timestamp_ms if isinstance(timestamp_ms, int) and abs(timestamp_ms) < 2**63 else None,
    )


def _own(headers: Sequence[tuple[str, bytes | None]]) -> Mapping[str, Any]:
    text = dict(headers).get(OWN)
    try:
        return parse_object(text) if text else {}
    except JsonRefused:
        return {}


def _origin(said: Mapping[str, Any]) -> LetterOrigin | None:
    """Returns the place that headers say; None where nothing can have it."""
    topic, partition, offset = (str(said.get(name, "")) for name in ("topic", "partition", "offset"))
    if not (TOPIC.fullmatch(topic) and _PARTITION.fullmatch(partition) and _OFFSET.fullmatch(offset)):
        return None
    return LetterOrigin(topic, int(partition), int(offset))


class LetterReader:
    """Reads partitions of a topic of dead letters, one after the other, as far as they are committed."""

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        own = {"enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**settings, **own, "log_level": 3})

    def read(self, number: int, begin: int, end: int) -> Iterator[tuple[Sequence[TopicLetter], int]]:
        """Yields letters of a partition, in their order, each time with the offset behind the last of them. CdcError where Kafka does
        not answer."""
        if begin >= end:
            return
        self._consumer.assign([TopicPartition(self._topic, number, begin)])
        silent_since = time.monotonic()
        while True:
            found, is_end = self._consumed()
            mine = [message for message in found if message.offset() < end]
            if mine:
                yield [letter_of(message) for message in mine], mine[-1].offset() + 1
                silent_since = time.monotonic()
            if is_end or len(mine) < len(found) or (mine and mine[-1].offset() + 1 >= end):
                return
            if time.monotonic() - silent_since > 40 * READ_S:
                raise CdcError(READ_FAILED, "the topic of dead letters is not answered", where={"topic": self._topic})

    def close(self) -> None:
        self._consumer.close()

    def _consumed(self) -> tuple[list[Any], bool]:
        try:
            found = self._consumer.consume(READ_COUNT, READ_S)
        except KafkaException as exc:
            text = f"the topic of dead letters cannot be read ({exc.args[0].name()})"
            raise CdcError(READ_FAILED, text, where={"topic": self._topic}) from exc
        errors = [message.error() for message in found if message.error() is not None]
        is_end = any(error.code() == KafkaError._PARTITION_EOF for error in errors)
        bad = next(
            (error for error in errors if error.code() != KafkaError._PARTITION_EOF and not error.retriable()), None
        )
        if bad is not None:
            text = f"the topic of dead letters cannot be read ({bad.name()})"
            raise CdcError(READ_FAILED, text, where={"topic": self._topic})
        return [message for message in found if message.error() is None], is_end


def partitions_of(topic: str, count: int) -> list[Partition]:
    return [(topic, number) for number in range(count)]
