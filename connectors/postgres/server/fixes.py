"""The repairs of a server, by flavour: SQL statements, or the provider's commands where SQL may not do it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from cdcworker.connectors.checks import Repair

Flavour = Literal["self-managed", "rds", "aurora", "cloudsql", "azure", "supabase", "neon"]

_ROLES: tuple[tuple[str, Flavour], ...] = (
    ("rds_superuser", "rds"),
    ("cloudsqlsuperuser", "cloudsql"),
    ("azure_pg_admin", "azure"),
    ("neon_superuser", "neon"),
    ("supabase_admin", "supabase"),
)
LOGICAL = "wal_level"
_NAMES: Mapping[Flavour, tuple[str, str]] = {
    "rds": ("rds.logical_replication", "1"),
    "aurora": ("rds.logical_replication", "1"),
    "cloudsql": ("cloudsql.logical_decoding", "on"),
}
"""The setting to change instead of wal_level = logical, by provider."""


def flavour_of(roles: Collection[str], settings: Mapping[str, str], *, aurora: bool = False) -> Flavour:
    """Returns whose server it is, by the administrators' roles that only these providers have."""
    if aurora:
        return "aurora"
    for role, flavour in _ROLES:
        if role in roles:
            return flavour
    if any(name.startswith("rds.") for name in settings):
        return "rds"
    return "self-managed"


def ident(*parts: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def parameter(flavour: Flavour, name: str, value: str, *, restart: bool) -> Repair:
    """A setting of the server. Never safe: it concerns everybody on it, and may need a restart."""
    if name == LOGICAL:
        name, value = _NAMES.get(flavour, (name, value))
    if flavour == "self-managed":
        change = f"ALTER SYSTEM SET {name} = {literal(value)}"
        if restart:
            return Repair((change,), "Then restart the server.")
        return Repair((change, "SELECT pg_reload_conf()"))
    return Repair(steps=_provider(flavour, name, value, restart=restart))


def _provider(flavour: Flavour, name: str, value: str, *, restart: bool) -> str:
    when = "pending-reboot" if restart else "immediate"
    given = f'--parameters "ParameterName={name},ParameterValue={value},ApplyMethod={when}"'
    if flavour == "rds":
        command = f"aws rds modify-db-parameter-group --db-parameter-group-name GROUP {given}"
        return command + (", then: aws rds reboot-db-instance --db-instance-identifier INSTANCE" if restart else "")
    if flavour == "aurora":
        command = f"aws rds modify-db-cluster-parameter-group --db-cluster-parameter-group-name GROUP {given}"
        return command + (", then reboot the writer: aws rds reboot-db-instance …" if restart else "")
    if flavour == "cloudsql":
        command = f"gcloud sql instances patch INSTANCE --database-flags={name}={value}"
        return (
            command
            + " (list the instance's other flags too: those left out are reset"
            + ("; it restarts)" if restart else ")")
        )
    if flavour == "azure":
        where = "--resource-group GROUP --server-name SERVER"
        command = f"az postgres flexible-server parameter set {where} --name {name} --value {value}"
        more = ", then: az postgres flexible-server restart --resource-group GROUP --name SERVER"
        return command + (more if restart else "")
    if flavour == "supabase":
        return f"supabase --experimental postgres-config update --config {name}={value} --project-ref REF"
    return f"Set {name} = {value} in the project's settings (Neon: Settings, Logical Replication, for wal_level)."


def replication_right(flavour: Flavour, role: str) -> Repair:
    """Never safe: whoever may replicate reads every table."""
    if flavour in ("rds", "aurora"):
        return Repair((f"GRANT rds_replication TO {ident(role)}",))
    return Repair((f"ALTER ROLE {ident(role)} REPLICATION",), _BY.get(flavour, ""))


_BY: Mapping[Flavour, str] = {
    "cloudsql": "As a member of cloudsqlsuperuser.",
    "azure": "As the server's administrator (azure_pg_admin).",
    "neon": "Or make the role in Neon's console: its roles have it.",
    "supabase": "As postgres.",
}


def publication(name: str, tables: Collection[tuple[str, str]], *, via_root: bool) -> Repair:
    listed = ", ".join(f"ONLY {ident(*table)}" for table in tables)
    options = f"WITH (publish_via_partition_root = {'true' if via_root else 'false'})"
    return Repair(
        (f"CREATE PUBLICATION {ident(name)} FOR TABLE {listed} {options}",), "By the tables' owner.", safe=True
    )


def add_tables(name: str, tables: Collection[tuple[str, str]]) -> Repair:
    listed = ", ".join(f"ONLY {ident(*table)}" for table in tables)
    return Repair((f"ALTER PUBLICATION {ident(name)} ADD TABLE {listed}",), safe=True)
