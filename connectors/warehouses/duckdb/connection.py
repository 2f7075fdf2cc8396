"""The file of a DuckDB warehouse, opened for one step and closed behind it, so that others can open it in between."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.sink_errors import TARGET_GONE, TARGET_LOCKED
from cdcworker.connectors.warehouses.duckdb.errors import from_duckdb, is_locked, of_open
from cdcworker.connectors.warehouses.sql.connection import Parameters
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

WAIT_S: Final = 15.0
"""How long one waits for a process that has the file open, unless it is said."""
POLL_S: Final = 0.05
SETTINGS: Final = {
    # The same for all who open the file: in one process they share it.
    "memory_limit": "512MB",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    # No statement reads another file, whatever a name holds.
    "enable_external_access": "false",
}
_ROWS: Final = "_cdc_rows"
_WRITING: Final[defaultdict[str, threading.Lock]] = defaultdict(threading.Lock)
"""By file: DuckDB keeps other processes away, and this the threads of one."""


class Connection:
    """One session over the file, used by one thread."""

    def __init__(self, session: duckdb.DuckDBPyConnection) -> None:
        self.session = session
        self.is_broken = False
        """Whether a statement has failed: then the transaction can only be undone."""

    def _run(self, statement: str, parameters: Parameters | None) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            if parameters is None:
                return self.session.execute(statement)
            return self.session.execute(statement.replace("%s", "?"), list(parameters))
        except duckdb.Error:
            self.is_broken = True
            raise

    def ask(self, statement: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        return self._run(statement, parameters).fetchall()

    def one(self, statement: str, parameters: Parameters | None = None) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None = self._run(statement, parameters).fetchone()
        return found

    def do(self, statement: str, parameters: Parameters | None = None) -> int:
        rows = self._run(statement, parameters).fetchall()
        return int(rows[0][0]) if rows and isinstance(rows[0][0], int) else -1

    def put(self, statement: str, rows: pa.Table) -> int:
        """Executes a statement that reads `rows` under the name of `ROWS`."""
        self.session.register(_ROWS, rows)
        try:
            return self.do(statement)
        finally:
            self.session.unregister(_ROWS)

    def close(self) -> None:
        self.session.close()


ROWS: Final = f'"{_ROWS}"'


def opened(path: str, wait_s: float | None = None, *, creates: bool = False) -> Connection:
    """Opens the file, and waits for another process that has it open. CdcError TARGET_GONE where there is none and none is to be
    made, TARGET_LOCKED where the other one does not let go of it."""
    import duckdb

    if not creates and not os.path.exists(path):
        raise CdcError(TARGET_GONE, "the file of the warehouse is not there", where={"file": path})
    deadline = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
    while True:
        try:
            session = duckdb.connect(path, config=dict(SETTINGS))
            break
        except duckdb.Error as exc:
            if not is_locked(exc) or time.monotonic() > deadline:
                raise of_open(exc, path) from exc
        time.sleep(POLL_S)
    session.execute("set timezone = 'UTC'")
    return Connection(session)


@contextlib.contextmanager
def session(path: str, wait_s: float | None = None, *, creates: bool = False) -> Iterator[Connection]:
    """Opens the file for a while, to write; errors in it are translated."""
    import duckdb

    writing = _WRITING[os.path.realpath(path)]
    if not writing.acquire(timeout=WAIT_S if wait_s is None else wait_s):
        raise CdcError(TARGET_LOCKED, "another thread of the worker has the file open", where={"file": path})
    try:
        with contextlib.closing(opened(path, wait_s, creates=creates)) as connection:
            yield connection
    except duckdb.Error as exc:
        raise from_duckdb(exc) from exc
    finally:
        writing.release()


@contextlib.contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Commits what is done in it, or undoes it."""
    connection.do("begin transaction")
    try:
        yield
    except BaseException:
        rollback(connection)
        raise
    connection.do("commit")


def rollback(connection: Connection) -> None:
    """Undoes a transaction, if it has not ended by itself."""
    with contextlib.suppress(Exception):
        connection.do("rollback")
    connection.is_broken = False
