"""The transaction that is being read: who it is, when it committed, and which number it has."""

from __future__ import annotations

from dataclasses import dataclass

from cdcworker.connectors.mysql.binlog.gtid_events import Gtid, MariaDbTransaction
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid
from cdcworker.connectors.mysql.gtid.mysql import Source


@dataclass(slots=True)
class Transaction:
    """`number` is its commit's; `gtid` is empty for a transaction without one. `is_group`: a commit ends it; else the statement that
    it consists of does."""

    number: int
    commit_us: int
    server_id: int
    gtid: str = ""
    own: MariaDbGtid | tuple[Source, int] | None = None
    """Its GTID as a position holds it."""
    is_group: bool = False
    thread: int | None = None
    query: str | None = None
    """The statement whose rows come now, where it is logged."""

    @property
    def identity(self) -> str:
        """What tells it from all others of its connector, for whoever reads along."""
        return self.gtid or str(self.number)


def gtid_text(found: Gtid | MariaDbTransaction) -> str:
    """Returns a GTID in the form of its server."""
    if isinstance(found, MariaDbTransaction):
        return str(found.gtid)
    if found.source is None:
        return ""
    return ":".join((str(found.source), *([found.tag] if found.tag else []), str(found.sequence)))


def gtid_of(found: Gtid | MariaDbTransaction) -> MariaDbGtid | tuple[Source, int] | None:
    if isinstance(found, MariaDbTransaction):
        return found.gtid
    return None if found.source is None else (Source(found.source, found.tag), found.sequence)
