"""The Spark sink's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cdcworker.connectors.api import POSITION, RESERVED
from cdcworker.connectors.common import TASK_KEYS
from cdcworker.connectors.config import ConfigDef, ConfigKey, Importance, Secret, between, is_regex, one_of
from cdcworker.connectors.hosts import host_list
from cdcworker.connectors.spark import cluster, policy

TRIGGER_MS = 250
"""A row waits half of it on average. Without changes there are no batches; with some all the time each batch costs."""
RECORDS_MAX = 100_000
PARQUET_RECORDS_MAX = 250_000
"""What goes through the driver at once: about 32 MB of ordinary rows."""


STAGING_BYTES = 32 * 1024 * 1024
"""Below this a table is staged over the driver's own connection before others have heard of it."""
MEMORY = "1g"
CORES = 2
MEMORY_MB_MIN = 512
"""Spark itself refuses less than 471 MB."""


def _memory(value: str) -> str | None:
    number, unit = value[:-1], value[-1:]
    if not number.isdigit() or unit not in ("m", "g"):
        return "expects a size such as 1g or 768m"
    size = int(number) * (1024 if unit == "g" else 1)
    return None if size >= MEMORY_MB_MIN else f"must be at least {MEMORY_MB_MIN}m"


WAREHOUSES = ("postgres", "parquet", "iceberg", "delta")
CATALOGS = ("hadoop", "hive", "rest", "jdbc", "nessie")
_NEEDED = {
    "postgres": ("warehouse.hostname", "warehouse.user", "warehouse.dbname"),
    "parquet": ("warehouse.path",),
    "delta": ("warehouse.path",),
}

_PATH = re.compile(r"/|(?!file:)[a-z][a-z0-9+.-]*://")


def _pairs(value: Any) -> str | None:
    """Names of classes are the worker's business."""
    text = value.reveal() if isinstance(value, Secret) else value
    parts = text.split(",") if isinstance(text, str) else text
    names = [part.strip().split("=", 1) for part in parts if part.strip()]
    if any(len(pair) < 2 for pair in names):
        return "expects name=value"
    closed = [name for name, _ in names if name.endswith("-impl") or name in ("type", "uri", "cache-enabled")]
    return f"does not take {', '.join(closed)}" if closed else None


HIGH: Importance = "HIGH"
LOW: Importance = "LOW"


def _target_keys() -> Iterable[ConfigKey]:
    key = ConfigKey
    topics, warehouse = "Topics", "Warehouse"
    yield key("topics", "LIST", (), importance=HIGH, group=topics, doc="Topics to read; one may appear later.")
    yield key("topics.regex", validator=is_regex, importance=HIGH, group=topics, doc="Every topic that it matches.")
    yield key(
        "warehouse",
        default="postgres",
        validator=one_of(*WAREHOUSES),
        recommended=WAREHOUSES,
        importance=HIGH,
        group=warehouse,
        doc="Kind of the target.",
    )
    yield key(
        "warehouse.hostname",
        default="",
        importance=HIGH,
        group=warehouse,
        validator=lambda value: host_list(value) if value else None,
        doc="Host of the target.",
    )
    yield key("warehouse.port", "INT", 5432, validator=between(1, 65535), importance=HIGH, group=warehouse)
    yield key("warehouse.user", default="", importance=HIGH, group=warehouse, doc="A role that may create tables.")
    yield key("warehouse.password", "PASSWORD", importance=HIGH, group=warehouse, doc="Its password.")
    yield key("warehouse.dbname", default="", importance=HIGH, group=warehouse, doc="The target database.")
    yield key("warehouse.schema", default="", group=warehouse, doc="Schema of all tables; empty: as in the source.")
    yield key(
        "warehouse.sslmode",
        default="prefer",
        validator=one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        importance=LOW,
        group=warehouse,
        doc="As libpq's.",
    )
    yield key("warehouse.sslrootcert", importance=LOW, group=warehouse, doc="File of trusted root certificates.")


