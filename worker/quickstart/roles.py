"""The demo's roles: its connectors have the rights that `cdcworker roles` gives, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from cdcworker.connectors.api.abilities import RoleRequest, ScriptsRoles
from cdcworker.connectors.registry import lookup
from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.worker.quickstart.connectors import PUBLICATION, SCHEMA_NAME, Endpoints
from cdcworker.worker.quickstart.workload import TABLES

READER, WRITER = "shop_reader", "shop_writer"


def make_roles(places: Endpoints, reading: str, writing: str) -> tuple[str, str]:
    """Creates both roles with these passwords; returns the connection strings of the source and of the sink. The tables
    exist before."""
    tables = [(SCHEMA_NAME, table) for table in TABLES]
    reader = make_reader(places.postgres, READER, reading, tables, PUBLICATION)
    return reader, make_writer(places.warehouse, WRITER, writing, [SCHEMA_NAME])


def make_reader(
    dsn: str, role: str, password: str, tables: Sequence[tuple[str, str]], publication: str, slots: int = 1
) -> str:
    """Creates the source's role by the tables' owner, whose connection string `dsn` is; returns the role's own."""
    source = lookup("postgres").load()
    assert issubclass(source, ScriptsRoles)
    request = RoleRequest(role, _database(dsn), tables, {"publication": publication, "slots": slots})
    run(dsn, role, password, source.role_script(request))
    return _as(dsn, role, password)


def make_writer(dsn: str, role: str, password: str, schemas: Sequence[str]) -> str:
    """Creates the sink's role; returns its connection string."""
    sink = lookup("spark").load()
    assert issubclass(sink, ScriptsRoles)
    request = RoleRequest(role, _database(dsn), options={"warehouse": "postgres", "schemas": schemas})
    run(dsn, role, password, sink.role_script(request))
    return _as(dsn, role, password)


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


def _as(dsn: str, role: str, password: str) -> str:
    parts = urlsplit(dsn)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(role, safe='')}:{quote(password, safe='')}@{place}").geturl()
