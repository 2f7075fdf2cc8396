"""Statements of the doctor, run on request: one by one, the first that fails ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cdcworker.connectors.mysql.config.connection_string import config_of
from cdcworker.connectors.mysql.config.settings import MySqlSettings, parse
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.server.steady_connection import translated

LOCK_S: Final = 2
"""A statement that waits for a lock makes everybody behind it wait too."""


def apply_statements(settings: MySqlSettings, statements: Sequence[str], administrator: str | None) -> None:
    """Runs the statements as the connector's own user, or as whom `administrator` (a connection string) names. Raises CdcError."""
    if administrator is not None:
        settings = replace(settings, login=parse(config_of(administrator)).login)
    with translated(), contextlib.closing(opened(settings, "cdcworker-repair")) as connection:
        connection.do(f"set session lock_wait_timeout = {LOCK_S}")
        for statement in statements:
            connection.do(statement)
