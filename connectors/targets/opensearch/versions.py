"""The version of each change: where it stands in its topic, behind all that stood in an earlier topic of the same name.

A server takes a write only with a higher version than the document has. Offsets begin anew in a topic that was deleted and created again,
so an index of the server remembers the topics of a name in their order.
"""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetRecord, TargetUnavailable
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.opensearch.client import SearchClient
from cdcworker.connectors.targets.opensearch.names import path_of, shortened
from cdcworker.schemas.errors import CdcError

OFFSET_BITS: Final = 48
GENERATIONS_MAX: Final = 1 << 15
VERSION_MAX: Final = (1 << 63) - 2
TRIES_MAX: Final = 10


class Versions:
    """Versions of records; `index` empty: they are offsets alone."""

    def __init__(self, client: SearchClient, index: str, header: str) -> None:
        self._client = client
        self._index = index
        self._header = header
        self._known: dict[tuple[str, str], int] = {}
        self._is_created = False

    @property
    def tell_topics(self) -> bool:
        """Whether versions say which of several topics of a name a record is of."""
        return bool(self._index) and not self._header

    def of(self, record: TargetRecord) -> int:
        """Returns the version of a record. Raises CdcError."""
        if self._header:
            return self._told(record)
        if not self._index:
            return record.offset
        topic = record.id.rsplit("-", 2)[0]
        known = self._known.get((record.topic, topic))
        if known is None:
            known = self._known[record.topic, topic] = self._generation(record.topic, topic)
        return (known << OFFSET_BITS) | record.offset

    def _told(self, record: TargetRecord) -> int:
        value = next((each.value for each in reversed(record.headers) if each.key == self._header), None)
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > VERSION_MAX:
            text = "the record has no header with a number that external.version.header names"
            raise CdcError(RECORD_REFUSED, text)
        return int(text)

    def _generation(self, name: str, topic: str) -> int:
        """Returns how many topics had this name before this one. Several tasks may ask at once."""
        path = f"/{path_of(self._index)}/_doc/{path_of(shortened(name))}"
        for _ in range(TRIES_MAX):
            reply = self._client.ask("GET", path, None, (404,))
            found: dict[str, Any] = reply.json() if reply.status == 200 else {}
            if reply.error and not self._is_created:
                # A document alone that is not there is no error.
                self._create()
            topics = found["_source"]["topics"] if found.get("found") else []
            if topic in topics:
                return int(topics.index(topic))
            if len(topics) >= GENERATIONS_MAX:
                raise CdcError(TARGET_REFUSES, "the topic has been created too often: set another versions.index")
            guard = (
                f"if_seq_no={found['_seq_no']}&if_primary_term={found['_primary_term']}" if topics else "op_type=create"
            )
            body = {"name": name, "topics": [*topics, topic]}
            if self._client.ask("PUT", f"{path}?{guard}", body, (409,)).status != 409:
                return len(topics)
        raise TargetUnavailable(TARGET_UNAVAILABLE, "the index of versions is written by too many at once")

    def _create(self) -> None:
        settings = {"index.number_of_shards": 1, "index.auto_expand_replicas": "0-1"}
        body = {"settings": settings, "mappings": {"dynamic": "false"}}
        # 400: another task has made it.
        self._client.ask("PUT", f"/{path_of(self._index)}", body, (400,))
        self._is_created = True


def is_of_later_topic(version: int, current: int) -> bool:
    """Returns whether a document has the version of a topic that came after that of a write."""
    return current >> OFFSET_BITS > version >> OFFSET_BITS
