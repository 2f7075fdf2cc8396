"""The kinds of warehouses: which writer a config asks for, and how a person's questions about offsets reach it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from cdcworker.connectors.api import SinkOffsets, SinkPlace, TableWriter
from cdcworker.connectors.files import NOT_ALLOWED, allowed_path
from cdcworker.connectors.spark import policy, redaction
from cdcworker.connectors.spark.cluster import cluster_of
from cdcworker.connectors.spark.config import conninfo, position_column
from cdcworker.connectors.spark.shaping import Output
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.spark import parallel
    from cdcworker.connectors.spark.lake import LakeWriter
    from cdcworker.connectors.spark.laketables import Tables
    from pyspark.sql import SparkSession


def output_of(config: Mapping[str, Any]) -> Output:
    return Output(
        log=config["output.mode"] == "log",
        soft=config["delete.mode"] == "soft",
        synced=config["synced.column"],
        position=position_column(config),
        drop=config["schema.change.drop"] == "delete",
        follows=policy.followed(config),
    )


SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "iceberg": {},
    "delta": {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"},
}
"""Of Spark, which it has to be started with for a lake; a lake has libraries of its own, under its name."""
LANES_MAX: Final = 4
"""Tables of a lake that are written at once, each with a copy of the rows that its batch concerns."""


def jars_of(config: Mapping[str, str]) -> str:
    """Sets of libraries, joined by a plus."""
    warehouse = config.get("warehouse", "")
    return f"spark+{warehouse}" if warehouse in SETTINGS else "spark"


def spark_settings(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    kind = config.get("warehouse", "")
    return tuple({**SETTINGS.get(kind, {}), **(redaction.of_catalog(config) if kind == "iceberg" else {})}.items())


def target_of(config: Mapping[str, Any]) -> str:
    """Names where the tables are, if their file system may be away while nothing says so; a server would say it."""
    if config["warehouse"] == "postgres":
        return ""
    return " ".join(
        config[name].rstrip("/")
        for name in ("warehouse", "warehouse.path", "warehouse.catalog", "warehouse.catalog.uri")
    )


def open_writer(config: Mapping[str, Any], sink: str, task: int, roots: Sequence[str]) -> TableWriter:
    output, schema = output_of(config), config["warehouse.schema"]
    if config["warehouse"] == "parquet":
        from cdcworker.connectors.spark.parquet import ParquetWriter
        from cdcworker.connectors.spark.parquetsets import WholeParquetWriter

        kind = WholeParquetWriter if config["consistency"] == "source" else ParquetWriter
        buckets = config["warehouse.buckets"]
        return kind(folder(config, roots), sink, task, schema=schema, output=output, buckets=buckets)
    if config["warehouse"] in SETTINGS:
        return lake_writer(config, sink, task, roots)
    from cdcworker.connectors.spark.postgres import PostgresWriter

    return PostgresWriter(conninfo(config), sink, task, schema=schema, output=output, staging=staging_of(config))


def staging_of(config: Mapping[str, Any]) -> parallel.Plan:
    from cdcworker.connectors.spark import parallel

    count = config["spark.cores"]
    run = parallel.in_threads(count) if cluster_of(config) is None else None
    return parallel.Plan(count, config["staging.parallel.min.bytes"], run)


def lake_writer(config: Mapping[str, Any], sink: str, task: int, roots: Sequence[str]) -> LakeWriter:
    from cdcworker.connectors.spark.lake import LakeWriter
    from cdcworker.connectors.spark.lakerows import Stage
    from cdcworker.connectors.spark.lakesets import WholeLakeWriter

    kind = WholeLakeWriter if config["consistency"] == "source" else LakeWriter
    output, stage, lanes = output_of(config), Stage(local=cluster_of(config) is None), lanes_of(config)
    schema = config["warehouse.schema"]
    return kind(tables_of(config, roots), sink, task, schema=schema, output=output, stage=stage, lanes=lanes)


def lanes_of(config: Mapping[str, Any]) -> int:
    return min(LANES_MAX, int(config["spark.cores"]))


def tables_of(config: Mapping[str, Any], roots: Sequence[str]) -> Tables:
    if config["warehouse"] == "delta":
        from cdcworker.connectors.spark.delta import DeltaTables

        return DeltaTables(folder(config, roots))
    from cdcworker.connectors.spark.iceberg import IcebergTables

    return IcebergTables(catalog_settings(config, roots))


def _open(roots: Sequence[str]) -> None:
    """A catalog, or another store, says by itself where files lie: such a connector may touch whatever the worker may."""
    if not any(os.path.realpath(root) == "/" for root in roots):
        text = "a lake that is not a local folder needs a worker that opens / to connectors"
        raise CdcError(NOT_ALLOWED, text, where={"key": "warehouse.path"})


def catalog_settings(config: Mapping[str, Any], roots: Sequence[str]) -> dict[str, str]:
    """Properties of Iceberg's catalog; those that hold secrets among them."""
    if config["warehouse.catalog"] != "hadoop":
        _open(roots)
    secret = config["warehouse.catalog.secrets"]
    pairs = [*config["warehouse.catalog.properties"], *(secret.reveal().split(",") if secret else ())]
    out = dict(pair.strip().split("=", 1) for pair in pairs if pair.strip())
    out["type"] = config["warehouse.catalog"]
    if config["warehouse.catalog.uri"]:
        out["uri"] = config["warehouse.catalog.uri"]
    if config["warehouse.path"]:
        out["warehouse"] = folder(config, roots)
    return out


