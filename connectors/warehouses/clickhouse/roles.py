"""The user of a sink, as SQL for a server's administrator: its own databases, and nothing besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.connectors.warehouses.clickhouse.client import quote
from cdcworker.connectors.warehouses.clickhouse.ledger import BOOKKEEPING

_ROWS: Final = "SELECT, INSERT, ALTER DELETE, CREATE DATABASE, CREATE TABLE"
_COLUMNS: Final = "ALTER ADD COLUMN, ALTER DROP COLUMN, ALTER MODIFY COLUMN, ALTER RENAME COLUMN"


@dataclass(frozen=True, slots=True)
class SinkUser:
    """`databases`: where its tables go."""

    name: str
    databases: Sequence[str]


def sink_script(wanted: SinkUser) -> list[ScriptStep]:
    """Returns a script that may be run again, with other databases too."""
    user = quote(wanted.name)
    return [
        ScriptStep(
            "A new user can log in from nowhere until it has a password, which belongs in no script: type ALTER USER"
            f" {user} IDENTIFIED BY '...' HOST ANY into the client.",
            (f"CREATE USER IF NOT EXISTS {user} IDENTIFIED WITH no_password HOST NONE",),
        ),
        ScriptStep(
            "Where it keeps which records it has applied.",
            (f"GRANT {_ROWS} ON {quote(BOOKKEEPING)}.* TO {user}",),
        ),
        ScriptStep(
            "It makes its tables and alters them as those of the source are altered.",
            tuple(f"GRANT {_ROWS}, {_COLUMNS} ON {quote(name)}.* TO {user}" for name in wanted.databases),
        ),
    ]
