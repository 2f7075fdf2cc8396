"""Names of connectors: what `connector.class` may say. Nothing is imported by a name from a config."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cdcworker.connectors.config import nearest
from cdcworker.connectors.jobs import SNAPSHOT
from cdcworker.schemas.errors import CdcError, declare

UNKNOWN_CLASS = declare(
    "config.unknown_connector",
    "config",
    "connector.class names no connector of this worker",
    "Use one of the names that GET /connector-plugins lists.",
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """One connector: `name` is ours, `aliases` are the class names that existing configs carry."""

    name: str
    kind: Literal["source", "sink"]
    target: str
    aliases: tuple[str, ...] = ()
    title: str = ""
    jobs: tuple[str, ...] = ()
    """Kinds of what its tasks can be asked to do beside their usual work."""
    needs: tuple[str, ...] = ()
    """Modules without which its tasks cannot run; its configs are understood all the same."""

    def runs_here(self) -> bool:
        """Whether everything that its tasks need is installed; nothing is imported."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def load(self) -> Any:
        """The connector class (SourceConnector or SinkConnector), imported now."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


_PLUGINS = (
    Plugin(
        "postgres",
        "source",
        "cdcworker.connectors.postgres.source:PostgresSource",
        ("io.debezium.connector.postgresql.PostgresConnector", "PostgresConnector"),
        "PostgreSQL logical replication",
        jobs=(SNAPSHOT,),
    ),
    Plugin(
        "datagen",
        "source",
        "cdcworker.connectors.datagen:DatagenSource",
        title="Generated rows, for trials and tests",
    ),
    Plugin(
        "file",
        "source",
        "cdcworker.connectors.file_source:FileSource",
        ("org.apache.kafka.connect.file.FileStreamSourceConnector", "FileStreamSourceConnector", "FileStreamSource"),
        "Lines of a file",
    ),
    Plugin(
        "file-sink",
        "sink",
        "cdcworker.connectors.file_sink:FileSink",
        ("org.apache.kafka.connect.file.FileStreamSinkConnector", "FileStreamSinkConnector", "FileStreamSink"),
        "Lines into a file",
    ),
    Plugin(
        "spark",
        "sink",
        "cdcworker.connectors.spark.connector:SparkSink",
        ("cdcworker.spark",),
        "Spark Structured Streaming into a warehouse",
        needs=("pyspark", "pyarrow"),
    ),
)
_BY_NAME = {name: plugin for plugin in _PLUGINS for name in (plugin.name, *plugin.aliases)}


def _nearest(given: str) -> str | None:
    """By the last part of the name: class names of one vendor are alike by their packages, whatever they are of."""
    last = given.rpartition(".")[2]
    found = nearest(last, [name.rpartition(".")[2] for name in _BY_NAME])
    same = [name for name in _BY_NAME if name.rpartition(".")[2] == found]
    return next((name for name in same if ("." in name) == ("." in given)), same[0] if same else None)


def plugins() -> Sequence[Plugin]:
    return _PLUGINS


def lookup(class_name: str) -> Plugin:
    """The plugin of a `connector.class` value; CdcError `config.unknown_connector` with the nearest name."""
    plugin = _BY_NAME.get(class_name.strip())
    if plugin is None:
        near = _nearest(class_name.strip())
        suggestion = f"; did you mean {near}?" if near else ""
        names = ", ".join(known.name for known in _PLUGINS)
        message = f"connector.class is not one of the known connectors ({names}){suggestion}"
        raise CdcError(UNKNOWN_CLASS, message, where={"key": "connector.class"})
    return plugin
