"""Names of topics, subjects and Avro types: reversible escaping, and a check for collisions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from cdcworker.schemas.errors import CdcError, declare

TOPIC_COLLISION = declare(
    "schema.topic_collision",
    "config",
    "Two tables would share a topic",
    "Leave one of the tables out, or give one of them another topic.",
)
TOPIC_NAME = declare(
    "schema.topic_name",
    "config",
    "A topic name is not legal in Kafka",
    "Use letters, digits, '.', '_' and '-' in topic.prefix, and keep the whole name within 249 characters.",
)

TOPIC_CHARS_MAX = 249
"""Kafka's limit for the length of a topic name."""
_ESCAPE = re.compile(r"_u([0-9a-f]{4})")
_LEGAL_PREFIX = re.compile(r"[A-Za-z0-9._-]+")
_NOT_TOPIC = re.compile(r"[^A-Za-z0-9_-]|_(?=u[0-9a-f]{4})")
_NOT_AVRO = re.compile(r"[^A-Za-z0-9_]|_(?=u[0-9a-f]{4})|^[0-9]")


def _escape_char(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"_u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def topic_part(name: str) -> str:
    """Returns one part of a topic name: characters that Kafka does not allow, and dots, become `_uXXXX`."""
    return _NOT_TOPIC.sub(_escape_char, name)


def avro_name(name: str) -> str:
    """Returns a legal Avro name: all other characters become `_uXXXX`. Most names stay the same."""
    return _NOT_AVRO.sub(_escape_char, name)


@lru_cache(maxsize=65_536)
def unescape(name: str) -> str:
    """Returns the name that `topic_part` or `avro_name` was given."""
    units = _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), name)
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def topic_name(prefix: str, path: Sequence[str]) -> str:
    """Returns `<prefix>.<schema>.<table>`, escaped so that `topic_path` can read it. Raises CdcError
    `schema.topic_name`."""
    if not _LEGAL_PREFIX.fullmatch(prefix):
        raise CdcError(TOPIC_NAME, "topic.prefix holds characters that Kafka does not allow", where={"prefix": prefix})
    topic = ".".join((prefix, *map(topic_part, path)))
    if len(topic) > TOPIC_CHARS_MAX:
        raise CdcError(TOPIC_NAME, f"the topic name has {len(topic)} characters", where={"topic": topic})
    return topic


def topic_path(prefix: str, topic: str) -> tuple[str, ...]:
    """Returns the path that `topic_name` was given."""
    return tuple(unescape(part) for part in topic[len(prefix) + 1 :].split("."))


def check_collisions(prefix: str, paths: Iterable[Sequence[str]]) -> None:
    """Raises CdcError `schema.topic_collision` for two topics that differ only in '.' and '_': Kafka's metrics mix them
    up."""
    seen: dict[str, str] = {}
    for path in paths:
        topic = topic_name(prefix, path)
        other = seen.setdefault(topic.replace(".", "_"), topic)
        if other != topic:
            raise CdcError(TOPIC_COLLISION, "two topics differ only in '.' and '_'", where={"a": other, "b": topic})


def subject(topic: str, part: Literal["key", "value"]) -> str:
    """Returns the subject of a topic's keys or values (TopicNameStrategy)."""
    return f"{topic}-{part}"


def namespace(prefix: str, path: Sequence[str]) -> str:
    """Returns the Avro namespace of a table's types, `<prefix>.<schema>.<table>` as in Debezium."""
    return ".".join(map(avro_name, (*prefix.split("."), *path)))


CONTROL_TOPICS = re.compile(r"(?P<prefix>.+)\.(watermark|transaction|message)")


def data_topics(topics: Iterable[str]) -> list[str]:
    """Returns the topics of tables: without internal ones and those that sources keep beside them
    (`<prefix>.watermark`)."""
    names = sorted(topics)

    def is_control(name: str) -> bool:
        match = CONTROL_TOPICS.fullmatch(name)
        return match is not None and any(
            other.startswith(match["prefix"] + ".") and other.count(".") >= name.count(".") + 1 for other in names
        )

    return [name for name in names if not is_control(name) and not name.startswith("__")]


def watermark_topics(topics: Iterable[str]) -> list[str]:
    """Returns the topics in which the sources of these tables' topics publish their watermarks."""
    return sorted({f"{source_of(topic)}.watermark" for topic in topics})


def source_of(topic: str) -> str:
    """Returns the topic prefix of the source of a table's topic."""
    return topic.rsplit(".", 2)[0]
