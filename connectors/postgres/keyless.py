"""Tables without a key: read whole while the stream stands still, since nothing tells their rows apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, Protocol

from cdcworker.connectors.postgres.catalog import TableInfo
from cdcworker.connectors.postgres.chunks import Busy, KeyChanged, Named, NotVisibleYet, Reader, TableGone, View
from cdcworker.connectors.postgres.loading import Loader
from cdcworker.connectors.postgres.progress import Load, TableLoad
from cdcworker.connectors.postgres.relations import Plan
from cdcworker.connectors.postgres.stamping import stamped
from cdcworker.connectors.postgres.tables import LOCK_MS
from cdcworker.schemas.change import Batch, Change, Ready
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.session import Session


KEYLESS_TOO_LARGE: Final = declare(
    "postgres.keyless_too_large",
    "data",
    "A table without a key is too large to be read in one transaction",
    "Give it a primary key or a replica identity index, so that it is read in chunks; or raise snapshot.keyless.max.bytes "
    "and mind that the transaction holds back vacuum meanwhile.",
)


class MakeBatch(Protocol):
    def __call__(self, out: Sequence[Change | Ready], *, idle: bool) -> Batch:
        """Of these changes, with the position as it is now."""


def read_whole(session: Session, load: Load, table: TableLoad, batch: MakeBatch) -> Iterator[Batch]:
    """A second attempt begins with a truncate, so that consumers start the table again; so does one that is read once
    more."""
    snapshot = session.snapshot
    assert snapshot
    reader = session.own_reader()
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
    snapshot.check(plan)
    table.attempt += 1
    stamp = snapshot.stamp(plan, view, session.position.safe_lsn)
    # The attempt is stored before its first row, so that the next one knows of it.
    again = table.attempt > 1 or not table.fresh
    yield batch([stamp.truncate()] if again else [], idle=True)
    hit("snapshot.keyless_begun")
    with closing(reader.rows(plan, info)) as pieces, Named(plan):
        for piece in pieces:
            before = snapshot.progress.rows
            rows = stamped(piece, stamp, snapshot.writer)
            table.rows += snapshot.progress.rows - before
            yield batch(rows, idle=False)
            hit("snapshot.keyless_rows")
    reader.end()
    hit("snapshot.keyless_read")
    snapshot.read_keyless(view, load, table)
    yield batch([], idle=False)


def _begin(reader: Reader, loader: Loader, load: Load, table: TableLoad) -> tuple[View, Plan, TableInfo] | None:
    """A read of a table without a key, in a transaction that sees all it must; None when it has to wait, is gone, or
    has a key by now."""
    try:
        # The stream stands still meanwhile.
        view, plan, info = reader.begin(table.oid, LOCK_MS)
    except (TableGone, Busy) as exc:
        loader.set_back(load, table, exc)
        return None
    # Its events are left out by what the snapshot sees: one of a standby must know, and none may run then.
    if not plan.table.key and view.snap.exact and loader.must_see(load).met(view.snap):
        loader.prune(view.snap.sees)
        return view, plan, info
    reader.end()
    loader.set_back(load, table, KeyChanged() if plan.table.key else NotVisibleYet())
    return None


def _beyond(reader: Reader, table: TableLoad, bytes_max: int) -> CdcError | None:
    """One transaction is open for as long as the read takes, and a read that is broken off begins again."""
    if not bytes_max:
        return None
    parts = "select sum(pg_table_size(relid))::bigint from pg_partition_tree(%(oid)s)"
    statement = f"select greatest(pg_table_size(%(oid)s), ({parts}))"
    row = reader.connection.execute(statement, {"oid": table.oid}).fetchone()
    if row is None or row[0] <= bytes_max:
        return None
    text = f"a table without a key has {row[0]} bytes, snapshot.keyless.max.bytes is {bytes_max}"
    return CdcError(KEYLESS_TOO_LARGE, text, where={"table": table.full_name})
