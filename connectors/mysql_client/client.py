"""PyMySQL's connection as connectors use it: it sends rows from memory, and no file and no password to whoever asks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from typing import Any, Final

import pymysql
from pymysql import _auth
from pymysql.connections import Connection as PlainConnection
from pymysql.connections import MySQLResult
from pymysql.constants import COMMAND, CR
from pymysql.protocol import FieldDescriptorPacket

Parameters = Sequence[Any] | Mapping[str, Any]
PACKET_BYTES: Final = 256 * 1024
CLEAR_PASSWORDS: Final = ("mysql_clear_password", "dialog", "sha256_password", "mysql_old_password")
"""Ways to log in that tell the server the password itself, encrypted with a key that the server brings along, or scrambled so
weakly that it is found at once."""
CACHING_SHA2: Final = "caching_sha2_password"
"""A way to log in that tells it only to a server that does not remember it."""
_KNOWN: Final = b"\x01\x03"
_FOUND: Final = re.compile(rb"Duplicates: (\d+)")


class WeakLoginError(pymysql.err.OperationalError):  # type: ignore[misc]
    """The server asked for the password itself over a connection that does not prove who the server is."""


class _Refusal:
    """Stands in for a way to log in that is not for connectors."""

    def __init__(self, _connection: Any) -> None:
        pass

    def authenticate(self, _packet: Any) -> Any:
        raise WeakLoginError(CR.CR_AUTH_PLUGIN_ERR, "the server asks for the password itself")


class _CachedSha2:
    """Logs in by caching_sha2_password where the server remembers the password, which then is scrambled only."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        connection = self._connection
        if packet.is_auth_switch_request():
            connection.salt = packet.read_all().removesuffix(b"\0")
            connection.write_packet(_auth.scramble_caching_sha2(connection.password, connection.salt))
            packet = connection._read_packet()
        if packet.is_ok_packet():
            return packet
        if packet.get_all_data() != _KNOWN:
            raise WeakLoginError(CR.CR_AUTH_PLUGIN_ERR, "the server asks for the password itself")
        return connection._read_packet()


class _Result(MySQLResult):  # type: ignore[misc]
    def _read_load_local_packet(self, first_packet: Any) -> None:
        """Sends the rows that `load` was given. A server that asks for a file gets what is there: nothing, where nothing was
        to be loaded."""
        connection = self.connection
        rows, connection.rows = connection.rows, ()
        try:
            for packet in rows:
                connection.write_packet(packet)
        finally:
            connection.write_packet(b"")
            answer = connection._read_packet()
        if not answer.is_ok_packet():
            raise pymysql.err.OperationalError(CR.CR_COMMANDS_OUT_OF_SYNC, "the server did not take the rows")
        self._read_ok_packet(answer)


class MySqlConnection(PlainConnection):  # type: ignore[misc]
    """One connection, used by one thread. `rows` is what the next LOAD DATA LOCAL sends."""

    rows: Iterable[bytes] = ()
    _auth_plugin_name: str
    decoders: Any
    use_unicode: Any
    server: Any = None
    """What kind of server it is, in the words of whoever opened the connection."""

    def __init__(self, *, trusted: bool, **options: Any) -> None:
        """`trusted`: whether a server may have the password itself."""
        self._trusted = trusted
        plugins = {} if trusted else {**dict.fromkeys(CLEAR_PASSWORDS, _Refusal), CACHING_SHA2: _CachedSha2}
        super().__init__(local_infile=True, auth_plugin_map=plugins, defer_connect=True, **options)

    def _request_authentication(self) -> None:
        if not self._trusted and self._auth_plugin_name in CLEAR_PASSWORDS:
            # What a server names first is answered before it can be refused.
            self._auth_plugin_name = "mysql_native_password"
        try:
            super()._request_authentication()
        except RuntimeError as exc:
            # Some ways to log in need packages that PyMySQL does without.
            raise pymysql.err.OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, "a package is missing") from exc

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result = None
        result = _Result(self)
        if unbuffered:
            try:
                result.init_unbuffered_query()
            except BaseException:
                # There are no rows to wait for.
                result.unbuffered_active = False
                raise
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows)

    def wait_without_limit(self) -> None:
        """Lets statements take as long as they need; that the server's machine is gone the kernel notices."""
        self._read_timeout = self._write_timeout = None

    def ask(self, statement: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        """Executes a statement and returns its rows. Without parameters no % has a meaning."""
        with self.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def one(self, statement: str, parameters: Parameters | None = None) -> tuple[Any, ...] | None:
        """Returns the first row of a statement; None: there is none."""
        found = self.ask(statement, parameters)
        return found[0] if found else None

    def begin_rows(self, statement: str) -> tuple[BufferedReader, int]:
        """Executes a statement that returns rows. Returns the file that the packets of the rows and of their end are read from, which
        whoever called reads to the end before the next statement, and the number of the first one."""
        self._execute_command(COMMAND.COM_QUERY, statement.encode(self.encoding, "surrogateescape"))
        head = _Result(self)
        head.init_unbuffered_query()
        if not head.unbuffered_active:
            raise pymysql.err.OperationalError(CR.CR_COMMANDS_OUT_OF_SYNC, "the statement returns no rows")
        head.unbuffered_active = False
        self._sock.settimeout(self._read_timeout)
        return self._rfile, self._next_seq_id

    def stream(self, statement: str) -> tuple[Sequence[FieldDescriptorPacket], Iterator[tuple[bytes | None, ...]]]:
        """Executes a statement that returns rows. Returns the descriptions of its columns, and the rows as the server's texts, one by
        one; who does not read them to the end closes the connection."""
        self.decoders, self.use_unicode = {}, False
        self.query(statement, unbuffered=True)
        result = self._result
        if result is None or not result.unbuffered_active:
            raise pymysql.err.OperationalError(CR.CR_COMMANDS_OUT_OF_SYNC, "the statement returns no rows")
        return result.fields, iter(result._read_rowdata_packet_unbuffered, None)

    def close(self) -> None:
        if self._result is not None:
            # Rows that nobody has read are not waited for.
            self._result.unbuffered_active = False
        super().close()

    def do(self, statement: str | bytes, parameters: Parameters | None = None) -> int:
        """Executes a statement and returns how many rows it changed."""
        if parameters is None:
            return int(self.query(statement))
        with self.cursor() as cursor:
            return int(cursor.execute(statement, parameters))

    def put(self, statement: str) -> int:
        """Executes an INSERT that updates rows which are there; returns how many rows it added or changed. The server counts a changed
        row twice among those that it wrote, and once among those that it found."""
        written = int(self.query(statement))
        told = _FOUND.search(bytes(self._result.message or b"")) if self._result is not None else None
        return written - int(told[1]) if told else written

    def load(self, statement: str, rows: memoryview) -> tuple[int, int]:
        """Executes a LOAD DATA LOCAL with these rows; returns how many were stored and how many warnings there were."""
        self.rows = (bytes(rows[at : at + PACKET_BYTES]) for at in range(0, len(rows), PACKET_BYTES))
        try:
            stored = int(self.query(statement))
        finally:
            self.rows = ()
        return stored, int(self._result.warning_count or 0) if self._result is not None else 0
