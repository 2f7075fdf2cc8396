"""What a source hands on: tables, changes, batches. Knows no database and no Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

Avro = str | dict[str, Any] | list[Any]
"""An Avro type as parsed JSON."""

Row = tuple[Any, ...]
"""Column values in the order of `Table.columns`, as Avro-native Python values (bytes for decimal, int for timestamps)."""

Op = Literal["c", "u", "d", "r", "t", "m"]
"""Debezium's operations: create, update, delete, snapshot read, truncate, logical message."""

JsonObject = dict[str, Any]


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True)
class Column:
    """One column. `type` is its Avro type without null, with the `connect.*` attributes Confluent's converter writes.

    `column_id` is the source's own identity of the column (PostgreSQL: attnum); it survives a rename.
    """

    name: str
    type: Avro
    optional: bool = True
    default: Any = NO_DEFAULT
    column_id: int = 0
    source_type: str = ""


@dataclass(frozen=True)
class Plain:
    """Of records that are no changes of a table: they have no envelope, and a topic and record names of their own."""

    topic: str
    key_name: str
    value_name: str
    of_key: bool = True
    """Whether the value holds the key's columns too."""


@dataclass(frozen=True)
class Table:
    """A table's shape at one moment; a schema change makes a new `Table`.

    `path` is what follows the topic prefix, e.g. `("public", "orders")`; `table_id` is the source's identity of the
    table (PostgreSQL: OID); `key` holds indexes into `columns`, empty for a table without a key; `source_schema` is the
    Avro record type of `Change.source`. `plain`: what is handed on as a message (`m`) of this table is its row alone.
    """

    path: tuple[str, ...]
    table_id: int
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    source_schema: Mapping[str, Any] = field(hash=False)
    plain: Plain | None = None

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.columns[i] for i in self.key)

    @cached_property
    def value_indexes(self) -> tuple[int, ...]:
        """The columns that a record's value holds."""
        left_out = self.key if self.plain is not None and not self.plain.of_key else ()
        return tuple(i for i in range(len(self.columns)) if i not in left_out)


class Position(NamedTuple):
    """Where a record stands in its source: unique, increasing in commit order, the same on every replay."""

    commit_lsn: int
    tx_index: int
    tx_sub: int


@dataclass(slots=True)
class Change:
    """One event of one table. `unchanged` are indexes of columns whose value the source did not send (TOAST).

    A key change is handed on as two changes, `d` (old key) and `c` (new key), with `other_key` set on both: the new
    key on the `d`, the old key on the `c`; like every key it holds the key columns in the order of `Table.key`.
    `transaction` is Debezium's transaction block (`id`, `total_order`, `data_collection_order`) where it is wanted.
    """

    op: Op
    table: Table
    position: Position
    source: JsonObject
    before: Row | None = None
    after: Row | None = None
    unchanged: tuple[int, ...] = ()
    other_key: Row | None = None
    transaction: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """Records that the source has written itself, each as the arguments of a producer's `produce`: topic, value, key,
    partition, and where there are headers what comes before them. `bytes`, `largest`: of values and keys; `counts`: how
    many records go to each topic; `ts_ms`: when the transaction that they all are of was committed, 0 for rows that were
    loaded."""

    records: list[tuple[Any, ...]]
    bytes: int
    largest: int
    largest_topic: str
    counts: Mapping[str, int]
    ts_ms: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one `poll` returns.

    `changes` may hold records that are ready, in their place among the changes.
    `position` is set when the batch ends at a boundary of the source (between two transactions): the JSON object from
    which the task can resume, to be committed in the same Kafka transaction. None: the source transaction goes on.
    `part` is then a position inside the transaction, of use only where that has grown past what one Kafka transaction
    may hold. `watermark` says through which source position everything has been handed on (`{"commit_lsn": …,
    "ts_ms": …}`); `idle` says that the stream ran dry, so that committing now costs no throughput. `records` are no
    changes of tables: they are written as they are, after the changes.
    """

    changes: Sequence[Change | Ready] = ()
    position: JsonObject | None = None
    watermark: JsonObject | None = None
    idle: bool = False
    records: Sequence[OutRecord] = ()
    part: JsonObject | None = None


class OutRecord(NamedTuple):
    """One Kafka record, ready to produce. `hash` is the murmur2 hash of the key body (None: any partition)."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    hash: int | None
