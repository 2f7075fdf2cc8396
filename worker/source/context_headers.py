"""Headers that say who has written a record, as Debezium's `extended.headers.enabled` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cdcworker.worker.source.session import RecordProducer

Headers = tuple[tuple[str, bytes], ...]

_PREFIX: Final = "__debezium.context."
_BEFORE: Final = (None, None, 0)
"""What the client's `produce` takes between a record's partition and its headers."""
_BARE: Final = 4
"""Topic, value, key, partition."""


def context_headers(prefix: str, task: int, connector: str) -> Headers:
    """Returns the headers that Debezium's class ContextHeaders makes, in its order, as texts."""
    names = {"connectorLogicalName": prefix, "taskId": str(task), "connectorName": connector}
    return tuple((_PREFIX + name, text.encode()) for name, text in names.items())


def headers_bytes(headers: Headers) -> int:
    """Returns the most bytes that the headers take in a record."""
    return sum(len(name.encode()) + len(value) + 10 for name, value in headers)


class HeaderProducer:
    """A producer that adds these headers behind those of each record, except in the topics `others`."""

    def __init__(self, producer: RecordProducer, headers: Headers, others: tuple[str, ...]) -> None:
        self._producer = producer
        self._headers = list(headers)
        self._others = others
        """Topics whose records get no headers."""
        self.begin, self.commit, self.abort, self.close = (
            producer.begin,
            producer.commit,
            producer.abort,
            producer.close,
        )

    @property
    def opened_at(self) -> float | None:
        return self._producer.opened_at

    def produce(self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: Any = None) -> None:
        if topic not in self._others:
            headers = [*(headers or ()), *self._headers]
        self._producer.produce(topic, key, value, partition, headers)

    def produce_all(self, records: Sequence[tuple[Any, ...]]) -> None:
        self._producer.produce_all([self._headed(record) for record in records])

    def serve(self) -> None:
        self._producer.serve()

    def flush(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def _headed(self, record: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(record) == _BARE:
            return (*record, *_BEFORE, self._headers)
        return (*record[:-1], [*record[-1], *self._headers])
