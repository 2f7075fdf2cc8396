"""Parquet files in a folder or a bucket as a kind of warehouse."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.sink_errors import TARGET_STORE_UNFIT
from cdcworker.connectors.warehouses.kind import ParsedConfig, SparkHost, WarehouseKind, WriterTask
from cdcworker.connectors.warehouses.output_config import output_of
from cdcworker.connectors.warehouses.shared_keys import BUCKETS, PATH, SCHEMA, folder, missing
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.stores import object_stores
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget
    from cdcworker.connectors.warehouses.offline_redrive import OfflineLetters

RECORDS_MAX: Final = 250_000
"""Each batch is one more file per table: fewer and larger ones are read faster. About 80 MB of ordinary rows."""


def storage_of(config: ParsedConfig, roots: Sequence[str]) -> Storage:
    """Returns where the files of a sink lie. CdcError when the worker does not open that to connectors."""
    store = object_stores.kind_of(config["warehouse.path"])
    if store is not None:
        return store.open(config, roots)
    if "://" in config["warehouse.path"]:
        raise CdcError(
            TARGET_STORE_UNFIT, "warehouse.path is in no store that this takes", where={"key": "warehouse.path"}
        )
    return LocalDisk(folder(config, roots))


def open_writer(config: ParsedConfig, task: WriterTask) -> TableWriter:
    """Returns the writer of a task."""
    from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
    from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter

    writer = WholeParquetWriter if config["consistency"] == "source" else ParquetWriter
    return writer(
        storage_of(config, task.file_roots),
        task.sink,
        task.task,
        schema=config["warehouse.schema"],
        output=output_of(config),
        buckets=config["warehouse.buckets"],
    )


@dataclass(frozen=True, slots=True)
class ParquetLedgerAdmin:
    """The ledger in the manifests of a sink's tables."""

    config: ParsedConfig
    access: LedgerAccess

    def offsets(self) -> SinkOffsets:
        task = WriterTask(self.access.connector, file_roots=self.access.file_roots)
        with contextlib.closing(open_writer(self.config, task)) as writer:
            return dict(writer.ledger())

    def alter(self, changes: SinkOffsets | None) -> None:
        from cdcworker.connectors.warehouses.table_state import alter

        alter(storage_of(self.config, self.access.file_roots), self.access, changes)

    def trace(self, change: Mapping[str, Any]) -> dict[str, Any]:
        return {"next_offset": self.offsets().get((change["topic"], change["partition"]))}


@contextlib.contextmanager
def open_admin(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[ParquetLedgerAdmin]:
    """Opens the ledger for a request."""
    yield ParquetLedgerAdmin(config, access)


@contextlib.contextmanager
def open_dead_letters(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[OfflineLetters]:
    """Opens the files of a sink's dead letters."""
    from cdcworker.connectors.warehouses.parquet.dead_letters import letters_of

    files = storage_of(config, access.file_roots)
    yield letters_of(files, access.connector, output_of(config), config["warehouse.buckets"])


@contextlib.contextmanager
def open_verify_side(config: ParsedConfig, access: LedgerAccess, _spark: SparkHost) -> Iterator[LakeTarget]:
    """Opens a sink's files, which are read in this process."""
    from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget
    from cdcworker.connectors.warehouses.parquet.verify_tables import ParquetTables

    files, has_sets = storage_of(config, access.file_roots), config["consistency"] == "source"
    with contextlib.closing(LakeTarget(ParquetTables(files, access.connector, has_sets), access.connector)) as side:
        yield side


def check_paths(config: ParsedConfig, roots: Sequence[str]) -> None:
    """CdcError when the folder is in none of the worker's file roots, or the worker does not let connectors reach the store."""
    storage_of(config, roots)


def problems(config: ParsedConfig) -> Iterable[tuple[str, str]]:
    """Returns what is wrong with the path, and with the keys of a bucket."""
    yield from missing(config, "warehouse.path")
    path = config["warehouse.path"]
    store = object_stores.kind_of(path)
    if store is not None:
        yield from store.problems(config)
    elif "://" in path:
        yield (
            "warehouse.path",
            "expects a folder, s3://bucket/prefix, gs://bucket/prefix, or abfss://container@account.dfs.core.windows.net/prefix",
        )


def probe(config: ParsedConfig) -> Sequence[CheckFinding]:
    """Asks a bucket for a name, and returns what is wrong, at the key that causes it."""
    return object_stores.probe(config)


PARQUET: Final = WarehouseKind(
    name="parquet",
    title="Parquet",
    keys=(SCHEMA, PATH, BUCKETS, *object_stores.KEYS),
    records_max=RECORDS_MAX,
    problems=problems,
    check_paths=check_paths,
    probe=probe,
    keeps_versions=True,
    open=open_writer,
    admin=open_admin,
    dead_letters=open_dead_letters,
    verify_side=open_verify_side,
)
