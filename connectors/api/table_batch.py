"""What a warehouse is given: reduced changes of tables as Arrow, with the offsets that they cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

RESERVED = "_cdc_"
"""How the names of a sink's columns begin, in tables and on the way there, but for those that a config names."""


POSITION = "_cdc_position"
"""Column of 16 bytes, big-endian: number of the commit (8), index in the transaction (4), index in the change (4)."""


KEY = "_cdc_key"
"""Column of batches: the encoded key, one text of bytes per key."""


OP = "_cdc_op"
"""Column of append tables: the operation."""


UNCHANGED = "_cdc_unchanged"
"""Column of change logs: the columns that the change did not bring, separated by commas."""


DELETED = "_cdc_deleted"
"""Column of tables whose deleted rows stay: true for those."""


VALID_FROM = "_cdc_valid_from"
"""Column of versions: when the change that made the version was committed in the source."""


VALID_TO = "_cdc_valid_to"
"""Column of versions: when the change that ended the version was committed; null in a current version."""


VALID_TO_POSITION = "_cdc_valid_to_position"
"""Column of versions: the position of the change that ended the version; null in a current version."""


IS_CURRENT = "_cdc_is_current"
"""Column of versions: whether the row is as the version says."""


BASE = "_cdc_base"
"""Column of versions on their way: the position before which the row that they keep columns of was current."""


BEGAN = "_cdc_began"
"""Column of versions and deletes on their way: the position of the first change of the key in the batch."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """The reduced changes of one table in one micro-batch and one writer schema.

    `upserts` and `deletes` are Arrow tables with the key columns, `KEY` and `POSITION` (null in a delete that a lone
    tombstone asks for: delete whatever is there). A table without a key has `upserts` only, to be appended.
    Values are as Avro encodes them; `schema` is the row's Avro record, which says what they mean.

    `unchanged` says per column in which upserts it keeps the value of a row of the target: the row of the same key, or
    where `origins` (aligned with `upserts`) holds another key, of that one, which may have gone to the tombstones.
    `moved` are rows under the keys of `deletes` as they were before; a later batch needs them under a new key. One that
    had come from another key in this same batch has that one in `moved_origins`.
    `floor` is a TRUNCATE: older rows go first.
    `versions` says that nothing is reduced: `upserts` has each version of a row and `deletes` each delete, with the columns
    of versions; `origins` is then the key of the row whose columns a version keeps, its own or the one that it came from.
    `truncates` has the position and VALID_FROM of each TRUNCATE; where there are versions it applies to those of the batch too.
    `fresh` marks upserts whose key came up in this batch, with all their columns: a target that has what came before holds
    no row of it. It may be wrong where rows come again, or stand there from elsewhere.
    """

    table: str
    key: tuple[str, ...]
    upserts: pa.Table
    deletes: pa.Table
    schema: Mapping[str, Any]
    path: tuple[str, ...] = ()
    unchanged: Mapping[str, Any] = field(default_factory=dict)
    origins: pa.Table | None = None
    moved: pa.Table | None = None
    moved_unchanged: Mapping[str, Any] = field(default_factory=dict)
    moved_origins: pa.Table | None = None
    floor: bytes | None = None
    changes: int = 0
    fresh: Any = None
    versions: bool = False
    truncates: pa.Table | None = None

    @property
    def bare(self) -> bool:
        """Nothing but a TRUNCATE, which does not say whether its table has a key; a topic that somebody mirrors under
        another name has no schema of one. The target knows."""
        return self.floor is not None and not self.key and not self.upserts.num_rows and not self.deletes.num_rows


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be decoded, set aside: where it stood and why, with its bytes and headers."""

    topic: str
    partition: int
    offset: int
    code: str
    cause: str
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class VisibleThrough:
    """Of one source every transaction before `position` is shown whole, none behind it; `ts_ms` is when the last of them
    was committed. `left_out` names tables for which that is not so yet: they are loaded, or paused."""

    position: int
    ts_ms: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """One micro-batch: `offsets` maps (topic, partition) to (first, next) offset covered, `applied` to the highest
    position and the source's time (ms) in it. Several batches of one table apply in the order given."""

    tables: Sequence[TableBatch]
    offsets: Mapping[tuple[str, int], tuple[int, int]]
    batch_id: int
    applied: Mapping[tuple[str, int], tuple[bytes, int]] = field(default_factory=dict)
    dead: Sequence[DeadLetter] = ()
    """To be kept in the target in the same step: the offsets have passed them."""
    through: Mapping[str, VisibleThrough] = field(default_factory=dict)
    """By source: what holds once this batch is applied."""
    moments: Mapping[str, Sequence[tuple[Any, Any]]] = field(default_factory=dict)
    """By topic, when its changes were committed in the source: pairs of arrays, a time in ms and how many changes."""


def split_fresh(batch: TableBatch) -> tuple[pa.Table, TableBatch]:
    """The rows that are fresh, and the batch without them."""
    import numpy as np
    import pyarrow as pa

    fresh = np.asarray(batch.fresh, np.bool_)
    rest = pa.array(~fresh)
    unchanged = {name: np.asarray(flags)[~fresh] for name, flags in batch.unchanged.items()}
    origins = None if batch.origins is None else batch.origins.filter(rest)
    left = replace(batch, upserts=batch.upserts.filter(rest), unchanged=unchanged, origins=origins, fresh=None)
    return batch.upserts.filter(pa.array(fresh)), left


def min_position(rows: pa.Table) -> bytes:
    """Returns the lowest position of the rows; empty when none of them has one."""
    import pyarrow.compute as pc

    found = pc.min(rows[POSITION]).as_py() if rows.num_rows else None
    return found or b""


def max_position(rows: pa.Table) -> bytes | None:
    """Returns the highest position of the rows; None when none of them has one."""
    import pyarrow.compute as pc

    found: bytes | None = pc.max(rows[POSITION]).as_py()
    return found
