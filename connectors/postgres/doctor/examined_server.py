"""The server under examination: one connection that is opened when first needed, and what checks ask of it again and again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from cdcworker.connectors.capture.config.table_names import TableName
from cdcworker.connectors.checks import CheckSkipped
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.fixes import Flavour, flavour_of
from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.connection import APPLICATION, connect
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

APPLICATION_NAME = f"{APPLICATION}:check"
STATEMENT_TIMEOUT_MS = 4_000
"""Below the limit of a check, so that the server's answer is what one sees."""


class ExaminedServer:
    """`position` is what the connector has stored, where that is known."""

    def __init__(self, settings: PostgresSettings, position: JsonObject | None = None, *, bounded: bool = True) -> None:
        self.settings = settings
        self.position = position
        self._bounded = bounded
        self._connection: AdminConnection | None = None
        self._refused: CdcError | None = None
        self._lock = threading.Lock()

    @property
    def connection(self) -> AdminConnection:
        """Unexamined once it was refused: the check of the connection says why."""
        if self._refused is not None:
            raise CheckSkipped(f"not examined without a connection ({self._refused.code})")
        return self.open()

    @property
    def refused(self) -> bool:
        return self._refused is not None

    def open(self) -> AdminConnection:
        with self._lock:
            if self._connection is None or self._connection.closed:
                try:
                    self._connection = connect(self.settings, APPLICATION_NAME)
                except CdcError as exc:
                    self._refused = exc
                    raise
                if self._bounded:
                    self._connection.execute(f"set statement_timeout = {STATEMENT_TIMEOUT_MS}")
            return self._connection

    def abandon(self) -> None:
        """A check hangs on the connection: the next one gets its own."""
        self._connection, self._lock = None, threading.Lock()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, arguments or None).fetchall()

    def row(self, statement: str, *arguments: Any) -> tuple[Any, ...]:
        return self.rows(statement, *arguments)[0]

    @property
    def version(self) -> int:
        return self.connection.info.server_version

    @cached_property
    def server(self) -> dict[str, str]:
        """Its settings as this role sees them; numbers in the units of pg_settings."""
        return dict(self.rows("select name, coalesce(setting, '') from pg_settings"))

    @cached_property
    def flavour(self) -> Flavour:
        roles = {row[0] for row in self.rows("select rolname from pg_roles")}
        aurora = self.rows("select 1 from pg_proc where proname = 'aurora_version'")
        return flavour_of(roles, self.server, aurora=bool(aurora))

    @cached_property
    def tables(self) -> list[TableName]:
        """Tables that the config chooses."""
        return slots.candidates(self.connection, self.settings)

    @cached_property
    def oids(self) -> list[int]:
        return [oid for oid, _, _ in self.tables]

    @cached_property
    def slot(self) -> ReplicationSlot | None:
        return slots.find_slot(self.connection, self.settings.slot)

    @cached_property
    def lacking(self) -> int:
        """Slots of the connector that it would have to make."""
        return sum(slots.find_slot(self.connection, name) is None for name in self.settings.slots)

    @cached_property
    def user(self) -> str:
        return str(self.row("select current_user::text")[0])

    @cached_property
    def publication(self) -> dict[str, Any] | None:
        """pg_publication's row, and whether this role may alter it."""
        found = self.rows(
            "select oid, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,"
            " pg_has_role(pubowner, 'usage') from pg_publication where pubname = %s",
            self.settings.publication,
        )
        names = ("oid", "all", "insert", "update", "delete", "truncate", "root", "ours")
        return dict(zip(names, found[0], strict=True)) if found else None


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names in a line, the rest counted."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def size(count: float | None) -> str:
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
