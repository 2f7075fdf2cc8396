"""The configuration of a source of MySQL or MariaDB: Debezium's key names and values, parsed into one typed object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
from cdcworker.connectors.capture.native.compiled import native_keys
from cdcworker.connectors.config.common_keys import SOURCE_KEYS, TASKS_MAX
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, one_of
from cdcworker.connectors.config.topic_creation import compacts, group_keys
from cdcworker.connectors.converters.config import converter_keys
from cdcworker.connectors.mysql.config.connection_keys import connection_checks, connection_keys, login_of
from cdcworker.connectors.mysql.config.debezium_keys import ACCEPTED, NAMES, fixed_keys
from cdcworker.connectors.mysql.errors import CAPTURE
from cdcworker.connectors.mysql.source_block import FIELDS
from cdcworker.connectors.mysql.types.modes import HandlingModes
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.transform_chain.config import PREDICATES_KEY, TRANSFORMS_KEY, transform_checks, transform_keys

SYSTEM_DATABASES: Final = ("mysql", "sys", "information_schema", "performance_schema")
PRODUCTS: Final = ("mysql", "mariadb")
_PREFIX: Final = matches(r"[A-Za-z0-9._\-]{1,200}", "letters, digits, dot, hyphen and underscore")
_LOST: Final = (
    "When the server has removed log that is needed, or does not have the position: halt with its code, or resnapshot: each table is"
    " emptied by a truncate and its rows are read again. A server of another history always halts."
)
_LOAD: Final = ConfigKey(
    "snapshot.load.max.running", "INT", 0, validator=between(0), group="Snapshot", importance="LOW",
    doc="No rows are read while more threads of the server than this run (Threads_running). 0: whatever it does.",
)  # fmt: skip


def _stream_keys() -> Iterable[ConfigKey]:
    yield ConfigKey(
        "topic.prefix", required=True, importance="HIGH", group="Topics", validator=_PREFIX, doc="First part of every topic.",
        former=FORMER_PREFIX, topics="prefix",
    )  # fmt: skip
    yield ConfigKey(
        "include.schema.changes", "BOOLEAN", True, group="Topics",
        doc="Statements that create, alter or drop captured tables go to the topic that is named as topic.prefix, as Debezium's schema"
        " change events; tableChanges has the tables as the server has them when their statements are read.",
    )  # fmt: skip
    yield ConfigKey(
        "include.query", "BOOLEAN", False, group="Topics", importance="LOW",
        doc="The text of the statement is in the source block, where the server logs it (binlog_rows_query_log_events, or"
        " binlog_annotate_row_events). It may hold values of columns that are masked or left out.",
    )  # fmt: skip
    yield ConfigKey(
        "position.lost.policy", default="halt", validator=one_of("halt", "resnapshot"), group="Replication", importance="LOW",
        recommended=("halt", "resnapshot"), doc=_LOST,
    )  # fmt: skip
    yield from native_keys("Replication")


def _value_keys() -> Iterable[ConfigKey]:
    def choice(name: str, default: str, *others: str, doc: str) -> ConfigKey:
        values = (default, *others)
        return ConfigKey(name, default=default, validator=one_of(*values), recommended=values, group="Values", doc=doc)

    yield choice("decimal.handling.mode", "precise", "string", "double", doc="How DECIMAL is written.")
    yield choice(
        *("time.precision.mode", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"),
        doc="How DATE, TIME and DATETIME are written. TIMESTAMP is always text in UTC.",
    )  # fmt: skip
    yield choice(
        *("binary.handling.mode", "bytes", "base64", "base64-url-safe", "hex"),
        doc="How BINARY, VARBINARY and BLOB are written.",
    )
    yield choice(
        *("bigint.unsigned.handling.mode", "long", "precise"),
        doc="How BIGINT UNSIGNED is written. long: a number that is negative from 2^63 on; precise: a decimal.",
    )  # fmt: skip
    yield from propagation_keys()


def _cross_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name in NAMES:
        if config[f"{name}.include.list"] and config[f"{name}.exclude.list"]:
            yield f"{name}.exclude.list", f"cannot be combined with {name}.include.list"
    yield from connection_checks(config)
    yield from _format_checks(config)


_format_checks = transform_checks(FIELDS)


CONFIG_DEF: Final = ConfigDef(
    [
        *connection_keys(),
        *_stream_keys(),
        TASKS_MAX,
        *beside_keys(),
        *name_list_keys(NAMES),
        *record_keys(whole_rows="binlog_row_image = FULL"),
        unavailable_value_key(),
        *snapshot_keys(_LOAD),
        *failure_keys(),
        *_value_keys(),
        *converter_keys(),
        TRANSFORMS_KEY,
        PREDICATES_KEY,
        *SOURCE_KEYS,
        TOLERANCE,
        *fixed_keys(),
    ],
    accepted=ACCEPTED,
    check=_cross_checks,
    more=lambda config: (*transform_keys(config), *mask_keys(config), *group_keys(config)),
)


@dataclass(frozen=True)
class MySqlSettings:
    """A parsed configuration. The password is in `login` only, whose text does not hold it."""

    prefix: str
    login: Login
    server_id: int
    connect_timeout_s: float
    snapshot_mode: str
    modes: HandlingModes
    filters: TableFilters
    masks: ColumnMasks
    keys: MessageKeys
    propagated: PropagatedTypes
    skipped: frozenset[str]
    heartbeat_s: float
    raw: Mapping[str, Any] = field(repr=False)
    product: str = ""
    """Which product `connector.class` names: one of `PRODUCTS`; empty where it names none."""

    @property
    def completes_rows(self) -> bool:
        """Returns whether the last record of a key has to hold the whole row: of a compacted topic others do not stay."""
        return compacts(self.raw)


def parse(config: Mapping[str, str]) -> MySqlSettings:
    """CdcError `config.invalid` with all problems at once."""
    raw = CONFIG_DEF.parse(config)
    return MySqlSettings(
        prefix=raw["topic.prefix"],
        login=login_of(raw),
        server_id=raw["database.server.id"],
        connect_timeout_s=raw["connect.timeout.ms"] / 1000,
        snapshot_mode=SNAPSHOT_ALIASES.get(raw["snapshot.mode"], raw["snapshot.mode"]),
        modes=HandlingModes(
            decimal=raw["decimal.handling.mode"],
            time=raw["time.precision.mode"],
            binary=raw["binary.handling.mode"],
            bigint_unsigned=raw["bigint.unsigned.handling.mode"],
        ),
        filters=filters_of(raw, NAMES[0], system_schemas=SYSTEM_DATABASES),
        masks=masks_of(raw, CAPTURE),
        keys=MessageKeys.parse(raw["message.key.columns"]),
        propagated=propagated_of(raw),
        skipped=frozenset(operation.lower() for operation in raw["skipped.operations"]) - {"none"},
        heartbeat_s=(raw["heartbeat.interval.ms"] or IDLE_MS_DEFAULT) / 1000,
        raw=raw,
        product=_product(config.get("connector.class", "")),
    )


def _product(name: str) -> str:
    last = name.strip().rpartition(".")[2].lower()
    return next((product for product in PRODUCTS if last.startswith(product)), "")
