"""The files of a server's binary log: where it ends, and which there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcworker.connectors.mysql.errors import LOG_OFF
from cdcworker.connectors.mysql.gtid.executed import Gtids, parse_gtids
from cdcworker.connectors.mysql.server.facts import ServerFacts
from cdcworker.connectors.mysql.server.steady_connection import translated
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

_BINARY_LOG_STATUS: Final = (8, 2)
"""MySQL's version from which on the statement has its new name; the former one ends with 8.4."""


class LogEnd(NamedTuple):
    """Where the log ends: the place, and the transactions before it."""

    file: str
    position: int
    gtids: Gtids


def end_place(connection: MySqlConnection, facts: ServerFacts) -> tuple[str, int]:
    """Returns file and position at which the log ends. Raises CdcError."""
    return _status(connection, facts)[:2]


def log_end(connection: MySqlConnection, facts: ServerFacts) -> LogEnd:
    """Returns where the log ends; MariaDB looks through its last file for it. Raises CdcError."""
    file, position, executed = _status(connection, facts)
    if not facts.is_mariadb:
        return LogEnd(file, position, parse_gtids(executed, is_mariadb=False))
    return LogEnd(file, position, gtids_at(connection, file, position) or parse_gtids("", is_mariadb=True))


def _status(connection: MySqlConnection, facts: ServerFacts) -> tuple[str, int, str]:
    """Returns file, position, and for MySQL the transactions before them."""
    is_new = not facts.is_mariadb and facts.version >= _BINARY_LOG_STATUS
    with translated():
        found = connection.one("show binary log status" if is_new else "show master status")
        if found is None:
            raise CdcError(LOG_OFF, "log_bin is off")
    return str(found[0]), int(found[1]), "" if facts.is_mariadb else str(found[4] or "")


def gtids_at(connection: MySqlConnection, file: str, position: int) -> Gtids | None:
    """MariaDB: returns the last transactions before a place of the log; None where there is no such place."""
    with translated():
        found = connection.one("select binlog_gtid_pos(%s, %s)", (file, position))
    return None if found is None or found[0] is None else parse_gtids(_text(found[0]), is_mariadb=True)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def log_files(connection: MySqlConnection) -> Mapping[str, int]:
    """Returns the bytes of each file, in their order."""
    with translated():
        return {str(row[0]): int(row[1]) for row in connection.ask("show binary logs")}


def file_number(name: str) -> int:
    """Returns the number of a file, which rises from file to file; 0 for a name without one."""
    digits = name.rpartition(".")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0
