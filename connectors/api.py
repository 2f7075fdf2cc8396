"""The seams to the outside: what a source or a sink implements. Structural: nobody needs to inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from cdcworker.schemas.change import Batch, JsonObject

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.config import ConfigDef

Config = Mapping[str, str]
"""A connector's configuration as submitted: Kafka Connect's flat string map, secrets already resolved."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a live check, tied to the config key that causes it."""

    key: str
    severity: Literal["error", "warning", "note"]
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a task may know of its surroundings."""

    connector: str
    task: int
    task_epoch: int
    incarnation: str
    state_dir: str
    stopping: Callable[[], bool] = field(default=lambda: False)
    ending: Callable[[], bool] = field(default=lambda: False)
    """The task was told to end for good; while it is paused or tried again after an error this stays false."""
    report: Callable[[JsonObject], None] = field(default=lambda _: None)
    """Sends metrics or progress (a JSON object without row values) to the worker."""
    beat: Callable[[str, float], None] = field(default=lambda _doing, _allow_s: None)
    """Says that the task has made a step, what follows, and how many seconds longer than task.hang.timeout.ms that may
    take. A poll that returns is a step by itself; a task that makes none is killed and started again."""
    jobs: Callable[[], Sequence[JsonObject]] = field(default=lambda: ())
    """What the task is asked to do beside its usual work and has not ended: `id`, `kind`, `wanted` (RUNNING, PAUSED,
    CANCELLED), `spec`, and `own` (false: the task began it by itself). The same object until something changes; how far
    each has come is reported under `jobs`."""
    file_roots: tuple[str, ...] = ()
    """Folders in which connectors may read and write files."""
    record_bytes_max: int = 0
    """What the Kafka client sends at most in one record; 0: not known."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a task tells its next opening in this process; with none of it that one finds out by itself."""
    group: str = ""
    """The cluster's group.id: with the connector's name and the task's number it says who this is."""


class SourceTask(Protocol):
    """Reads one share of a source. Called from one thread; must look at `context.stopping` in long waits.

    A task may also have `lend(shaper: Shaper)`: called after `open` where it may write records itself and hand them on
    as `Ready` among its changes.
    A task that can leave out single tables also has `holds(error) -> bool`, which says whether the table that an error
    of kind `data` names may be left out, and `hold(troubles: Mapping[str, CdcError])`, called before `open` with such
    tables; from then on they are part of its position.
    """

    def open(self, position: JsonObject | None) -> None:
        """Connect and stand at `position` (None: never ran). Raises CdcError; halts rather than skips."""

    def poll(self) -> Batch:
        """The next changes, waiting at most about 100 ms; an empty idle batch when there are none."""

    def ack(self, position: JsonObject) -> None:
        """`position` has been committed to Kafka: only now may the source be told (INV-1)."""

    def close(self) -> None:
        """Let go of everything, also after an error; never raises."""


class SourceConnector(Protocol):
    """One configured source. Construction validates nothing beyond types and opens nothing.

    A source may also have `partition(task) -> Mapping[str, str | int]`: the source partition, as Kafka Connect's, under
    which a task's position is stored; without it that is `{"server": topic.prefix, "task": n}`.
    """

    config_def: ClassVar[ConfigDef]

    def split(self, tasks_max: int) -> Sequence[Config]:
        """Task configs, at most `tasks_max`. Pure and quick: no I/O."""

    def task(self, share: Config, context: TaskContext) -> SourceTask: ...

    def check(self) -> Sequence[Finding]:
        """Live checks of the outside (reachable, grants, settings). Runs in a child process with a time limit."""


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """All that a sink task needs to run: what to read, where to write, under which epoch."""

    connector: str
    task: int
    incarnation: str
    epoch: tuple[int, int]
    """(task epoch, attempt): compared in order; a higher one in the target's fence row means stop."""
    topics: tuple[str, ...]
    kafka: Mapping[str, str]
    """librdkafka-style client properties; the driver translates them for the JVM."""
    schema_topic: str
    config: Config
    state_dir: str
    java_home: str = ""
    """The Java runtime that the worker found; empty: the sink looks for one itself."""
    jars: tuple[str, ...] = ()
    """Files for the driver's class path, fetched and verified by the worker."""
    cache_dir: str = ""
    """Where what was made from them may be kept; empty: nowhere."""
    consumer: Mapping[str, Any] = field(default_factory=dict)
    """The same as `kafka`, ready for a confluent-kafka consumer of committed records without a group."""


SinkOffsets = Mapping[tuple[str, int], int | None]
"""The next offset per (topic, partition); in a change None forgets the partition."""


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Whose ledger is looked at or altered, and with which right."""

    connector: str
    epoch: tuple[int, int] = (0, 0)
    """Higher than that of any task that may still run, lower than that of any task to come: a task with a lower one
    stops before its next batch; where a higher one is found, the connector runs again and nothing is altered."""
    file_roots: tuple[str, ...] = ()
    machine: Callable[[], tuple[str, Sequence[str]]] = field(default=lambda: ("", ()))
    """For a ledger that only a JVM can reach: the home of Java, and the libraries that the connector names."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Client properties, where something of the sink may be kept there too."""


