"""The two ways to build batches: of every record as it is read, or of whole transactions of the source only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.sink_engine.batch_source import Partition, ReadBatch
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.connectors.sink_engine.paused_tables import PausedTables
from cdcworker.connectors.sink_engine.pipeline import BatchBuilder, BuiltBatch
from cdcworker.connectors.transactions.whole_transactions import WholeTransactions
from cdcworker.connectors.warehouses.abilities import AppliesTogether, CommitsTablesAlone


class SinkBuilder(BatchBuilder, Protocol):
    """A builder as the pump uses it."""

    @property
    def topics(self) -> Sequence[str]:
        """Topics that it needs besides those of tables."""

    def begin(self, offsets: Mapping[Partition, int]) -> None:
        """Starts anew where the ledger stands."""


class EventualBuilder:
    """Builds each batch as it is read."""

    topics: Sequence[str] = ()

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._offsets: dict[Partition, int] = {}
        """Offsets like those of the ledger, with what is being applied."""
        self._count = 0

    def begin(self, offsets: Mapping[Partition, int]) -> None:
        """Starts anew where the ledger stands."""
        self._offsets = dict(offsets)

    def build(self, batch: ReadBatch) -> BuiltBatch | None:
        """Returns the tables of the batch; None when all its records are behind the ledger."""
        began = time.monotonic()
        built = self._assembler.build(batch.take(), self._offsets, self._count)
        self._offsets.update({partition: end for partition, (_, end) in built.offsets.items()})
        self._count += 1
        return BuiltBatch([built], batch.rows, batch.read_ms, _ms_since(began)) if built.offsets else None


class TransactionBuilder:
    """Builds what has become complete with a batch: whole transactions of the source."""

    def __init__(self, transactions: WholeTransactions, writer: AppliesTogether) -> None:
        self._transactions = transactions
        self._writer = writer

    @property
    def topics(self) -> Sequence[str]:
        """The topics of watermarks."""
        return self._transactions.topics

    def begin(self, offsets: Mapping[Partition, int]) -> None:
        """Starts anew where the ledger stands, and readers of the target do."""
        writer = self._writer
        ahead = writer.ahead() if isinstance(writer, CommitsTablesAlone) else {}
        self._transactions.begin(writer.through(), offsets, ahead)

    def build(self, batch: ReadBatch) -> BuiltBatch | None:
        """Returns the batches of the transactions that are complete now; None when none has become so."""
        began = time.monotonic()
        batches = self._transactions.take(batch.take(), batch.read_to)
        return None if batches is None else BuiltBatch(batches, batch.rows, batch.read_ms, _ms_since(began))


class ReadTopics:
    """The topics of a sink as the transaction builder looks at them: without the tables that are paused."""

    def __init__(self, brokers: SinkBrokers, topics: Sequence[str], paused: PausedTables) -> None:
        self._brokers = brokers
        self._topics = topics
        self._paused = paused

    def ends(self) -> Mapping[Partition, int]:
        """Returns the end of each partition of the tables that are not paused, with what is not committed."""
        paused = self._paused.topics
        return self._brokers.ends([topic for topic in self._topics if topic not in paused])

    def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Returns the number of partitions of those topics that exist."""
        return self._brokers.partitions(topics)


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
