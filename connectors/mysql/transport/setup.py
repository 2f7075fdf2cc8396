"""What a connection has to be told before it can be a stream of the binary log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdcworker.connectors.mysql.binlog.format_description import Checksum
from cdcworker.connectors.mysql.errors import DUMP_REFUSED, LOG_OFF
from cdcworker.connectors.mysql.transport import commands
from cdcworker.connectors.mysql.transport.refusals import of_number
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from pymysql.connections import Connection


def prepare(connection: Connection, reader: commands.Reader, start: commands.Start) -> Checksum:
    """Sets the session's variables and registers the reader. Returns how events are checked. Raises CdcError."""
    import pymysql

    try:
        version, has_log, checksum = _one(connection, "SELECT version(), @@global.log_bin, @@global.binlog_checksum")
        is_mariadb = "mariadb" in str(version).lower()
        if not int(has_log):
            raise CdcError(LOG_OFF, "log_bin is off")
        _check(start, is_mariadb=is_mariadb)
        for statement in commands.session_statements(reader, start, is_mariadb=is_mariadb):
            connection.query(statement)
        _command(connection, commands.register(reader))
    except pymysql.Error as exc:
        raise of_number(exc.args[0] if exc.args else 0, str(exc)) from exc
    return Checksum.OFF if str(checksum).upper() == "NONE" else Checksum.CRC32


def _check(start: commands.Start, *, is_mariadb: bool) -> None:
    if isinstance(start, commands.GtidStart) and is_mariadb:
        raise CdcError(DUMP_REFUSED, "the position is a set of GTIDs of MySQL, and the server is MariaDB")
    if isinstance(start, commands.MariaDbStart) and not is_mariadb:
        raise CdcError(DUMP_REFUSED, "the position is one of MariaDB, and the server is MySQL")


def _one(connection: Connection, statement: str) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    assert row is not None
    return tuple(row)


def _command(connection: Connection, payload: bytes) -> None:
    """Sends a command that is answered with OK, or raises pymysql's error."""
    connection._next_seq_id = 0
    connection.write_packet(payload)
    connection._read_packet()
