"""Servers that a sink writes to while drivers, executors or they themselves are killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import psycopg


class TargetServer(Protocol):
    """A server whose tables are read beside the sink."""

    def config(self) -> dict[str, str]:
        """Returns the keys of a sink's config that name it."""

    def listed(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Returns columns of all rows as readers see them."""

    def kill(self) -> None:
        """Ends it at once."""

    def start(self) -> None:
        """Starts it again with what it has kept."""


class PostgresTarget:
    """The database of a test's world, which its sinks write to unless they are told otherwise."""

    def __init__(self, world: Any, request: Any) -> None:
        self._world = world
        self._server = request.getfixturevalue("postgres")

    def config(self) -> dict[str, str]:
        return {}

    def listed(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._world.dsn, autocommit=True) as connection:
            return connection.execute(f"select {', '.join(names)} from public.{table}").fetchall()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


class MySqlTarget:
    """The session's MariaDB, empty."""

    def __init__(self, _world: Any, request: Any) -> None:
        self._server = request.getfixturevalue("mysql")
        self._server.wipe()

    def config(self) -> dict[str, str]:
        server = self._server
        login = {"hostname": "127.0.0.1", "port": str(server.port), "user": server.login().user}
        login["password"] = server.password
        return {"warehouse": "mysql", **{f"warehouse.{name}": value for name, value in login.items()}}

    def listed(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        return list(self._server.ask(f"select {', '.join(names)} from public.{table}"))

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


class ClickHouseTarget:
    """The session's ClickHouse, empty."""

    def __init__(self, _world: Any, request: Any) -> None:
        self._server = request.getfixturevalue("clickhouse")
        self._server.wipe()

    def config(self) -> dict[str, str]:
        login = {"hostname": "127.0.0.1", "port": str(self._server.port), "user": "default", "password": ""}
        return {"warehouse": "clickhouse", **{f"warehouse.{name}": value for name, value in login.items()}}

    def listed(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = self._server.rows(f"select {', '.join(names)} from public.{table} final")
        return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


SERVERS = {"postgres": PostgresTarget, "mysql": MySqlTarget, "clickhouse": ClickHouseTarget}
