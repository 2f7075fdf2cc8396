"""A real MariaDB server with its binary log, and what it logs for some statements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
from cdcworker.connectors.mysql.binlog.event_reader import Event, EventReader
from cdcworker.connectors.mysql.binlog.rows import RowsEvent
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.transport.commands import MariaDbStart, Reader, Start
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from pymysql.cursors import Cursor

from tests.mariadb_server import HOST, USER, MariaDbServer, find_programs

__all__ = ["LoggedServer", "changed_rows", "find_programs"]
SETTINGS = {
    "log-bin": "log",
    "server-id": "7",
    "binlog-format": "ROW",
    "binlog-row-metadata": "FULL",
    "gtid-domain-id": "3",
    "max-allowed-packet": "64M",
    "sql-mode": "NO_ENGINE_SUBSTITUTION",
}
DEADLINE_S = 60.0
READER = Reader(server_id=99, wait=False, statements=True)


class LoggedServer(MariaDbServer):
    """The server, and readers of its log."""

    def __init__(self, programs: Path, directory: Path, settings: Mapping[str, str | None] | None = None) -> None:
        super().__init__(programs, directory, {**SETTINGS, **(settings or {})})

    def connect(self) -> pymysql.Connection[Cursor]:
        """As its base, without asking for TLS, which the server does not have."""
        return pymysql.connect(
            host=HOST,
            port=self.port,
            user=USER,
            password=self.password,
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,
        )

    def printed(self, statement: str) -> list[tuple[str | None, ...]]:
        """The texts that the server prints for a query, in UTC."""
        with self.connect() as connection, connection.cursor() as cursor:
            connection.decoders = {}
            cursor.execute("set time_zone = '+00:00'")
            cursor.execute(statement)
            return [tuple(v.decode() if isinstance(v, bytes) else v for v in row) for row in cursor.fetchall()]

    def position(self) -> MariaDbPosition:
        """Where the log ends."""
        return MariaDbPosition.parse(str(self.ask("select @@gtid_binlog_pos")[0][0]))

    def purge_to(self, file: str) -> None:
        """Removes the files before this one. A file that somebody reads is not purged, nor is one whose reader's end the server has not
        noticed."""
        deadline = time.monotonic() + DEADLINE_S
        while self.ask(f"purge binary logs to '{file}'", "show binary logs")[0][0] != file:
            assert time.monotonic() < deadline, "the files are still read"

    def stream(self, start: Start, reader: Reader = READER) -> closing[DumpStream]:
        return closing(DumpStream.start(self.connect(), reader, start))

    def raw_events(self, start: Start, reader: Reader = READER) -> list[bytes]:
        """What is in the log from a start up to its end."""
        with self.stream(start, reader) as stream:
            return read_to_the_end(stream)

    def events(
        self, *statements: str, complete: Callable[[TableMap], TableMap] | None = None, reader: Reader = READER
    ) -> list[Event]:
        """Executes statements over a connection of its own; returns what the log holds of them."""
        start = MariaDbStart(self.position())
        self.ask("create database if not exists shop", "use shop", *statements)
        with self.stream(start, reader) as stream:
            events = EventReader(stream.checksum, complete)
            return [event for data in read_to_the_end(stream) for event in events.read(data)]

    def rows(self, *statements: str, **more: Any) -> list[RowsEvent]:
        """The rows events of some statements."""
        return changed_rows(self.events(*statements, **more))


def changed_rows(events: Sequence[Event]) -> list[RowsEvent]:
    return [event.body for event in events if isinstance(event.body, RowsEvent)]


def read_to_the_end(stream: DumpStream) -> list[bytes]:
    """All that a stream brings which does not wait."""
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S

    def take(data: bytes, _: bool) -> bool:
        found.append(data)
        return True

    while not stream.ended:
        assert time.monotonic() < deadline, "the stream does not end"
        stream.wait(1)
        stream.receive(take)
    return found
