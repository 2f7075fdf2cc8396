"""What a source has to be able to do so that a warehouse can be compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from cdcworker.connectors.capture.config.column_masks import ColumnMasks
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.config.message_keys import MessageKeys
from cdcworker.connectors.verify.canonical_text import SourceModes
from cdcworker.connectors.verify.databases import SourceSide, VerifyLimits
from cdcworker.connectors.verify.plan import ComparisonPlan, Key, SideTable


class ComparedSettings(Protocol):
    """What is asked of a source's configuration."""

    @property
    def prefix(self) -> str: ...
    @property
    def filters(self) -> TableFilters: ...
    @property
    def masks(self) -> ColumnMasks: ...
    @property
    def keys(self) -> MessageKeys: ...
    @property
    def skipped(self) -> frozenset[str]: ...
    @property
    def snapshot_mode(self) -> str: ...
    @property
    def raw(self) -> Mapping[str, Any]: ...


class SentColumns(NamedTuple):
    """What of a table's changes the database sends."""

    names: Sequence[str] | None = None
    """None: every column."""
    is_filtered: bool = False
    """Whether a part of the rows only is sent."""


class ComparedSource(SourceSide, Protocol):
    """A source that is opened for a comparison. Each raises CdcError where the database does not answer."""

    @property
    def settings(self) -> ComparedSettings: ...

    @property
    def modes(self) -> SourceModes:
        """How the source represents values."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the result has to know of the database."""

    def prepare(self, limits: VerifyLimits) -> None:
        """Sets the limits of statements; called once, before all else."""

    def published(self) -> Mapping[tuple[str, str], SentColumns]:
        """Returns the tables whose changes the database sends, by their paths."""

    @property
    def is_all_published(self) -> bool:
        """Returns whether it sends the changes of every table, those to come too."""

    def hands_on_deletions(self) -> bool: ...

    def keyed_table(self, schema: str, name: str) -> SideTable | None:
        """Returns a table with its key, as the catalog has it now; None when there is none."""

    def has_values(self, table: SideTable, column: str) -> bool:
        """Returns whether any row has a value in the column; False for a table that cannot be read, which is told elsewhere."""

    def key_texts(self, plan: ComparisonPlan, keys: Sequence[Key]) -> list[tuple[str, ...] | None]:
        """Returns the keys as the source's database writes them; None for one that is no value of its columns' types."""

    def reached(self, watermark: Mapping[str, Any]) -> int:
        """Returns the position of the log, as `begin` tells it, up to which a watermark says that all is in Kafka; -1 where it
        does not tell."""

    def position_text(self, position: int) -> str:
        """Returns a position as the database's own tools show it."""

    def close(self) -> None: ...
