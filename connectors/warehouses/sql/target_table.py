"""A table as it stands in the target, and what a statement about it is told; how that is written is the server's matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.api.table_batch import POSITION
from cdcworker.connectors.warehouses.source_types import TargetColumn

KEPT: Final = "_cdc_kept"
"""Stage column: which columns keep the target's value, null for whole rows."""
STAGE_KEY: Final = "_cdc_stage_key"
"""Stage column: the encoded key, or its hash."""
ORIGIN: Final = "_cdc_origin_"
"""What the stage columns for the key that a row came from begin with."""
ORIGIN_KEY: Final = "_cdc_origin"


@dataclass(frozen=True, slots=True)
class TombstonePlace:
    """The sink and the topic whose tombstones a statement is about."""

    sink: str
    topic: str


@dataclass(frozen=True, slots=True)
class OwnColumn:
    """A column of the sink's; one with an expression is set to it whenever a row is written."""

    name: str
    type: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table as it stands in the target: types by column, and `key`."""

    schema: str
    table: str
    types: Mapping[str, str]
    key: tuple[str, ...]
    columns: tuple[TargetColumn, ...]
    own: tuple[OwnColumn, ...] = ()
    """What we add besides the position."""
    soft: bool = False
    """Deleted rows stay and are marked."""
    unique: bool = False
    """A second row of a key is refused at once."""
    versions: bool = False
    """A key has a row for each version of its row."""
    position: str = POSITION
    """Its column of positions; empty: it has none. In tables of a stage it always has the name of POSITION."""

    @property
    def plain_name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def stamps(self) -> tuple[OwnColumn, ...]:
        return tuple(column for column in self.own if column.value)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)
