"""MySQL and MariaDB as one kind of warehouse."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.api.abilities import RoleRequest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.sink_errors import TARGET_AUTH, TARGET_RIGHTS
from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.connectors.warehouses.kind import (
    LedgerAdmin,
    ParsedConfig,
    SparkHost,
    WarehouseKind,
    WriterTask,
    probed,
)
from cdcworker.connectors.warehouses.mysql.errors import CERTIFICATE, WEAK_LOGIN
from cdcworker.connectors.warehouses.mysql.roles import HOST, SinkUser, sink_script
from cdcworker.connectors.warehouses.output_config import output_of, position_column
from cdcworker.connectors.warehouses.shared_keys import (
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
    from cdcworker.connectors.mysql_client.login import Login
    from cdcworker.connectors.warehouses.mysql.redrive import MySqlLetters
    from cdcworker.connectors.warehouses.mysql.verify_side import MySqlTarget

DEFAULT_PORT: Final = 3306
_KEY_OF_ERROR: Final = {
    TARGET_AUTH: "warehouse.password",
    WEAK_LOGIN: "warehouse.sslmode",
    CERTIFICATE: "warehouse.sslmode",
    TARGET_RIGHTS: "warehouse.user",
}


def login(config: ParsedConfig) -> Login:
    """Returns what the driver logs in with; it holds the password."""
    from cdcworker.connectors.mysql_client.login import Login

    password = config["warehouse.password"]
    return Login(
        config["warehouse.hostname"],
        config["warehouse.port"] or DEFAULT_PORT,
        config["warehouse.user"],
        password.reveal() if password else "",
        config["warehouse.sslmode"],
        config["warehouse.sslrootcert"] or None,
    )


def open_writer(config: ParsedConfig, task: WriterTask) -> TableWriter:
    """Returns the writer of a task."""
    from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter

    return MySqlWriter(login(config), task.sink, task.task, schema=config["warehouse.schema"], output=output_of(config))


@contextlib.contextmanager
def open_admin(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[LedgerAdmin]:
    """Opens the ledger for a request; nothing is connected to yet."""
    from cdcworker.connectors.warehouses.mysql.ledger_admin import MySqlLedgerAdmin

    yield MySqlLedgerAdmin(login(config), access, config["warehouse.schema"], position_column(config))


@contextlib.contextmanager
def open_dead_letters(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[MySqlLetters]:
    """Opens the dead letters of a sink."""
    from cdcworker.connectors.warehouses.mysql.redrive import MySqlLetters

    schema, output = config["warehouse.schema"], output_of(config)
    with contextlib.closing(MySqlLetters(login(config), access.connector, schema=schema, output=output)) as found:
        yield found


@contextlib.contextmanager
def open_verify_side(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[MySqlTarget]:
    """Opens a connection that reads both the tables and the ledger of a sink."""
    from cdcworker.connectors.warehouses.mysql.verify_side import MySqlTarget

    side = MySqlTarget(login(config), access.connector, position_column(config))
    with contextlib.closing(side):
        yield side


def probe(config: ParsedConfig) -> Sequence[CheckFinding]:
    """Logs in to the target and checks its version, settings and the rights there; returns what is wrong, at the key that causes
    it."""
    from cdcworker.connectors.warehouses.mysql import connection

    return probed(lambda: connection.probe(login(config)), _KEY_OF_ERROR)


def role_script(wanted: RoleRequest) -> list[ScriptStep]:
    """Returns the SQL for the user of a sink; the database that is named says nothing, for MySQL has none above its schemas."""
    return sink_script(SinkUser(wanted.role, wanted.options["schemas"], wanted.options.get("host", "%")))


def problems(config: ParsedConfig) -> Iterable[tuple[str, str]]:
    """Returns what is missing: keys, and the driver."""
    yield from missing(config, "warehouse.hostname", "warehouse.user")
    if importlib.util.find_spec("pymysql") is None:
        yield "warehouse", "needs the worker's extra mysql: pip install 'cdcworker[mysql]'"


MYSQL: Final = WarehouseKind(
    name="mysql",
    title="MySQL",
    keys=(HOSTNAME, PORT, USER, PASSWORD, SCHEMA, SSLMODE, SSLROOTCERT),
    redrives_consistent_sets=True,
    keeps_versions=True,
    problems=problems,
    # A server that is away refuses connections: it does not look empty.
    location=lambda _config: "",
    probe=probe,
    role_options=(ROLE_SCHEMAS, HOST),
    role_script=role_script,
    open=open_writer,
    admin=open_admin,
    dead_letters=open_dead_letters,
    verify_side=open_verify_side,
)