def _lake_keys() -> Iterable[ConfigKey]:
    key, warehouse = ConfigKey, "Warehouse"
    yield key(
        "warehouse.path",
        default="",
        importance=HIGH,
        group=warehouse,
        validator=lambda value: None if not value or _PATH.match(value) else "expects an absolute path or a URI",
        doc="Folder of the tables of a Parquet warehouse or a lake, in one that the worker opens to connectors. A lake may"
        " lie in another store, named by a URI that Spark's Hadoop client opens.",
    )
    yield key(
        "warehouse.buckets",
        "INT",
        8,
        validator=between(1, 4096),
        importance=LOW,
        group=warehouse,
        doc="Files per table of current state in Parquet, each with a share of the keys; set when a table is created.",
    )

    yield key(
        "warehouse.catalog",
        default="hadoop",
        validator=one_of(*CATALOGS),
        recommended=CATALOGS,
        group=warehouse,
        doc="Iceberg's catalog. hadoop: the folder warehouse.path is all there is. Any other says itself where files lie, so"
        " the worker has to open / to connectors (file.connector.paths).",
    )
    yield key("warehouse.catalog.uri", default="", group=warehouse, doc="Where the catalog is: its uri property.")
    yield key(
        "warehouse.catalog.properties",
        "LIST",
        (),
        importance=LOW,
        group=warehouse,
        validator=_pairs,
        doc="Further properties of Iceberg's catalog, each name=value, handed to it as they are.",
    )
    yield key(
        "warehouse.catalog.secrets",
        "PASSWORD",
        importance=LOW,
        group=warehouse,
        validator=_pairs,
        doc="The same for properties that are secret, separated by commas.",
    )


def _output_keys() -> Iterable[ConfigKey]:
    key, batches = ConfigKey, "Batches"
    yield key(
        "output.mode",
        default="current",
        validator=one_of("current", "log"),
        recommended=("current", "log"),
        group=batches,
        doc="current: one row per key as it is now. log: every change as a row of its own, in order of position.column.",
    )
    yield key(
        "delete.mode",
        default="hard",
        validator=one_of("hard", "soft"),
        recommended=("hard", "soft"),
        group=batches,
        doc="hard: deleted rows go. soft: they stay, with _cdc_deleted set until the key comes back.",
    )
    yield key(
        "position.column",
        default=POSITION,
        group=batches,
        doc="Name of the column with the position of a row's last change; a new one renames it. none: no such column, of a log alone.",
    )
    yield key(
        "synced.column",
        default="",
        group=batches,
        doc="Name of a column that says when a row was written, for example _synced_at; empty: none.",
    )
    yield key(
        "staging.parallel.min.bytes",
        "LONG",
        STAGING_BYTES,
        validator=between(0, 1 << 40),
        importance=LOW,
        group=batches,
        doc="PostgreSQL: of a batch the tables with so many bytes of rows to merge are staged over spark.cores connections at"
        " once, on a cluster by its executors; 0: none.",
    )


def _batch_keys() -> Iterable[ConfigKey]:
    key = ConfigKey
    batches = "Batches"
    yield key(
        "trigger.interval.ms", "INT", TRIGGER_MS, validator=between(0, 3_600_000), group=batches, doc="Time per batch."
    )
    yield key(
        "max.batch.records",
        "INT",
        RECORDS_MAX,
        validator=between(100, 5_000_000),
        group=batches,
        doc=f"Bound of a batch; unless it is given, {PARQUET_RECORDS_MAX} for Parquet.",
    )
    yield key(
        "consistency",
        default="eventual",
        validator=one_of("eventual", "source"),
        recommended=("eventual", "source"),
        group=batches,
        doc="eventual: each batch is shown as it is read. source: only whole transactions of the source are shown, all tables"
        " at one position (_cdcworker.watermark, in a lake set_<sink>, of files sets/<sink>); one task reads all.",
    )
    yield from policy.keys(batches)
    yield key(
        "errors.tolerance",
        default="none",
        validator=one_of("none", "all"),
        group=batches,
        doc="An undecodable record halts the task (none), or is set aside in the warehouse with its place and cause (all).",
    )
    yield key(
        "spark.driver.memory",
        default=MEMORY,
        validator=_memory,
        importance=LOW,
        group="Spark",
        doc="Heap of Spark's Java process.",
    )
    yield key(
        "spark.cores", "INT", CORES, validator=between(1, 256), importance=LOW, group="Spark", doc="Cores to use."
    )


def _verify_keys() -> Iterable[ConfigKey]:
    key = ConfigKey
    verify = "Verify"
    yield key(
        "verify.interval.ms",
        "LONG",
        0,
        validator=between(0, 31 * 86_400_000),
        group=verify,
        doc="Compare with the source so long after the last comparison; 0: only when asked.",
    )
    yield key(
        "verify.range.rows",
        "INT",
        50_000,
        validator=between(100, 10_000_000),
        importance=LOW,
        group=verify,
        doc="Rows that one statement of a comparison reads, for keys whose order needs no collation.",
    )
    yield key(
        "verify.rows.per.s",
        "INT",
        100_000,
        validator=between(0, 100_000_000),
        importance=LOW,
        group=verify,
        doc="How fast a comparison reads at most; 0: as fast as it can.",
    )
    yield key(
        "verify.statement.timeout.ms",
        "INT",
        60_000,
        validator=between(100, 86_400_000),
        importance=LOW,
        group=verify,
        doc="A table with a slower statement is reported as not compared.",
    )
    yield key(
        "verify.timeout.ms",
        "LONG",
        3_600_000,
        validator=between(1_000, 31 * 86_400_000),
        importance=LOW,
        group=verify,
        doc="Limit of a whole comparison.",
    )