def folder(config: Mapping[str, Any], roots: Sequence[str]) -> str:
    """In one of the folders that the worker opens to connectors; or of another store."""
    path = str(config["warehouse.path"])
    if "://" not in path:
        return str(allowed_path(path, roots, "warehouse.path"))
    _open(roots)
    return path


def check_files(config: Mapping[str, Any], roots: Sequence[str]) -> None:
    """Raises CdcError for a target that this worker does not let a connector write to."""
    if config["warehouse"] == "iceberg":
        catalog_settings(config, roots)
    elif config["warehouse"] != "postgres":
        folder(config, roots)


def stored(config: Mapping[str, Any], place: SinkPlace) -> SinkOffsets:
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark import offsets

        return offsets.stored(conninfo(config), place)
    with _writing(config, place) as writer:
        return dict(writer.ledger())


def trace(config: Mapping[str, Any], place: SinkPlace, change: Mapping[str, Any]) -> dict[str, Any]:
    """One change in the target, as far as that tells; `change` as `tail` shows it."""
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark import offsets

        return offsets.trace(conninfo(config), place, change, config["warehouse.schema"], position_column(config))
    return {"next_offset": stored(config, place).get((change["topic"], change["partition"]))}


def alter(config: Mapping[str, Any], place: SinkPlace, changes: SinkOffsets | None) -> None:
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark import offsets

        offsets.alter(conninfo(config), place, changes)
        return
    if config["warehouse"] in SETTINGS:
        with _writing(config, place) as writer:
            cast("LakeWriter", writer).alter(place.epoch, changes)
        return
    from cdcworker.connectors.spark.manifests import alter as alter_manifests

    alter_manifests(folder(config, place.file_roots), place, changes)


@contextlib.contextmanager
def _writing(config: Mapping[str, Any], place: SinkPlace) -> Iterator[TableWriter]:
    """A writer, with a Spark of its own where it needs one."""
    with contextlib.ExitStack() as stack:
        writer = open_writer(config, place.connector, 0, place.file_roots)
        if config["warehouse"] in SETTINGS:
            cast("LakeWriter", writer).attach(stack.enter_context(own_session(config, place.machine())))
        stack.callback(writer.close)
        yield writer


@contextlib.contextmanager
def own_session(config: Mapping[str, Any], machine: tuple[str, Sequence[str]]) -> Iterator[Callable[[], SparkSession]]:
    """Spark for somebody who is no task, while that lasts. `machine`: the home of Java, and the libraries."""
    from cdcworker.connectors.spark.gateway import java_program
    from cdcworker.connectors.spark.session import Engine, Runtime
    from cdcworker.connectors.spark.state import TemporaryFolder

    state = TemporaryFolder()
    home, jars = machine
    runtime = Runtime(java_program(home), tuple(jars), config["spark.driver.memory"], 1, "", spark_settings(config))
    engine = Engine(runtime, state.path, lambda: False, release=state.close)
    try:
        yield engine.session
    finally:
        engine.close()


def probe(config: Mapping[str, Any]) -> None:
    """CdcError when the warehouse cannot be used. What a worker allows of folders only a task on it knows."""
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark.pgconnect import probe as probe_postgres

        probe_postgres(conninfo(config))
