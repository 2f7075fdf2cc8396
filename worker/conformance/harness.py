"""What the author of a plugin gives to be tested with: a config, and the outside that the plugin talks to.

A harness is an entry point of the plugin's distribution in the group `cdcworker.conformance`, under the plugin's name: a function
that takes an empty folder. The classes below are for the type checker; nobody has to inherit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from cdcworker.connectors.transforms.data import ConnectRecord

GROUP: Final = "cdcworker.conformance"


class Harness(Protocol):
    """Of any connector. `config` is valid, without `name`, `connector.class` and topics; `unfit` are values that make it invalid."""

    config: Mapping[str, str]
    unfit: Mapping[str, str]

    def close(self) -> None:
        """Ends what the harness has started."""


class SourceHarness(Harness, Protocol):
    """The outside of a source."""

    def write(self, count: int) -> None:
        """Writes so many rows more, each of them new."""


@runtime_checkable
class KnowsRows(Protocol):
    """A source's outside that remembers what was written."""

    def rows(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Returns every row in the order in which it was written: its table, and the fields that a record has to hold."""


@runtime_checkable
class WritesTexts(Protocol):
    """A source's outside that takes any text."""

    def write_text(self, text: str) -> None:
        """Writes one row that holds this text in some field."""


@runtime_checkable
class GoesAway(Protocol):
    """An outside that can be stopped and started, with what it holds. While it is stopped `write` still works."""

    def stop(self) -> None:
        """It answers nobody."""

    def start(self) -> None:
        """It answers again."""


class SinkHarness(Harness, Protocol):
    """The outside of a sink."""

    def received(self) -> Sequence[str]:
        """Returns the ids (`TargetRecord.id`) of what is in the target, in the order in which it came; some may be there twice."""


@dataclass(frozen=True, slots=True)
class TransformHarness:
    """What a transform is tested with: values of its own keys, values that make them invalid, records."""

    config: Mapping[str, str]
    records: Sequence[ConnectRecord]
    unfit: Mapping[str, str] | None = None

    def close(self) -> None:
        """There is nothing to end."""


class MakesHarness(Protocol):
    """What the entry point names."""

    def __call__(self, folder: Path) -> Harness | TransformHarness: ...
