"""Iceberg and Delta as kinds of warehouses: tables that Spark's SQL reads and writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.config.definition import ConfigKey, Secret, has_reference, one_of
from cdcworker.connectors.warehouses.kind import ParsedConfig, SparkHost, TableMaintenance, WarehouseKind, WriterTask
from cdcworker.connectors.warehouses.lake.catalog.catalog_properties import (
    CATALOGS,
    PROPERTIES_KEY,
    SECRETS_KEY,
    URI_KEY,
    URIS,
    Property,
    admit,
    admit_uri,
    problem_of,
    properties_of,
    uri_problem,
)
from cdcworker.connectors.warehouses.lake.catalog.catalog_tls import check_properties
from cdcworker.connectors.warehouses.lake.maintenance import policy as maintenance_policy
from cdcworker.connectors.warehouses.output_config import output_of
from cdcworker.connectors.warehouses.shared_keys import GROUP, PATH, SCHEMA, folder, missing, require_open_root
from cdcworker.connectors.warehouses.storage.object_store import ObjectStore
from cdcworker.connectors.warehouses.stores import object_stores
from cdcworker.connectors.warehouses.stores.object_stores import StoreKind

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.lake.tables import LakeTables
    from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget
    from cdcworker.connectors.warehouses.lake.writer import LakeWriter
    from cdcworker.connectors.warehouses.offline_redrive import OfflineLetters

NEEDS_PLACE: Final = (
    "needs warehouse.path=s3://bucket/prefix, or the place in another store: where the tables' files lie"
)
CLUSTER_IN_BUCKET: Final = "cannot be set with tables in a bucket: the sink's own machine alone reaches that"
ICEBERG_RECORDS_MAX: Final = 500_000
"""A commit takes a tenth of a second of the processor, whatever it holds. Batches of large rows are bounded by their bytes."""
DELTA_RECORDS_MAX: Final = 500_000
"""A commit that Spark makes takes a second and more; one of the sink's own waits for the disk."""
PARALLEL_TABLES_MAX: Final = 4
"""Each table that is written at the same time as others holds a copy of the rows that its batch concerns."""


CATALOG_KEYS: Final = (
    ConfigKey(
        "warehouse.catalog",
        default="hadoop",
        validator=one_of(*CATALOGS),
        recommended=CATALOGS,
        group=GROUP,
        doc="Iceberg's catalog. hadoop: the folder warehouse.path is all there is. Any other says itself where files lie, so"
        " the worker has to open / to connectors (file.connector.paths).",
        connects=True,
    ),
    ConfigKey(
        "warehouse.catalog.uri", default="", group=GROUP, doc="Where the catalog is: its uri property.", connects=True
    ),
    ConfigKey(
        "warehouse.catalog.properties",
        "LIST",
        (),
        importance="LOW",
        group=GROUP,
        doc="Further properties of Iceberg's catalog, each name=value: those that the page on Iceberg lists for the kind of"
        " catalog.",
        connects=True,
    ),
    ConfigKey(
        "warehouse.catalog.secrets",
        "PASSWORD",
        importance="LOW",
        group=GROUP,
        doc="The same for properties that are secret, separated by commas.",
        connects=True,
    ),
)


FEATURES: Final = ConfigKey(
    "warehouse.delta.features",
    default="all",
    validator=one_of("all", "none"),
    recommended=("all", "none"),
    group=GROUP,
    doc="Of Delta tables that the sink makes. all: column mapping, deletion vectors and type widening. none: what any reader"
    " of Delta opens, such as delta-rs and polars; a change of a row writes its file again, and a column that is renamed,"
    " widened or to be deleted stops its table. Tables that are there stay as they are.",
    connects=False,
)


def catalog_properties(config: ParsedConfig) -> list[Property]:
    """Returns the properties that a config gives to Iceberg's catalog, secret ones included."""
    secret = config[SECRETS_KEY]
    return [
        *properties_of(PROPERTIES_KEY, config[PROPERTIES_KEY], secret=False),
        *properties_of(SECRETS_KEY, secret.reveal().split(",") if secret else (), secret=True),
    ]


def catalog_settings(config: ParsedConfig, roots: Sequence[str]) -> dict[str, str]:
    """Returns the properties of Iceberg's catalog, secret ones included, after each of them has been judged. CdcError
    `config.catalog_property`, `config.host_not_allowed` or `file.path_not_allowed` when one is not open to connectors."""
    catalog, uri = config["warehouse.catalog"], config[URI_KEY]
    if catalog != "hadoop":
        require_open_root(roots)
    out = {}
    for given in catalog_properties(config):
        admit(catalog, given, roots)
        out[given.name] = given.value
    check_properties(PROPERTIES_KEY, out)
    if uri and catalog in URIS:
        admit_uri(catalog, uri, roots, out)
        out["uri"] = uri
    out["type"] = catalog
    store = own_store(config, roots)
    if store is not None:
        out["warehouse"] = store.place("").rstrip("/")
    elif config["warehouse.path"]:
        out["warehouse"] = folder(config, roots)
    return out


