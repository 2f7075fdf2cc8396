"""Connections to a PostgreSQL warehouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcworker.connectors.config.allowed_hosts import guarded
from cdcworker.connectors.sink_errors import TARGET_RIGHTS, TARGET_VERSION, from_psycopg
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.postgres.client import Connection

VERSION_MIN = 150_000
"""MERGE came with 15."""
CONNECT_TIMEOUT_S = 10
ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""A server whose machine is gone answers nothing at all: noticed within half a minute (seconds, and one in ms)."""
SESSION = (
    # Rows and ledger are lost together and read again: safe by design.
    "set synchronous_commit = off",
    "set temp_buffers = '64MB'",
    "set work_mem = '64MB'",
    "set timezone = 'UTC'",
    "set datestyle = 'ISO, YMD'",
    "set search_path = pg_catalog, pg_temp",
    "set standard_conforming_strings = on",
    # Nobody watches a sink's batch for a hand on the keyboard.
    "set idle_in_transaction_session_timeout = '10min'",
)

_MAY_CREATE = """select has_database_privilege(current_database(), 'CREATE')
    or has_schema_privilege(coalesce(to_regnamespace('_cdcworker')::oid, 'pg_catalog'::regnamespace), 'CREATE')"""


def judged(conninfo: str) -> str:
    """Returns the connection string with the addresses that this worker lets connectors reach."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo(guarded(conninfo), **ALIVE)


def opened(conninfo: str) -> Connection:
    from cdcworker.connectors.warehouses.postgres.client import Connection

    connection = Connection.connect(
        conninfo, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, application_name="cdcworker-sink"
    )
    if connection.info.server_version < VERSION_MIN:
        connection.close()
        raise CdcError(TARGET_VERSION, "the warehouse's server is older than PostgreSQL 15")
    for statement in SESSION:
        connection.execute(statement)
    return connection


def probe(conninfo: str) -> None:
    """CdcError when the warehouse cannot be used: login, database, version, rights. Changes nothing."""
    import psycopg

    try:
        with opened(judged(conninfo)) as connection:
            found = connection.execute(_MAY_CREATE).fetchone()
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc
    if not found or not found[0]:
        raise CdcError(TARGET_RIGHTS, "the warehouse user may not create schemas in the database")
