"""Tables without a key: read whole while the stream stands still, since nothing tells their rows apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from cdcworker.connectors.postgres.catalog import TableInfo
from cdcworker.connectors.postgres.chunks import Busy, KeyChanged, Named, NotVisibleYet, Reader, TableGone, View
from cdcworker.connectors.postgres.loading import Loader
from cdcworker.connectors.postgres.progress import Load, TableLoad
from cdcworker.connectors.postgres.relations import Plan
from cdcworker.connectors.postgres.stamping import stamped
from cdcworker.schemas.change import Batch, Change, Ready

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.session import Session


class MakeBatch(Protocol):
    def __call__(self, out: Sequence[Change | Ready], *, idle: bool) -> Batch:
        """Of these changes, with the position as it is now."""


def read_whole(session: Session, load: Load, table: TableLoad, batch: MakeBatch) -> Iterator[Batch]:
    """A second attempt begins with a truncate, so that consumers start the table again; so does one that is read once
    more."""
    snapshot = session.snapshot
    assert snapshot
    reader = session.own_reader()
    opened = _begin(reader, snapshot.loader, load, table)
    if opened is None:
        return
    view, plan, info = opened
    snapshot.check(plan.relation)
    table.attempt += 1
    stamp = snapshot.stamp(plan, view, session.position.safe_lsn)
    # The attempt is stored before its first row, so that the next one knows of it.
    again = table.attempt > 1 or not table.fresh
    yield batch([stamp.truncate()] if again else [], idle=True)
    with closing(reader.rows(plan, info)) as pieces, Named(plan):
        for piece in pieces:
            before = snapshot.progress.rows
            rows = stamped(piece, stamp, snapshot.writer)
            table.rows += snapshot.progress.rows - before
            yield batch(rows, idle=False)
    reader.end()
    snapshot.read_keyless(view, load, table)
    yield batch([], idle=False)


def _begin(reader: Reader, loader: Loader, load: Load, table: TableLoad) -> tuple[View, Plan, TableInfo] | None:
    """A read of a table without a key, in a transaction that sees all it must; None when it has to wait, is gone, or
    has a key by now."""
    try:
        view, plan, info = reader.begin(table.oid)
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
