"""The PostgreSQL source's configuration: Debezium's key names and values, parsed into one typed object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.connectors.capture.config.column_masks import ColumnMasks, mask_keys, masks_of
from cdcworker.connectors.capture.config.debezium_keys import FORMER_PREFIX, TOLERANCE
from cdcworker.connectors.capture.config.filters import TableFilters, filters_of
from cdcworker.connectors.capture.config.heartbeat_keys import IDLE_MS_DEFAULT, beside_keys
from cdcworker.connectors.capture.config.message_keys import MessageKeys
from cdcworker.connectors.capture.config.propagated_types import PropagatedTypes, propagated_of, propagation_keys
from cdcworker.connectors.capture.config.snapshot_keys import SNAPSHOT_ALIASES, snapshot_keys
from cdcworker.connectors.capture.config.table_keys import (
    failure_keys,
    name_list_keys,
    record_keys,
    unavailable_value_key,
)
from cdcworker.connectors.capture.config.table_share import TableShare
from cdcworker.connectors.capture.native.compiled import native_keys
from cdcworker.connectors.config.allowed_hosts import host_list
from cdcworker.connectors.config.common_keys import SOURCE_KEYS, TASKS_MAX
from cdcworker.connectors.config.definition import (
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
from cdcworker.connectors.config.topic_creation import compacts, group_keys
from cdcworker.connectors.converters.config import converter_keys
from cdcworker.connectors.postgres.config.debezium_keys import ACCEPTED, REFUSED
from cdcworker.connectors.postgres.config.replica_identity_key import identities
from cdcworker.connectors.postgres.config.slot_split import split_checks, split_keys
from cdcworker.connectors.postgres.config.value_keys import KEY_NAN, remarked_keys, value_keys
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.postgres.types.mapping import HandlingModes
from cdcworker.connectors.transform_chain.config import PREDICATES_KEY, TRANSFORMS_KEY, transform_checks, transform_keys

SLOT_NAME = r"[a-z0-9_]{1,63}"
SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast.*", "pg_temp.*")


def _plugin(value: str) -> str | None:
    return None if value in ("pgoutput", "decoderbufs") else "expects pgoutput"


def _source_keys() -> Iterable[ConfigKey]:
    high: Importance = "HIGH"
    yield from _server_keys()
    yield from _tls_keys()
    yield from _transport_keys()
    yield ConfigKey(
        "topic.prefix",
        required=True,
        importance=high,
        group="Topics",
        validator=_PREFIX,
        doc="First part of every topic.",
        former=FORMER_PREFIX,
        topics="prefix",
    )


def _server_keys() -> Iterable[ConfigKey]:
    group: str = "Connection"
    high: Importance = "HIGH"
    key = ConfigKey
    yield key(
        "database.hostname", required=True, importance=high, group=group, validator=host_list, connects=True,
        doc="Host, or a comma list of hosts.",
    )  # fmt: skip
    yield key(
        "database.port", "STRING", "5432", importance=high, group=group, connects=True, doc="Port, or one per host."
    )
    yield key(
        "database.user", required=True, importance=high, group=group, connects=True,
        doc="A role with REPLICATION and SELECT.",
    )  # fmt: skip
    yield key(
        "database.password", "PASSWORD", importance=high, group=group, connects=False, doc="Password of database.user."
    )
    yield key(
        "database.dbname", required=True, importance=high, group=group, connects=True, doc="The database to read."
    )


def _tls_keys() -> Iterable[ConfigKey]:
    group: str = "Connection"
    low: Importance = "LOW"
    key = ConfigKey
    yield key(
        "database.sslmode", default="prefer", validator=_SSL, recommended=_SSL_MODES, group=group, connects=True,
        doc="TLS towards the server, in libpq's modes.",
    )  # fmt: skip
    yield key("database.sslcert", group=group, importance=low, connects=True, doc="Client certificate file.")
    yield key("database.sslkey", group=group, importance=low, connects=True, doc="Client key file.")
    yield key(
        "database.sslpassword", "PASSWORD", group=group, importance=low, connects=False,
        doc="Password of the client key.",
    )  # fmt: skip
    yield key(
        "database.sslrootcert", group=group, importance=low, connects=True, doc="File of trusted root certificates."
    )


def _transport_keys() -> Iterable[ConfigKey]:
    group: str = "Connection"
    low: Importance = "LOW"
    key = ConfigKey
    yield key(
        "database.tcpKeepAlive", "BOOLEAN", True, importance=low, group=group, connects=False,
        doc="TCP keep-alive probes.",
    )  # fmt: skip
    yield key(
        "database.transport", default="auto", validator=one_of(*_TRANSPORTS), recommended=_TRANSPORTS, importance=low,
        group=group, connects=True, doc=_TRANSPORT_DOC,
    )  # fmt: skip
    yield key(
        "database.connect.timeout.ms", "INT", 10_000, validator=between(1000, 600_000), importance=low, group=group,
        connects=False,
    )  # fmt: skip


_TRANSPORTS = ("auto", "socket", "psycopg")
_TRANSPORT_DOC = (
    "socket: the task reads the stream from its own socket, under TLS too; there it logs in by SCRAM with channel binding (a"
    " password that SASLprep takes), md5, password or certificate. auto: as socket, and by libpq where the server or libpq's"
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
        doc="filtered: a publication of the captured tables is created and kept up to date. all_tables: one of all tables is created (Debezium's"
        " default; needs a superuser). no_tables: an empty one is created. disabled: it has to exist.",
    )
    yield key(
        "publish.via.partition.root", "BOOLEAN", False, group=group, doc="Publish a partition's rows as its root's."
    )
    yield from native_keys(group)
    yield key(
        "status.update.interval.ms", "INT", 10_000, validator=between(100, 600_000), group=group, importance="LOW"
    )


_PLUGIN_NOTE = "Only pgoutput is read; it needs nothing installed on the server."
_LOST = (
    "When the slot is missing, was recreated or advanced by others, or has lost log: halt with its code, or resnapshot:"
    " each table is emptied by a truncate and its rows are read again. Another or a restored server always halts. When the"
    " publication leaves out an operation: halt, or go on without it; once it is back, both read the rows again."
)
_ON_STANDBY = (
    "The slot is created and read on a standby (PostgreSQL 16). The publication is created on the primary; of several hosts the"
    " standby is chosen."
)
_FAILOVER = (
    "true: a failover slot, which standbys keep too (PostgreSQL 17); an existing slot is altered. false: an ordinary slot. Not set: a"
    " new slot on a primary is a failover slot, and an existing one is left as it is."
)
_STREAMING = (
    "Large transactions are read while they are open, into files in the worker's state.dir, and handed on when they"
    " commit. false: the server keeps them on its own disk until then."
)
_SPOOL = "Most bytes of open transactions in these files; beyond it the server keeps them, as without streaming."


def _table_keys() -> Iterable[ConfigKey]:
    group = "Tables"
    yield from name_list_keys()
    yield from record_keys(whole_rows="REPLICA IDENTITY FULL")
    yield ConfigKey(
        "replica.identity.autoset.values", default="", validator=identities, group=group,
        doc="Replica identities that the source sets when it starts: table:DEFAULT, FULL, NOTHING or INDEX name, separated"
        " by commas. Tables are regular expressions of full names, the first that matches counts.",
    )  # fmt: skip
    for kind in ("include", "exclude"):
        yield ConfigKey(f"message.prefix.{kind}.list", "LIST", validator=regex_list, group=group, importance="LOW")
    yield unavailable_value_key()


_LOAD = ConfigKey(
    "snapshot.load.max.backends", "INT", 0, validator=between(0), group="Snapshot", importance="LOW",
    doc="No rows are read while more of the server's other connections than this are active; the role sees those of"
    " others with pg_read_all_stats only. 0: whatever they do.",
)  # fmt: skip


def _cross_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name in ("schema", "table", "column", "message.prefix"):
        if config[f"{name}.include.list"] and config[f"{name}.exclude.list"]:
            yield f"{name}.exclude.list", f"cannot be combined with {name}.include.list"
    hosts, ports = config["database.hostname"].split(","), config["database.port"].split(",")
    if len(ports) not in (1, len(hosts)) or not all(_is_port(port.strip()) for port in ports):
        yield "database.port", "expects one port, or one for each host, between 1 and 65535"
    yield from split_checks(config)
    yield from _format_checks(config)


_PORT_MAX = 65535


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _PORT_MAX


_format_checks = transform_checks(field["name"] for field in SOURCE_SCHEMA["fields"])


CONFIG_DEF = ConfigDef(
    [
        *_source_keys(),
        TASKS_MAX,
        *_replication_keys(),
        *beside_keys(),
        *_table_keys(),
        *snapshot_keys(_LOAD),
        *failure_keys(),
        *value_keys(),
        *propagation_keys(),
        *converter_keys(),
        TRANSFORMS_KEY,
        PREDICATES_KEY,
        *SOURCE_KEYS,
        TOLERANCE,
        *REFUSED,
    ],
    accepted=ACCEPTED,
    check=_cross_checks,
    more=lambda config: (*transform_keys(config), *mask_keys(config), *remarked_keys(config), *group_keys(config)),
)


@dataclass(frozen=True)
class PostgresSettings:
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
    modes: HandlingModes
    filters: TableFilters
    masks: ColumnMasks
    keys: MessageKeys
    skipped: frozenset[str]
    heartbeat_s: float
    raw: Mapping[str, Any] = field(repr=False)
    is_temporary: bool = False
    """Whether the slot ends with its connection, and no position is kept: nothing is written into the server's log either."""

    @property
    def slot_number(self) -> int:
        return self.filters.share.number

    @property
    def slots(self) -> list[str]:
        """Names of all slots of the connector."""
        count = self.raw["slot.count"]
        return [TableShare(number, count).named(self.raw["slot.name"]) for number in range(count)]

    def of_task(self, number: int) -> PostgresSettings:
        """Returns the settings of one of several slots: its own name and publication, and its share of the tables."""
        share = TableShare(number, self.raw["slot.count"])
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

    def going_on(self, timestamptz: str, key_nan: str) -> PostgresSettings:
        """Returns the settings of a task that goes on at a position; `timestamptz`, `key_nan`: how it has written these until
        then."""
        modes = self.modes
        if self.raw["timestamptz.handling.mode"] == "auto":
            modes = replace(modes, timestamptz=timestamptz)
        if self.raw[KEY_NAN.name] == "auto" and not modes.exact:
            modes = replace(modes, key_nan=key_nan)
        return replace(self, modes=modes)

    @property
    def propagated(self) -> PropagatedTypes:
        """Returns which columns name the source's type in their schemas."""
        return propagated_of(self.raw)

    @property
    def completes_rows(self) -> bool:
        """Returns whether the last record of a key has to hold the whole row: of a compacted topic others do not stay."""
        return compacts(self.raw)

    @property
    def password(self) -> Secret | None:
        return self.raw["database.password"] or None


