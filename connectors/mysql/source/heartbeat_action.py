"""The heartbeat of a task, and the statement that it runs on the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.capture.config.heartbeat_keys import heartbeat_topic
from cdcworker.connectors.capture.stream.heartbeat import Heartbeat, heartbeat_table
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.server.connection import translate
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection
from cdcworker.schemas.errors import CdcError

LOCK_S_MAX: Final = 5
"""How long the statement may wait for a lock: the stream waits for it."""


def make_heartbeat(settings: MySqlSettings, source_schema: Mapping[str, Any]) -> Heartbeat:
    """Returns the heartbeat of one task."""
    raw = settings.raw
    table = heartbeat_table(heartbeat_topic(raw), source_schema)
    return Heartbeat(table, settings.prefix, raw["heartbeat.interval.ms"] / 1000, raw["heartbeat.action.query"])


def run_action(catalog: SteadyConnection, statement: str) -> CdcError | None:
    """Runs the statement and returns what it failed with. Raises PyMySQL's error when the connection is closed."""
    import pymysql

    connection = catalog.get()
    try:
        connection.do(f"set session innodb_lock_wait_timeout = {LOCK_S_MAX}, lock_wait_timeout = {LOCK_S_MAX}")
        connection.do(statement)
    except pymysql.Error as exc:
        if not connection.open:
            raise
        return translate(exc)
    return None