def secret_properties(config: Mapping[str, Any]) -> list[str]:
    """Returns the names in `warehouse.catalog.secrets`, of a config that may not be parsed yet."""
    secret = config.get("warehouse.catalog.secrets")
    text = secret.reveal() if isinstance(secret, Secret) else str(secret or "")
    return [name.strip() for pair in text.split(",") for name, _, _ in [pair.partition("=")] if name.strip()]


def iceberg_tables(config: ParsedConfig, roots: Sequence[str]) -> LakeTables:
    """Returns the tables of the catalog that the config describes."""
    from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables

    return IcebergTables(catalog_settings(config, roots), roots, store=own_store(config, roots))


def delta_tables(config: ParsedConfig, roots: Sequence[str]) -> LakeTables:
    """Returns the tables in the folder or the bucket that the config names."""
    from cdcworker.connectors.warehouses.lake.delta import DeltaTables
    from cdcworker.connectors.warehouses.lake.delta_files.file_tables import FileTables

    plain = config["warehouse.delta.features"] == "none"
    store = own_store(config, roots)
    if store is not None:
        return DeltaTables(store.place(""), roots, plain, FileTables(store))
    return DeltaTables(folder(config, roots), roots, plain)


def own_store(config: ParsedConfig, roots: Sequence[str]) -> ObjectStore | None:
    """Returns the bucket that the config names where the sink itself reaches it; None: without any of the keys that say how, it is
    Spark's own client that opens the URI, with the operator's libraries and settings. CdcError as `StoreKind.open` raises it."""
    kind = _own_kind(config)
    return None if kind is None else kind.open(config, roots)


def _own_kind(config: ParsedConfig) -> StoreKind | None:
    kind = object_stores.kind_of(config["warehouse.path"])
    return kind if kind is not None and kind.is_given(config) else None


@dataclass(frozen=True, slots=True)
class LakeLedgerAdmin:
    """The ledger in the states of a sink's tables, through Spark."""

    writer: LakeWriter
    access: LedgerAccess

    def offsets(self) -> SinkOffsets:
        return dict(self.writer.ledger())

    def alter(self, changes: SinkOffsets | None) -> None:
        self.writer.alter(self.access.epoch, changes)

    def trace(self, change: Mapping[str, Any]) -> dict[str, Any]:
        return {"next_offset": self.offsets().get((change["topic"], change["partition"]))}


@dataclass(frozen=True, slots=True)
class Lake:
    """What the kinds of lakes have in common; they differ in how their tables are found."""

    tables: Callable[[ParsedConfig, Sequence[str]], LakeTables]

    def open(self, config: ParsedConfig, task: WriterTask) -> LakeWriter:
        """Returns the writer of a task; it needs a Spark session before it is used."""
        from cdcworker.connectors.warehouses.lake.affected_rows import StagedFiles
        from cdcworker.connectors.warehouses.lake.consistent_sets import WholeLakeWriter
        from cdcworker.connectors.warehouses.lake.writer import LakeWriter

        writer = WholeLakeWriter if config["consistency"] == "source" else LakeWriter
        return writer(
            self.tables(config, task.file_roots),
            task.sink,
            task.task,
            schema=config["warehouse.schema"],
            output=output_of(config),
            stage=StagedFiles(local=not task.is_on_cluster),
            parallel_tables=min(PARALLEL_TABLES_MAX, int(config["spark.cores"])),
        )

    def maintenance(self, config: ParsedConfig, writer: TableWriter, sink: str) -> TableMaintenance:
        """Returns the maintenance of the tables that a task's writer claims."""
        from cdcworker.connectors.warehouses.lake.claimed_tables import ClaimedTables
        from cdcworker.connectors.warehouses.lake.maintenance_run import LakeMaintenance

        assert isinstance(writer, ClaimedTables)
        return LakeMaintenance(writer, maintenance_policy.policy_of(config), sink)

    @contextlib.contextmanager
    def admin(self, config: ParsedConfig, access: LedgerAccess, spark: SparkHost) -> Iterator[LakeLedgerAdmin]:
        """Opens the ledger with a Spark of its own."""
        with self._writer(config, access, spark) as writer:
            yield LakeLedgerAdmin(writer, access)

    @contextlib.contextmanager
    def dead_letters(self, config: ParsedConfig, access: LedgerAccess, spark: SparkHost) -> Iterator[OfflineLetters]:
        """Opens the table of a sink's dead letters with a Spark of its own."""
        from cdcworker.connectors.warehouses.lake.dead_letters import LakeOfflineTables

        tables, schema = self.tables(config, access.file_roots), config["warehouse.schema"]
        lake = LakeOfflineTables(tables, access.connector, schema=schema, output=output_of(config))
        with spark() as session, contextlib.closing(lake):
            lake.attach(session)
            yield lake.letters

    @contextlib.contextmanager
    def verify_side(self, config: ParsedConfig, access: LedgerAccess, spark: SparkHost) -> Iterator[LakeTarget]:
        """Opens a sink's tables with a Spark of its own."""
        from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget

        with self._writer(config, access, spark) as writer:
            yield LakeTarget(writer, access.connector)

    @contextlib.contextmanager
    def _writer(self, config: ParsedConfig, access: LedgerAccess, spark: SparkHost) -> Iterator[LakeWriter]:
        writer = self.open(config, WriterTask(access.connector, file_roots=access.file_roots))
        with spark() as session, contextlib.closing(writer):
            writer.attach(session)
            yield writer


