"""Tables without a key: read whole while the stream stands still, since nothing tells their rows apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.capture.snapshot.chunks import KeyChanged, NotVisibleYet, ReadView, TableGone, TableLocked
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, TableLoad
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.errors import KEYLESS_TOO_LARGE
from cdcworker.connectors.mysql.snapshot.chunk_reader import ChunkReader
from cdcworker.connectors.mysql.source.session import Session
from cdcworker.schemas.change import Change, EncodedRecords, PollBatch
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit


class BatchFactory(Protocol):
    def __call__(self, out: Sequence[Change | EncodedRecords], *, idle: bool) -> PollBatch:
        """Returns a batch of these changes, with the position as it is now."""


def read_whole(session: Session, load: SnapshotLoad, table: TableLoad, batch: BatchFactory) -> Iterator[PollBatch]:
    """Reads a whole table without a key, batch by batch. A second attempt begins with a truncate, so that readers empty the
    table first; so does a table that is read once more."""
    snapshot, emitter = session.snapshot, session.emitter
    assert snapshot
    assert emitter
    reader = session.connections.reader(session.state.planner, session.scope.name_of)
    loader = snapshot.loader
    begun = _begin(reader, loader, load, table)
    if begun is None:
        return
    view, plan = begun
    bytes_max = session.settings.raw["snapshot.keyless.max.bytes"]
    size = reader.table_bytes(plan) if bytes_max else 0
    if size > bytes_max > 0:
        reader.end()
        text = f"a table without a key has {size} bytes, snapshot.keyless.max.bytes is {bytes_max}"
        loader.set_back(load, table, CdcError(KEYLESS_TOO_LARGE, text, where={"table": table.full_name}))
        return
    emitter.check(plan)
    table.attempt += 1
    # The attempt is stored before its first row, so that the next one knows of it.
    again = table.attempt > 1 or not table.fresh
    yield batch([emitter.truncate(plan, view.ts_us)] if again else [], idle=True)
    hit("snapshot.keyless_begun")
    with closing(reader.whole(plan)) as pieces:
        for piece in pieces:
            rows = emitter.rows(plan, view, piece)
            table.rows += len(rows)
            yield batch(rows, idle=False)
            hit("snapshot.keyless_rows")
    reader.end()
    hit("snapshot.keyless_read")
    snapshot.read_keyless(view, load, table)
    yield batch([], idle=False)


def _begin(
    reader: ChunkReader, loader: ChunkScheduler, load: SnapshotLoad, table: TableLoad
) -> tuple[ReadView, TablePlan] | None:
    """Begins to read a table without a key, in a transaction that sees all it must. Returns None when the table has to wait, is
    gone, or has a key by now."""
    try:
        view, plan = reader.begin(table.table_id)
    except (TableGone, TableLocked, NotVisibleYet) as exc:
        loader.set_back(load, table, exc)
        return None
    # Its events are left out by what the read saw, so that has to be known of every transaction.
    if not plan.table.key and view.snap.exact and loader.must_see(load).met(view.snap):
        loader.prune(view.snap.sees)
        return view, plan
    reader.end()
    loader.set_back(load, table, KeyChanged() if plan.table.key else NotVisibleYet())
    return None
