"""Databases as receivers of the contract suite: what a table holds, and a server that can be reached or not."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import uuid
from typing import Any

import psycopg
from cdcworker.worker.devstack.ports import HOST

WIDE = {
    "position.column": "cdc_position",
    "truncate.enabled": "true",
    "collection.name.format": "orders",
}


class Gate:
    """A port that leads to a server as long as it is open: what `stop` does is what a server that dies does."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self._server: socket.socket | None = None
        self._links: list[socket.socket] = []
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        self._server = socket.create_server((HOST, self.port))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        self.cut()

    def cut(self) -> None:
        """Ends every connection."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
                far = socket.create_connection((HOST, self._to))
            except OSError:
                return
            with self._lock:
                self._links += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class HeldRows:
    """What a table holds, in the words of the suite's ledger. Each record is written once, so there is nothing to count but rows;
    `ids` are the ledger's offsets, which rise with each record that is taken."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.disorder: list[str] = []

    @property
    def ids(self) -> range:
        return range(self._database.taken())

    def held(self) -> dict[int, dict[str, Any]]:
        return {row["id"]: _row_of(row) for row in self._database.rows()}


def _row_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row without the sink's column. One from before the change of the schema has no value in the columns that came with it."""
    later = ("b", "f") if row.get("b") is None else ()
    return {name: _told(value) for name, value in row.items() if name not in ("cdc_position", *later)}


def _told(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


class PostgresReceiver:
    checked_table = "create table orders (id bigint primary key, n integer check (n >= 0), a text)"

    def __init__(self, server: Any) -> None:
        self._server = server
        self.database = server.create_database()
        self.gate = Gate(server.port)
        self.ledger = HeldRows(self)
        self._own = psycopg.connect(server.dsn(self.database), autocommit=True, prepare_threshold=None)

    @property
    def config(self) -> dict[str, str]:
        from psycopg.conninfo import conninfo_to_dict

        found = conninfo_to_dict(self._server.dsn(self.database))
        return {
            "connector.class": "jdbc-sink",
            "connection.url": f"jdbc:postgresql://{HOST}:{self.gate.port}/{self.database}",
            "connection.username": found["user"],
            "connection.password": found.get("password", ""),
            **WIDE,
        }

    def start(self) -> None:
        self.gate.start()

    def stop(self) -> None:
        self.gate.stop()

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._own.execute(statement, parameters or None).fetchall()

    def do(self, statement: str) -> None:
        self._own.execute(statement)

    def taken(self) -> int:
        try:
            return int(self.ask("select coalesce(sum(next_offset), 0) from _cdcworker.record_ledger")[0][0])
        except psycopg.errors.UndefinedTable:
            return 0

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        try:
            found = self._own.execute(f"select * from {table}")
        except psycopg.errors.UndefinedTable:
            return []
        names = [column.name for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def close(self) -> None:
        self._own.close()
        self.gate.stop()
        self._server.drop_database(self.database)


class MariaDbReceiver:
    @property
    def checked_table(self) -> str:
        return f"create table {self.database}.orders (id bigint primary key, n int check (n >= 0), a longtext)"

    def __init__(self, server: Any) -> None:
        from cdcworker.connectors.warehouses.mysql.connection import opened

        self._server = server
        server.wipe()
        self.database = f"d{uuid.uuid4().hex[:8]}"
        self.gate = Gate(server.port)
        self.ledger = HeldRows(self)
        self._own = opened(server.login())
        self.do(f"create database {self.database}")
        self.do(f"use {self.database}")

    @property
    def config(self) -> dict[str, str]:
        login = self._server.login()
        return {
            "connector.class": "jdbc-sink",
            "connection.url": f"jdbc:mariadb://{HOST}:{self.gate.port}/{self.database}",
            "connection.username": login.user,
            "connection.password": login.password,
            **WIDE,
        }

    def start(self) -> None:
        self.gate.start()

    def stop(self) -> None:
        self.gate.stop()

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._own.ask(statement, parameters or None)

    def do(self, statement: str) -> None:
        self._own.do(statement)

    def taken(self) -> int:
        if not self.ask("select 1 from information_schema.tables where table_name = 'record_ledger'"):
            return 0
        return int(self.ask("select coalesce(sum(next_offset), 0) from _cdcworker.record_ledger")[0][0])

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        place = (self.database, table)
        columns = self.ask(
            "select column_name from information_schema.columns where table_schema = %s and table_name = %s"
            " order by ordinal_position", *place,
        )  # fmt: skip
        names = [name for (name,) in columns]
        if not names:
            return []
        return [dict(zip(names, row, strict=True)) for row in self.ask(f"select * from {self.database}.{table}")]

    def close(self) -> None:
        self._own.close()
        self.gate.stop()
        self._server.wipe()
