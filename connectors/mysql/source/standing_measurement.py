"""Measures how far a task is behind its server that does not run, without its stream."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.api.abilities import StandingTask
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.server.facts import read_facts
from cdcworker.connectors.mysql.server.steady_connection import translated
from cdcworker.connectors.mysql.source.log_lag import log_lag
from cdcworker.connectors.mysql.source.position import StoredPosition
from cdcworker.connectors.telemetry.standing_lag import dealt, of_tables, standing_lag
from cdcworker.schemas.errors import CdcError

STATEMENT_S: Final = 5
NO_POSITION: Final[Mapping[str, Any]] = {
    "lag_bytes": None,
    "lag_transactions": None,
    "binlog_expires_in_s": None,
    "table_lag_bytes": {},
}
"""The numbers of a task of which nobody knows where it stands."""


def measure(settings: MySqlSettings, task: StandingTask) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns how far the task is behind the log's end, and what the next measurement is to remember. Raises CdcError."""
    position = _position(task.numbers.get("position"))
    if position is None:
        return dict(NO_POSITION), {}
    with translated(), contextlib.closing(opened(settings, "cdcworker-lag")) as connection:
        facts = read_facts(connection)
        # Of MySQL the limit, in milliseconds, is one of SELECT alone.
        limit = (
            f"max_statement_time = {STATEMENT_S}" if facts.is_mariadb else f"max_execution_time = {STATEMENT_S * 1000}"
        )
        connection.do(f"set session {limit}")
        lag = log_lag(connection, facts, position)
    lag_s, memory = standing_lag(task.numbers, task.memory, task.now_s, behind=lag.is_behind)
    tables = of_tables(task.numbers, "table_lag_bytes")
    return {
        "lag_s": lag_s,
        "lag_bytes": lag.bytes,
        **lag.numbers(facts.expiry_s, task.now_s),
        "table_lag_s": dict.fromkeys(of_tables(task.numbers, "table_lag_s"), lag_s),
        "table_lag_bytes": dealt(tables, lag.bytes or 0),
    }, memory


def _position(stored: Any) -> StoredPosition | None:
    """Returns the position that the task has reported last; None: it has reported none, or one that cannot be read."""
    if not isinstance(stored, dict):
        return None
    try:
        return StoredPosition.from_json(stored)
    except CdcError:
        return None
