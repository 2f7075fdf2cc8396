"""Filter and ContentBasedRouter: records left out, or led to another topic, by an expression over their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdcworker.connectors.transforms.conditions.expression import Expression
from cdcworker.connectors.transforms.data import ConnectRecord, DataError
from cdcworker.connectors.transforms.routing import TopicNameMatches

NullHandling = Literal["keep", "drop", "evaluate"]


@dataclass(frozen=True, slots=True)
class Scope:
    """The records that an expression is evaluated for: those of some topics, or of all, and tombstones by `null_handling`."""

    topics: TopicNameMatches | None
    null_handling: NullHandling

    def passes(self, record: ConnectRecord) -> bool:
        """Returns whether a record passes as it is."""
        if self.topics is not None and not self.topics.test(record):
            return True
        return record.value is None and self.null_handling == "keep"

    def drops(self, record: ConnectRecord) -> bool:
        """Returns whether a record that does not pass is left out for having no value."""
        return record.value is None and self.null_handling == "drop"


class Filter:
    """Keeps the records for which a condition is true."""

    def __init__(self, condition: Expression, scope: Scope) -> None:
        self._condition = condition
        self._scope = scope

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if self._scope.passes(record):
            return record
        if self._scope.drops(record):
            return None
        kept = self._condition.evaluate(record)
        if kept is True:
            return record
        if kept is not False:
            raise DataError("The condition is neither true nor false for this record")
        return None


class ContentBasedRouter:
    """The topic that an expression gives; null leaves a record where it is."""

    def __init__(self, topic: Expression, scope: Scope) -> None:
        self._topic = topic
        self._scope = scope

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if self._scope.passes(record):
            return record
        if self._scope.drops(record):
            return None
        topic = self._topic.evaluate(record)
        if topic is None:
            return record
        if not isinstance(topic, str):
            raise DataError("The expression gives no text for a topic")
        return record.with_topic(topic)
