"""Statements of the doctor, run on request: one by one, each committed by itself, the first that fails ends it."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from cdcworker.connectors.config import server_authentication
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.doctor.examined_server import APPLICATION_NAME, STATEMENT_TIMEOUT_MS
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.transport.connection import connect
from psycopg.conninfo import conninfo_to_dict, make_conninfo

LOCK_TIMEOUT_MS = 2_000
"""A statement that waits for a lock makes everybody behind it wait too."""


def apply_statements(settings: PostgresSettings, statements: Sequence[str], administrator: str | None) -> None:
    """Runs the statements as the connector's own user, or as whom `administrator` (libpq's connection string) names."""
    try:
        if administrator is None:
            connection = connect(settings, APPLICATION_NAME)
        else:
            needed = server_authentication.required(conninfo_to_dict(administrator))
            connection = psycopg.connect(
                make_conninfo(administrator, require_auth=needed),
                autocommit=True,
                application_name=APPLICATION_NAME,
                connect_timeout=10,
            )
        with connection:
            connection.execute(f"set statement_timeout = {STATEMENT_TIMEOUT_MS}".encode())
            connection.execute(f"set lock_timeout = {LOCK_TIMEOUT_MS}".encode())
            for statement in statements:
                connection.execute(statement.encode())
    except psycopg.Error as exc:
        raise translate(exc) from exc
