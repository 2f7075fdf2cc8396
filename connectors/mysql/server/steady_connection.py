"""A connection for statements beside the stream, which may be asked seldom."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.server.connection import opened, translate

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

IDLE_S_MAX: Final = 300.0
"""Below the session's own wait_timeout, after which the server ends a connection that is not used."""


class SteadyConnection:
    """Opened at once, and again where it was not used for long or has failed; used by one thread."""

    def __init__(self, settings: MySqlSettings) -> None:
        self._settings = settings
        self._connection: MySqlConnection = opened(settings)
        self._used_at = time.monotonic()

    def get(self) -> MySqlConnection:
        """Returns the connection, for statements at once. Raises CdcError where the server cannot be reached."""
        now = time.monotonic()
        if not self._connection.open or now - self._used_at > IDLE_S_MAX:
            self.close()
            self._connection = opened(self._settings)
        self._used_at = now
        return self._connection

    def ask(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Executes a statement and returns its rows. Raises CdcError."""
        with translated():
            return self.get().ask(statement, parameters)

    def close(self) -> None:
        """Never raises."""
        with contextlib.suppress(Exception):
            self._connection.close()


@contextmanager
def translated(where: Mapping[str, str | int] | None = None) -> Iterator[None]:
    """Raises PyMySQL's errors as CdcError."""
    import pymysql

    try:
        yield
    except pymysql.Error as exc:
        raise translate(exc, where) from exc
