"""The PostgreSQL source's configuration: Debezium's key names and values, parsed into one typed object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.connectors.common import SOURCE_KEYS, TASKS_MAX
from cdcworker.connectors.config import (
    ConfigDef,
    ConfigKey,
    Importance,
    Secret,
    between,
    matches,
    non_empty,
    one_of,
    regex_list,
)
from cdcworker.connectors.formats import TRANSFORMS_KEY, converter_keys, format_checks, format_keys
from cdcworker.connectors.hosts import host_list
from cdcworker.connectors.postgres.accepted import ACCEPTED, FORMER_PREFIX, REFUSED, TOLERANCE
from cdcworker.connectors.postgres.beside_config import IDLE_MS_DEFAULT, beside_keys
from cdcworker.connectors.postgres.identities import identities
from cdcworker.connectors.postgres.keys import MessageKeys, message_keys
from cdcworker.connectors.postgres.masks import Masks, mask_keys, masks_of
from cdcworker.connectors.postgres.snapshot_config import SNAPSHOT_ALIASES, snapshot_keys
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.postgres.split import WHOLE, Share, split_checks, split_keys
from cdcworker.connectors.postgres.types import Modes
from cdcworker.connectors.postgres.value_config import remarked_keys, value_keys

SLOT_NAME = r"[a-z0-9_]{1,63}"
# Debezium skips truncates by default; our sinks apply them, so nothing is skipped unless asked for.
SKIPPED_DEFAULT: tuple[str, ...] = ()


def _plugin(value: str) -> str | None:
    return None if value in ("pgoutput", "decoderbufs") else "expects pgoutput"


def _skipped(value: Iterable[str]) -> str | None:
    wrong = [item for item in value if item not in ("c", "u", "d", "t", "none")]
    return "expects a list of c, u, d, t, or none" if wrong else None


def _source_keys() -> Iterable[ConfigKey]:
    group: str = "Connection"
    high: Importance = "HIGH"
    low: Importance = "LOW"
    key = ConfigKey
    yield key(
        "database.hostname", required=True, importance=high, group=group, validator=host_list,
        doc="Host, or a comma list of hosts.",
    )  # fmt: skip
    yield key("database.port", "STRING", "5432", importance=high, group=group, doc="Port, or one per host.")
    yield key("database.user", required=True, importance=high, group=group, doc="A role with REPLICATION and SELECT.")
    yield key("database.password", "PASSWORD", importance=high, group=group, doc="Its password.")
    yield key("database.dbname", required=True, importance=high, group=group, doc="The database to read.")
    yield key(
        "database.sslmode", default="prefer", validator=_SSL, recommended=_SSL_MODES, group=group, doc="As libpq's."
    )
    yield key("database.sslcert", group=group, importance=low, doc="Client certificate file.")
    yield key("database.sslkey", group=group, importance=low, doc="Client key file.")
    yield key("database.sslpassword", "PASSWORD", group=group, importance=low, doc="Password of the client key.")
    yield key("database.sslrootcert", group=group, importance=low, doc="File of trusted root certificates.")
    yield key("database.tcpKeepAlive", "BOOLEAN", True, importance=low, group=group, doc="TCP keep-alive probes.")
    yield key(
        "database.transport", default="auto", validator=one_of(*_TRANSPORTS), recommended=_TRANSPORTS, importance=low,
        group=group, doc=_TRANSPORT_DOC,
    )  # fmt: skip
    yield key(
        "database.connect.timeout.ms", "INT", 10_000, validator=between(1000, 600_000), importance=low, group=group
    )
    yield key(
        "topic.prefix",
        required=True,
        importance=high,
        group="Topics",
        validator=_PREFIX,
        doc="First part of every topic.",
        former=FORMER_PREFIX,
    )


_TRANSPORTS = ("auto", "socket", "psycopg")
_TRANSPORT_DOC = (
    "socket: the stream is read off a socket of its own, under TLS too (SCRAM with a password that SASLprep"
    " knows, the channel bound; md5, passwords, certificates). auto: as socket, and by libpq where the server or libpq's"
    " environment asks for more. psycopg: by libpq, always. Encryption by GSS is asked for only where PGGSSENCMODE does, or with psycopg."
)
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SSL = one_of(*_SSL_MODES)
_PREFIX = matches(r"[A-Za-z0-9._\-]{1,200}", "letters, digits, dot, hyphen and underscore")
_SLOT = matches(SLOT_NAME, "lower-case letters, digits and underscores, at most 63")


def _replication_keys() -> Iterable[ConfigKey]:
    group = "Replication"
    key = ConfigKey
    yield key(
        "plugin.name", default="pgoutput", validator=_plugin, group=group, note=_PLUGIN_NOTE, recommended=("pgoutput",)
    )
    yield key("slot.name", default="debezium", validator=_SLOT, importance="HIGH", group=group, doc="Replication slot.")
    yield from split_keys()
    yield key(
        "slot.drop.on.stop", "BOOLEAN", False, group=group, importance="LOW", doc="Drop the slot when the task stops."
    )
    yield key(
        "position.lost.policy", default="halt", validator=one_of("halt", "resnapshot"), group=group, importance="LOW",
        recommended=("halt", "resnapshot"), doc=_LOST,
    )  # fmt: skip
    yield key(
        "slot.retained.warn.bytes", "LONG", 10 * 1024**3, validator=between(0), group=group, importance="LOW",
        doc="A warning is logged when the slot keeps more of the log than this; 0: never.",
    )  # fmt: skip
    yield key("slot.on.standby", "BOOLEAN", False, group=group, importance="LOW", doc=_ON_STANDBY)
    yield key("slot.failover", "BOOLEAN", group=group, importance="LOW", doc=_FAILOVER)
    yield key("transaction.streaming", "BOOLEAN", True, group=group, importance="LOW", doc=_STREAMING)
    yield key(
        "spool.max.bytes", "LONG", 20 * 1024**3, validator=between(1024**2), group=group, importance="LOW", doc=_SPOOL,
    )  # fmt: skip
    yield key(
        "replication.origin", default="any", validator=one_of("any", "none"), group=group, importance="LOW",
        recommended=("any", "none"), doc="none: changes that came by replication from elsewhere are left out.",
    )  # fmt: skip
    yield key("slot.creation.timeout.ms", "INT", 300_000, validator=between(1000), group=group, importance="LOW")
    yield key(
        "publication.name", default="dbz_publication", validator=non_empty, group=group, doc="Publication to read."
    )
    yield key(
        "publication.autocreate.mode",
        default="filtered",
        validator=one_of("filtered", "all_tables", "disabled", "no_tables"),
        recommended=("filtered", "all_tables", "disabled", "no_tables"),
        group=group,
        doc="filtered: a publication of the captured tables, kept up to date (Debezium's default all_tables needs a superuser).",
    )
    yield key(
        "publish.via.partition.root", "BOOLEAN", False, group=group, doc="Publish a partition's rows as its root's."
    )
    yield key("decoder.native", "BOOLEAN", True, group=group, importance="LOW", doc=_NATIVE)
    yield key(
        "status.update.interval.ms", "INT", 10_000, validator=between(100, 600_000), group=group, importance="LOW"
    )


_NATIVE = (
    "Rows are decoded by the native core where it was built. false: in Python, which gives the same records slower."
)
_PLUGIN_NOTE = "Only pgoutput is read; it needs nothing installed on the server."
_LOST = (
    "When the slot is missing, was recreated or advanced by others, or has lost log: halt with its code, or resnapshot:"
    " each table is emptied by a truncate and its rows are read again. Another or a restored server always halts. When the"
    " publication leaves out an operation: halt, or go on without it; once it is back, both read the rows again."
)
_ON_STANDBY = (
    "The slot is made and read on a standby (PostgreSQL 16). The publication is made on the primary; of several hosts the"
    " standby is chosen."
)
_FAILOVER = (
    "Whether standbys keep the slot too (PostgreSQL 17). Without it a new slot on a primary is made so, and one that is there"
    " is left as it is; true alters that one."
)
_STREAMING = (
    "Large transactions are read while they are open, into files in the worker's state.dir, and handed on when they"
    " commit. false: the server keeps them on its own disk until then."
)
_SPOOL = "Most bytes of open transactions in these files; beyond it the server keeps them, as without streaming."


def _table_keys() -> Iterable[ConfigKey]:
    group = "Tables"
    for name in ("schema", "table", "column"):
        for kind in ("include", "exclude"):
            yield ConfigKey(
                f"{name}.{kind}.list",
                "LIST",
                validator=regex_list,
                importance="HIGH" if name == "table" else "MEDIUM",
                group=group,
                doc=f"Anchored regular expressions of full {name} names; only one of include and exclude.",
            )
    yield ConfigKey("tombstones.on.delete", "BOOLEAN", True, group=group, doc="A tombstone after each delete.")
    yield ConfigKey(
        "skipped.operations", "LIST", list(SKIPPED_DEFAULT), validator=_skipped, group=group,
        doc="Operations that are not handed on. Default none: sinks apply truncates (Debezium's default is t).",
    )  # fmt: skip
    yield ConfigKey(
        "skip.messages.without.change", "BOOLEAN", False, group=group,
        doc="Leave out updates that change none of the captured columns; needs REPLICA IDENTITY FULL.",
    )  # fmt: skip
    yield ConfigKey(
        "message.key.columns", default="", validator=message_keys, group=group,
        doc="Keys of records instead of the primary key: schema.table:column,…;… Tables are regular expressions.",
    )  # fmt: skip
    yield ConfigKey(
        "replica.identity.autoset.values", default="", validator=identities, group=group,
        doc="Replica identities that the source sets when it starts: table:DEFAULT, FULL, NOTHING or INDEX name, separated"
        " by commas. Tables are regular expressions of full names, the first that matches counts.",
    )  # fmt: skip
    for kind in ("include", "exclude"):
        yield ConfigKey(f"message.prefix.{kind}.list", "LIST", validator=regex_list, group=group, importance="LOW")
    yield ConfigKey(
        "unavailable.value.placeholder", default="__debezium_unavailable_value", group=group, importance="LOW"
    )


def _trouble_keys() -> Iterable[ConfigKey]:
    group = "Error handling"
    yield ConfigKey(
        "schema.change.policy", default="evolve", validator=one_of("evolve", "pause-table", "halt"), group=group,
        recommended=("evolve", "pause-table", "halt"),
        doc="A table's columns or key change: follow, hold the table back until it is taken back, or halt the task.",
    )  # fmt: skip
    yield ConfigKey(
        "table.failure.policy", default="quarantine", validator=one_of("quarantine", "halt"), group=group,
        recommended=("quarantine", "halt"),
        doc="A change cannot be handed on: hold its table back while the others go on, or halt the task.",
    )  # fmt: skip


def _cross_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name in ("schema", "table", "column", "message.prefix"):
        if config[f"{name}.include.list"] and config[f"{name}.exclude.list"]:
            yield f"{name}.exclude.list", f"cannot be combined with {name}.include.list"
    hosts, ports = config["database.hostname"].split(","), config["database.port"].split(",")
    if not all(port.strip().isdigit() for port in ports) or len(ports) not in (1, len(hosts)):
        yield "database.port", "expects one port, or one for each host"
    yield from split_checks(config)
    yield from _format_checks(config)


_format_checks = format_checks(field["name"] for field in SOURCE_SCHEMA["fields"])


CONFIG_DEF = ConfigDef(
    [
        *_source_keys(),
        TASKS_MAX,
        *_replication_keys(),
        *beside_keys(),
        *_table_keys(),
        *snapshot_keys(),
        *_trouble_keys(),
        *value_keys(),
        *converter_keys(),
        TRANSFORMS_KEY,
        *SOURCE_KEYS,
        TOLERANCE,
        *REFUSED,
    ],
    accepted=ACCEPTED,
    check=_cross_checks,
    more=lambda config: (*format_keys(config), *mask_keys(config), *remarked_keys(config)),
)


@dataclass(frozen=True)
class Filters:
    """Which tables and columns are captured: anchored, case-insensitive patterns as Debezium's."""

    schema_include: tuple[str, ...] = ()
    schema_exclude: tuple[str, ...] = ()
    table_include: tuple[str, ...] = ()
    table_exclude: tuple[str, ...] = ()
    column_include: tuple[str, ...] = ()
    column_exclude: tuple[str, ...] = ()
    held: frozenset[str] = frozenset()
    """Full names of tables that are held back."""
    signals: str = ""
    """Full name of the signal table, which is read whatever else is."""
    share: Share = WHOLE

    def table(self, schema: str, table: str) -> bool:
        if self.signals and f"{schema}.{table}" == self.signals:
            return True
        if schema in ("pg_catalog", "information_schema") or schema.startswith(("pg_toast", "pg_temp")):
            return False
        full = f"{schema}.{table}"
        return (
            full not in self.held
            and self.share.has(full)
            and _chosen(schema, self.schema_include, self.schema_exclude)
            and _chosen(full, self.table_include, self.table_exclude)
        )

    def column(self, schema: str, table: str, column: str) -> bool:
        return _chosen(f"{schema}.{table}.{column}", self.column_include, self.column_exclude)

    @property
    def all_columns(self) -> bool:
        return not self.column_include and not self.column_exclude


