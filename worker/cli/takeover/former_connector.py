"""The connector that is taken over: one that runs in Kafka Connect, or what files say of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import click
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.cli.client.connector_files import read_object
from cdcworker.worker.cli.takeover.kafka_connect import KafkaConnect

OFFSETS_MISSING: Final = declare(
    "cli.debezium_offsets_missing",
    "environment",
    "Debezium has stored no offset, or more than one",
    "A connector that never ran is created as a new one: `cdcworker connector apply`.",
)
SINK_OFFSETS_MISSING: Final = declare(
    "cli.connect_offsets_missing",
    "environment",
    "The sink has no offset of its topics in Kafka Connect",
    "A connector that never ran is created as a new one: `cdcworker connector apply`.",
)
CANNOT_STOP: Final = declare(
    "cli.connect_cannot_stop",
    "environment",
    "This Kafka Connect cannot stop a connector (3.5 and newer can)",
    "Save its config, delete the connector there, and give both as files: --files CONFIG --offsets OFFSETS, or --offsets-topic.",
)
READ_S: Final = 60.0


class FormerConnector(Protocol):
    """Where the connector to be taken over comes from."""

    @property
    def name(self) -> str:
        """Its name, here and there."""

    @property
    def config(self) -> Mapping[str, str]:
        """Its config, as it is stored there."""

    def require_stoppable(self) -> None:
        """Raises CdcError where it could not be stopped."""

    def stop(self) -> None:
        """Stops it, and waits until it stands."""

    def stored_offsets(self) -> Sequence[Mapping[str, Any]]:
        """Returns pairs of `partition` and `offset`, as Kafka Connect shows them."""

    @property
    def way_back(self) -> str:
        """How it is started again, as a sentence; empty where it is not known."""


@dataclass(frozen=True)
class RunningConnector:
    """A connector of a Kafka Connect cluster."""

    connect: KafkaConnect
    name: str
    config: Mapping[str, str] = field(repr=False)

    def require_stoppable(self) -> None:
        if not self.connect.can_stop(self.name):
            raise CdcError(CANNOT_STOP, f"Kafka Connect {self.connect.version()} has no stop")

    def stop(self) -> None:
        self.connect.stop(self.name)

    def stored_offsets(self) -> Sequence[Mapping[str, Any]]:
        return self.connect.offsets(self.name)

    @property
    def way_back(self) -> str:
        return f"Start the former one again with PUT {self.connect.url}/connectors/{self.name}/resume"


@dataclass(frozen=True)
class ConnectOffsetsTopic:
    """The topic in which a Kafka Connect cluster keeps its offsets."""

    bootstrap: str
    topic: str

    def stored_offsets(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Returns the pairs of a source's partitions and offsets. Raises CdcError."""
        from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog

        log = KafkaCompactedLog({"bootstrap.servers": self.bootstrap}, self.topic, client_id="cdcworker-import")
        try:
            last = {record.key: record.value for record in log.read_to_end(READ_S)}
        finally:
            log.close()
        pairs = [(_key(key), value) for key, value in last.items() if value is not None]
        return [{"partition": partition, "offset": value} for (owner, partition), value in pairs if owner == name]


@dataclass(frozen=True)
class WrittenConnector:
    """A connector that files tell of, and that somebody has stopped."""

    name: str
    config: Mapping[str, str] = field(repr=False)
    offsets: Path | ConnectOffsetsTopic

    def require_stoppable(self) -> None:
        """It stands."""

    def stop(self) -> None:
        """It stands."""

    def stored_offsets(self) -> Sequence[Mapping[str, Any]]:
        if isinstance(self.offsets, ConnectOffsetsTopic):
            return self.offsets.stored_offsets(self.name)
        found = read_object(self.offsets)
        if isinstance(found.get("offsets"), list):
            return list(found["offsets"])
        return [found if "offset" in found else {"offset": found}]

    @property
    def way_back(self) -> str:
        return "Create the former connector again where it was, with its config"


def _key(text: str) -> tuple[str, Any]:
    """Returns the connector and the source partition of a record's key; no connector where it is no key of an offset."""
    try:
        name, partition = json.loads(text)
    except (ValueError, TypeError):
        return "", None
    return str(name), partition


def running(connect: KafkaConnect, name: str | None) -> RunningConnector:
    """Returns the connector of that name, or the only one there is. UsageError where there are several."""
    if name is None:
        names = connect.connectors()
        if len(names) != 1:
            raise click.UsageError(f"--connector is missing; there are: {', '.join(names) or 'none'}")
        (name,) = names
    return RunningConnector(connect, name, connect.config(name))


def only(offsets: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the one offset that is set. CdcError where there is none, or where there are several."""
    found = set_offsets(offsets)
    if len(found) != 1:
        raise CdcError(OFFSETS_MISSING, f"{len(found)} offsets are stored")
    return found[0]


def of_topics(offsets: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the offsets of a sink that are set. CdcError where there is none."""
    found = set_offsets(offsets)
    if not found:
        raise CdcError(SINK_OFFSETS_MISSING, "no offset is stored")
    return found


def set_offsets(offsets: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [item for item in offsets if isinstance(item, dict) and item.get("offset")]
