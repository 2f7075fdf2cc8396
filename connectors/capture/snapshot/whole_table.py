"""Tables without a key: read whole while the stream stands still, since nothing tells their rows apart."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Protocol

from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.capture.snapshot.chunks import KeyChanged, NotVisibleYet, ReadView, TableGone, TableLocked
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, TableLoad
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.schemas.change import Change, EncodedRecords, PollBatch
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit


class BatchFactory(Protocol):
    def __call__(self, out: Sequence[Change | EncodedRecords], *, idle: bool) -> PollBatch:
        """Returns a batch of these changes, with the position as it is now."""


class WholeTable(Protocol):
    """A table whose read has begun: one transaction that lasts until the end."""

    @property
    def view(self) -> ReadView: ...

    @property
    def has_key(self) -> bool: ...

    def size(self) -> int:
        """Returns its bytes, by what the server remembers of it."""

    def check(self) -> None:
        """Raises CdcError when its rows may not be handed on in its shape."""

    def truncate(self) -> Change | EncodedRecords:
        """Returns the change by which readers empty it before its rows come again."""

    def pieces(self) -> Generator[Sequence[Change | EncodedRecords]]:
        """Yields the changes of its rows, some at a time."""


class WholeTables(Protocol):
    """Begins such reads, one after the other."""

    too_large: str
    """The code of the error for a table that is larger than the config allows."""

    def begin(self, table_id: int) -> WholeTable:
        """Raises what keeps the table from being read now."""

    def end(self) -> None:
        """Ends the transaction."""


def read_whole(
    snapshot: WatermarkSnapshot,
    asked: tuple[SnapshotLoad, TableLoad],
    tables: WholeTables,
    bytes_max: int,
    batch: BatchFactory,
) -> Iterator[PollBatch]:
    """Reads a whole table without a key, batch by batch. A second attempt begins with a truncate, so that readers empty the
    table first; so does a table that is read once more. `bytes_max` of 0: however large it is."""
    (load, table), loader, progress = asked, snapshot.loader, snapshot.progress
    whole = begin(tables, loader, load, table)
    if whole is None:
        return
    # Its read holds one transaction open, and begins again when it is broken off.
    size = whole.size() if bytes_max else 0
    if size > bytes_max > 0:
        tables.end()
        text = f"a table without a key has {size} bytes, snapshot.keyless.max.bytes is {bytes_max}"
        loader.defer_keyless(load, table, CdcError(tables.too_large, text, where={"table": table.full_name}))
        return
    whole.check()
    table.attempt += 1
    # The attempt is stored before its first row, so that the next one knows of it.
    again = table.attempt > 1 or not table.fresh
    yield batch([whole.truncate()] if again else [], idle=True)
    hit("snapshot.keyless_begun")
    before = progress.rows
    with closing(whole.pieces()) as pieces:
        for rows in pieces:
            table.rows += progress.rows - before
            yield batch(rows, idle=False)
            before = progress.rows
            hit("snapshot.keyless_rows")
    tables.end()
    hit("snapshot.keyless_read")
    snapshot.read_keyless(whole.view, load, table)
    yield batch([], idle=False)


def begin(tables: WholeTables, loader: ChunkScheduler, load: SnapshotLoad, table: TableLoad) -> WholeTable | None:
    """Begins to read a table without a key, in a transaction that sees all it must. Returns None when the table has to wait, is
    gone, or has a key by now."""
    try:
        whole = tables.begin(table.table_id)
    except (TableGone, TableLocked, NotVisibleYet) as exc:
        loader.defer_keyless(load, table, exc)
        return None
    # Its events are left out by what the read saw, so that has to be known of every transaction.
    if not whole.has_key and whole.view.snap.exact and loader.must_see(load).met(whole.view.snap):
        loader.prune(whole.view.snap.sees)
        return whole
    tables.end()
    loader.defer_keyless(load, table, KeyChanged() if whole.has_key else NotVisibleYet())
    return None
