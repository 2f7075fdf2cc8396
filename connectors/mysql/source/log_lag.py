"""How far a position is behind the end of the server's log: in bytes, in transactions, and until the server may remove what is unread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.mysql.gtid.executed import Gtids, parse_gtids
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet
from cdcworker.connectors.mysql.server.facts import ServerFacts
from cdcworker.connectors.mysql.server.log_files import end_place, file_number, log_files
from cdcworker.connectors.mysql.server.steady_connection import translated
from cdcworker.connectors.mysql.source.position import FilePlace, StoredPosition

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

_WRITTEN_MARIADB: Final = "select @@global.gtid_binlog_pos"
_WRITTEN_MYSQL: Final = "select @@global.gtid_executed"


@dataclass(frozen=True, slots=True)
class LogLag:
    """What lies behind a position. None stands for what the server does not tell."""

    bytes: int | None = None
    transactions: int | None = None
    retained: int = 0
    """Bytes of all files of the log."""
    read_s: float = 0.0
    """When the last transaction was committed that was read, in seconds since 1970; 0: not known."""

    @property
    def is_behind(self) -> bool:
        """Returns whether anything was written that was not read. The log's end may lie behind events that are no transactions."""
        return bool(self.bytes if self.transactions is None else self.transactions)

    def expires_in(self, expiry_s: int, now_s: float) -> float | None:
        """Returns the seconds until the server may remove log that was not read; None where it does not, or nothing waits."""
        if not expiry_s or not self.read_s or not self.is_behind:
            return None
        return max(0.0, self.read_s + expiry_s - now_s)

    def numbers(self, expiry_s: int, now_s: float) -> dict[str, Any]:
        """Returns the lag as tasks report it. What is unknown now is null: a number of an earlier look must not stay."""
        left = self.expires_in(expiry_s, now_s)
        return {
            "lag_transactions": self.transactions,
            "binlog_bytes": self.retained,
            "binlog_expires_in_s": None if left is None else round(left),
        }


def log_lag(
    connection: MySqlConnection, facts: ServerFacts, position: StoredPosition, files: Mapping[str, int] | None = None
) -> LogLag:
    """Asks the server. `files` are those of the log as they were a while ago; None: they are asked for. Raises CdcError."""
    end = end_place(connection, facts)
    if files is None or end[0] not in files:
        files = log_files(connection)
    sizes = {**files, end[0]: end[1]}
    is_known = position.server == facts.identity and bool(position.place.file)
    transactions = None
    if position.has_gtids:
        transactions = transactions_behind(position.executed(), written(connection, facts))
    behind = bytes_behind(position.place, sizes) if is_known else None
    # The file was begun before whatever was read of it.
    read_s = position.ts_ms / 1000 or float(position.place.made)
    return LogLag(behind, transactions, sum(sizes.values()), read_s)


def bytes_behind(place: FilePlace, files: Mapping[str, int]) -> int:
    """Returns the bytes from a place to the end of a log of these files with these sizes."""
    own = file_number(place.file)
    behind = ((file_number(name), size) for name, size in files.items())
    return sum(max(0, size - place.position) if number == own else size for number, size in behind if number >= own)


def written(connection: MySqlConnection, facts: ServerFacts) -> Gtids:
    """Returns the transactions that are in the server's log."""
    with translated():
        found = connection.one(_WRITTEN_MARIADB if facts.is_mariadb else _WRITTEN_MYSQL)
    return parse_gtids(str(found[0] or "") if found else "", is_mariadb=facts.is_mariadb)


def transactions_behind(read: Gtids, there: Gtids) -> int:
    """Returns how many transactions of the log were not read. Numbers of a MariaDB domain may have gaps, which count."""
    if isinstance(there, MariaDbPosition) and isinstance(read, MariaDbPosition):
        known = {domain: gtid.sequence for domain, gtid in read.last.items()}
        return sum(max(0, gtid.sequence - known.get(domain, 0)) for domain, gtid in there.last.items())
    if isinstance(there, GtidSet) and isinstance(read, GtidSet):
        left = there.subtract(read).intervals.values()
        return sum(last - first + 1 for intervals in left for first, last in intervals)
    return 0
