"""The offsets of a connector as a person sees and alters them, whoever keeps them: the offsets log or a sink's target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from cdcworker.coordinator.model import Connector, JsonObject
from cdcworker.schemas.errors import declare

UNKNOWN_PARTITION: Final = declare(
    "offsets.unknown_partition",
    "config",
    "The connector reads no such partition",
    "GET .../offsets shows the partitions that have offsets; a source's others are those of its configuration.",
)
BAD_POSITION: Final = declare(
    "offsets.bad_position",
    "config",
    "No task of the connector could start from this offset",
    "Take one that GET .../offsets has shown before, whole; null forgets it, and the task starts as a new one does.",
)
NOT_OFFERED: Final = declare(
    "offsets.not_offered",
    "environment",
    "The connector keeps its offsets by itself",
    "Look at them, and alter them, where the connector keeps them.",
)
NOT_BY_MEANING: Final = declare(
    "offsets.not_by_meaning",
    "config",
    "The connector's offsets cannot be altered by what they mean",
    "Give the offsets themselves, as GET .../offsets shows them.",
)
INTERRUPTED: Final = declare(
    "offsets.interrupted",
    "fenced",
    "The connector was started, or its tasks were fenced, while its offsets were being altered",
    "Stop the connector, look at its offsets, and ask again.",
)
REFUSED: Final = declare(
    "offsets.refused",
    "environment",
    "The connector could not read or alter its offsets",
    "See the code in the message: `cdcworker errors CODE` explains it.",
)
UNFINISHED: Final = declare(
    "offsets.unfinished",
    "transient",
    "The target did not answer in time",
    "Look at the offsets before asking again: the change may have happened.",
)


@dataclass(frozen=True, slots=True)
class ConnectorOffset:
    """Kafka Connect's pair: what is read, and how far. `offset` None forgets it."""

    partition: Mapping[str, Any]
    offset: JsonObject | None


@runtime_checkable
class VerifiesOffsets(Protocol):
    """Offsets whose owner can be asked before they are written. Blocking, within a time limit."""

    def verify(self, connector: Connector, changes: Sequence[ConnectorOffset]) -> str:
        """Raises CdcError for an offset from which no task could start. Returns why that could not be told; empty: it could."""


@dataclass(frozen=True)
class Translation:
    """Offsets that were made of others, and what people should know of them, as sentences."""

    offsets: Sequence[ConnectorOffset]
    notes: Sequence[str] = ()


@runtime_checkable
class MovesOffsets(Protocol):
    """Offsets that can be altered by what they mean. Blocking, within a time limit."""

    def moved(self, connector: Connector, to: str, task: int | None) -> Translation:
        """Returns the offsets of a stopped connector at another place, of all its tasks or of one, and what is missed or comes again.
        CdcError `offsets.bad_position` for a place from which no task could go on, `offsets.not_by_meaning`."""


@runtime_checkable
class TranslatesOffsets(Protocol):
    """Offsets in Debezium's form. Blocking, within a time limit."""

    def from_debezium(self, connector: Connector, changes: Sequence[ConnectorOffset]) -> Translation:
        """Returns the changes with our positions in the place of Debezium's offsets. CdcError `offsets.bad_position` for one from which
        no task could go on, with the number of the item."""

    def to_debezium(self, connector: Connector) -> Translation:
        """Returns what a stopped connector has stored, as Debezium's offsets. Raises CdcError."""


@runtime_checkable
class DropsLeftovers(Protocol):
    """Drops what a connector has made in its database. Blocking, within a time limit."""

    def drop(
        self, connector: Connector, kinds: Collection[str], spared: Collection[tuple[str, str]]
    ) -> list[dict[str, Any]]:
        """Returns `kind` and `name` of each, and the `error` that kept it there. `spared`: what others still use."""


class ConnectorOffsets(Protocol):
    """Blocking calls, each within a time limit; CdcError says what went wrong."""

    def read(self, connector: Connector) -> Sequence[ConnectorOffset]: ...

    def alter(
        self, connector: Connector, barrier: int, changes: Sequence[ConnectorOffset] | None, *, dry_run: bool = False
    ) -> bool:
        """Stores all of `changes` or none; None forgets everything. Returns whether the connector has checked them itself.

        `barrier`: the task epoch of the empty task set that the stop of the connector has made. All tasks that ever ran have a lower one.
        `dry_run`: everything is checked and nothing is changed.
        """
