"""A look at what changes: the binary log from its end on, of which nothing is stored and for which nothing is written."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.source import WatchedTask
from cdcworker.connectors.mysql.config.settings import MySqlSettings, parse
from cdcworker.connectors.mysql.errors import TABLE_MISSING
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection
from cdcworker.connectors.mysql.source.captured_tables import listed
from cdcworker.connectors.mysql.source.task import MySqlTask
from cdcworker.schemas.errors import CdcError

_SERVER_IDS: Final = range(3_000_000_000, 4_000_000_000)
"""Of which a reader takes one by chance: the server ends the first of two readers with the same id."""


@contextmanager
def watched(config: Mapping[str, str], context: TaskContext, *, rows: bool = False) -> Iterator[WatchedTask]:
    """Opens a task at the log's end, under a server id of its own. `rows`: with the rows that the tables have now."""
    server_id = _SERVER_IDS[secrets.randbelow(len(_SERVER_IDS))]
    mode = "initial" if rows else "no_data"
    settings = parse({**config, "snapshot.mode": mode, "database.server.id": str(server_id)})
    _require_tables(settings)
    task = MySqlTask(settings, context)
    try:
        task.open(None)
        yield WatchedTask(task)
    finally:
        task.close()


def _require_tables(settings: MySqlSettings) -> None:
    """CdcError where no table is chosen: somebody who looks would wait for nothing."""
    with closing(SteadyConnection(settings)) as catalog:
        if not listed(catalog, settings):
            raise CdcError(TABLE_MISSING, "no table is chosen", where={"key": "table.include.list"})