def _chosen(name: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    if include:
        return any(re.fullmatch(pattern, name, re.I) for pattern in include)
    return not any(re.fullmatch(pattern, name, re.I) for pattern in exclude)


@dataclass(frozen=True)
class Settings:
    """A parsed configuration. The password is in `secrets` only, which does not print."""

    prefix: str
    hosts: str
    ports: str
    user: str
    dbname: str
    slot: str
    publication: str
    autocreate: str
    via_root: bool
    snapshot_mode: str
    modes: Modes
    filters: Filters
    masks: Masks
    keys: MessageKeys
    skipped: frozenset[str]
    heartbeat_s: float
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def slot_number(self) -> int:
        return self.filters.share.number

    @property
    def slots(self) -> list[str]:
        """Names of all slots of the connector."""
        count = self.raw["slot.count"]
        return [Share(number, count).named(self.raw["slot.name"]) for number in range(count)]

    def of_task(self, number: int) -> Settings:
        """Of one of several slots: its own name and publication, and its share of the tables."""
        share = Share(number, self.raw["slot.count"])
        if share.count == 1:
            return self
        # A publication that is not made here is one for all slots, which leave out what is another's.
        own = self.autocreate in ("filtered", "no_tables")
        return replace(
            self,
            slot=share.named(self.slot),
            publication=share.named(self.publication) if own else self.publication,
            filters=replace(self.filters, share=share),
        )

    @property
    def password(self) -> Secret | None:
        return self.raw["database.password"] or None


def parse(config: Mapping[str, str]) -> Settings:
    """CdcError `config.invalid` with all problems at once."""
    raw = CONFIG_DEF.parse(config)
    return Settings(
        prefix=raw["topic.prefix"],
        hosts=raw["database.hostname"],
        ports=raw["database.port"],
        user=raw["database.user"],
        dbname=raw["database.dbname"],
        slot=raw["slot.name"],
        publication=raw["publication.name"],
        autocreate=raw["publication.autocreate.mode"],
        via_root=raw["publish.via.partition.root"],
        snapshot_mode=SNAPSHOT_ALIASES.get(raw["snapshot.mode"], raw["snapshot.mode"]),
        modes=_modes(raw),
        filters=_filters(raw),
        masks=masks_of(raw),
        keys=MessageKeys.parse(raw["message.key.columns"]),
        skipped=frozenset(raw["skipped.operations"]) - {"none"},
        heartbeat_s=(raw["heartbeat.interval.ms"] or IDLE_MS_DEFAULT) / 1000,
        raw=raw,
    )


_KINDS = ("include", "exclude")


def _filters(raw: Mapping[str, Any]) -> Filters:
    lists: dict[str, Any] = {
        f"{n}_{k}": tuple(raw[f"{n}.{k}.list"] or ()) for n in ("schema", "table", "column") for k in _KINDS
    }
    return Filters(**lists, signals=raw["signal.data.collection"] or "")


def _modes(raw: Mapping[str, Any]) -> Modes:
    return Modes(
        decimal=raw["decimal.handling.mode"],
        time=raw["time.precision.mode"],
        binary=raw["binary.handling.mode"],
        hstore=raw["hstore.handling.mode"],
        interval=raw["interval.handling.mode"],
        money_digits=raw["money.fraction.digits"],
        composite=raw["composite.handling.mode"],
        varbit=raw["bit.varying.handling.mode"],
        unknown=raw["unknown.type.handling.mode"],
    )
