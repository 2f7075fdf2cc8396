"""The role of a source, as SQL for whoever owns the database: what the connector needs, and nothing besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

from cdcworker.connectors.api.abilities import RoleOption
from cdcworker.connectors.capture.config.table_share import TableShare
from cdcworker.connectors.postgres.server.fixes import Flavour, ident, literal, replication_right
from cdcworker.connectors.sql_script import ScriptStep, either, role_steps


@dataclass(frozen=True, slots=True)
class SourceRole:
    """`tables` are (schema, table); a signal table is one of them."""

    role: str
    database: str
    tables: Sequence[tuple[str, str]]
    publication: str = "dbz_publication"
    via_root: bool = False
    flavour: Flavour = "self-managed"
    slots: int = 1
    """slot.count: each slot has a publication of its share of the tables."""


OPTIONS: Final = (
    RoleOption("publication", "--publication", "publication.name.", "dbz_publication"),
    RoleOption("slots", "--slots", "slot.count.", 1),
    RoleOption("via_root", "--via-root", "With publish.via.partition.root=true.", default=False),
    RoleOption("flavour", "--flavour", "Whose PostgreSQL it is.", "self-managed", get_args(Flavour)),
)


def source_script(wanted: SourceRole) -> list[ScriptStep]:
    """May be run again, with other tables too. Connected to the database itself, as the owner of the tables."""
    role, tables = ident(wanted.role), ", ".join(ident(*table) for table in wanted.tables)
    replication = replication_right(wanted.flavour, wanted.role)
    schemas = sorted({schema for schema, _ in wanted.tables})
    return [
        *role_steps(wanted.role),
        ScriptStep(
            "Whoever may replicate can decode the changes of every table of the server's databases that it may connect"
            " to: filters and column lists of a publication are no boundary. " + replication.steps,
            replication.statements,
        ),
        ScriptStep("", (f"GRANT CONNECT ON DATABASE {ident(wanted.database)} TO {role}",)),
        ScriptStep(
            "Snapshots, and the comparison with a warehouse, read rows.",
            (
                *(f"GRANT USAGE ON SCHEMA {ident(schema)} TO {role}" for schema in schemas),
                f"GRANT SELECT ON {tables} TO {role}",
            ),
        ),
        ScriptStep(
            "The tables' owner publishes them: publication.autocreate.mode=disabled, or filtered as long as the"
            " publication holds what the filters choose." + (_EACH if wanted.slots > 1 else ""),
            tuple(_publication(wanted, TableShare(number, wanted.slots)) for number in range(wanted.slots)),
        ),
    ]


_EACH: Final = (
    " Filtered, each of several slots has a publication of its share of the tables; disabled, all of them read one, which"
    " is what this script makes without --slots."
)


def _publication(wanted: SourceRole, share: TableShare) -> str:
    name = ident(share.named(wanted.publication))
    tables = ", ".join(f"ONLY {ident(*table)}" for table in wanted.tables if share.has(".".join(table)))
    root = "true" if wanted.via_root else "false"
    options = f"publish_via_partition_root = {root}"
    # To a source an alteration that alters nothing looks like one that was taken back.
    differs = f"EXISTS (SELECT FROM pg_publication WHERE pubname = {literal(share.named(wanted.publication))}"
    differs += f" AND pubviaroot <> {root})"
    # A share may be without a table, and no statement takes the last one out of a publication.
    chosen, instead = (
        (f" FOR TABLE {tables}", (f"ALTER PUBLICATION {name} SET TABLE {tables}",)) if tables else ("", ())
    )
    return either(
        f"CREATE PUBLICATION {name}{chosen} WITH ({options})",
        (*instead, f"IF {differs} THEN ALTER PUBLICATION {name} SET ({options}); END IF"),
    )
