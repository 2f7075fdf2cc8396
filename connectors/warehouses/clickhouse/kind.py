"""ClickHouse as a kind of warehouse."""

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
from cdcworker.connectors.warehouses.clickhouse.client import Client, ServerPlace
from cdcworker.connectors.warehouses.clickhouse.errors import OPEN_PASSWORD
from cdcworker.connectors.warehouses.kind import (
    LedgerAdmin,
    ParsedConfig,
    SparkHost,
    WarehouseKind,
    WriterTask,
    probed,
)
from cdcworker.connectors.warehouses.output_config import output_of
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
    from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget
    from cdcworker.connectors.warehouses.offline_redrive import OfflineLetters

PORTS: Final = {False: 8123, True: 8443}
"""Of HTTP and of HTTPS."""
RECORDS_MAX: Final = 250_000
"""Each insert makes a part of its table, which the server merges: fewer and larger ones cost less."""
_KEY_OF_ERROR: Final = {
    TARGET_AUTH: "warehouse.password",
    OPEN_PASSWORD: "warehouse.sslmode",
    TARGET_RIGHTS: "warehouse.user",
}


def client_of(config: ParsedConfig) -> Client:
    """Returns a client that holds the password; nothing is connected to yet."""
    password = config["warehouse.password"]
    place = ServerPlace(
        config["warehouse.hostname"],
        config["warehouse.port"] or 0,
        config["warehouse.user"],
        password.reveal() if password else "",
        config["warehouse.sslmode"],
        config["warehouse.sslrootcert"] or None,
    )
    return Client(place if place.port else place.at(PORTS[place.is_encrypted]))


def open_writer(config: ParsedConfig, task: WriterTask) -> TableWriter:
    """Returns the writer of a task."""
    from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter

    schema = config["warehouse.schema"]
    return ClickHouseWriter(client_of(config), task.sink, task.task, schema=schema, output=output_of(config))


@contextlib.contextmanager
def open_admin(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[LedgerAdmin]:
    """Opens the ledger for a request."""
    from cdcworker.connectors.warehouses.clickhouse.ledger_admin import ClickHouseLedgerAdmin

    with contextlib.closing(client_of(config)) as client:
        yield ClickHouseLedgerAdmin(client, access)


@contextlib.contextmanager
def open_dead_letters(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[OfflineLetters]:
    """Opens the dead letters of a sink."""
    from cdcworker.connectors.warehouses.clickhouse.dead_letters import letters_of

    with contextlib.closing(client_of(config)) as client:
        yield letters_of(client, access.connector, config["warehouse.schema"], output_of(config))


@contextlib.contextmanager
def open_verify_side(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[LakeTarget]:
    """Opens a sink's tables, whose rows are compared in this process."""
    from cdcworker.connectors.warehouses.clickhouse.verify_tables import ClickHouseTablesOfSink
    from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget

    tables = ClickHouseTablesOfSink(client_of(config), access.connector)
    with contextlib.closing(LakeTarget(tables, access.connector)) as side:
        yield side


def probe(config: ParsedConfig) -> Sequence[CheckFinding]:
    """Logs in to the target; returns what is wrong, at the key that causes it."""
    with contextlib.closing(client_of(config)) as client:
        return probed(lambda: client.do("SELECT 1"), _KEY_OF_ERROR)


def role_script(wanted: RoleRequest) -> list[ScriptStep]:
    """Returns the SQL for the user of a sink; the database that is named says nothing, for ClickHouse has none above its schemas."""
    from cdcworker.connectors.warehouses.clickhouse.roles import SinkUser, sink_script

    return sink_script(SinkUser(wanted.role, wanted.options["schemas"]))


def problems(config: ParsedConfig) -> Iterable[tuple[str, str]]:
    """Returns what is missing, and what a server without transactions does not do."""
    yield from missing(config, "warehouse.hostname", "warehouse.user")
    if config["consistency"] == "source":
        yield "consistency", "expects eventual: ClickHouse cannot show several tables at one moment"
    if importlib.util.find_spec("clickhouse_connect") is None:
        yield "warehouse", "needs the worker's extra clickhouse: pip install 'cdcworker[clickhouse]'"


CLICKHOUSE: Final = WarehouseKind(
    name="clickhouse",
    title="ClickHouse",
    keys=(HOSTNAME, PORT, USER, PASSWORD, SCHEMA, SSLMODE, SSLROOTCERT),
    records_max=RECORDS_MAX,
    problems=problems,
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
