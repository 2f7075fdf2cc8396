"""The sink's bookkeeping inside a MySQL target: fence, offsets, floors and tombstones, in the database `_cdcworker`."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import DeadLetter, SinkBatch, VisibleThrough
from cdcworker.connectors.sink_errors import FENCED, TARGET_LOCKED
from cdcworker.connectors.warehouses.dead_letters import headers_text
from cdcworker.connectors.warehouses.mysql import version_statements
from cdcworker.connectors.warehouses.mysql.connection import BOOKKEEPING, enter
from cdcworker.connectors.warehouses.mysql.statements import binary
from cdcworker.connectors.warehouses.sql.ledger import (
    LETTER,
    TOMBSTONE_DAYS_MAX,
    Epoch,
    Partition,
    is_fresh,
)
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

LOCK_S: Final = 30
"""How long one waits for another who alters tables for the same sink."""
_NAMES: Final = "sink varchar(255) not null, topic varchar(255) not null"
TABLES: Final = (
    """fence (sink varchar(255) not null, task int not null, task_epoch bigint not null, attempt bigint not null,
        at datetime(6) not null, primary key (sink, task))""",
    f"""ledger ({_NAMES}, `partition` int not null, next_offset bigint not null, applied varbinary(16),
        source_ts_ms bigint, batch bigint, task_epoch bigint not null, attempt bigint not null, at datetime(6) not null,
        primary key (sink, topic, `partition`))""",
    f"floor ({_NAMES}, position varbinary(16) not null, primary key (sink, topic))",
    f"""tombstone ({_NAMES}, `key` binary(32) not null, position varbinary(16) not null, `row` longtext,
        at datetime(6) not null default current_timestamp(6), primary key (sink, topic, `key`))""",
    f"columns ({_NAMES}, colid int not null, name varchar(64) not null, primary key (sink, topic, colid))",
    f"column_change ({_NAMES}, columns_then longtext not null, names_then longtext not null, primary key (sink, topic))",
    f"""dead_letter ({_NAMES}, `partition` int not null, `offset` bigint not null, code varchar(255) not null,
        cause longtext not null, `key` longblob, value longblob, headers longtext,
        at datetime(6) not null default current_timestamp(6), primary key (sink, topic, `partition`, `offset`))""",
    """watermark (sink varchar(255) not null, source varchar(255) not null, position bigint unsigned not null,
        committed_at datetime(6) not null, left_out longtext not null, at datetime(6) not null, primary key (sink, source))""",
    f"topic ({_NAMES}, id varchar(64) not null, primary key (sink, topic))",
)
NEWEST: Final = (
    "select count(*) from information_schema.tables where table_schema = '_cdcworker' and table_name = 'topic'"
)
"""Where it is, all of them are."""


class MySqlLedger:
    """Statements over the bookkeeping tables of one sink task; the caller owns the transactions."""

    def __init__(self, sink: str, task: int) -> None:
        self.sink = sink
        self.task = task
        self.epoch: Epoch = (0, 0)
        self._stamp: object = None
        self._touched = False

    def is_there(self, connection: MySqlConnection) -> bool:
        """Returns whether the bookkeeping has been made."""
        found = connection.one(NEWEST)
        return bool(found and found[0])

    def create(self, connection: MySqlConnection) -> None:
        """Makes the bookkeeping where it is not; outside of transactions, which a CREATE ends."""
        if self.is_there(connection):
            return
        found = connection.one(f"select count(*) from information_schema.schemata where schema_name = '{BOOKKEEPING}'")
        if not found or not found[0]:
            # With IF NOT EXISTS it would need the right to create databases although there is nothing to create.
            connection.do(f"create database if not exists {BOOKKEEPING}")
        enter(connection)
        form = (
            f"engine = InnoDB row_format = dynamic default character set utf8mb4 collate {connection.server.collation}"
        )
        for table in TABLES:
            connection.do(f"create table if not exists {BOOKKEEPING}.{table} {form}")

    def create_ends(self, connection: MySqlConnection) -> None:
        """Makes the table of remembered ends, which sinks that keep versions have, where it is not; outside of transactions."""
        found = connection.one(
            "select count(*) from information_schema.tables where table_schema = %s and table_name = %s",
            (BOOKKEEPING, version_statements.TABLE),
        )
        if not found or not found[0]:
            form = f"engine = InnoDB row_format = dynamic default character set utf8mb4 collate {connection.server.collation}"
            connection.do(f"create table if not exists {BOOKKEEPING}.{version_statements.DEFINITION} {form}")

    @contextlib.contextmanager
    def altering(self, connection: MySqlConnection) -> Iterator[None]:
        """Around what alters tables, which no transaction can hold: nobody else does for this sink, and no task whose fence was
        raised begins to. CdcError of kind `fenced` for such a one."""
        name = hashlib.sha256(f"cdcworker\0{self.sink}".encode()).hexdigest()
        found = connection.one("select get_lock(%s, %s)", (name, LOCK_S))
        if not found or found[0] != 1:
            raise CdcError(TARGET_LOCKED, "another task of the sink alters tables", where={"sink": self.sink})
        try:
            yield
        finally:
            connection.do("do release_lock(%s)", (name,))

    def check_fence(self, connection: MySqlConnection) -> None:
        """CdcError of kind `fenced` where a newer task has raised the fence."""
        found = connection.one(
            "select task_epoch, attempt from _cdcworker.fence where sink = %s and task = %s", (self.sink, self.task)
        )
        if found is None or tuple(found) != self.epoch:
            raise CdcError(FENCED, "the target's fence row changed", where={"sink": self.sink, "task": self.task})

    def fence(self, connection: MySqlConnection, epoch: Epoch) -> None:
        """Raise the fence row to `epoch`; an equal one is ours from before."""
        place = (self.sink, self.task)
        connection.do(
            """insert into _cdcworker.fence (sink, task, task_epoch, attempt, at) values (%s, %s, 0, 0, now(6))
               on duplicate key update task = task""",
            place,
        )
        where = "where sink = %s and task = %s"
        found = connection.one(f"select task_epoch, attempt from _cdcworker.fence {where} for update", place)
        if found is None or tuple(found) > epoch:
            raise CdcError(FENCED, "the target's fence row holds a newer epoch", where={"sink": self.sink})
        connection.do(
            f"update _cdcworker.fence set task_epoch = %s, attempt = %s, at = {_LATER} {where}", (*epoch, *place)
        )
        row = connection.one(f"select at from _cdcworker.fence {where}", place)
        self.epoch, self._stamp = epoch, row and row[0]

    def claim(self, connection: MySqlConnection, topics: Sequence[str]) -> None:
        """Take over the ledger rows of the topics, so that a task that had them before another split stops."""
        if not topics:
            return
        rows = connection.ask(
            f"""select topic, task_epoch, attempt from _cdcworker.ledger
               where sink = %s and topic in ({_marks(topics)}) order by topic, `partition` for update""",
            (self.sink, *topics),
        )
        newer = [topic for topic, *epoch in rows if tuple(epoch) > self.epoch]
        if newer:
            raise CdcError(FENCED, "a newer task applies this topic", where={"sink": self.sink, "topic": newer[0]})
        connection.do(
            f"update _cdcworker.ledger set task_epoch = %s, attempt = %s where sink = %s and topic in ({_marks(topics)})",
            (*self.epoch, self.sink, *topics),
        )

    def read(self, connection: MySqlConnection) -> dict[Partition, int]:
        rows = connection.ask(
            "select topic, `partition`, next_offset from _cdcworker.ledger where sink = %s", (self.sink,)
        )
        return {(topic, partition): offset for topic, partition, offset in rows}

    def topic_ids(self, connection: MySqlConnection) -> dict[str, str]:
        """Returns, by topic, the id of the Kafka topic that the offsets belong to, where it is known."""
        return dict(connection.ask("select topic, id from _cdcworker.topic where sink = %s", (self.sink,)))

    def know(self, connection: MySqlConnection, ids: Mapping[str, str]) -> None:
        for topic, id in ids.items():
            connection.do(
                "insert into _cdcworker.topic (sink, topic, id) values (%s, %s, %s) on duplicate key update id = values(id)",
                (self.sink, topic, id),
            )

    def forget_ids(self, connection: MySqlConnection, topics: Sequence[str] | None) -> None:
        """Forgets the ids of these topics, or of all: a person has altered their offsets."""
        if topics is None:
            connection.do("delete from _cdcworker.topic where sink = %s", (self.sink,))
        for topic in topics or ():
            connection.do("delete from _cdcworker.topic where sink = %s and topic = %s", (self.sink, topic))

    def floors(self, connection: MySqlConnection) -> dict[str, bytes]:
        rows = connection.ask("select topic, position from _cdcworker.floor where sink = %s", (self.sink,))
        return {topic: bytes(position) for topic, position in rows}

    def tombstones(self, connection: MySqlConnection) -> dict[str, bytes]:
        """Returns the highest position of the tombstones of each topic that has any."""
        rows = connection.ask(
            "select topic, max(position) from _cdcworker.tombstone where sink = %s group by topic", (self.sink,)
        )
        return {topic: bytes(position) for topic, position in rows}

    # -- one batch ----------------------------------------------------------------------------------------------------

    def is_fresh(self, connection: MySqlConnection, batch: SinkBatch) -> bool:
        """Returns whether a batch is still to be applied, before its transaction begins: its tables may have to be altered. CdcError
        as from `lock`."""
        self.check_fence(connection)
        return is_fresh(batch.offsets, self._rows(connection, batch, ""), self.epoch)

    def lock(self, connection: MySqlConnection, batch: SinkBatch) -> bool:
        """Lock and compare fence and offsets. False: every offset of the batch has been applied before."""
        found = connection.one(
            "select task_epoch, attempt, at from _cdcworker.fence where sink = %s and task = %s lock in share mode",
            (self.sink, self.task),
        )
        if found is None or tuple(found[:2]) != self.epoch:
            raise CdcError(FENCED, "the target's fence row changed", where={"sink": self.sink, "task": self.task})
        self._touched, self._stamp = self._touched or found[2] != self._stamp, found[2]
        for (topic, partition), (first, _) in sorted(batch.offsets.items()):
            connection.do(
                """insert into _cdcworker.ledger (sink, topic, `partition`, next_offset, task_epoch, attempt, at)
                   values (%s, %s, %s, %s, %s, %s, now(6)) on duplicate key update sink = values(sink)""",
                (self.sink, topic, partition, first, *self.epoch),
            )
        return is_fresh(batch.offsets, self._rows(connection, batch, "for update"), self.epoch)

    def _rows(self, connection: MySqlConnection, batch: SinkBatch, lock: str) -> list[tuple[Any, ...]]:
        topics = sorted({topic for topic, _ in batch.offsets})
        if not topics:
            return []
        rows = connection.ask(
            f"""select topic, `partition`, next_offset, task_epoch, attempt from _cdcworker.ledger
               where sink = %s and topic in ({_marks(topics)}) order by topic, `partition` {lock}""",
            (self.sink, *topics),
        )
        return [row for row in rows if (row[0], row[1]) in batch.offsets]

    def touched(self) -> bool:
        """Returns whether a re-drive has changed the tables since the last call: see `hold`."""
        found, self._touched = self._touched, False
        return found

    def hold(self, connection: MySqlConnection, topics: Sequence[str]) -> None:
        """Keep every task of the sink from applying batches until this transaction ends, and have it know of that."""
        connection.ask("select task from _cdcworker.fence where sink = %s order by task for update", (self.sink,))
        connection.ask(
            f"""select topic from _cdcworker.ledger where sink = %s and topic in ({_marks(topics)})
               order by topic, `partition` for update""",
            (self.sink, *topics),
        )
        connection.do(f"update _cdcworker.fence set at = {_LATER} where sink = %s", (self.sink,))

    def advance(self, connection: MySqlConnection, batch: SinkBatch) -> None:
        """Move every partition of the batch to its end (INV-8: in the transaction that applies the rows)."""
        for (topic, partition), (_, end) in sorted(batch.offsets.items()):
            position, ts = batch.applied.get((topic, partition), (None, None))
            connection.do(
                """update _cdcworker.ledger set next_offset = %s,
                     applied = greatest(coalesce(applied, %s), coalesce(%s, applied)),
                     source_ts_ms = coalesce(%s, source_ts_ms), batch = coalesce(batch, 0) + 1,
                     task_epoch = %s, attempt = %s, at = now(6)
                   where sink = %s and topic = %s and `partition` = %s""",
                (end, position, position, ts, *self.epoch, self.sink, topic, partition),
            )

    def publish(self, connection: MySqlConnection, through: Mapping[str, VisibleThrough]) -> None:
        """Stores the watermark that readers see from this transaction on."""
        for source, mark in through.items():
            connection.do(
                """insert into _cdcworker.watermark (sink, source, position, committed_at, left_out, at)
                   values (%s, %s, %s, '1970-01-01' + interval %s microsecond, %s, now(6))
                   on duplicate key update left_out = values(left_out), at = values(at),
                     committed_at = greatest(committed_at, values(committed_at)),
                     position = greatest(position, values(position))""",
                (self.sink, source, mark.position, mark.ts_ms * 1000, json.dumps(list(mark.left_out))),
            )

    def through(self, connection: MySqlConnection) -> dict[str, int]:
        """Returns, by source, the position that was published last."""
        rows = connection.ask("select source, position from _cdcworker.watermark where sink = %s", (self.sink,))
        return {source: int(position) for source, position in rows}

    def applied(self, connection: MySqlConnection, topic: str | None = None) -> dict[str, bytes]:
        """Returns, by topic, the highest position that has been applied."""
        more, names = ("", ()) if topic is None else (" and topic = %s", (topic,))
        rows = connection.ask(
            f"""select topic, max(applied) from _cdcworker.ledger
               where sink = %s and applied is not null{more} group by topic""",
            (self.sink, *names),
        )
        return {found: bytes(position) for found, position in rows}

    def set_floor(self, connection: MySqlConnection, topic: str, position: bytes) -> None:
        connection.do(
            """insert into _cdcworker.floor (sink, topic, position) values (%s, %s, %s)
               on duplicate key update position = greatest(position, values(position))""",
            (self.sink, topic, position),
        )

    # -- dead letters and tombstones ----------------------------------------------------------------------------------

    def add_dead_letters(self, connection: MySqlConnection, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            connection.do(
                """insert into _cdcworker.dead_letter
                   (sink, topic, `partition`, `offset`, code, cause, `key`, value, headers)
                   values (%s, %s, %s, %s, %s, %s, %s, %s, %s) on duplicate key update sink = values(sink)""",
                (self.sink, *(getattr(letter, name) for name in LETTER), headers_text(letter.headers)),
            )

    def forget_letters(self, connection: MySqlConnection) -> None:
        """Deletes dead letters behind the ledger's offsets: their records are read once more, and set aside again or not."""
        connection.do(
            """delete d from _cdcworker.dead_letter d left join _cdcworker.ledger l
               on l.sink = d.sink and l.topic = d.topic and l.`partition` = d.`partition` and l.next_offset > d.`offset`
               where d.sink = %s and l.sink is null""",
            (self.sink,),
        )

    def prune(self, connection: MySqlConnection, table: str = "tombstone") -> int:
        """Drop tombstones that no row still to come can be older than; a dead letter that is sent again may be. Those of all keys
        stay. `table`: another one that is like that of tombstones."""
        return connection.do(
            f"""delete t from _cdcworker.{table} t where t.sink = %s and t.`key` <> {binary(version_statements.ALL_KEYS)}
               and not exists (select 1 from _cdcworker.dead_letter d where d.sink = t.sink and d.topic = t.topic) and (
                 t.at < now(6) - interval %s day or not exists (
                   select 1 from _cdcworker.ledger l
                   where l.sink = t.sink and l.topic = t.topic and (l.applied is null or l.applied <= t.position)))""",
            (self.sink, TOMBSTONE_DAYS_MAX),
        )


_LATER: Final = "greatest(now(6), at + interval 1 microsecond)"


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))
