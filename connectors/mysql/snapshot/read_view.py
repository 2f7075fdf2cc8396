"""What a read saw of the server's transactions: a set of GTIDs, which is a place of the log as well."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.mysql.errors import SNAPSHOT_REFUSED
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql.server.facts import ServerFacts
    from cdcworker.connectors.mysql_client.client import MySqlConnection


@dataclass(frozen=True, slots=True)
class GtidPlace:
    """A place of the log: all transactions before it. One place is at or behind another that it holds whole."""

    gtids: MariaDbPosition | GtidSet

    @classmethod
    def parse(cls, text: str, *, is_mariadb: bool) -> GtidPlace:
        return cls(MariaDbPosition.parse(text) if is_mariadb else GtidSet.parse(text))

    def __ge__(self, other: GtidPlace, /) -> bool:
        if isinstance(self.gtids, MariaDbPosition):
            return isinstance(other.gtids, MariaDbPosition) and self.gtids.contains(other.gtids)
        return isinstance(other.gtids, GtidSet) and self.gtids.contains(other.gtids)

    def __str__(self) -> str:
        return str(self.gtids)


@dataclass(frozen=True, slots=True)
class GtidVisibility:
    """The transactions that a read saw for certain. Of those between `low` and the place up to which the read was made, MySQL does
    not tell which ones it saw: their events count as newer."""

    low: GtidPlace
    exact: bool

    def sees(self, transaction: str) -> bool:
        """Returns whether a transaction, by the text of its GTID, was seen for certain."""
        return self.low >= GtidPlace.parse(transaction, is_mariadb=isinstance(self.low.gtids, MariaDbPosition))

    def sees_delivered(self, transaction: str) -> bool:
        return self.sees(transaction)

    def all_ended(self, upto: int, exempt: frozenset[int]) -> bool:
        """Transactions are in the log when they commit: none is older than its place there."""
        del upto, exempt
        return True

    def __str__(self) -> str:
        return str(self.low)


class ReadViews:
    """Begins reads over one connection."""

    def __init__(self, connection: MySqlConnection, facts: ServerFacts) -> None:
        self._connection = connection
        self._facts = facts
        self._found: tuple[tuple[str, int], str] = ("", 0), ""
        """The place of a log file that was asked for last, and its GTIDs: the server reads the file up to it to tell them."""

    def begin(self) -> ReadView:
        """Begins a transaction that reads at one moment, without a lock; returns what it sees. Raises CdcError for a server without
        GTIDs, and PyMySQL's errors."""
        is_mariadb, connection = self._facts.is_mariadb, self._connection
        if not self._facts.has_gtids:
            raise CdcError(SNAPSHOT_REFUSED, "rows are read beside the log where transactions have GTIDs only")
        low = "" if is_mariadb else _executed(connection)
        connection.do("start transaction with consistent snapshot, read only")
        if is_mariadb:
            low = high = self._snapshot_gtids()
        else:
            high = _executed(connection)
        # Where nothing has committed around the beginning, nothing is uncertain.
        snap = GtidVisibility(GtidPlace.parse(low, is_mariadb=is_mariadb), exact=is_mariadb or low == high)
        return ReadView(snap, GtidPlace.parse(high, is_mariadb=is_mariadb), time.time_ns() // 1000)

    def _snapshot_gtids(self) -> str:
        """The server tells where in its log the snapshot was taken."""
        rows = self._connection.ask("show session status like 'binlog_snapshot_%'")
        found = {str(name).lower(): value for name, value in rows}
        place = str(found["binlog_snapshot_file"]), int(found["binlog_snapshot_position"])
        if place != self._found[0]:
            asked = self._connection.one("select binlog_gtid_pos(%s, %s)", place)
            self._found = place, str(asked[0] or "") if asked else ""
        return self._found[1]


def _executed(connection: MySqlConnection) -> str:
    """A transaction is in this set once its rows are visible."""
    found = connection.one("select @@global.gtid_executed")
    return str(found[0]) if found else ""
