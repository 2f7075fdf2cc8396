"""Which tables have numbers of their own in a task's reports, which must stay small."""

from __future__ import annotations

from typing import Final

TABLES_MAX: Final = 100
NAME_CHARS_MAX: Final = 12_000
"""Of all names together."""
OTHER: Final = "other"


class TableLabels:
    """The tables that are met first keep their names for good, so that no counter ever goes back; the rest is `other`."""

    def __init__(self, tables_max: int = TABLES_MAX) -> None:
        self._tables_max = tables_max
        self.names: dict[str, str] = {}
        """By topic, of the tables that have one of their own."""
        self._chars = 0

    def of(self, topic: str, prefix: str = "") -> str:
        """Under which name a topic is counted: without the prefix, where one is given."""
        return self.names.get(topic) or self._named(topic, topic.removeprefix(f"{prefix}.") if prefix else topic)

    def _named(self, topic: str, name: str) -> str:
        if len(self.names) >= self._tables_max or self._chars + len(name) > NAME_CHARS_MAX or name == OTHER:
            return OTHER
        self._chars += len(name)
        self.names[topic] = name
        return name
