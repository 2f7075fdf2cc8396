"""Connections to the server: conninfo with the session settings that fix text forms, and the ordinary connection."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any, Final

import psycopg
from cdcworker.connectors.config.allowed_hosts import guarded
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import SERVER_VERSION, translate
from cdcworker.connectors.postgres.transport import server_functions
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.types.text_values import SESSION_OPTIONS
from cdcworker.schemas.errors import CdcError
from psycopg import pq
from psycopg.conninfo import make_conninfo

APPLICATION = "cdcworker"
UTF8: Final = "UTF8"
DIGEST_CHARS: Final = 12
NAME_CHARS_MAX: Final = 63
SERVER_VERSION_MIN = 140000
"""pgoutput's `messages` option, and with it the numbering of messages, exists since PostgreSQL 14."""


def application_name(group: str, connector: str, task: int) -> str:
    """No other task's, in no other cluster: of a long name the server keeps the beginning only, which is enough."""
    whose = sha256("\0".join((group, connector, str(task))).encode()).hexdigest()[:DIGEST_CHARS]
    return f"{APPLICATION}:{whose}:{connector}:{task}"[:NAME_CHARS_MAX]


def conninfo(settings: PostgresSettings, application: str, *, replication: bool = False, encoding: str = UTF8) -> str:
    """libpq's connection string; holds the password, so it is passed on and never logged."""
    raw = settings.raw
    options = " ".join(f"-c {name}={value}" for name, value in SESSION_OPTIONS.items())
    params: dict[str, Any] = {
        "host": settings.hosts,
        "port": settings.ports,
        "user": settings.user,
        "dbname": settings.dbname,
        "sslmode": raw["database.sslmode"],
        "application_name": application,
        "client_encoding": encoding,
        "options": options,
        "connect_timeout": max(2, raw["database.connect.timeout.ms"] // 1000),
        "keepalives": 1 if raw["database.tcpKeepAlive"] else 0,
        # A cut network must not look like an idle server for longer than a walsender would wait.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        "password": settings.password.reveal() if settings.password else None,
        "sslcert": raw["database.sslcert"],
        "sslkey": raw["database.sslkey"],
        "sslpassword": raw["database.sslpassword"].reveal() if raw["database.sslpassword"] else None,
        "sslrootcert": raw["database.sslrootcert"],
        "target_session_attrs": _session_attrs(settings),
        # libpq's own default may be to encrypt where there is a ticket; what the socket carries is read without it.
        "gssencmode": "disable" if raw["database.transport"] != "psycopg" and not _gss_is_chosen() else None,
    }
    if replication:
        params["replication"] = "database"
    return guarded(make_conninfo("", **{name: value for name, value in params.items() if value is not None}))


def _gss_is_chosen() -> bool:
    """Whether the environment, or a service file that it names, says how to encrypt with GSS."""
    mode = next((option for option in pq.Conninfo.get_defaults() if option.keyword == b"gssencmode"), None)
    return bool(os.environ.get("PGGSSENCMODE")) or (mode is not None and mode.val not in (b"", mode.compiled))


def _session_attrs(settings: PostgresSettings) -> str | None:
    """Which of several hosts is the one."""
    if "," not in settings.hosts:
        return None
    return "standby" if settings.raw["slot.on.standby"] else "read-write"


def connect(settings: PostgresSettings, application: str) -> AdminConnection:
    """An ordinary connection in autocommit; refuses servers that this source cannot read."""
    try:
        connection = psycopg.connect(conninfo(settings, application), autocommit=True)
    except psycopg.Error as exc:
        raise translate(exc, {"host": settings.hosts, "database": settings.dbname}) from exc
    try:
        _require(connection, settings)
    except psycopg.Error as exc:
        connection.close()
        raise translate(exc, {"host": settings.hosts}) from exc
    except CdcError:
        connection.close()
        raise
    return connection


def _require(connection: AdminConnection, settings: PostgresSettings) -> None:
    version = connection.info.server_version
    if version < SERVER_VERSION_MIN:
        raise CdcError(SERVER_VERSION, f"the server is PostgreSQL {version // 10000}; 14 or newer is needed")
    # What waits for changes asks nothing for a long time. An older server, refused above, does not know the setting.
    connection.execute("set idle_session_timeout = 0")
    server_functions.require(connection, wanted=settings.raw["slot.on.standby"])
