"""How tables without a key are read whole: by COPY, in one transaction."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.server.catalog import TableInfo
from cdcworker.connectors.postgres.snapshot.chunk_reader import ChunkReader, TableErrors
from cdcworker.connectors.postgres.snapshot.row_emitter import RowEmitter, TableRowPositions
from cdcworker.connectors.postgres.source.captured_tables import LOCK_MS
from cdcworker.connectors.postgres.source.session import Session
from cdcworker.schemas.change import Change, EncodedRecords
from cdcworker.schemas.errors import declare

KEYLESS_TOO_LARGE: Final = declare(
    "postgres.keyless_too_large",
    "data",
    "A table without a key is too large to be read in one transaction",
    "Give it a primary key or a replica identity index, so that it is read in chunks; or raise snapshot.keyless.max.bytes "
    "and mind that the transaction holds back vacuum meanwhile.",
)


@dataclass
class CopiedTable:
    """A table whose read has begun."""

    reader: ChunkReader
    emitter: RowEmitter
    view: ReadView
    plan: TableDecodePlan
    info: TableInfo
    stamp: TableRowPositions

    @property
    def has_key(self) -> bool:
        return bool(self.plan.table.key)

    def size(self) -> int:
        parts = "select sum(pg_table_size(relid))::bigint from pg_partition_tree(%(oid)s)"
        statement = f"select greatest(pg_table_size(%(oid)s), ({parts}))"
        row = self.reader.connection.execute(statement, {"oid": self.info.oid}).fetchone()
        return 0 if row is None else int(row[0] or 0)

    def check(self) -> None:
        self.emitter.check(self.plan)

    def truncate(self) -> Change:
        return self.stamp.truncate()

    def pieces(self) -> Generator[Sequence[Change | EncodedRecords]]:
        with closing(self.reader.rows(self.plan, self.info)) as pieces, TableErrors(self.plan):
            for piece in pieces:
                yield self.emitter.rows(piece, self.stamp)


class KeylessTables:
    """The `WholeTables` of an open session."""

    too_large = KEYLESS_TOO_LARGE

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reader = session.connections.reader()

    def begin(self, table_id: int) -> CopiedTable:
        # The stream stands still meanwhile.
        view, plan, info = self._reader.begin(table_id, LOCK_MS)
        emitter = self._session.emitter
        assert emitter
        stamp = emitter.stamp(plan, view, self._session.position.safe_lsn)
        return CopiedTable(self._reader, emitter, view, plan, info, stamp)

    def end(self) -> None:
        self._reader.end()
