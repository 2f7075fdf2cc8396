"""Compacted topics whose last record of a key may lack a large value: somebody else has made them compacted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from cdcworker.connectors.api.source import CompletesRows, SourceTask
from cdcworker.worker.source.refused_records import NamesTables

log = logging.getLogger(__name__)

NAMED_MAX: Final = 100
"""The most topics that a report names (INV-10)."""


class IncompleteTopics:
    """Finds them among the topics that a task has written to, and says each in the log once."""

    def __init__(self, task: SourceTask, encoder: object, compacted: Callable[[], Iterable[str]]) -> None:
        """`compacted`: the compacted topics that the task has written to."""
        self._may_lack = isinstance(task, CompletesRows) and not task.completes_rows
        self._encoder = encoder
        self._compacted = compacted
        self._told: set[str] = set()

    def names(self) -> list[str]:
        """Returns the topics of tables, sorted; none of a task that reads rows again, or whose rows are always whole."""
        if not self._may_lack:
            return []
        found = sorted(topic for topic in self._compacted() if self._is_of_table(topic))
        for topic in found:
            if topic not in self._told:
                self._told.add(topic)
                log.warning(
                    "a compacted topic may lack large values of its rows: set topic.creation.default.cleanup.policy=compact topic=%s",
                    topic,
                )
        return found[:NAMED_MAX]

    def _is_of_table(self, topic: str) -> bool:
        return not isinstance(self._encoder, NamesTables) or bool(self._encoder.path_of(topic))