def position_column(config: Mapping[str, Any]) -> str:
    """Empty: tables have none."""
    return "" if config["position.column"] == "none" else str(config["position.column"])


def _check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if bool(config["topics"]) == bool(config["topics.regex"]):
        yield "topics", "expects either topics or topics.regex"
    for name in _NEEDED.get(config["warehouse"], ()):
        if not config[name]:
            yield name, "is required"
    if config["warehouse"] == "iceberg":
        needed = "warehouse.path" if config["warehouse.catalog"] == "hadoop" else "warehouse.catalog.uri"
        if not config[needed]:
            yield needed, "is required"
    if config["warehouse"] == "parquet" and "://" in config["warehouse.path"]:
        yield "warehouse.path", "expects a folder: Parquet tables need a file system that all workers share"
    if not position_column(config) and config["output.mode"] != "log":
        yield "position.column", "is required: older changes are told by it, but of output.mode=log"
    for name in ("position.column", "synced.column"):
        if config[name].startswith(RESERVED) and config[name] != POSITION:
            yield name, "must not begin with _cdc_, as the sink's other columns do"
    if config["synced.column"] in (config["position.column"], POSITION):
        yield "synced.column", "is the name of another column of the sink"
    yield from policy.check(config)
    yield from cluster.check(config)


ACCEPTED = {
    "name": "",
    "connector.class": "",
    "tasks.max": "",
    "key.converter": "Records are read by the schema ids they carry.",
    "key.converter.": "Records are read by the schema ids they carry.",
    "value.converter": "Records are read by the schema ids they carry.",
    "value.converter.": "Records are read by the schema ids they carry.",
    "header.converter": "Headers are read as they are.",
    "errors.log.enable": "Errors are always logged.",
    "errors.log.include.messages": "Values are never logged.",
    "auto.create": "Tables are always created.",
    "auto.evolve": "Set by schema.change.policy.",
    "insert.mode": "Always upsert by key; append without one.",
    "pk.mode": "The record's key is the key.",
    "delete.enabled": "Set by delete.mode.",
}

CONFIG_DEF = ConfigDef(
    [
        *_target_keys(),
        *_lake_keys(),
        *_output_keys(),
        *_batch_keys(),
        *cluster.cluster_keys(_memory),
        *_verify_keys(),
        *TASK_KEYS,
    ],
    ACCEPTED,
    _check,
)

CONTROL_TOPICS = re.compile(r"(?P<prefix>.+)\.(watermark|transaction|message)")


def data_topics(topics: Iterable[str]) -> list[str]:
    """Without the topics that a source keeps beside its tables: `<prefix>.watermark` beside `<prefix>.<schema>.<table>`."""
    names = sorted(topics)

    def is_control(name: str) -> bool:
        found = CONTROL_TOPICS.fullmatch(name)
        return found is not None and any(
            other.startswith(found["prefix"] + ".") and other.count(".") >= name.count(".") + 1 for other in names
        )

    return [name for name in names if not is_control(name) and not name.startswith("__")]


def watermark_topics(topics: Iterable[str]) -> list[str]:
    """Where the sources of `<prefix>.<schema>.<table>` say how far they are."""
    return sorted({f"{source_of(topic)}.watermark" for topic in topics})


def source_of(topic: str) -> str:
    """The prefix of a table's topic."""
    return topic.rsplit(".", 2)[0]


def conninfo(config: Mapping[str, Any]) -> str:
    """libpq's connection string; it holds the password and goes to the driver only."""
    from psycopg.conninfo import make_conninfo

    password = config["warehouse.password"]
    return make_conninfo(
        host=config["warehouse.hostname"],
        port=config["warehouse.port"],
        user=config["warehouse.user"],
        password=password.reveal() if password else None,
        dbname=config["warehouse.dbname"],
        sslmode=config["warehouse.sslmode"],
        sslrootcert=config["warehouse.sslrootcert"] or None,
    )
