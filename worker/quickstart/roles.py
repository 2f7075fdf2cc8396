"""The demo's roles: its connectors have the rights that `cdcworker roles` gives, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from cdcworker.connectors.api.abilities import RoleRequest, ScriptsRoles
from cdcworker.connectors.registry.names import lookup
from cdcworker.connectors.sql_script import ScriptStep

WRITER = "shop_writer"


def address_of(prefix: str, dsn: str, password: str) -> dict[str, str]:
    """Returns a connector's keys of a connection. `password` is the password or a reference to it."""
    parts = urlsplit(dsn)
    return {
        f"{prefix}.hostname": parts.hostname or "localhost",
        f"{prefix}.port": str(parts.port or 5432),
        f"{prefix}.user": unquote(parts.username or ""),
        f"{prefix}.password": password,
        f"{prefix}.dbname": unquote(parts.path.lstrip("/")),
    }


def password_of(dsn: str) -> str:
    return unquote(urlsplit(dsn).password or "")


def make_reader(
    dsn: str, role: str, password: str, tables: Sequence[tuple[str, str]], publication: str, slots: int = 1
) -> str:
    """Creates the source's role by the tables' owner, whose connection string `dsn` is; returns the role's own."""
    source = lookup("postgres").load()
    assert issubclass(source, ScriptsRoles)
    request = RoleRequest(role, _database(dsn), tables, {"publication": publication, "slots": slots})
    run(dsn, role, password, source.role_script(request))
    return as_role(dsn, role, password)


def make_writer(dsn: str, role: str, password: str, schemas: Sequence[str]) -> str:
    """Creates the sink's role; returns its connection string."""
    sink = lookup("spark").load()
    assert issubclass(sink, ScriptsRoles)
    request = RoleRequest(role, _database(dsn), options={"warehouse": "postgres", "schemas": schemas})
    run(dsn, role, password, sink.role_script(request))
    return as_role(dsn, role, password)


def run(dsn: str, role: str, password: str, steps: Iterable[ScriptStep]) -> None:
    """Runs the whole script or nothing, and sets the password, which the server gets as its hash."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(dsn) as connection:
        for step in steps:
            for statement in step.statements:
                connection.execute(_text(statement))
        hidden = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(hidden)))


def _text(statement: str) -> Any:
    """Returns the statement for psycopg: our own functions made it, which quote their arguments."""
    return statement


def _database(dsn: str) -> str:
    return unquote(urlsplit(dsn).path.lstrip("/"))


def as_role(dsn: str, role: str, password: str) -> str:
    """Returns the connection string with another user."""
    parts = urlsplit(dsn)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(role, safe='')}:{quote(password, safe='')}@{place}").geturl()
