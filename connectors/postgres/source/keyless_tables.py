"""Tables without a key: read whole while the stream stands still, since nothing tells their rows apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, Protocol

from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.capture.snapshot.chunks import KeyChanged, NotVisibleYet, ReadView, TableGone, TableLocked
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, TableLoad
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.server.catalog import TableInfo
from cdcworker.connectors.postgres.snapshot.chunk_reader import ChunkReader, TableErrors
from cdcworker.connectors.postgres.source.captured_tables import LOCK_MS
from cdcworker.connectors.postgres.source.session import Session
from cdcworker.schemas.change import Change, EncodedRecords, PollBatch
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.failpoints import hit

KEYLESS_TOO_LARGE: Final = declare(
    "postgres.keyless_too_large",
    "data",
    "A table without a key is too large to be read in one transaction",
    "Give it a primary key or a replica identity index, so that it is read in chunks; or raise snapshot.keyless.max.bytes "
    "and mind that the transaction holds back vacuum meanwhile.",
)


class BatchFactory(Protocol):
    def __call__(self, out: Sequence[Change | EncodedRecords], *, idle: bool) -> PollBatch:
        """Returns a batch of these changes, with the position as it is now."""


def read_whole(session: Session, load: SnapshotLoad, table: TableLoad, batch: BatchFactory) -> Iterator[PollBatch]:
    """Reads a whole table without a key, batch by batch. A second attempt begins with a truncate, so that readers empty the
    table first; so does a table that is read once more."""
    snapshot, emitter = session.snapshot, session.emitter
    assert snapshot
    assert emitter
    reader = session.connections.reader()
    loader = snapshot.loader
    opened = _begin(reader, loader, load, table)
    if opened is None:
        return
    too_large = _beyond(reader, table, session.settings.raw["snapshot.keyless.max.bytes"])
    if too_large:
        reader.end()
        loader.set_back(load, table, too_large)
        return
    view, plan, info = opened
    emitter.check(plan)
    table.attempt += 1
    stamp = emitter.stamp(plan, view, session.position.safe_lsn)
    # The attempt is stored before its first row, so that the next one knows of it.
    again = table.attempt > 1 or not table.fresh
    yield batch([stamp.truncate()] if again else [], idle=True)
    hit("snapshot.keyless_begun")
    with closing(reader.rows(plan, info)) as pieces, TableErrors(plan):
        for piece in pieces:
            before = snapshot.progress.rows
            rows = emitter.rows(piece, stamp)
            table.rows += snapshot.progress.rows - before
            yield batch(rows, idle=False)
            hit("snapshot.keyless_rows")
    reader.end()
    hit("snapshot.keyless_read")
    snapshot.read_keyless(view, load, table)
    yield batch([], idle=False)


def _begin(
    reader: ChunkReader, loader: ChunkScheduler, load: SnapshotLoad, table: TableLoad
) -> tuple[ReadView, TableDecodePlan, TableInfo] | None:
    """Begins to read a table without a key, in a transaction that sees all it must. Returns None when the table has to wait, is
    gone, or has a key by now."""
    try:
        # The stream stands still meanwhile.
        view, plan, info = reader.begin(table.table_id, LOCK_MS)
    except (TableGone, TableLocked) as exc:
        loader.set_back(load, table, exc)
        return None
    # Its events are left out by what the snapshot sees: one of a standby must know, and none may run then.
    if not plan.table.key and view.snap.exact and loader.must_see(load).met(view.snap):
        loader.prune(view.snap.sees)
        return view, plan, info
    reader.end()
    loader.set_back(load, table, KeyChanged() if plan.table.key else NotVisibleYet())
    return None


def _beyond(reader: ChunkReader, table: TableLoad, bytes_max: int) -> CdcError | None:
    """Returns the error for a table that is too large: its read holds one transaction open, and begins again when it is broken
    off."""
    if not bytes_max:
        return None
    parts = "select sum(pg_table_size(relid))::bigint from pg_partition_tree(%(oid)s)"
    statement = f"select greatest(pg_table_size(%(oid)s), ({parts}))"
    row = reader.connection.execute(statement, {"oid": table.table_id}).fetchone()
    if row is None or row[0] <= bytes_max:
        return None
    text = f"a table without a key has {row[0]} bytes, snapshot.keyless.max.bytes is {bytes_max}"
    return CdcError(KEYLESS_TOO_LARGE, text, where={"table": table.full_name})
