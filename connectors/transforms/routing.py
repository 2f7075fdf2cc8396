"""Transforms of the topic and of the way of a record: Filter, RegexRouter, TimestampRouter; and the predicates."""

from __future__ import annotations

from cdcworker.connectors.transforms.data import ConnectRecord, DataError
from cdcworker.connectors.transforms.dates import date_format
from cdcworker.schemas.patterns import Pattern
from cdcworker.schemas.record_format import RegexRoute


class Filter:
    """Leaves every record out; it has a predicate, as a rule."""

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        return None


class RegexRouter:
    """Another name for a topic that an expression matches as a whole."""

    def __init__(self, route: RegexRoute) -> None:
        self._route = route
        self._topics: dict[str, str] = {}

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        topic = self._topics.get(record.topic)
        if topic is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            topic = self._topics[record.topic] = self._route.apply(record.topic)
        return record if topic == record.topic else record.with_topic(topic)


TOPICS_MAX = 16_384
"""The most topics whose answers are kept."""


class TimestampRouter:
    """A topic whose name has the record's time in it."""

    def __init__(self, topic_format: str, timestamp_format: str) -> None:
        self._topic_format = topic_format
        self._format = date_format(timestamp_format)
        self._timestamp: int | None = None
        self._text = ""

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if record.timestamp is None:
            raise DataError("Timestamp missing on record")
        if record.timestamp != self._timestamp:  # the records of a batch have one time
            self._timestamp, self._text = record.timestamp, self._format.format(record.timestamp)
        topic = self._topic_format.replace("${topic}", record.topic)
        return record.with_topic(topic.replace("${timestamp}", self._text))


class TopicNameMatches:
    """Records whose topic's name an expression matches as a whole."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._topics: dict[str, bool] = {}

    def test(self, record: ConnectRecord) -> bool:
        found = self._topics.get(record.topic)
        if found is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            found = self._topics[record.topic] = self._pattern.fullmatch(record.topic) is not None
        return found


class HasHeaderKey:
    """Records with a header of a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def test(self, record: ConnectRecord) -> bool:
        return any(header.key == self._name for header in record.headers)


class RecordIsTombstone:
    """Records without a value."""

    def test(self, record: ConnectRecord) -> bool:
        return record.value is None
