"""Headers that say who has written a record, as Debezium's `extended.headers.enabled` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cdcworker.worker.source_session import Pen

Headers = tuple[tuple[str, bytes], ...]

_PREFIX: Final = "__debezium.context."
_BEFORE: Final = (None, None, 0)
"""What the client's `produce` takes between a record's partition and its headers."""
_BARE: Final = 4
"""Topic, value, key, partition."""


def context_headers(prefix: str, task: int, connector: str) -> Headers:
    """Debezium's `ContextHeaders`, in its order: strings."""
    names = {"connectorLogicalName": prefix, "taskId": str(task), "connectorName": connector}
    return tuple((_PREFIX + name, text.encode()) for name, text in names.items())


def headers_bytes(headers: Headers) -> int:
    """At most, of a record."""
    return sum(len(name.encode()) + len(value) + 10 for name, value in headers)


class HeadedPen:
    """A pen whose records of data have these headers, behind their own."""

    def __init__(self, pen: Pen, headers: Headers, others: tuple[str, ...]) -> None:
        self._pen = pen
        self._headers = list(headers)
        self._others = others
        """Topics of other records."""
        self.begin, self.serve, self.flush = pen.begin, pen.serve, pen.flush
        self.commit, self.abort, self.close = pen.commit, pen.abort, pen.close

    @property
    def opened_at(self) -> float | None:
        return self._pen.opened_at

    def produce(self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: Any = None) -> None:
        if topic not in self._others:
            headers = [*(headers or ()), *self._headers]
        self._pen.produce(topic, key, value, partition, headers)

    def produce_all(self, records: Sequence[tuple[Any, ...]]) -> None:
        self._pen.produce_all([self._headed(record) for record in records])

    def _headed(self, record: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(record) == _BARE:
            return (*record, *_BEFORE, self._headers)
        return (*record[:-1], [*record[-1], *self._headers])
