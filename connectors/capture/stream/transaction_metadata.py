"""Debezium's transaction metadata: where a source transaction begins and ends, and the place of each event in it.

The records of the two ends go with the events into the same Kafka transaction. A transaction of which nothing is handed
on has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.schemas.change import Change, Column, EncodedRecords, PlainRecord, Position, Table

_COLLECTIONS: Final[dict[str, Any]] = {
    "type": "array",
    "items": [
        "null",
        {
            "type": "record",
            "name": "collection",
            "namespace": "event",
            "fields": [{"name": "data_collection", "type": "string"}, {"name": "event_count", "type": "long"}],
            "connect.version": 1,
            "connect.name": "event.collection",
        },
    ],
}
_NAMES: Final = "io.debezium.connector.common.TransactionMetadata"


def transaction_table(topic: str, source_schema: Mapping[str, Any]) -> Table:
    """The shape of the records of a transaction's two ends, which are written without an envelope."""
    return Table(
        path=("transaction",),
        table_id=0,
        columns=(
            Column("status", "string", optional=False),
            Column("id", "string", optional=False),
            Column("event_count", "long"),
            Column("data_collections", _COLLECTIONS),
            Column("ts_ms", "long", optional=False),
        ),
        key=(1,),
        source_schema=source_schema,
        plain=PlainRecord(topic, f"{_NAMES}Key", f"{_NAMES}Value"),
    )


class TransactionMetadata:
    """Counts what is handed on of the transaction under way. `counts`: by data collection."""

    def __init__(self, topic: str, source_schema: Mapping[str, Any]) -> None:
        self.counts: dict[str, int] = {}
        self._stored: Mapping[str, int] | None = None
        self._table = transaction_table(topic, source_schema)
        self._total = 0
        self._id = ""
        self._ts_ms = 0

    def resume(self, counts: Mapping[str, int] | None) -> None:
        """Takes the counts of the transaction that is resumed inside; None: no transaction is."""
        self._stored = counts

    def begin(self, identity: str, ts_ms: int, *, resumed: bool) -> None:
        """A transaction begins. `identity` is its id in the records, `ts_ms` the time of its commit; `resumed`: a part of it
        was handed on by an earlier run."""
        self.counts = dict(self._stored or {}) if resumed else {}
        self._total = sum(self.counts.values())
        self._id = identity
        self._ts_ms = ts_ms

    def place(self, change: Change, out: list[Change | EncodedRecords]) -> None:
        """Called before the event goes to `out`: numbers it, behind the transaction's begin record if it is the
        first."""
        if not self._total:
            out.append(self._end("BEGIN", change.position, None, None))
        name = ".".join(change.table.path)
        self._total += 1
        self.counts[name] = order = self.counts.get(name, 0) + 1
        change.transaction = {"id": self._id, "total_order": self._total, "data_collection_order": order}

    def go_back(self, counts: Mapping[str, int]) -> None:
        """The events behind these counts are undone."""
        self.counts = dict(counts)
        self._total = sum(self.counts.values())

    def end(self, position: Position, out: list[Change | EncodedRecords]) -> None:
        if self._total:
            counts = [{"data_collection": name, "event_count": count} for name, count in self.counts.items()]
            out.append(self._end("END", position, self._total, counts))

    def _end(self, status: str, position: Position, total: int | None, counts: list[dict[str, Any]] | None) -> Change:
        row = (status, self._id, total, counts, self._ts_ms)
        return Change("m", self._table, position, {}, None, row)
