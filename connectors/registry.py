"""Names of connectors: what `connector.class` may say. Nothing is imported by a name from a config."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import nearest
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

    def runs_here(self) -> bool:
        """Returns whether everything that its tasks need is installed; nothing is imported."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def load(self) -> Any:
        """The connector class (SourceConnector or SinkConnector), imported now."""
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


def _nearest(given: str) -> str | None:
    """Returns the known name whose last part is nearest. Packages are not compared: they are alike in all names of a
    vendor."""
    last = given.rpartition(".")[2]
    found = nearest(last, [name.rpartition(".")[2] for name in _BY_NAME])
    same = [name for name in _BY_NAME if name.rpartition(".")[2] == found]
    return next((name for name in same if ("." in name) == ("." in given)), same[0] if same else None)


def _remark(given: str) -> str:
    """Returns what the refusal of a name adds: the nearest name."""
    near = _nearest(given)
    return f"; did you mean {near}?" if near else ""


def plugins() -> Sequence[Plugin]:
    return _PLUGINS


def lookup(class_name: str) -> Plugin:
    """The plugin of a `connector.class` value; CdcError `config.unknown_connector` with the nearest name."""
    plugin = _BY_NAME.get(class_name.strip())
    if plugin is None:
        names = ", ".join(known.name for known in _PLUGINS)
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
