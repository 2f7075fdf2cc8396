"""The heartbeat of a PostgreSQL task, and the statement that it runs on the server."""

from __future__ import annotations

from typing import Final

import psycopg
from cdcworker.connectors.capture.config.heartbeat_keys import heartbeat_topic
from cdcworker.connectors.capture.stream.heartbeat import Heartbeat, heartbeat_table
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.types.text_values import SESSION_OPTIONS
from cdcworker.schemas.errors import CdcError

ACTION_MS_MAX: Final = 5_000
"""How long the statement may take: the stream waits for it."""
_SETTINGS: Final = "select set_config('statement_timeout', %s, false), set_config('search_path', %s, false)"
_PATH: Final = '"$user", public'
"""The search path of the statement, whose author does not know of the connection's own."""


def make_heartbeat(settings: PostgresSettings) -> Heartbeat:
    """Returns the heartbeat of one task; of several tasks only the first one makes records."""
    raw = settings.raw
    interval_s = raw["heartbeat.interval.ms"] / 1000 if settings.slot_number == 0 else 0
    table = heartbeat_table(heartbeat_topic(raw), SOURCE_SCHEMA)
    return Heartbeat(table, settings.prefix, interval_s, raw["heartbeat.action.query"])


def run_action(connection: AdminConnection, statement: str) -> CdcError | None:
    """Runs the statement under its own settings and returns what it failed with. psycopg.Error when the connection is
    closed."""
    execute = connection.execute
    try:
        execute(_SETTINGS, (str(ACTION_MS_MAX), _PATH))
        try:
            execute(statement.encode())
        finally:
            execute(_SETTINGS, (SESSION_OPTIONS["statement_timeout"], SESSION_OPTIONS["search_path"]))
    except psycopg.Error as exc:
        if connection.closed:
            raise
        return translate(exc)
    return None
