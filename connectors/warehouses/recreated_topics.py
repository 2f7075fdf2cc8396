"""Topics that were deleted and created again under their names while the sink was away: offsets of the old topic say nothing of
the new one, however many records that has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from cdcworker.connectors.sink_errors import DATA_LOST
from cdcworker.connectors.warehouses.abilities import KnowsTopicIds
from cdcworker.connectors.warehouses.table_state import Manifest
from cdcworker.schemas.errors import CdcError


class TopicBrokers(Protocol):
    def ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        """Returns the topic id of each topic; without those whose id the broker does not tell."""


class RecreatedTopics:
    """The part of a writer that keeps Kafka's topic ids, where the ledger is in the states of the tables. New states take theirs
    from `_ids`."""

    _ids: dict[str, str]

    def _held(self) -> Iterable[Manifest]:
        """States that hold the ledger."""
        raise NotImplementedError

    def topic_ids(self) -> Mapping[str, str]:
        return {state.topic: state.topic_id for state in self._held() if state.topic_id}

    def know(self, ids: Mapping[str, str]) -> None:
        self._ids.update(ids)


def check(
    writer: KnowsTopicIds, brokers: TopicBrokers, ledger: Mapping[tuple[str, int], int], topics: Sequence[str]
) -> None:
    """Raises CdcError DATA_LOST where a topic is not the one to which the ledger's offsets belong. For a topic without a stored id
    the present id is taken."""
    found, known = brokers.ids(topics), writer.topic_ids()
    begun = {topic for (topic, _), offset in ledger.items() if offset}
    for topic, id in found.items():
        if topic in begun and known.get(topic, id) != id:
            text = "the topic was deleted and created again since it was read"
            raise CdcError(DATA_LOST, text, where={"topic": topic})
    writer.know(found)
