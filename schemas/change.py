"""What a source delivers: tables, changes, batches. The types know no database and no Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

Avro = str | dict[str, Any] | list[Any]
"""An Avro type as parsed JSON."""

Row = tuple[Any, ...]
"""The column values in the order of `Table.columns`, as raw Avro values (bytes for decimals, int for timestamps)."""

Op = Literal["c", "u", "d", "r", "t", "m"]
"""The operation, in Debezium's letters: create, update, delete, snapshot read, truncate, logical message."""

JsonObject = dict[str, Any]


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()
"""The default of a column without one; None is the default NULL."""


@dataclass(frozen=True)
class Column:
    """A column. `type` is its Avro type without null, with the `connect.*` attributes of Confluent's AvroConverter.

    `column_id` is the database's identity of the column (PostgreSQL: attnum), which survives a rename; `source_type` is
    the name of its type in the database.
    """

    name: str
    type: Avro
    optional: bool = True
    default: Any = NO_DEFAULT
    column_id: int = 0
    source_type: str = ""
    bound: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    """Of a key's column: makes of a value what stands in the row, which readers hold. The key has the value itself."""
    zero: Any = None
    """The value that stands for one that was not sent, where the type does not tell it."""

    def in_row(self, value: Any) -> Any:
        """Returns a value as it stands in the row."""
        return value if self.bound is None or value is None else self.bound(value)


@dataclass(frozen=True)
class PlainRecord:
    """The topic and the record names of a pseudo-table without an envelope, such as heartbeats and transaction
    metadata."""

    topic: str
    key_name: str
    value_name: str
    of_key: bool = True
    """Tells whether the value holds the key columns, too."""


@dataclass(frozen=True)
class Table:
    """The structure of a table at one moment; a schema change makes a new `Table`.

    `path` follows the topic prefix, e.g. `("public", "orders")`; `table_id` is the database's identity of the table
    (PostgreSQL: OID); `key` holds indexes into `columns` and is empty for a table without a key; `source_schema` is the
    Avro record type of `Change.source`. With `plain` its changes have operation `m` and are written as rows without an
    envelope.
    """

    path: tuple[str, ...]
    table_id: int
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    source_schema: Mapping[str, Any] = field(hash=False)
    plain: PlainRecord | None = None

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in its order."""
        return tuple(self.columns[i] for i in self.key)

    @cached_property
    def value_indexes(self) -> tuple[int, ...]:
        """The indexes of the columns that a record's value holds."""
        left_out = self.key if self.plain is not None and not self.plain.of_key else ()
        return tuple(i for i in range(len(self.columns)) if i not in left_out)


class Position(NamedTuple):
    """The position of a record in its source: unique, increasing in commit order, the same in every replay.

    Envelopes, stored schemas and `_cdc_position` know its members as `commit_lsn`, `tx_index` and `tx_sub`.
    """

    commit: int
    """The transaction's commit as a number of at most 64 bits: its place in the source's log, such as an LSN, where the places of
    one log rise for ever, whichever server holds it; else a number that the source gives it and keeps in its position."""
    event: int
    """The index of the change in its transaction, from 0."""
    part: int
    """The index of the record among those that one change becomes, from 0."""


@dataclass(slots=True)
class Change:
    """One change of one table. `unchanged` holds the indexes of columns whose value the database did not send (TOAST).

    An update of the key becomes two changes, `d` (old key) and `c` (new key), with `other_key` set on both: the new key
    on the `d`, the old key on the `c`, each in the order of `Table.key`. `transaction` is Debezium's transaction block
    (`id`, `total_order`, `data_collection_order`), None without transaction metadata.
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
class EncodedRecords:
    """Records of one transaction, or of several that were committed at one time, that the source has encoded itself, each as arguments of
    `Producer.produce`: topic, value, key, partition, and further ones up to the headers if there are any.

    `bytes` is the total size of keys and values, `largest` that of the largest record (in `largest_topic`), `counts`
    the number of records by topic, `ts_ms` the commit time of their transactions, 0 for rows of a snapshot.
    """

    records: list[tuple[Any, ...]]
    bytes: int
    largest: int
    largest_topic: str
    counts: Mapping[str, int]
    ts_ms: int = 0


@dataclass(frozen=True, slots=True)
class PollBatch:
    """The result of one `poll`.

    `changes` may also hold encoded records, in their order among the changes. `position` is set when the batch ends
    between two source transactions: the JSON object from which the task can resume, which is committed in the same
    Kafka transaction (INV-2, INV-3). None: the source transaction continues. `part` is then a position inside it, which
    is used only when the transaction outgrows one Kafka transaction. `watermark` tells up to which source position all
    changes were delivered (`{"commit_lsn": …, "ts_ms": …}`). `idle`: no more changes are waiting, so that a commit now
    costs no throughput. `records` are no changes of tables; they are written unchanged, after the changes.
    """

    changes: Sequence[Change | EncodedRecords] = ()
    position: JsonObject | None = None
    watermark: JsonObject | None = None
    idle: bool = False
    records: Sequence[OutRecord] = ()
    part: JsonObject | None = None


class OutRecord(NamedTuple):
    """One encoded Kafka record. `hash` decides the partition, as its remainder by their number: the murmur2 hash of the unframed
    key, or the partition itself where a transform chose it; None for any partition."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    hash: int | None
