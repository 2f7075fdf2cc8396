"""The sink's bookkeeping inside the file: fence, offsets, floors and tombstones, in schema `_cdcworker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.table_batch import DeadLetter, SinkBatch, VisibleThrough
from cdcworker.connectors.sink_errors import FENCED
from cdcworker.connectors.warehouses.dead_letters import headers_text
from cdcworker.connectors.warehouses.duckdb.connection import Connection
from cdcworker.connectors.warehouses.sql.ledger import (
    LETTER,
    TOMBSTONE_DAYS_MAX,
    Epoch,
    Partition,
    is_fresh,
)
from cdcworker.schemas.errors import CdcError

SCHEMA: Final = "_cdcworker"
TABLES: Final = (
    """fence (sink varchar, task integer, task_epoch bigint not null, attempt bigint not null,
        written_at timestamptz not null, batches bigint not null, primary key (sink, task))""",
    """ledger (sink varchar, topic varchar, partition integer, next_offset bigint not null, applied blob,
        source_ts_ms bigint, batch bigint, task_epoch bigint not null, attempt bigint not null, written_at timestamptz not null,
        primary key (sink, topic, partition))""",
    "floor (sink varchar, topic varchar, position blob not null, primary key (sink, topic))",
    # Without an index: there may be many.
    """tombstone (sink varchar not null, topic varchar not null, key blob not null, position blob not null,
        row map(varchar, varchar), written_at timestamptz not null)""",
    """version_end (sink varchar not null, topic varchar not null, key blob not null, position blob not null,
        ended_at timestamptz not null, written_at timestamptz not null)""",
    "columns (sink varchar, topic varchar, colid integer, name varchar not null, primary key (sink, topic, colid))",
    """dead_letter (sink varchar, topic varchar, partition integer, "offset" bigint, code varchar not null,
        cause varchar not null, key blob, value blob, headers varchar, written_at timestamptz not null,
        primary key (sink, topic, partition, "offset"))""",
    """watermark (sink varchar, source varchar, position ubigint not null, committed_at timestamptz not null,
        left_out varchar[] not null, written_at timestamptz not null, primary key (sink, source))""",
    "topic (sink varchar, topic varchar, id varchar not null, primary key (sink, topic))",
    # No table has an index that would say what its key is.
    'table_key ("schema" varchar, "table" varchar, key varchar[] not null, primary key ("schema", "table"))',
)
_IS_THERE: Final = f"""select count(*) from duckdb_tables()
    where database_name = current_database() and schema_name = '{SCHEMA}' and table_name = 'table_key'"""


class DuckDbLedger:
    """Statements over the bookkeeping tables of one sink task; the caller owns the transactions."""

    def __init__(self, sink: str, task: int) -> None:
        self.sink = sink
        self.task = task
        self.epoch: Epoch = (0, 0)
        self._stamp: object = None
        self._touched = False

    def is_there(self, connection: Connection) -> bool:
        found = connection.one(_IS_THERE)
        return bool(found and found[0])

    def create(self, connection: Connection) -> None:
        if not self.is_there(connection):
            connection.do(f"create schema if not exists {SCHEMA}")
            for table in TABLES:
                connection.do(f"create table if not exists {SCHEMA}.{table}")

    def fence(self, connection: Connection, epoch: Epoch) -> None:
        """Raises the fence row to `epoch`; an equal one is ours from before."""
        found = connection.one(
            """insert into _cdcworker.fence as f (sink, task, task_epoch, attempt, written_at, batches)
               values (%s, %s, %s, %s, get_current_timestamp(), 0) on conflict (sink, task) do update
               set task_epoch = excluded.task_epoch, attempt = excluded.attempt, written_at = excluded.written_at
               where (f.task_epoch, f.attempt) <= (excluded.task_epoch, excluded.attempt) returning written_at""",
            (self.sink, self.task, *epoch),
        )
        if found is None:
            raise CdcError(FENCED, "the target's fence row holds a newer epoch", where={"sink": self.sink})
        self.epoch, self._stamp = epoch, found[0]

    def claim(self, connection: Connection, topics: list[str]) -> None:
        rows = connection.ask(
            "select topic, task_epoch, attempt from _cdcworker.ledger where sink = %s and list_contains(%s, topic)",
            (self.sink, topics),
        )
        newer = [topic for topic, *epoch in rows if tuple(epoch) > self.epoch]
        if newer:
            raise CdcError(FENCED, "a newer task applies this topic", where={"sink": self.sink, "topic": min(newer)})
        connection.do(
            """update _cdcworker.ledger set task_epoch = %s, attempt = %s
               where sink = %s and list_contains(%s, topic) and (task_epoch, attempt) < (%s, %s)""",
            (*self.epoch, self.sink, topics, *self.epoch),
        )

    def read(self, connection: Connection) -> dict[Partition, int]:
        rows = connection.ask(
            "select topic, partition, next_offset from _cdcworker.ledger where sink = %s", (self.sink,)
        )
        return {(topic, partition): offset for topic, partition, offset in rows}

    def topic_ids(self, connection: Connection) -> dict[str, str]:
        return dict(connection.ask("select topic, id from _cdcworker.topic where sink = %s", (self.sink,)))

    def know(self, connection: Connection, ids: Mapping[str, str]) -> None:
        for topic, id in ids.items():
            connection.do(
                """insert into _cdcworker.topic (sink, topic, id) values (%s, %s, %s)
                   on conflict (sink, topic) do update set id = excluded.id""",
                (self.sink, topic, id),
            )

    def forget_ids(self, connection: Connection, topics: Sequence[str] | None) -> None:
        """Forgets the ids of these topics, or of all: a person has altered their offsets."""
        connection.do(
            "delete from _cdcworker.topic where sink = %s and (%s or list_contains(%s, topic))",
            (self.sink, topics is None, list(topics or ())),
        )

    def floors(self, connection: Connection) -> dict[str, bytes]:
        return dict(connection.ask("select topic, position from _cdcworker.floor where sink = %s", (self.sink,)))

    def set_floor(self, connection: Connection, topic: str, position: bytes) -> None:
        connection.do(
            """insert into _cdcworker.floor as f (sink, topic, position) values (%s, %s, %s)
               on conflict (sink, topic) do update set position = greatest(f.position, excluded.position)""",
            (self.sink, topic, position),
        )

    def tombstones(self, connection: Connection) -> dict[str, bytes]:
        return dict(
            connection.ask(
                "select topic, max(position) from _cdcworker.tombstone where sink = %s group by topic", (self.sink,)
            )
        )

    # -- one batch ----------------------------------------------------------------------------------------------------

    def lock(self, connection: Connection, batch: SinkBatch) -> bool:
        """Compares fence and offsets. False: every offset of the batch has been applied before. Two sessions of one process that
        both do fail one another: each changes the fence row."""
        found = connection.one(
            """update _cdcworker.fence set batches = batches + 1 where sink = %s and task = %s
               returning task_epoch, attempt, written_at""",
            (self.sink, self.task),
        )
        if found is None or tuple(found[:2]) != self.epoch:
            raise CdcError(FENCED, "the target's fence row changed", where={"sink": self.sink, "task": self.task})
        self._touched, self._stamp = self._touched or found[2] != self._stamp, found[2]
        for (topic, partition), (first, _) in batch.offsets.items():
            connection.do(
                """insert into _cdcworker.ledger (sink, topic, partition, next_offset, task_epoch, attempt, written_at)
                   values (%s, %s, %s, %s, %s, %s, get_current_timestamp()) on conflict do nothing""",
                (self.sink, topic, partition, first, *self.epoch),
            )
        rows = connection.ask(
            """select topic, partition, next_offset, task_epoch, attempt from _cdcworker.ledger
               where sink = %s and list_contains(%s, topic) order by topic, partition""",
            (self.sink, sorted({topic for topic, _ in batch.offsets})),
        )
        return is_fresh(batch.offsets, [row for row in rows if (row[0], row[1]) in batch.offsets], self.epoch)

    def touched(self) -> bool:
        """Returns whether a re-drive has changed the tables since the last call: see `hold`."""
        found, self._touched = self._touched, False
        return found

    def hold(self, connection: Connection, topics: Sequence[str]) -> None:
        """Has every task of the sink know that its tables are changed; the open file keeps those of other processes away."""
        connection.do("update _cdcworker.fence set written_at = get_current_timestamp() where sink = %s", (self.sink,))

    def advance(self, connection: Connection, batch: SinkBatch) -> None:
        """Moves every partition of the batch to its end (INV-8: in the transaction that applies the rows)."""
        for (topic, partition), (_, end) in batch.offsets.items():
            position, ts = batch.applied.get((topic, partition), (None, None))
            connection.do(
                """update _cdcworker.ledger set next_offset = %s, applied = greatest(applied, %s),
                     source_ts_ms = coalesce(%s, source_ts_ms), batch = coalesce(batch, 0) + 1,
                     task_epoch = %s, attempt = %s, written_at = get_current_timestamp()
                   where sink = %s and topic = %s and partition = %s""",
                (end, position, ts, *self.epoch, self.sink, topic, partition),
            )

    def publish(self, connection: Connection, through: Mapping[str, VisibleThrough]) -> None:
        """Stores the watermark that readers see from this transaction on."""
        for source, mark in through.items():
            connection.do(
                """insert into _cdcworker.watermark as w (sink, source, position, committed_at, left_out, written_at)
                   values (%s, %s, %s, to_timestamp(%s), %s, get_current_timestamp())
                   on conflict (sink, source) do update set position = greatest(w.position, excluded.position),
                     committed_at = greatest(w.committed_at, excluded.committed_at), left_out = excluded.left_out,
                     written_at = excluded.written_at""",
                (self.sink, source, mark.position, mark.ts_ms / 1000, list(mark.left_out)),
            )

    def through(self, connection: Connection) -> dict[str, int]:
        return dict(connection.ask("select source, position from _cdcworker.watermark where sink = %s", (self.sink,)))

    def applied(self, connection: Connection) -> dict[str, bytes]:
        return dict(
            connection.ask(
                """select topic, max(applied) from _cdcworker.ledger
                   where sink = %s and applied is not null group by topic""",
                (self.sink,),
            )
        )

    # -- dead letters and tombstones ----------------------------------------------------------------------------------

    def add_dead_letters(self, connection: Connection, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            values: tuple[Any, ...] = tuple(getattr(letter, name) for name in LETTER)
            connection.do(
                """insert into _cdcworker.dead_letter
                   (sink, topic, partition, "offset", code, cause, key, value, headers, written_at)
                   values (%s, %s, %s, %s, %s, %s, %s, %s, %s, get_current_timestamp()) on conflict do nothing""",
                (self.sink, *values, headers_text(letter.headers)),
            )

    def forget_letters(self, connection: Connection) -> None:
        """Deletes dead letters behind the ledger's offsets: their records are read once more, and set aside again or not."""
        connection.do(
            """delete from _cdcworker.dead_letter d where d.sink = %s and not exists (
                 select 1 from _cdcworker.ledger l where l.sink = d.sink and l.topic = d.topic
                 and l.partition = d.partition and l.next_offset > d."offset")""",
            (self.sink,),
        )

    def prune(self, connection: Connection) -> None:
        """Drops tombstones and ends that no row still to come can be older than; a dead letter that is sent again may be. Those
        without a key are of the whole table, and stay."""
        for table in ("tombstone", "version_end"):
            connection.do(
                f"""delete from _cdcworker.{table} t where t.sink = %s and octet_length(t.key) > 0
                    and not exists (select 1 from _cdcworker.dead_letter d where d.sink = t.sink and d.topic = t.topic)
                    and (t.written_at < get_current_timestamp() - to_days(%s) or not exists (
                      select 1 from _cdcworker.ledger l where l.sink = t.sink and l.topic = t.topic
                      and (l.applied is null or l.applied <= t.position)))""",
                (self.sink, TOMBSTONE_DAYS_MAX),
            )
