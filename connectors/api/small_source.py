"""A small source: it names its tables and reads what follows a cursor. The engine does the rest: positions, batches,
transactions, schemas, retries, metrics.

Any class with `tables` and `read` is a small source. What it may be able to do besides is in `opened`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cdcworker.schemas.change import Avro, JsonObject

FieldType = Literal["string", "int64", "float64", "boolean", "bytes", "timestamp", "json"]
"""What a field holds: `str`, `int`, `float`, `bool`, `bytes`, a `datetime` with a zone, or any value that JSON has."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """The type of a field whose values are as Avro writes them: of a source that knows its types as exactly as this. `avro` is the
    schema with Connect's attributes; whether it may be null follows from the table's key."""

    avro: Avro


RowOp = Literal["c", "u", "d", "r"]
"""What has happened to a row: it was made, it is as it is now (whether it was there before is not known), it is gone, or it was
there when everything was read for the first time."""


@dataclass(frozen=True, slots=True)
class SourceField:
    """One field of a table's rows. A field that is no part of the key may be null."""

    name: str
    type: FieldType | AvroType = "string"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One table: its records go to the topic `<topic.prefix>.<plugin>.<name>`. `key` names the fields that tell its rows apart;
    without one each record stands for itself, and none can be deleted."""

    name: str
    fields: Sequence[SourceField]
    key: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A change of one row. A field that the row does not name is null. Of a deleted row the key is enough."""

    table: str
    row: Mapping[str, Any] = field(repr=False)
    op: RowOp = "u"


@dataclass(frozen=True, slots=True)
class SourcePage:
    """What one call of `read` has found."""

    records: Sequence[SourceRecord]
    cursor: JsonObject
    """Where the next call goes on. It is stored in the same Kafka transaction as the records, and comes back after a restart."""
    more: bool = False
    """Whether more is waiting: then `read` is called again at once, else after `poll.interval.ms`."""
    wait_s: float | None = None
    """How long to wait before the next call, where the source says so."""


class SmallSource(Protocol):
    """A source that is asked again and again. Each object is used by one thread."""

    def tables(self) -> Sequence[SourceTable]:
        """Returns the tables that `read` has records of. Called once, before the first `read`. May ask the source."""

    def read(self, cursor: JsonObject | None) -> SourcePage:
        """Returns what follows a cursor that an earlier call returned; None: nothing was ever stored.

        After a crash it is called with the last cursor that was stored, and whatever it returned after that one never reached a
        reader. Raises `Unavailable` to be called again later, `Misconfigured` to halt the task.
        """


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """What a small source is made from: the parsed values of its keys, and what it may know of its surroundings."""

    config: Mapping[str, Any]
    file_roots: Sequence[str] = ()
    """Folders in which it may read files."""
    state_dir: str = ""
    stopping: Callable[[], bool] = field(default=lambda: False)
    """Whether the task is to end: a `read` that takes long looks at it."""
