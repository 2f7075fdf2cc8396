"""Offsets in Debezium's form: which they are, and the source partition under which they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cdcworker.connectors.api.source import NamesPartitions, TranslatesDebezium
from cdcworker.connectors.config.common_keys import tasks_max_of
from cdcworker.connectors.registry.names import lookup, plugins
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets.model import NOT_OFFERED, UNKNOWN_PARTITION, ConnectorOffset

SERVER: Final = "server"
PREFIX: Final = "topic.prefix"


def partition(connector: Connector) -> Mapping[str, str]:
    """Returns Debezium's source partition of a connector with this config."""
    return {SERVER: connector.config.get(PREFIX, "")}


def is_debezium(connector: Connector, item: ConnectorOffset) -> bool:
    """Returns whether an offset is one of Debezium's, for this connector's source."""
    if item.offset is None or connector.kind == "sink":
        return False
    source = _instance(connector)
    return isinstance(source, TranslatesDebezium) and source.is_debezium_offset(item.offset)


def _known_to_debezium() -> str:
    """Returns the names of the sources here that take Debezium's class names."""
    return ", ".join(
        each.name
        for each in plugins()
        if any(name.startswith("io.debezium.") for name in each.aliases) and each.kind == "source"
    )


def require_one(connector: Connector) -> None:
    """Raises CdcError for a connector whose position Debezium cannot take: of another source, or with several tasks."""
    source = _instance(connector)
    can = connector.kind == "source" and isinstance(source, TranslatesDebezium)
    if not can:
        raise CdcError(
            NOT_OFFERED,
            "Debezium has no connector for this source",
            hint=f"Debezium reads the sources of these classes: {_known_to_debezium()}.",
        )
    if len(source.split(tasks_max_of(connector.config))) != 1:
        raise CdcError(NOT_OFFERED, "Debezium has one task, and the connector has several", hint="Set slot.count=1.")


def with_own_partitions(
    connector: Connector, given: Sequence[tuple[int, ConnectorOffset]]
) -> dict[int, ConnectorOffset]:
    """Returns the offsets under the connector's own source partition. CdcError for one that is another connector's."""
    require_one(connector)
    source = _instance(connector)
    theirs = partition(connector)
    own: Mapping[str, Any] = source.partition(0) if isinstance(source, NamesPartitions) else {**theirs, "task": 0}
    for number, item in given:
        if dict(item.partition) not in (dict(theirs), dict(own)):
            text = f"Debezium's offset is not one of {PREFIX}={theirs[SERVER]}"
            raise CdcError(UNKNOWN_PARTITION, text, where={"index": number})
    return {number: replace(item, partition=own) for number, item in given}


def _instance(connector: Connector) -> Any:
    return lookup(connector.config.get("connector.class", "")).load()(connector.config)
