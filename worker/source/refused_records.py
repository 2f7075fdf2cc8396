"""Records that a topic does not take: named with the table that they are of, so that only that one is held back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from cdcworker.schemas.change import OutRecord
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.source.topic_facts import TopicFacts

RECORD_WITHOUT_KEY: Final = declare(
    "source.record_without_key",
    "data",
    "A compacted topic takes no record without a key",
    "A truncate has no key: leave truncates out with skipped.operations=t, or give the topic cleanup.policy=delete. A table "
    "without a key needs message.key.columns. The table comes back when the connector's config is changed, or when a "
    "snapshot of it is asked for.",
)


@runtime_checkable
class NamesTables(Protocol):
    """An encoder that knows which table's records go to a topic."""

    def path_of(self, topic: str) -> tuple[str, ...]:
        """Returns the path of the table; empty for records that are no table's."""


def with_table(error: CdcError, encoder: object) -> CdcError:
    """Returns a broker's refusal of a record with the table whose topic refused, where it is one's."""
    path = encoder.path_of(str(error.where.get("topic", ""))) if isinstance(encoder, NamesTables) else ()
    if error.kind != "data" or "table" in error.where or not path:
        return error
    return CdcError(error.code, error.message, where={**error.where, "table": ".".join(path)}, hint=error.hint)


def require_keys(records: Iterable[OutRecord], facts: Mapping[str, TopicFacts], encoder: object) -> None:
    """CdcError `source.record_without_key` for the first record that its topic would not take for want of a key."""
    compacted = {topic for topic, fact in facts.items() if fact.compacted}
    if not compacted:
        return
    for record in records:
        if record.key is None and record.topic in compacted:
            raise without_key(record.topic, encoder.path_of(record.topic) if isinstance(encoder, NamesTables) else ())


def without_key(topic: str, path: Iterable[str]) -> CdcError:
    """Returns the error for a record of a table, or of none, that has no key."""
    table = ".".join(path)
    where = {"topic": topic, "table": table} if table else {"topic": topic}
    return CdcError(RECORD_WITHOUT_KEY, "the topic is compacted, and the record has no key", where=where)
