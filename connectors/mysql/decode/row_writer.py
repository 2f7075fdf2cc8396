"""What a decoder hands on, and who writes its rows as records where somebody else can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cdcworker.connectors.capture.stream.transaction_metadata import TransactionMetadata
from cdcworker.connectors.mysql.binlog.rows import UnreadRows
from cdcworker.connectors.mysql.decode.schema_changes import SchemaChanges
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.schemas.change import EncodedRecords, JsonObject


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """What a decoder hands on and how. `skipped`: letters of operations that are left out; `skips_same`: so are updates that change
    none of the captured columns; `shows_query`: the source block has the statement's text; `completes`: the last record of each key has
    to hold the whole row."""

    skipped: frozenset[str] = frozenset()
    skips_same: bool = False
    shows_query: bool = False
    completes: bool = False
    transactions: TransactionMetadata | None = None
    schema_changes: SchemaChanges | None = None


class RowWriter(Protocol):
    """Writes rows as records, those that it can."""

    def begin(self, plan: TablePlan | None, rows: UnreadRows, source: JsonObject | None) -> bool:
        """Is told of an event of which rows may be written next, with the `source` block of its first row; without a plan and a source
        they are counted only. Returns whether they can be."""

    def write(self, at: int, row: int, index: int) -> tuple[int, int]:
        """Writes rows from an offset on; `row` and `index` are the numbers of the first one in its event and its transaction. Returns the
        offset of the first row that it cannot write, and how many it has written."""

    def take(self) -> EncodedRecords | None:
        """Returns what has been written."""
