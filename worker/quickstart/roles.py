"""The demo's roles: its connectors have the rights that `cdcworker roles` gives, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from cdcworker.connectors.postgres.roles import SourceRole, source_script
from cdcworker.connectors.scripts import Step
from cdcworker.connectors.spark.roles import SinkRole, sink_script
from cdcworker.worker.quickstart.connectors import PUBLICATION, SCHEMA_NAME, Endpoints
from cdcworker.worker.quickstart.workload import TABLES

READER, WRITER = "shop_reader", "shop_writer"


def make_roles(places: Endpoints, reading: str, writing: str) -> tuple[str, str]:
    """With these passwords; the connection strings of the source and of the sink. The tables are there."""
    tables = [(SCHEMA_NAME, table) for table in TABLES]
    reader = make_reader(places.postgres, READER, reading, tables, PUBLICATION)
    return reader, make_writer(places.warehouse, WRITER, writing, [SCHEMA_NAME])


def make_reader(
    dsn: str, role: str, password: str, tables: Sequence[tuple[str, str]], publication: str, slots: int = 1
) -> str:
    """By the tables' owner, whose connection string this is; gives the role's own."""
    run(dsn, role, password, source_script(SourceRole(role, _database(dsn), tables, publication, slots=slots)))
    return _as(dsn, role, password)


def make_writer(dsn: str, role: str, password: str, schemas: Sequence[str]) -> str:
    run(dsn, role, password, sink_script(SinkRole(role, _database(dsn), schemas)))
    return _as(dsn, role, password)


def run(dsn: str, role: str, password: str, steps: Iterable[Step]) -> None:
    """All of a script or nothing, and the password, which reaches the server as its hash."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(dsn) as connection:
        for step in steps:
            for statement in step.statements:
                connection.execute(_text(statement))
        hidden = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(hidden)))


def _text(statement: str) -> Any:
    """Made by our own functions, which quote what they are given."""
    return statement


def _database(dsn: str) -> str:
    return unquote(urlsplit(dsn).path.lstrip("/"))


def _as(dsn: str, role: str, password: str) -> str:
    parts = urlsplit(dsn)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(role, safe='')}:{quote(password, safe='')}@{place}").geturl()
