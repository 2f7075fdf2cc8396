"""PostgreSQL as a kind of warehouse."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.api.abilities import RoleRequest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.config.allowed_hosts import guarded
from cdcworker.connectors.config.definition import ConfigKey, between
from cdcworker.connectors.config.server_authentication import WEAK_LOGIN
from cdcworker.connectors.sink_errors import TARGET_AUTH, TARGET_DATABASE, TARGET_RIGHTS
from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.connectors.warehouses.kind import (
    LedgerAdmin,
    ParsedConfig,
    SparkHost,
    WarehouseKind,
    WriterTask,
    probed,
)
from cdcworker.connectors.warehouses.output_config import output_of, position_column
from cdcworker.connectors.warehouses.shared_keys import (
    GROUP,
    HOSTNAME,
    PASSWORD,
    PORT,
    ROLE_SCHEMAS,
    SCHEMA,
    SSLMODE,
    SSLROOTCERT,
    USER,
    missing,
)

if TYPE_CHECKING:
    from cdcworker.connectors.verify.databases import PostgresTargetSide
    from cdcworker.connectors.warehouses.postgres.parallel_staging import StagingPlan
    from cdcworker.connectors.warehouses.postgres.redrive import PostgresLetters

STAGING_BYTES: Final = 32 * 1024 * 1024
"""A smaller table is staged over the driver's own connection sooner than over further ones."""
VERIFY_APPLICATION: Final = "cdcworker-verify"
_KEY_OF_ERROR: Final = {
    TARGET_AUTH: "warehouse.password",
    WEAK_LOGIN: "warehouse.sslmode",
    TARGET_DATABASE: "warehouse.dbname",
    TARGET_RIGHTS: "warehouse.user",
}

DBNAME: Final = ConfigKey(
    "warehouse.dbname", default="", importance="HIGH", group=GROUP, doc="The target database.", connects=True
)
KEYS: Final = (HOSTNAME, PORT, USER, PASSWORD, DBNAME, SCHEMA, SSLMODE, SSLROOTCERT)
DEFAULT_PORT: Final = 5432
BATCH_KEYS: Final = (
    ConfigKey(
        "staging.parallel.min.bytes",
        "LONG",
        STAGING_BYTES,
        validator=between(0, 1 << 40),
        importance="LOW",
        group="Batches",
        doc="PostgreSQL: of a batch the tables with so many bytes of rows to merge are staged over spark.cores connections at"
        " once, on a cluster by its executors; 0: none.",
    ),
)


def conninfo(config: ParsedConfig) -> str:
    """Returns libpq's connection string; it holds the password and goes to the driver only."""
    from psycopg.conninfo import make_conninfo

    password = config["warehouse.password"]
    return make_conninfo(
        host=config["warehouse.hostname"],
        port=config["warehouse.port"] or DEFAULT_PORT,
        user=config["warehouse.user"],
        password=password.reveal() if password else None,
        dbname=config["warehouse.dbname"],
        sslmode=config["warehouse.sslmode"],
        sslrootcert=config["warehouse.sslrootcert"] or None,
    )


def open_writer(config: ParsedConfig, task: WriterTask) -> TableWriter:
    """Returns the writer of a task. It stages large tables over several connections, on a cluster from the executors."""
    from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter

    return PostgresWriter(
        conninfo(config),
        task.sink,
        task.task,
        schema=config["warehouse.schema"],
        output=output_of(config),
        staging=staging_plan(config, task.is_on_cluster),
    )


def staging_plan(config: ParsedConfig, is_on_cluster: bool) -> StagingPlan:
    """Returns how large tables are staged: by threads of the driver, or on a cluster by Spark's executors."""
    from cdcworker.connectors.warehouses.postgres.parallel_staging import StagingPlan, in_threads

    count = config["spark.cores"]
    return StagingPlan(count, config["staging.parallel.min.bytes"], None if is_on_cluster else in_threads(count))


@contextlib.contextmanager
def open_admin(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[LedgerAdmin]:
    """Opens the ledger for a request; nothing is connected to yet."""
    from cdcworker.connectors.warehouses.postgres.ledger_admin import PostgresLedgerAdmin

    yield PostgresLedgerAdmin(conninfo(config), access, config["warehouse.schema"], position_column(config))


@contextlib.contextmanager
def open_dead_letters(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[PostgresLetters]:
    """Opens the dead letters of a sink."""
    from cdcworker.connectors.warehouses.postgres.redrive import PostgresLetters

    schema, output = config["warehouse.schema"], output_of(config)
    with contextlib.closing(PostgresLetters(conninfo(config), access.connector, schema=schema, output=output)) as found:
        yield found


@contextlib.contextmanager
def open_verify_side(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[PostgresTargetSide]:
    """Opens a connection that reads both the tables and the ledger of a sink."""
    import psycopg
    from cdcworker.connectors.sink_errors import from_psycopg
    from cdcworker.connectors.verify.databases import PostgresTargetSide
    from cdcworker.connectors.warehouses.postgres.connection import ALIVE, CONNECT_TIMEOUT_S
    from psycopg.conninfo import make_conninfo

    try:
        connection = psycopg.connect(
            make_conninfo(guarded(conninfo(config)), **ALIVE),
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name=VERIFY_APPLICATION,
            client_encoding="UTF8",
        )
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc
    side = PostgresTargetSide(connection, from_psycopg, access.connector, position_column(config))
    with contextlib.closing(side):
        yield side


def probe(config: ParsedConfig) -> Sequence[CheckFinding]:
    """Logs in to the target and checks its version and the rights there; returns what is wrong, at the key that causes it."""
    from cdcworker.connectors.warehouses.postgres import connection

    return probed(lambda: connection.probe(conninfo(config)), _KEY_OF_ERROR)


def role_script(wanted: RoleRequest) -> list[ScriptStep]:
    """Returns the SQL for the role of a sink."""
    from cdcworker.connectors.warehouses.postgres.roles import SinkRole, sink_script

    return sink_script(SinkRole(wanted.role, wanted.database, wanted.options["schemas"]))


POSTGRES: Final = WarehouseKind(
    name="postgres",
    title="PostgreSQL",
    keys=KEYS,
    batch_keys=BATCH_KEYS,
    redrives_consistent_sets=True,
    keeps_versions=True,
    problems=lambda config: missing(config, "warehouse.hostname", "warehouse.user", "warehouse.dbname"),
    # A server that is away refuses connections: it does not look empty.
    location=lambda _config: "",
    probe=probe,
    role_options=(ROLE_SCHEMAS,),
    role_script=role_script,
    open=open_writer,
    admin=open_admin,
    dead_letters=open_dead_letters,
    verify_side=open_verify_side,
)
