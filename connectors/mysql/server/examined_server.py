"""The server that checks look at: one connection, and what it was asked already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.checks import CheckSkipped
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.server.facts import ServerFacts, read_facts
from cdcworker.connectors.mysql.server.grants import Grants, account

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection


class ExaminedServer:
    """Opened by the first check. Where that fails the others are skipped."""

    def __init__(self, settings: MySqlSettings) -> None:
        self.settings = settings
        self._connection: MySqlConnection | None = None
        self._facts: ServerFacts | None = None

    def log_in(self) -> ServerFacts:
        """Opens the connection. Raises CdcError."""
        self._connection = opened(self.settings, "cdcworker-check")
        self._facts = read_facts(self._connection)
        return self._facts

    @property
    def facts(self) -> ServerFacts:
        if self._facts is None:
            raise CheckSkipped
        return self._facts

    @property
    def has_log(self) -> bool:
        return self.facts["log_bin"].upper() in ("ON", "1")

    def logging_facts(self) -> ServerFacts:
        """Returns the facts of a server that has a binary log; without one the settings of the log mean nothing."""
        if not self.has_log:
            raise CheckSkipped
        return self.facts

    def grants(self) -> Grants:
        """What the user may do everywhere."""
        return Grants.parse(str(row[0]) for row in self._asked().ask("show grants"))

    def user(self) -> str:
        """The user as the server knows it, in the form of its statements."""
        found = self._asked().one("select current_user()")
        assert found is not None
        name, _, host = str(found[0]).rpartition("@")
        return account(name, host)

    def captured(self) -> list[tuple[str, str]]:
        """Database and name of the tables that the filters choose, of those that the user may see."""
        rows = self._asked().ask(
            "select table_schema, table_name from information_schema.tables where table_type = 'BASE TABLE'"
        )
        chosen = self.settings.filters.table
        return [(str(database), str(table)) for database, table in rows if chosen(str(database), str(table))]

    def ask(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement."""
        return self._asked().ask(statement, parameters)

    def named(self, statement: str) -> list[dict[str, Any]]:
        """Returns the rows of a statement by the names of its columns, which differ from version to version."""
        with self._asked().cursor() as cursor:
            cursor.execute(statement)
            names = [str(column[0]) for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def abandon(self) -> None:
        """Lets go of a connection that hangs."""
        if self._connection is not None:
            self._connection._force_close()

    def close(self) -> None:
        """Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _asked(self) -> MySqlConnection:
        if self._connection is None or self._facts is None:
            raise CheckSkipped
        return self._connection
