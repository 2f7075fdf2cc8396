"""The kinds of warehouses: which writer a config asks for, and how a person's questions about offsets reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdcworker.connectors.api import SinkOffsets, SinkPlace, TableWriter
from cdcworker.connectors.files import allowed_path
from cdcworker.connectors.spark.config import conninfo
from cdcworker.connectors.spark.shaping import Output


def output_of(config: Mapping[str, Any]) -> Output:
    return Output(
        log=config["output.mode"] == "log",
        soft=config["delete.mode"] == "soft",
        synced=config["synced.column"],
    )


def open_writer(config: Mapping[str, Any], sink: str, task: int, roots: Sequence[str]) -> TableWriter:
    output, schema = output_of(config), config["warehouse.schema"]
    if config["warehouse"] == "parquet":
        from cdcworker.connectors.spark.parquet import ParquetWriter

        buckets = config["warehouse.buckets"]
        return ParquetWriter(folder(config, roots), sink, task, schema=schema, output=output, buckets=buckets)
    from cdcworker.connectors.spark.postgres import PostgresWriter

    return PostgresWriter(conninfo(config), sink, task, schema=schema, output=output)


def folder(config: Mapping[str, Any], roots: Sequence[str]) -> str:
    """In one of the folders that the worker opens to connectors."""
    return str(allowed_path(config["warehouse.path"], roots))


def stored(config: Mapping[str, Any], place: SinkPlace) -> SinkOffsets:
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark import offsets

        return offsets.stored(conninfo(config), place)
    writer = open_writer(config, place.connector, 0, place.file_roots)
    try:
        return dict(writer.ledger())
    finally:
        writer.close()


def trace(config: Mapping[str, Any], place: SinkPlace, change: Mapping[str, Any]) -> dict[str, Any]:
    """One change in the target, as far as that tells; `change` as `tail` shows it."""
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark import offsets

        return offsets.trace(conninfo(config), place, change, config["warehouse.schema"])
    return {"next_offset": stored(config, place).get((change["topic"], change["partition"]))}


def alter(config: Mapping[str, Any], place: SinkPlace, changes: SinkOffsets | None) -> None:
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark import offsets

        offsets.alter(conninfo(config), place, changes)
        return
    from cdcworker.connectors.spark.manifests import alter as alter_manifests

    alter_manifests(folder(config, place.file_roots), place, changes)


def probe(config: Mapping[str, Any]) -> None:
    """CdcError when the warehouse cannot be used. What a worker allows of folders only a task on it knows."""
    if config["warehouse"] == "postgres":
        from cdcworker.connectors.spark.postgres import probe as probe_postgres

        probe_postgres(conninfo(config))
