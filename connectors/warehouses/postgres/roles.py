"""The role of a sink, as SQL for whoever owns the warehouse: its own schemas, and nothing besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcworker.connectors.sql_script import ScriptStep, quoted, role_steps

BOOKKEEPING = "_cdcworker"


@dataclass(frozen=True, slots=True)
class SinkRole:
    """`schemas`: where its tables go."""

    role: str
    database: str
    schemas: Sequence[str]


def sink_script(wanted: SinkRole) -> list[ScriptStep]:
    """May be run again, with other schemas too. Connected to the warehouse itself, as its owner."""
    role, database = quoted(wanted.role), quoted(wanted.database)
    return [
        *role_steps(wanted.role),
        ScriptStep(
            "Batches come through temporary tables.",
            (f"GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {role}",),
        ),
        ScriptStep("Where it keeps which records it has applied.", _schema(BOOKKEEPING, role)),
        ScriptStep(
            "It makes its tables and alters them as those of the source are altered. Tables that are there already"
            " have to belong to it.",
            tuple(statement for schema in wanted.schemas for statement in _schema(schema, role)),
        ),
    ]


def _schema(name: str, role: str) -> tuple[str, ...]:
    return (f"CREATE SCHEMA IF NOT EXISTS {quoted(name)}", f"GRANT USAGE, CREATE ON SCHEMA {quoted(name)} TO {role}")
