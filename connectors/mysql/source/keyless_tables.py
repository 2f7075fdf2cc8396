"""How tables without a key are read whole: by one SELECT, in one transaction."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.errors import KEYLESS_TOO_LARGE
from cdcworker.connectors.mysql.snapshot.chunk_reader import ChunkReader
from cdcworker.connectors.mysql.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.mysql.source.session import Session
from cdcworker.schemas.change import Change, EncodedRecords


@dataclass
class SelectedTable:
    """A table whose read has begun."""

    reader: ChunkReader
    emitter: RowEmitter
    view: ReadView
    plan: TablePlan

    @property
    def has_key(self) -> bool:
        return bool(self.plan.table.key)

    def size(self) -> int:
        return self.reader.table_bytes(self.plan)

    def check(self) -> None:
        self.emitter.check(self.plan)

    def truncate(self) -> Change | EncodedRecords:
        return self.emitter.truncate(self.plan, self.view.ts_us)

    def pieces(self) -> Generator[Sequence[Change | EncodedRecords]]:
        with closing(self.reader.whole(self.plan)) as pieces:
            for piece in pieces:
                yield self.emitter.rows(self.view, piece)


class KeylessTables:
    """The `WholeTables` of an open session."""

    too_large = KEYLESS_TOO_LARGE

    def __init__(self, session: Session) -> None:
        assert session.emitter
        self._emitter = session.emitter
        self._reader = session.connections.reader(session.state.planner, session.scope.name_of)

    def begin(self, table_id: int) -> SelectedTable:
        return SelectedTable(self._reader, self._emitter, *self._reader.begin(table_id))

    def end(self) -> None:
        self._reader.end()
