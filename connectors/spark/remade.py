"""Topics that were deleted and made again under their names while the sink was away: offsets of the one say nothing of the other,
however far that has grown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from cdcworker.connectors.spark.errors import DATA_LOST
from cdcworker.connectors.spark.manifests import Manifest
from cdcworker.schemas.errors import CdcError


class Brokers(Protocol):
    def ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        """What the broker tells topics of one name apart by; without those of which it tells nothing."""


class Writer(Protocol):
    def topic_ids(self) -> Mapping[str, str]:
        """Of the topics that the ledger's offsets are of, as far as it says."""

    def know(self, ids: Mapping[str, str]) -> None:
        """Keep these beside the offsets, at the latest with the next ones."""


class Knowing:
    """A writer whose ledger lies with its tables, in their states; `_ids` go into those that it makes."""

    _ids: dict[str, str]

    def _held(self) -> Iterable[Manifest]:
        """States that hold the ledger."""
        raise NotImplementedError

    def topic_ids(self) -> Mapping[str, str]:
        return {state.topic: state.topic_id for state in self._held() if state.topic_id}

    def know(self, ids: Mapping[str, str]) -> None:
        self._ids.update(ids)


def check(writer: Writer, brokers: Brokers, ledger: Mapping[tuple[str, int], int], topics: Sequence[str]) -> None:
    """CdcError DATA_LOST where the ledger stands in a topic that is no more. One that says nothing of it takes what there is."""
    found, known = brokers.ids(topics), writer.topic_ids()
    begun = {topic for (topic, _), offset in ledger.items() if offset}
    for topic, id in found.items():
        if topic in begun and known.get(topic, id) != id:
            text = "the topic was deleted and created again since it was read"
            raise CdcError(DATA_LOST, text, where={"topic": topic})
    writer.know(found)
