"""The keys of the sink into a database. Names are those of Debezium's JDBC sink; those of Confluent's are known beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors import jdbc_url
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, one_of, one_of_any_case
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets.jdbc.naming import template_problem

DEBEZIUM: Final = ("io.debezium.connector.jdbc.JdbcSinkConnector",)
CONFLUENT: Final = ("io.confluent.connect.jdbc.JdbcSinkConnector",)
_NAMINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "column.naming.strategy": (
        "io.debezium.connector.jdbc.naming.DefaultColumnNamingStrategy",
        "io.debezium.sink.naming.DefaultColumnNamingStrategy",
    ),
    "collection.naming.strategy": (
        "io.debezium.connector.jdbc.naming.DefaultTableNamingStrategy",
        "io.debezium.sink.naming.DefaultCollectionNamingStrategy",
    ),
}
_DIALECTS: Final = ("", "PostgreSqlDatabaseDialect", "MySqlDatabaseDialect")
_UTC: Final = ("utc", "etc/utc", "gmt", "z")


def _connection_keys() -> Iterable[ConfigKey]:
    group = "Connection"
    yield ConfigKey(
        "connection.url", required=True, importance="HIGH", group=group, validator=jdbc_url.problem, connects=True,
        doc="The database: jdbc:postgresql://HOST:PORT/DATABASE, jdbc:mysql:// or jdbc:mariadb://. Parameters: sslmode, sslrootcert,"
        " currentSchema. It holds no login.",
    )  # fmt: skip
    yield ConfigKey(
        "connection.username", required=True, importance="HIGH", group=group, former="connection.user", connects=False,
        of_server=True, doc="The user that writes.",
    )  # fmt: skip
    yield ConfigKey(
        "connection.password", "PASSWORD", importance="HIGH", group=group, connects=False,
        doc="Its password; best a reference such as ${file:/path:key}.",
    )  # fmt: skip
    yield ConfigKey(
        "use.time.zone", default="UTC", group=group, former="db.timezone", importance="LOW", validator=one_of_any_case(*_UTC),
        doc="The time zone of the session. Moments are stored as such, and times without a zone as they are.",
    )  # fmt: skip
    yield ConfigKey(
        "dialect.name", default="", group=group, importance="LOW", validator=one_of(*_DIALECTS), recommended=_DIALECTS[1:],
        doc="Of Confluent's sink. The dialect follows from connection.url; another one than that is refused.",
    )  # fmt: skip


def _row_keys() -> Iterable[ConfigKey]:
    group = "Rows"
    modes = ("insert", "upsert", "update")
    yield ConfigKey(
        "insert.mode", group=group, importance="HIGH", validator=one_of(*modes), recommended=modes,
        doc="What becomes of a row: insert adds it, upsert adds it or takes the place of the one of its key, update changes the one of its"
        " key and adds none. Default: upsert; insert for configs of Debezium's and Confluent's sinks.",
    )  # fmt: skip
    keys = ("none", "kafka", "record_key", "record_value")
    yield ConfigKey(
        "primary.key.mode", group=group, importance="HIGH", former="pk.mode", validator=_key_mode, recommended=keys,
        doc="What tells rows apart: nothing, the record's topic, partition and offset, the fields of its key, or fields of its value."
        " Default: record_key; none for configs of Debezium's and Confluent's sinks.",
    )  # fmt: skip
    yield ConfigKey(
        "primary.key.fields", "LIST", [], group=group, former="pk.fields",
        doc="Which fields are the key. Of record_key empty means all of them; of a key that is no struct it is the column's name. Of kafka the"
        " three columns' names.",
    )  # fmt: skip
    yield ConfigKey(
        "delete.enabled", "BOOLEAN", group=group, importance="HIGH",
        doc="Whether rows are deleted with those of the source. Needs primary.key.mode=record_key. Default: true; false for configs of"
        " Debezium's and Confluent's sinks.",
    )  # fmt: skip
    yield ConfigKey(
        "truncate.enabled", "BOOLEAN", False, group=group,
        doc="Whether tables are emptied with those of the source. A topic with several partitions needs position.column for it.",
    )  # fmt: skip
    yield ConfigKey(
        "position.column", default="", group=group, validator=matches(r"[A-Za-z_][A-Za-z0-9_]{0,62}|", "the name of a column"),
        doc="A column that the sink adds and keeps: the place of the row's last change in the source's log. With it a TRUNCATE leaves"
        " just the rows that came after it, whatever partition is read first.",
    )  # fmt: skip
    for side, what in (
        ("include", "Fields that become columns, all by default"),
        ("exclude", "Fields that become no columns"),
    ):
        yield ConfigKey(
            f"field.{side}.list", "LIST", [], group=group, former="fields.whitelist" if side == "include" else "",
            doc=f"{what}, as FIELD or TOPIC:FIELD. Those of the key always are.",
        )  # fmt: skip
    yield ConfigKey(
        "batch.size", "INT", group="Batches", validator=between(1, 100_000),
        doc="Most records of one transaction, as Debezium's and Confluent's sinks name it; batch.max.size counts before it. Default: 1000.",
    )  # fmt: skip


def _table_keys() -> Iterable[ConfigKey]:
    group = "Tables"
    yield ConfigKey(
        "collection.name.format", default="${topic}", group=group, former="table.name.format", validator=template_problem,
        importance="HIGH", doc="The table's name, with a schema before a dot. ${topic} is the topic with _ for its dots (as it is for configs of"
        " Confluent's sink), ${schema} and ${table} its last two parts, ${source.NAME} a field of the change's source block.",
    )  # fmt: skip
    yield ConfigKey(
        "schema.evolution", group=group, importance="HIGH", validator=one_of("none", "basic"), recommended=("none", "basic"),
        doc="basic: tables are created, columns added, and widened where a type of the source does not fit. none: a table that is not there or"
        " lacks a column halts the task. Default: basic; none for configs of Debezium's and Confluent's sinks.",
    )  # fmt: skip
    yield ConfigKey("auto.create", "BOOLEAN", group=group, doc="Of Confluent's sink: whether tables are created.")
    yield ConfigKey(
        "auto.evolve", "BOOLEAN", group=group, doc="Of Confluent's sink: whether columns are added and widened."
    )
    yield ConfigKey(
        "quote.identifiers", "BOOLEAN", group=group,
        doc="Whether names are taken as they are. false: PostgreSQL's names are lower case, as the server makes them of names"
        " without quotes. Default: true; false for configs of Debezium's sink.",
    )  # fmt: skip
    yield ConfigKey(
        "quote.sql.identifiers", group=group, importance="LOW", validator=one_of_any_case("always", "never"),
        doc="The same as Confluent's sink names it: always or never.",
    )  # fmt: skip
    for name, known in _NAMINGS.items():
        yield ConfigKey(
            name, default=known[-1], group=group, importance="LOW", validator=_only(known),
            former="table.naming.strategy" if name.startswith("collection") else "",
            doc="Debezium's default alone. For other names use collection.name.format and the transforms RegexRouter and ReplaceField.",
        )  # fmt: skip
    yield ConfigKey(
        "table.types", "LIST", ["TABLE"], group=group, importance="LOW", validator=_tables, doc="Of Confluent's sink: TABLE alone.",
    )  # fmt: skip


def _key_mode(value: str) -> str | None:
    if value == "record_header":
        return "record_header is not available: put the header into the value with the transform HeaderToValue, and use record_value"
    return one_of("none", "kafka", "record_key", "record_value")(value)


def _only(known: tuple[str, ...]) -> Callable[[Any], str | None]:
    text = "names a class of one's own, which is not available: use collection.name.format, RegexRouter or ReplaceField"
    return lambda value: None if value in known else text


def _tables(value: list[str]) -> str | None:
    return (
        None
        if [one.upper() for one in value] == ["TABLE"]
        else "expects TABLE: views and partitions of them are not written"
    )


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What contradicts itself; defaults depend on the class and are judged where they are used."""
    mode = config["primary.key.mode"]
    if config["delete.enabled"] and mode not in (None, "record_key"):
        yield "delete.enabled", "needs primary.key.mode=record_key: a deletion is told by its key"
    if config["insert.mode"] in ("upsert", "update") and mode == "none":
        yield "insert.mode", "needs a primary.key.mode other than none: without a key there is no row to change"
    if mode == "record_value" and not config["primary.key.fields"]:
        yield "primary.key.fields", "names the fields of the value that are the key"
    if mode == "kafka" and len(config["primary.key.fields"]) not in (0, 3):
        yield "primary.key.fields", "expects three names, of the columns for topic, partition and offset"
    if config["field.include.list"] and config["field.exclude.list"]:
        yield "field.exclude.list", "contradicts field.include.list: set one of them"
    if config["schema.evolution"] and config["auto.create"] is not None:
        yield "auto.create", "takes the place of schema.evolution: set one of them"
    wanted = {"postgres": "PostgreSqlDatabaseDialect", "mysql": "MySqlDatabaseDialect"}
    if config["dialect.name"] and config["dialect.name"] != wanted[jdbc_url.parsed(config["connection.url"]).kind]:
        yield "dialect.name", "is another database's than that of connection.url"


_ONE: Final = "Each batch in flight has a connection of its own: see max.in.flight.batches."
CONFIG_DEF: Final[ConfigDef] = config_def(
    [*_connection_keys(), *_row_keys(), *_table_keys()],
    {
        "connection.pool.*": _ONE,
        "connection.attempts": "A database that is away is tried again: see max.retries.",
        "connection.backoff.ms": "See retry.backoff.ms.",
        "connection.restart.on.errors": "",
        "flush.max.retries": "See max.retries.",
        "flush.retry.delay.ms": "See retry.backoff.ms.",
        "use.reduction.buffer": "Of several changes of a row in a batch the last one is always the one that is written.",
        "hibernate.*": "Hibernate is not used.",
        "dialect.postgres.postgis.schema": "Geometries are written as text.",
        "dialect.sqlserver.identity.insert": "Of SQL Server.",
        "trim.sensitive.log": "Row values are never logged.",
        "mssql.use.merge.holdlock": "Of SQL Server.",
        "reporter.*": "Not written: dead letters go to errors.deadletterqueue.topic.name.",
        "confluent.*": "Not needed.",
    },
    _checks,
)
