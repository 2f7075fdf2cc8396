"""A target that takes records: one method, and what a target may be able to do besides. The engine does the rest: reading,
converting, transforms, batches, retries, dead letters, offsets, metrics.

Any class with `write` is a target. Its abilities are asked by isinstance of the Protocols below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from cdcworker.connectors.transforms.data import ConnectSchema, Header
from cdcworker.schemas.errors import CdcError


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """One record, as the converters have read it and the transforms have left it."""

    id: str
    """The same for a record whenever it is written again, and for no other record: the id of its topic, its partition and its
    offset. A target that remembers ids takes a record once."""
    topic: str
    """As the transforms say; `id` is of the topic that was read."""
    partition: int
    offset: int
    timestamp_ms: int
    key_schema: ConnectSchema | None = None
    key: Any = None
    value_schema: ConnectSchema | None = None
    value: Any = None
    """None: a tombstone."""
    headers: Sequence[Header] = ()
    unsent: Sequence[str] = ()
    """Names of the row's columns, as they were before the transforms, whose values the source did not send: they are stored beside
    the row and did not change."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records in the order in which they are to be written: that of each partition."""

    records: Sequence[TargetRecord]


class TargetUnavailable(CdcError):
    """The target does not take the batch now. It is written again, after `retry_after_s` where the target has said when."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        where: Mapping[str, str | int] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message, where=where)
        self.retry_after_s = retry_after_s


class RecordTarget(Protocol):
    """A target of records. Each object is used by one thread at a time, but for `cancel`."""

    def write(self, batch: RecordBatch) -> None:
        """Writes a batch; once it returns, the batch stays whatever dies. It may come again, whole or in other pieces.

        Raises CdcError. Of kind `transient`: the batch is written again later (`TargetUnavailable` says when). Of kind `data`:
        it holds a record that the target will never take; the engine writes smaller batches until it knows which one, and
        that one is a dead letter. Any other kind halts the task.
        """


@dataclass(frozen=True, slots=True)
class TargetPlace:
    """What a target is made from: the parsed values of its keys, and where it may leave files."""

    config: Mapping[str, Any]
    connector_class: str = ""
    """As the config spells it: a name of another product's connector may stand for that one's defaults."""
    file_roots: Sequence[str] = ()
    state_dir: str = ""
    connector: str = ""
    """Its name; empty where nothing is to be written."""
    epoch: tuple[int, int] = (0, 0)
    """Task epoch and attempt of who writes, for a target that keeps what it has taken: a higher one is a newer owner's."""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties of the Kafka that is read, for a target that asks how its topics are made."""
    writer: str = ""
    """What every owner of the task is called, and nobody else: a transactional id."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages as Kafka's client returns them, in the order in which they are to be written, each with what its record's id begins
    with: the id of its topic."""

    messages: Sequence[Any]
    ids: Sequence[str]
    record_of: Callable[[Any, str], TargetRecord]
    """Makes the record of a message; the second argument is what the id begins with. Raises CdcError."""
    schema_of: Callable[[int], Any]
    """Returns the Avro schema of an id. Raises CdcError."""


@dataclass(frozen=True, slots=True)
class WrittenMessages:
    """What was written of messages: how many records; when their changes were committed in the source, in ms, and how many at each
    time; and by topic the time of a change that is in the target now."""

    records: int
    moments: Mapping[int, int]
    newest: Mapping[str, int]


@runtime_checkable
class WritesMessages(Protocol):
    """A target that can read what the topics hold by itself, in a faster way than record by record. It is asked where a config has
    no transforms, and its topics are Avro or are not read as anything."""

    def write_messages(self, batch: MessageBatch) -> WrittenMessages | None:
        """Writes a batch as `write` does, or returns None and has written nothing: then, and after a CdcError of kind `data`, the
        same batch comes as records."""


@runtime_checkable
class CancelsWrites(Protocol):
    """A target whose `write` can be broken off from another thread. Without it a write that takes too long ends the task."""

    def cancel(self) -> None:
        """Makes a `write` that runs now raise soon."""
