"""What some writers can do besides the methods of every `TableWriter`. The sink engine asks with isinstance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cdcworker.connectors.api.table_batch import SinkBatch

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.kind import SessionFactory


@runtime_checkable
class UsesSpark(Protocol):
    """A writer that works through Spark, or can use its executors."""

    def attach(self, session: SessionFactory, step: Callable[[str], None], /) -> None:
        """Takes the session to work with: before all else, and again for each new Java process. `step` is to be called with the
        tables that are being written, before and after each of them."""


@runtime_checkable
class ExpectsTables(Protocol):
    """A writer whose ledger lies with its tables, so that a folder that is not mounted looks like a first start."""

    def expect(self, topics: Collection[str]) -> None:
        """Takes the topics whose tables have been written before; called before `fence`. Where such a table is missing it is
        treated as unreachable, not as new."""


@runtime_checkable
class KnowsTopicIds(Protocol):
    """A writer whose ledger keeps the id of the Kafka topic that its offsets belong to."""

    def topic_ids(self) -> Mapping[str, str]:
        """Returns the topic ids in the ledger, by topic, as far as it has them."""

    def know(self, ids: Mapping[str, str]) -> None:
        """Stores these ids beside the offsets, at the latest with the next ones."""


@runtime_checkable
class AppliesTogether(Protocol):
    """A warehouse in which several tables change at one moment for its readers."""

    def apply_all(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        """Applies several batches in one step and returns the counts that `apply` returns. The batches may be iterated again."""

    def through(self) -> Mapping[str, int]:
        """Returns, by source, the position before which readers see every transaction whole."""


@runtime_checkable
class CommitsTablesAlone(Protocol):
    """A warehouse whose tables commit one by one, so that some may be further than what readers were told."""

    def ahead(self) -> Mapping[str, int]:
        """Returns, by source, the position of the table that is furthest: no earlier consistent set can be shown."""
