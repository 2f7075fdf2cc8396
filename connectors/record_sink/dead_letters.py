"""Records that cannot be handled, as Kafka Connect sets them aside: as they came, with headers that say where and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.record_sink.errors import DEAD_LETTERS_UNWRITABLE
from cdcworker.connectors.record_sink.group_offsets import Letter
from cdcworker.schemas.errors import CdcError

Stage = Literal["VALUE_CONVERTER", "TRANSFORMATION", "TASK_PUT"]
PREFIX: Final = "__connect.errors."
OWN: Final = "__cdcworker.letter"
"""The header that each letter has, as a JSON object: what sends it again needs, whatever the config says of other headers."""
CREATE_S: Final = 20.0


class Refused(NamedTuple):
    """A record that is set aside: the message, at which stage and why. The error holds no values."""

    message: Any
    stage: Stage
    error: CdcError
    topic_id: str = ""
    """What the id of the record begins with."""


@dataclass(frozen=True, slots=True)
class LetterForm:
    """How a dead letter looks: who writes it, and whether with headers."""

    connector: str
    task: int
    headers: bool
    class_name: str

    def letter(self, refused: Refused) -> Letter:
        message = refused.message
        headers = headers_of(message)
        if self.headers:
            headers += [
                (PREFIX + name, value.encode(errors="backslashreplace"))
                for name, value in self._context(refused).items()
            ]
        own = {
            **self._place(refused),
            "timestamp": message.timestamp()[1],
            "connector": self.connector,
            "code": refused.error.code,
        }
        headers.append((OWN, json.dumps(own).encode()))
        return Letter(message.key(), message.value(), headers)

    def _place(self, refused: Refused) -> Mapping[str, str | int]:
        """Returns where the record was, and what its id begins with."""
        message = refused.message
        return {
            "topic": message.topic(),
            "topic_id": refused.topic_id,
            "partition": message.partition(),
            "offset": message.offset(),
        }

    def _context(self, refused: Refused) -> Mapping[str, str]:
        error = refused.error
        place = self._place(refused)
        return {
            "topic": str(place["topic"]),
            "partition": str(place["partition"]),
            "offset": str(place["offset"]),
            "connector.name": self.connector,
            "task.id": str(self.task),
            "stage": refused.stage,
            "class.name": self.class_name,
            "exception.class.name": error.code,
            "exception.message": error.message,
            "exception.stacktrace": str(error),
        }


def unplaced_again(form: LetterForm, message: Any, error: CdcError) -> Letter:
    """Returns a letter that does not say where its record was, as it stays in its topic: as it came, and this connector's."""
    own = {"connector": form.connector, "code": error.code}
    headers = [each for each in headers_of(message) if each[0] != OWN]
    return Letter(message.key(), message.value(), [*headers, (OWN, json.dumps(own).encode())])


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """Returns the headers of a record; none where the client cannot tell them, since a name among them is not UTF-8."""
    try:
        return list(message.headers() or ())
    except UnicodeDecodeError:
        return []


def ensure_topic(kafka: Mapping[str, str], topic: str, replication_factor: int) -> None:
    """Creates the topic of dead letters unless it is there. CdcError `sink.dead_letters_unwritable`."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({**kafka, "log_level": 3})
    try:
        if topic in admin.list_topics(timeout=CREATE_S).topics:
            return
        made = NewTopic(topic, 1, replication_factor)
        admin.create_topics([made], operation_timeout=CREATE_S)[topic].result(CREATE_S)
    except KafkaException as exc:
        error = exc.args[0]
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            text = f"the topic of dead letters cannot be created ({error.name()})"
            raise CdcError(DEAD_LETTERS_UNWRITABLE, text, where={"topic": topic}) from exc
    except TimeoutError as exc:
        text = "the topic of dead letters was not created in time"
        raise CdcError(DEAD_LETTERS_UNWRITABLE, text, where={"topic": topic}) from exc
