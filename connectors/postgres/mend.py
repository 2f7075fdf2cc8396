"""Statements of the doctor, run on request: one by one, each committed by itself, the first that fails ends it."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import connect
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.patient import APPLICATION_NAME, STATEMENT_TIMEOUT_MS

LOCK_TIMEOUT_MS = 2_000
"""A statement that waits for a lock makes everybody behind it wait too."""


def mend(settings: Settings, statements: Sequence[str], administrator: str | None) -> None:
    """As the connector's own user, or as whom `administrator` (libpq's connection string) names."""
    try:
        if administrator is None:
            connection = connect(settings, APPLICATION_NAME)
        else:
            connection = psycopg.connect(
                administrator, autocommit=True, application_name=APPLICATION_NAME, connect_timeout=10
            )
        with connection:
            connection.execute(f"set statement_timeout = {STATEMENT_TIMEOUT_MS}".encode())
            connection.execute(f"set lock_timeout = {LOCK_TIMEOUT_MS}".encode())
            for statement in statements:
                connection.execute(statement.encode())
    except psycopg.Error as exc:
        raise translate(exc) from exc