def _iceberg_problems(config: ParsedConfig) -> Iterable[tuple[str, str]]:
    catalog = config["warehouse.catalog"]
    yield from maintenance_policy.problems(config)
    yield from missing(config, "warehouse.path" if catalog == "hadoop" else URI_KEY)
    yield from _store_problems(config)
    if object_stores.kind_of(config["warehouse.path"]) is None:
        yield from ((name, NEEDS_PLACE) for name in object_stores.given_keys(config))
    if has_reference(catalog):
        return
    if problem := uri_problem(catalog, config[URI_KEY]):
        yield URI_KEY, problem
    for given in catalog_properties(config):
        if problem := problem_of(catalog, given):
            yield given.key, problem


def _store_problems(config: ParsedConfig) -> Iterable[tuple[str, str]]:
    kind = _own_kind(config)
    if kind is None:
        return
    yield from kind.problems(config)
    if config["spark.master"]:
        yield "spark.master", CLUSTER_IN_BUCKET


def _check_iceberg_paths(config: ParsedConfig, roots: Sequence[str]) -> None:
    catalog_settings(config, roots)


def _check_delta_paths(config: ParsedConfig, roots: Sequence[str]) -> None:
    if own_store(config, roots) is None:
        folder(config, roots)


def _delta_problems(config: ParsedConfig) -> Iterable[tuple[str, str]]:
    yield from maintenance_policy.problems(config)
    yield from missing(config, "warehouse.path")
    yield from _store_problems(config)


def _probe(config: ParsedConfig) -> Sequence[CheckFinding]:
    return [] if _own_kind(config) is None else object_stores.probe(config)


_ICEBERG_LAKE: Final = Lake(iceberg_tables)
_DELTA_LAKE: Final = Lake(delta_tables)

ICEBERG: Final = WarehouseKind(
    name="iceberg",
    title="Iceberg",
    keys=(SCHEMA, PATH, *CATALOG_KEYS, *object_stores.KEYS),
    records_max=ICEBERG_RECORDS_MAX,
    libraries="iceberg",
    keeps_versions=True,
    secret_settings=secret_properties,
    problems=_iceberg_problems,
    check_paths=_check_iceberg_paths,
    probe=_probe,
    batch_keys=maintenance_policy.KEYS,
    open=_ICEBERG_LAKE.open,
    maintenance=_ICEBERG_LAKE.maintenance,
    admin=_ICEBERG_LAKE.admin,
    dead_letters=_ICEBERG_LAKE.dead_letters,
    verify_side=_ICEBERG_LAKE.verify_side,
)
DELTA: Final = WarehouseKind(
    name="delta",
    title="Delta",
    keys=(SCHEMA, PATH, FEATURES, *object_stores.KEYS),
    records_max=DELTA_RECORDS_MAX,
    libraries="delta",
    keeps_versions=True,
    spark_settings={"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"},
    problems=_delta_problems,
    check_paths=_check_delta_paths,
    probe=_probe,
    batch_keys=maintenance_policy.KEYS,
    open=_DELTA_LAKE.open,
    maintenance=_DELTA_LAKE.maintenance,
    admin=_DELTA_LAKE.admin,
    dead_letters=_DELTA_LAKE.dead_letters,
    verify_side=_DELTA_LAKE.verify_side,
)
