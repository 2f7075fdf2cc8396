"""The sink's bookkeeping inside a PostgreSQL target: fence, offsets, floors and tombstones, in schema `_cdcworker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import DeadLetter, SinkBatch, VisibleThrough
from cdcworker.connectors.sink_errors import FENCED
from cdcworker.connectors.warehouses.dead_letters import headers_text
from cdcworker.connectors.warehouses.sql.ledger import (
    LETTER,
    TOMBSTONE_DAYS_MAX,
    Epoch,
    Partition,
    is_fresh,
)
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_LOCK = 0x636463776F726B  # "cdcwork": one creator at a time
SCHEMA = "create schema _cdcworker"
DDL = (
    """create table if not exists _cdcworker.fence (
        sink text, task int, task_epoch bigint not null, attempt bigint not null, at timestamptz not null,
        primary key (sink, task))""",
    """create table if not exists _cdcworker.ledger (
        sink text, topic text, partition int, next_offset bigint not null, applied bytea, source_ts_ms bigint,
        batch bigint, task_epoch bigint not null, attempt bigint not null, at timestamptz not null,
        primary key (sink, topic, partition)) with (fillfactor = 50)""",
    """create table if not exists _cdcworker.floor (
        sink text, topic text, position bytea not null, primary key (sink, topic))""",
    """create table if not exists _cdcworker.tombstone (
        sink text, topic text, key bytea, position bytea not null, row jsonb, at timestamptz not null default now(),
        primary key (sink, topic, key))""",
    """create table if not exists _cdcworker.columns (
        sink text, topic text, colid int, name text not null, primary key (sink, topic, colid))""",
    """create table if not exists _cdcworker.dead_letter (
        sink text, topic text, partition int, "offset" bigint, code text not null, cause text not null,
        key bytea, value bytea, at timestamptz not null default now(), primary key (sink, topic, partition, "offset"))""",
    """create table if not exists _cdcworker.watermark (
        sink text, source text, position pg_lsn not null, committed_at timestamptz not null, left_out text[] not null,
        at timestamptz not null, primary key (sink, source))""",
    "alter table _cdcworker.dead_letter add column if not exists headers jsonb",
    """create table if not exists _cdcworker.topic (
        sink text, topic text, id text not null, primary key (sink, topic))""",
)
NEWEST = "select to_regclass('_cdcworker.topic') is not null"
"""Where it is, all of them are."""
PRUNE = {
    table: f"""delete from _cdcworker.{table} t where t.sink = %(sink)s and t.key <> ''
        and not exists (select from _cdcworker.dead_letter d where d.sink = t.sink and d.topic = t.topic) and (
          t.at < now() - make_interval(days => %(days)s) or not exists (
            select from _cdcworker.ledger l
            where l.sink = t.sink and l.topic = t.topic and (l.applied is null or l.applied <= t.position)))"""
    for table in ("tombstone", "version_end")
}


class PostgresLedger:
    """Statements over the bookkeeping tables of one sink task; the caller owns the transactions."""

    def __init__(self, sink: str, task: int) -> None:
        self.sink = sink
        self.task = task
        self.epoch: Epoch = (0, 0)
        self._stamp: object = None
        self._touched = False

    def is_there(self, connection: Connection) -> bool:
        """Returns whether there is a ledger, which an older version may have made without the newest tables."""
        found = connection.execute("select to_regclass('_cdcworker.ledger')").fetchone()
        return bool(found and found[0])

    def create(self, connection: Connection) -> None:
        found = connection.execute(NEWEST).fetchone()
        if found and found[0]:
            return
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        schema = connection.execute("select to_regnamespace('_cdcworker')").fetchone()
        if not schema or not schema[0]:
            # With IF NOT EXISTS it would need the right to create schemas although there is nothing to create.
            connection.execute(SCHEMA)
        for statement in DDL:
            connection.execute(statement)

    def fence(self, connection: Connection, epoch: Epoch) -> None:
        """Raise the fence row to `epoch`; an equal one is ours from before."""
        found = connection.execute(
            """insert into _cdcworker.fence as f (sink, task, task_epoch, attempt, at)
               values (%s, %s, %s, %s, now())
               on conflict (sink, task) do update
               set task_epoch = excluded.task_epoch, attempt = excluded.attempt, at = excluded.at
               where (f.task_epoch, f.attempt) <= (excluded.task_epoch, excluded.attempt)
               returning at""",
            (self.sink, self.task, *epoch),
        ).fetchone()
        if found is None:
            raise CdcError(FENCED, "the target's fence row holds a newer epoch", where={"sink": self.sink})
        self.epoch, self._stamp = epoch, found[0]

    def claim(self, connection: Connection, topics: list[str]) -> None:
        """Take over the ledger rows of the topics, so that a task that had them before another split stops."""
        found = connection.execute(
            """select topic from _cdcworker.ledger
               where sink = %s and topic = any(%s) and (task_epoch, attempt) > (%s, %s) limit 1 for update""",
            (self.sink, topics, *self.epoch),
        ).fetchone()
        if found is not None:
            raise CdcError(FENCED, "a newer task applies this topic", where={"sink": self.sink, "topic": found[0]})
        connection.execute(
            """update _cdcworker.ledger set task_epoch = %s, attempt = %s
               where sink = %s and topic = any(%s) and (task_epoch, attempt) < (%s, %s)""",
            (*self.epoch, self.sink, topics, *self.epoch),
        )

    def read(self, connection: Connection) -> dict[Partition, int]:
        rows = connection.execute(
            "select topic, partition, next_offset from _cdcworker.ledger where sink = %s", (self.sink,)
        ).fetchall()
        return {(topic, partition): offset for topic, partition, offset in rows}

    def topic_ids(self, connection: Connection) -> dict[str, str]:
        """Returns, by topic, the id of the Kafka topic that the offsets belong to, where it is known."""
        return dict(
            connection.execute("select topic, id from _cdcworker.topic where sink = %s", (self.sink,)).fetchall()
        )

    def know(self, connection: Connection, ids: Mapping[str, str]) -> None:
        connection.execute(
            """insert into _cdcworker.topic as t (sink, topic, id) select %s, * from unnest(%s::text[], %s::text[])
               on conflict (sink, topic) do update set id = excluded.id where t.id <> excluded.id""",
            (self.sink, list(ids), list(ids.values())),
        )

    def forget_ids(self, connection: Connection, topics: Sequence[str] | None) -> None:
        """Forgets the ids of these topics, or of all: a person has altered their offsets."""
        connection.execute(
            "delete from _cdcworker.topic where sink = %s and (%s::text[] is null or topic = any(%s))",
            (self.sink, *[None if topics is None else list(topics)] * 2),
        )

    def floors(self, connection: Connection) -> dict[str, bytes]:
        rows = connection.execute("select topic, position from _cdcworker.floor where sink = %s", (self.sink,))
        return {topic: bytes(position) for topic, position in rows}

    def tombstones(self, connection: Connection) -> dict[str, bytes]:
        """Returns the highest position of the tombstones of each topic that has any."""
        rows = connection.execute(
            """select topic, max(encode(position, 'hex') collate "C") from _cdcworker.tombstone
               where sink = %s group by topic""",
            (self.sink,),
        )
        return {topic: bytes.fromhex(position) for topic, position in rows}

    def lock(self, connection: Connection, batch: SinkBatch) -> bool:
        """Lock and compare fence and offsets. False: every offset of the batch has been applied before."""
        found = connection.execute(
            "select task_epoch, attempt, at from _cdcworker.fence where sink = %s and task = %s for share",
            (self.sink, self.task),
        ).fetchone()
        if found is None or tuple(found[:2]) != self.epoch:
            raise CdcError(FENCED, "the target's fence row changed", where={"sink": self.sink, "task": self.task})
        self._touched, self._stamp = self._touched or found[2] != self._stamp, found[2]
        topics = [topic for topic, _ in batch.offsets]
        partitions = [partition for _, partition in batch.offsets]
        firsts = [first for first, _ in batch.offsets.values()]
        connection.execute(
            """insert into _cdcworker.ledger (sink, topic, partition, next_offset, task_epoch, attempt, at)
               select %s, *, %s, %s, now() from unnest(%s::text[], %s::int[], %s::bigint[]) on conflict do nothing""",
            (self.sink, *self.epoch, topics, partitions, firsts),
        )
        rows = connection.execute(
            """select l.topic, l.partition, l.next_offset, l.task_epoch, l.attempt from _cdcworker.ledger l
               join unnest(%s::text[], %s::int[]) b (topic, partition) using (topic, partition)
               where l.sink = %s order by l.topic, l.partition for update of l""",
            (topics, partitions, self.sink),
        ).fetchall()
        return is_fresh(batch.offsets, rows, self.epoch)

    def touched(self) -> bool:
        """Returns whether a re-drive has changed the tables since the last call: see `hold`."""
        found, self._touched = self._touched, False
        return found

    def hold(self, connection: Connection, topics: Sequence[str]) -> None:
        """Keep every task of the sink from applying batches until this transaction ends, and have it know of that."""
        connection.execute(
            "select 1 from _cdcworker.fence where sink = %s order by task for update", (self.sink,)
        ).fetchall()
        connection.execute(
            """select 1 from _cdcworker.ledger where sink = %s and topic = any(%s)
               order by topic, partition for update""",
            (self.sink, list(topics)),
        ).fetchall()
        connection.execute("update _cdcworker.fence set at = clock_timestamp() where sink = %s", (self.sink,))

    def advance(self, connection: Connection, batch: SinkBatch) -> None:
        """Move every partition of the batch to its end (INV-8: in the transaction that applies the rows)."""
        rows = [(topic, partition, end) for (topic, partition), (_, end) in batch.offsets.items()]
        seen = [batch.applied.get((topic, partition), (None, None)) for topic, partition, _ in rows]
        connection.execute(
            """update _cdcworker.ledger l set next_offset = b.next_offset,
                 applied = greatest(l.applied, b.applied), source_ts_ms = coalesce(b.ts, l.source_ts_ms),
                 batch = coalesce(l.batch, 0) + 1, task_epoch = %s, attempt = %s, at = clock_timestamp()
               from unnest(%s::text[], %s::int[], %s::bigint[], %s::bytea[], %s::bigint[])
                    b (topic, partition, next_offset, applied, ts)
               where l.sink = %s and l.topic = b.topic and l.partition = b.partition""",
            (
                *self.epoch,
                *([row[i] for row in rows] for i in range(3)),
                [position for position, _ in seen],
                [ts for _, ts in seen],
                self.sink,
            ),
        )

    def publish(self, connection: Connection, through: Mapping[str, VisibleThrough]) -> None:
        """Stores the watermark that readers see from this transaction on."""
        with connection.cursor() as cursor:
            cursor.executemany(
                """insert into _cdcworker.watermark as w (sink, source, position, committed_at, left_out, at)
                   values (%s, %s, '0/0'::pg_lsn + %s, to_timestamp(%s::bigint / 1000.0), %s, clock_timestamp())
                   on conflict (sink, source) do update
                   set position = greatest(w.position, excluded.position), left_out = excluded.left_out,
                       committed_at = greatest(w.committed_at, excluded.committed_at), at = excluded.at""",
                [
                    (self.sink, source, mark.position, mark.ts_ms, list(mark.left_out))
                    for source, mark in through.items()
                ],
            )

    def through(self, connection: Connection) -> dict[str, int]:
        """Returns, by source, the position that was published last."""
        rows = connection.execute(
            "select source, (position - '0/0')::bigint from _cdcworker.watermark where sink = %s", (self.sink,)
        )
        return {source: int(position) for source, position in rows}

    def applied(self, connection: Connection) -> dict[str, bytes]:
        """Returns, by topic, the highest position that has been applied."""
        rows = connection.execute(
            """select distinct on (topic) topic, applied from _cdcworker.ledger
               where sink = %s and applied is not null order by topic, applied desc""",
            (self.sink,),
        )
        return {topic: bytes(position) for topic, position in rows}

    def add_dead_letters(self, connection: Connection, letters: Sequence[DeadLetter]) -> None:
        rows = [
            (self.sink, *(getattr(letter, name) for name in LETTER), headers_text(letter.headers)) for letter in letters
        ]
        with connection.cursor() as cursor:
            cursor.executemany(
                """insert into _cdcworker.dead_letter (sink, topic, partition, "offset", code, cause, key, value, headers)
                   values (%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb) on conflict do nothing""",
                rows,
            )

    def forget_letters(self, connection: Connection) -> None:
        """Deletes dead letters behind the ledger's offsets: their records are read once more, and set aside again or not."""
        connection.execute(
            """delete from _cdcworker.dead_letter d where d.sink = %s and not exists (
                 select from _cdcworker.ledger l where l.sink = d.sink and l.topic = d.topic
                 and l.partition = d.partition and l.next_offset > d."offset")""",
            (self.sink,),
        )

    def set_floor(self, connection: Connection, topic: str, position: bytes) -> None:
        connection.execute(
            """insert into _cdcworker.floor as f (sink, topic, position) values (%s, %s, %s)
               on conflict (sink, topic) do update set position = greatest(f.position, excluded.position)""",
            (self.sink, topic, position),
        )

    def prune(self, connection: Connection, table: str = "tombstone") -> int:
        """Drop tombstones that no row still to come can be older than; a dead letter that is sent again may be. Those without a
        key are of the whole table, and stay. `table`: another one that is like that of tombstones."""
        done = connection.execute(PRUNE[table], {"sink": self.sink, "days": TOMBSTONE_DAYS_MAX})
        return done.rowcount
