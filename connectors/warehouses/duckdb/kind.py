"""A file of DuckDB as a kind of warehouse."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.sink_errors import TARGET_LOCKED, TARGET_UNREACHABLE
from cdcworker.connectors.warehouses.kind import LedgerAdmin, ParsedConfig, SparkHost, WarehouseKind, WriterTask
from cdcworker.connectors.warehouses.output_config import output_of, position_column
from cdcworker.connectors.warehouses.shared_keys import PATH, SCHEMA, folder, missing
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.duckdb.redrive import DuckDbLetters
    from cdcworker.connectors.warehouses.duckdb.verify_side import DuckDbTarget

RECORDS_MAX: Final = 250_000
"""Each batch opens the file, and closing it writes what has changed to its place: fewer and larger ones cost less."""
_PROBE_S: Final = 2.0


def open_writer(config: ParsedConfig, task: WriterTask) -> TableWriter:
    """Returns the writer of a task."""
    from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter

    path = folder(config, task.file_roots)
    return DuckDbWriter(path, task.sink, task.task, schema=config["warehouse.schema"], output=output_of(config))


@contextlib.contextmanager
def open_admin(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[LedgerAdmin]:
    """Opens the ledger for a request; the file is opened for each of its steps."""
    from cdcworker.connectors.warehouses.duckdb.ledger_admin import DuckDbLedgerAdmin

    path = folder(config, access.file_roots)
    yield DuckDbLedgerAdmin(path, access, config["warehouse.schema"], position_column(config))


@contextlib.contextmanager
def open_dead_letters(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[DuckDbLetters]:
    """Opens the dead letters of a sink."""
    from cdcworker.connectors.warehouses.duckdb.redrive import DuckDbLetters

    schema, output, path = config["warehouse.schema"], output_of(config), folder(config, access.file_roots)
    with contextlib.closing(DuckDbLetters(path, access.connector, schema=schema, output=output)) as found:
        yield found


@contextlib.contextmanager
def open_verify_side(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[DuckDbTarget]:
    """Opens the file for a comparison, once it is read."""
    from cdcworker.connectors.warehouses.duckdb.verify_side import DuckDbTarget

    side = DuckDbTarget(folder(config, access.file_roots), access.connector, position_column(config))
    with contextlib.closing(side):
        yield side


def check_paths(config: ParsedConfig, roots: Sequence[str]) -> None:
    """CdcError when the file is in none of the worker's file roots."""
    folder(config, roots)


def probe(config: ParsedConfig) -> Sequence[CheckFinding]:
    """Opens the file where there is one, or looks at the folder that it is to be made in. A file that somebody has open may be
    the sink's own: that is a warning."""
    from cdcworker.connectors.warehouses.duckdb.connection import session

    path, above = config["warehouse.path"], os.path.dirname(config["warehouse.path"])
    try:
        if os.path.isdir(path) or not os.path.isdir(above):
            raise CdcError(TARGET_UNREACHABLE, "warehouse.path is a folder, or in none that is there")
        if os.path.exists(path):
            with session(path, _PROBE_S):
                pass
    except CdcError as exc:
        level: Literal["warning", "error"] = "warning" if exc.code == TARGET_LOCKED else "error"
        return [CheckFinding("warehouse.path", level, exc.code, exc.message, exc.hint)]
    return []


def problems(config: ParsedConfig) -> Iterable[tuple[str, str]]:
    """Returns what is missing: the path, and the library."""
    yield from missing(config, "warehouse.path")
    if "://" in config["warehouse.path"]:
        yield "warehouse.path", "expects a file on this machine"
    if importlib.util.find_spec("duckdb") is None:
        yield "warehouse", "needs the worker's extra duckdb: pip install 'cdcworker[duckdb]'"


DUCKDB: Final = WarehouseKind(
    name="duckdb",
    title="DuckDB",
    keys=(SCHEMA, PATH),
    records_max=RECORDS_MAX,
    redrives_consistent_sets=True,
    keeps_versions=True,
    problems=problems,
    check_paths=check_paths,
    probe=probe,
    open=open_writer,
    admin=open_admin,
    dead_letters=open_dead_letters,
    verify_side=open_verify_side,
)
