"""Filter and ContentBasedRouter: records left out, or led to another topic, by an expression over their fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from cdcworker.connectors.transforms.conditions.expression import Expression
from cdcworker.connectors.transforms.data import ConnectRecord, DataError
from cdcworker.connectors.transforms.routing import TopicNameMatches

NullHandling = Literal["keep", "drop", "evaluate"]


@dataclass(frozen=True, slots=True)
class ScriptScope:
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


class ScriptingTransformation(ABC):
    """A transform by what an expression gives for a record."""

    def __init__(self, expression: Expression, scope: ScriptScope) -> None:
        self._expression = expression
        self._scope = scope

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if self._scope.passes(record):
            return record
        if self._scope.drops(record):
            return None
        return self._by(self._expression.evaluate(record), record)

    @abstractmethod
    def _by(self, found: Any, record: ConnectRecord) -> ConnectRecord | None:
        """Returns what becomes of a record by the expression's value. Raises DataError for one of another type."""


class Filter(ScriptingTransformation):
    """Keeps the records for which a condition is true."""

    def _by(self, found: Any, record: ConnectRecord) -> ConnectRecord | None:
        if not isinstance(found, bool):
            raise DataError("The condition is neither true nor false for this record")
        return record if found else None


class ContentBasedRouter(ScriptingTransformation):
    """The topic that an expression gives; null leaves a record where it is."""

    def _by(self, found: Any, record: ConnectRecord) -> ConnectRecord | None:
        if found is None:
            return record
        if not isinstance(found, str):
            raise DataError("The expression gives no text for a topic")
        return record.with_topic(found)
