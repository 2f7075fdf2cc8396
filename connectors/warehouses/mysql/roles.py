"""The user of a sink, as SQL for a server's administrator: its own databases, and nothing besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.api.abilities import RoleOption
from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.connectors.warehouses.mysql.connection import BOOKKEEPING
from cdcworker.connectors.warehouses.mysql.statements import literal, quote

HOST: Final = RoleOption(
    "host", "--from-host", "MySQL: the host that workers connect from, as the server writes it.", "%"
)
_ROWS: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX"


@dataclass(frozen=True, slots=True)
class SinkUser:
    """`databases`: where its tables go."""

    name: str
    databases: Sequence[str]
    host: str = "%"


def sink_script(wanted: SinkUser) -> list[ScriptStep]:
    """Returns a script that may be run again, with other databases too."""
    user = f"{literal(wanted.name)}@{literal(wanted.host)}"
    return [
        ScriptStep(
            "A new user is locked until it has a password, which belongs in no script: type ALTER USER"
            f" {user} IDENTIFIED BY '...' ACCOUNT UNLOCK into the client.",
            (f"CREATE USER IF NOT EXISTS {user} ACCOUNT LOCK",),
        ),
        ScriptStep(
            "Where it keeps which records it has applied; batches come through temporary tables there.",
            (f"GRANT {_ROWS}, CREATE TEMPORARY TABLES ON {_pattern(BOOKKEEPING)}.* TO {user}",),
        ),
        ScriptStep(
            "It makes its tables and alters them as those of the source are altered. Tables with triggers are altered with the"
            " right TRIGGER alone.",
            tuple(f"GRANT {_ROWS}, TRIGGER ON {_pattern(name)}.* TO {user}" for name in wanted.databases),
        ),
    ]


def _pattern(database: str) -> str:
    """Returns the name of a database as GRANT reads it, where _ and % stand for other letters."""
    return quote(database.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%"))
