"""Names of connectors: what `connector.class` may say. Nothing is imported by a name from a config."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import nearest
from cdcworker.connectors.config.installed_plugins import (
    CONNECTORS,
    REFUSED,
    InstalledPlugin,
    InstalledPlugins,
    RefusedPlugin,
    installed,
    require_version,
)
from cdcworker.connectors.config.refusals import SHOWN_CHARS_MAX
from cdcworker.connectors.snapshot_jobs import MAINTENANCE, SNAPSHOT
from cdcworker.schemas.errors import CdcError, declare

UNKNOWN_CLASS = declare(
    "config.unknown_connector",
    "config",
    "connector.class names no connector of this worker",
    "Use one of the names that GET /connector-plugins lists.",
)
NO_SUCH_CLASS = "Failed to find any class that implements Connector and which name matches"
"""What Kafka Connect says, before the name."""


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
    schemes: tuple[str, ...] = ()
    """Schemes of the connection strings that it reads (`postgresql` of postgresql://…); it has `ReadsConnectionStrings`."""
    measures: bool = False
    """Whether it has `MeasuresLag`: nothing is loaded to learn it."""
    tls_key: str = "sslmode"
    """The key, behind its connection's prefix, that says how much TLS it has."""
    debezium_name: str = ""
    """What Debezium calls this source in record headers, where that is not `name`."""
    needs: tuple[str, ...] = ()
    """Modules without which its tasks cannot run; its configs are understood all the same."""
    checks: tuple[str, ...] = ()
    """Modules that its live checks import late: a process that answers many checks imports them before."""
    origin: InstalledPlugin | None = None
    """The entry point that it comes from; None: it ships with the worker."""
    made: type | None = field(default=None, repr=False)
    """Its class, where that is no module's member."""

    def runs_here(self) -> bool:
        """Returns whether everything that its tasks need is installed; nothing is imported."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def load(self) -> Any:
        """The connector class (SourceConnector or SinkConnector), imported now."""
        if self.made is not None:
            return self.made
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


_MYSQL = "cdcworker.connectors.mysql.source.connector:MySqlSource"
_MYSQL_CHECKS = ("cdcworker.connectors.mysql.doctor.checks",)
_PLUGINS = (
    Plugin(
        "postgres",
        "source",
        "cdcworker.connectors.postgres.source.connector:PostgresSource",
        ("io.debezium.connector.postgresql.PostgresConnector", "PostgresConnector"),
        "PostgreSQL logical replication",
        jobs=(SNAPSHOT,),
        schemes=("postgresql", "postgres"),
        measures=True,
        debezium_name="postgresql",
        checks=(
            "cdcworker.connectors.postgres.doctor.live_checks",
            "cdcworker.connectors.postgres.transport.certificate",
        ),
    ),
    Plugin(
        "mysql",
        "source",
        _MYSQL,
        ("io.debezium.connector.mysql.MySqlConnector", "MySqlConnector"),
        "The binary log of MySQL",
        jobs=(SNAPSHOT,),
        schemes=("mysql",),
        measures=True,
        tls_key="ssl.mode",
        needs=("pymysql",),
        checks=_MYSQL_CHECKS,
    ),
    Plugin(
        "mariadb",
        "source",
        _MYSQL,
        ("io.debezium.connector.mariadb.MariaDbConnector", "MariaDbConnector"),
        "The binary log of MariaDB",
        jobs=(SNAPSHOT,),
        schemes=("mariadb",),
        measures=True,
        tls_key="ssl.mode",
        needs=("pymysql",),
        checks=_MYSQL_CHECKS,
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
        "cdcworker.connectors.file.source:FileSource",
        ("org.apache.kafka.connect.file.FileStreamSourceConnector", "FileStreamSourceConnector", "FileStreamSource"),
        "Lines of a file",
    ),
    Plugin(
        "file-sink",
        "sink",
        "cdcworker.connectors.file.sink:FileSink",
        ("org.apache.kafka.connect.file.FileStreamSinkConnector", "FileStreamSinkConnector", "FileStreamSink"),
        "Lines into a file",
    ),
    Plugin(
        "http-sink",
        "sink",
        "cdcworker.connectors.targets.http.connector:HttpSink",
        (
            "io.aiven.kafka.connect.http.HttpSinkConnector",
            "io.confluent.connect.http.HttpSinkConnector",
            "HttpSinkConnector",
            "HttpSink",
        ),
        "Requests to a web service",
        measures=True,
    ),
    Plugin(
        "jdbc-sink",
        "sink",
        "cdcworker.connectors.targets.jdbc.connector:JdbcSink",
        (
            "io.debezium.connector.jdbc.JdbcSinkConnector",
            "io.confluent.connect.jdbc.JdbcSinkConnector",
            "JdbcSinkConnector",
            "JdbcSink",
        ),
        "Rows of PostgreSQL, MySQL or MariaDB",
        measures=True,
        needs=("psycopg", "pymysql"),
    ),
    Plugin(
        "nats",
        "sink",
        "cdcworker.connectors.targets.nats.connector:NatsSink",
        title="Messages of a JetStream stream of NATS",
        measures=True,
        tls_key="nats.ssl.enabled",
        needs=("nats",),
    ),
    Plugin(
        "redis",
        "sink",
        "cdcworker.connectors.targets.redis.connector:RedisSink",
        (
            "com.redis.kafka.connect.RedisSinkConnector",
            "com.github.jcustenborder.kafka.connect.redis.RedisSinkConnector",
        ),
        "Streams, hashes, JSON, strings and sets in Redis",
        measures=True,
        tls_key="redis.ssl.enabled",
        needs=("redis",),
    ),
    Plugin(
        "s3",
        "sink",
        "cdcworker.connectors.targets.s3.connector:FilesSink",
        ("io.confluent.connect.s3.S3SinkConnector",),
        "Files in S3, Google's or Azure's store, or a folder",
        measures=True,
    ),
    Plugin(
        "stdout",
        "sink",
        "cdcworker.connectors.targets.stdout.connector:StdoutSink",
        title="Records as lines of JSON, for trials",
        measures=True,
    ),
    Plugin(
        "spark",
        "sink",
        "cdcworker.connectors.spark.connector:SparkSink",
        ("cdcworker.spark",),
        "Spark Structured Streaming into a warehouse",
        jobs=(MAINTENANCE,),
        measures=True,
        needs=("pyspark", "pyarrow"),
        checks=("cdcworker.connectors.warehouses.postgres.connection",),
    ),
)
_BY_NAME = {name: plugin for plugin in _PLUGINS for name in (plugin.name, *plugin.aliases)}


@dataclass(frozen=True, slots=True)
class ConnectorPlugins:
    """Connectors of other distributions, and those that cannot be used."""

    found: tuple[Plugin, ...] = ()
    refused: tuple[RefusedPlugin, ...] = ()


def connectors_of(plugins: InstalledPlugins) -> ConnectorPlugins:
    """Returns the connectors of installed plugins. They are imported now: one that fails stops none of the others."""
    found: list[Plugin] = []
    refused = list(plugins.refused)
    for plugin in plugins.of(CONNECTORS):
        try:
            found.append(_plugin_of(plugin))
        except Exception as error:  # noqa: BLE001 - somebody else's code
            refused.append(plugin.refused(error))
    return ConnectorPlugins(tuple(found), tuple(refused))


def _plugin_of(plugin: InstalledPlugin) -> Plugin:
    from cdcworker.connectors.api.plugin import SinkPlugin, SourcePlugin
    from cdcworker.connectors.kit.connector_classes import sink_class, source_class

    if plugin.name in _BY_NAME:
        raise CdcError(REFUSED, "a connector of this name ships with the worker")
    made = plugin.load()
    if not isinstance(made, SourcePlugin | SinkPlugin):
        text = f"its entry point names {type(made).__name__}; expects a SourcePlugin or a SinkPlugin"
        raise CdcError(REFUSED, text)
    require_version(made.api)
    try:
        if isinstance(made, SinkPlugin):
            kind: Literal["source", "sink"] = "sink"
            built: type = sink_class(plugin.name, made)
        else:
            kind, built = "source", source_class(plugin.name, plugin.version, made)
    except (ValueError, TypeError, AttributeError) as error:
        raise CdcError(REFUSED, f"its keys make no definition: {error}") from error
    return Plugin(
        plugin.name, kind, plugin.entry.value, title=made.title, measures=kind == "sink", origin=plugin, made=built
    )


@cache
def _installed() -> ConnectorPlugins:
    return connectors_of(installed())


def refused() -> Sequence[RefusedPlugin]:
    """Returns the connectors and distributions that the operator allows and that cannot be used."""
    return _installed().refused


def _nearest(given: str) -> str | None:
    """Returns the known name whose last part is nearest. Packages are not compared: they are alike in all names of a
    vendor."""
    last = given.rpartition(".")[2]
    names = [*_BY_NAME, *(plugin.name for plugin in _installed().found)]
    found = nearest(last, [name.rpartition(".")[2] for name in names])
    same = [name for name in names if name.rpartition(".")[2] == found]
    return next((name for name in same if ("." in name) == ("." in given)), same[0] if same else None)


def _remark(given: str) -> str:
    """Returns what the refusal of a name adds: the nearest name."""
    near = _nearest(given)
    return f"; did you mean {near}?" if near else ""


def plugins() -> Sequence[Plugin]:
    """Returns the connectors that this process knows: those that ship with the worker, then those of allowed distributions."""
    return (*_PLUGINS, *_installed().found)


def lookup(class_name: str) -> Plugin:
    """The plugin of a `connector.class` value; CdcError `config.unknown_connector` with the nearest name."""
    name = class_name.strip()
    plugin = _BY_NAME.get(name) or next((known for known in _installed().found if known.name == name), None)
    if plugin is None:
        names = ", ".join(known.name for known in plugins())
        shown = secret_names.text(class_name.strip())[:SHOWN_CHARS_MAX]
        message = f"{NO_SUCH_CLASS} {shown}, available connectors are: {names}{_remark(class_name.strip())}"
        raise CdcError(UNKNOWN_CLASS, message, where={"key": "connector.class"})
    return plugin


def of_connection_string(text: str) -> Plugin:
    """The source that reads connection strings of this scheme; one without a scheme is libpq's `key=value` form, which the
    first such source reads. CdcError `config.invalid` without repeating the text."""
    scheme, sign, _ = text.strip().partition("://")
    readers = [plugin for plugin in _PLUGINS if plugin.schemes]
    found = [plugin for plugin in readers if scheme in plugin.schemes] if sign else readers[:1]
    if not found:
        forms = ", ".join(f"{name}://…" for plugin in readers for name in plugin.schemes)
        raise CdcError("config.invalid", "the connection string cannot be read", hint=forms)
    return found[0]