@dataclass(frozen=True, slots=True)
class LettersAsked:
    """Which dead letters are meant, all of them by default, and what decoding them takes."""

    topic: str = ""
    after: tuple[str, int, int] = ("", -1, -1)
    """Topic, partition and offset of the last one that is not meant."""
    limit: int = 100
    seconds: float = 20.0
    dry_run: bool = False
    kafka: Mapping[str, str] = field(default_factory=dict)
    schema_topic: str = ""


class SinkConnector(Protocol):
    """One configured sink. One that runs in a JVM names in an attribute `jars` the sets that the worker fetches, joined by
    a plus.

    A sink may also have `offsets(place) -> SinkOffsets`, what its ledger holds, and `alter_offsets(place, changes)`,
    which changes it in one step (`changes` None: all is forgotten). Both run in a child process with a time limit. So
    does `trace(place, change) -> Mapping`, which says what the target knows of one change: `next_offset` of its
    partition, and where that is known `batch`, `at_ms`, `dead` (a code), `row` (this, newer, older, absent).
    One that keeps dead letters may have `dead_letters(place, asked) -> Mapping`: `total`, and `letters` without what is
    in them; and `redrive(place, asked) -> Mapping`, which applies them again: `redriven`, `rows`, `failed`, `left`,
    `causes`, and in `next` where it stopped when its time was over.
    """

    config_def: ClassVar[ConfigDef]

    def split(self, tasks_max: int, topics: Sequence[str]) -> Sequence[Config]:
        """Task configs, each naming its `topics`. Pure: `topics` are those that exist (for `topics.regex`)."""

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        """Run until `context.stopping()`; raises CdcError. Called in the task's own process."""

    def check(self) -> Sequence[Finding]: ...


RESERVED = "_cdc_"
"""How the names of a sink's columns begin, in tables and on the way there, but for those that a config names."""
POSITION = "_cdc_position"
"""Column of 16 bytes, big-endian: commit LSN (8), index in the transaction (4), index in the change (4)."""
KEY = "_cdc_key"
"""Column of batches: the encoded key, one text of bytes per key."""
OP = "_cdc_op"
"""Column of append tables: the operation."""
UNCHANGED = "_cdc_unchanged"
"""Column of change logs: the columns that the change did not bring, separated by commas."""
DELETED = "_cdc_deleted"
"""Column of tables whose deleted rows stay: true for those."""


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
class Through:
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
    through: Mapping[str, Through] = field(default_factory=dict)
    """By source: what holds once this batch is applied."""
    moments: Mapping[str, Sequence[tuple[Any, Any]]] = field(default_factory=dict)
    """By topic, when its changes were committed in the source: pairs of arrays, a time in ms and how many changes."""


@dataclass(frozen=True, slots=True)
class TargetRows:
    """A table of the target as one reader sees it at one moment: `applied` is the highest position per partition of its
    topic that these rows hold, `batches` are Arrow record batches of all rows, each of which may be read once."""

    name: str
    key: tuple[str, ...]
    applied: Mapping[int, bytes]
    batches: Iterator[pa.RecordBatch]
    close: Callable[[], None] = field(default=lambda: None)
    """To be called when the rows are read, or no longer wanted."""


class TableWriter(Protocol):
    """A warehouse. Takes Arrow; one thread at a time calls it, but for `cancel`.

    One that works through Spark also has `attach(session, step)`, called before all else, and again with each new process:
    `session()` waits for it, and `step(doing)` says that a table of many begins or is done with, and which are under way.
    One whose ledger lies with its tables has `expect(topics)`, called before `fence`: these tables were there before.
    """

    def fence(self, epoch: tuple[int, int]) -> None:
        """Raise the fence in a committed step; CdcError of kind `fenced` if a higher one is there."""

    def claim(self, topics: Sequence[str]) -> None:
        """Fence off whoever applied these topics before under another task number."""

    def ledger(self) -> Mapping[tuple[str, int], int]:
        """Next offset per (topic, partition), read after `fence` and `claim`."""

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]:
        """Rows and ledger in one step of the target, or one per table where it knows no larger ones (INV-8). Returns
        counts: rows, changes, orphans, tables (changes by name), replayed (all of it had been applied before)."""

    # A warehouse that can show several tables change at one moment also has `apply_all(batches) -> counts`, which does in
    # one step what `apply` does for each, and `through() -> {source: position}`, the last ones that it was told.

    def rows(self, topic: str) -> TargetRows | None:
        """What a reader sees of a topic's table; None: there is no such table yet."""

    def cancel(self) -> None:
        """Break off what `apply` does in another thread, if that can be."""

    def close(self) -> None: ...