def parse(config: Mapping[str, str]) -> PostgresSettings:
    """CdcError `config.invalid` with all problems at once."""
    raw = CONFIG_DEF.parse(config)
    return PostgresSettings(
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
        filters=filters_of(raw, system_schemas=SYSTEM_SCHEMAS),
        masks=masks_of(raw, CAPTURE),
        keys=MessageKeys.parse(raw["message.key.columns"]),
        skipped=frozenset(operation.lower() for operation in raw["skipped.operations"]) - {"none"},
        heartbeat_s=(raw["heartbeat.interval.ms"] or IDLE_MS_DEFAULT) / 1000,
        raw=raw,
    )


def _modes(raw: Mapping[str, Any]) -> HandlingModes:
    return HandlingModes(
        decimal=raw["decimal.handling.mode"],
        time=raw["time.precision.mode"],
        binary=raw["binary.handling.mode"],
        hstore=raw["hstore.handling.mode"],
        interval=raw["interval.handling.mode"],
        money_digits=raw["money.fraction.digits"],
        composite=raw["composite.handling.mode"],
        varbit=raw["bit.varying.handling.mode"],
        unknown=raw["unknown.type.handling.mode"],
        out_of_range=raw["out.of.range.handling.mode"],
        # Whether `auto` means this is known once there is a position.
        timestamptz="shortest" if raw["timestamptz.handling.mode"] == "shortest" else "padded",
        # The position remembers it, so that keys keep their bytes where other values are bounded later.
        key_nan="empty" if raw["out.of.range.handling.mode"] == "exact" or raw[KEY_NAN.name] == "empty" else "number",
    )
