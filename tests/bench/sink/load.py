"""What the sink benchmark writes: changes of many tables as a source sends them, and the rows that must come out.

60/30/10 inserts, updates and deletes; one update in eight leaves the TOAST column out, one in a hundred changes the key.
With hot keys nearly all are updates of the same few rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.schemas.change import Change, Column, OutRecord, Position, Table
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.log import Registration, SchemaLog, encode_record
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOAST = 10
SLICE = 10_000
TIMEOUT_S = 60.0
_DECIMAL = {"type": "bytes", "scale": 2, "precision": 10, "logicalType": "decimal", "connect.version": 1}
_DECIMAL |= {"connect.parameters": {"scale": "2"}, "connect.name": "org.apache.kafka.connect.data.Decimal"}
_ZONED = {"type": "string", "connect.version": 1, "connect.name": "io.debezium.time.ZonedTimestamp"}
COLUMNS = (
    Column("id", "long", False, column_id=1, source_type="bigint"),
    Column("customer", "int", False, column_id=2, source_type="integer"),
    Column("status", "string", True, column_id=3, source_type="text"),
    Column("amount", _DECIMAL, True, column_id=4, source_type="numeric(10,2)"),
    Column("quantity", "int", True, column_id=5, source_type="integer"),
    Column("name", "string", True, column_id=6, source_type="text"),
    Column("email", "string", True, column_id=7, source_type="text"),
    Column("active", "boolean", True, column_id=8, source_type="boolean"),
    Column("score", "double", True, column_id=9, source_type="double precision"),
    Column("at", _ZONED, True, column_id=10, source_type="timestamp with time zone"),
    Column("body", "string", True, column_id=11, source_type="text"),
)
DDL = """(id bigint primary key, customer int, status text, amount numeric(10,2), quantity int, name text, email text,
          active boolean, score double precision, at timestamptz, body text)"""
ALL = tuple(range(len(COLUMNS)))
FEW = (0, 2, 4, 5, 8)
"""Of a table of five columns."""
INSERTS, UPDATES = 0.6, 0.3
INSERTS_HOT, UPDATES_HOT = 0.02, 0.97
STATUS = ("new", "paid", "sent", "returned")


class State(NamedTuple):
    """All that a row's values follow from."""

    version: int
    body: int


@dataclass
class Slice:
    """What the target itself has to take for one piece of the load: rows by COPY's text, keys that are gone."""

    rows: dict[int, bytes]
    gone: dict[int, bytes]
    changes: int


@dataclass
class Workload:
    prefix: str
    tables: int
    preload: int
    changes: int
    slice_changes: int = 100_000
    seed: int = 1
    hot_keys: int = 0
    """Of each table: so many rows take the updates."""
    columns: tuple[int, ...] = ALL
    """Which of COLUMNS the tables have; the first is the key."""
    inserts: float = INSERTS
    updates: float = UPDATES
    live: list[list[int]] = field(default_factory=list)
    rows: list[dict[int, State]] = field(default_factory=list)
    distinct: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.lsn = 1 << 32
        self.shapes = [
            Table(("public", f"t{n:02d}"), 16384 + n, self._columns, (0,), SOURCE_SCHEMA) for n in range(self.tables)
        ]
        self.live = [[] for _ in self.shapes]
        self.rows = [{} for _ in self.shapes]
        self.next = [0] * self.tables
        self.touched: list[set[int]] = [set() for _ in self.shapes]
        self.ever: list[set[int]] = [set() for _ in self.shapes]

    @property
    def topics(self) -> list[str]:
        return [f"{self.prefix}.public.{shape.path[1]}" for shape in self.shapes]

    @property
    def _columns(self) -> tuple[Column, ...]:
        return tuple(COLUMNS[at] for at in self.columns)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self._columns]

    # -- changes ------------------------------------------------------------------------------------------------------

    def first(self) -> Iterator[Change]:
        for number in range(self.preload):
            yield self._insert(number % self.tables, "r")

    def mixed(self) -> Iterator[Change]:
        for ever in self.ever:
            ever.clear()
        inserts, updates = (INSERTS_HOT, UPDATES_HOT) if self.hot_keys else (self.inserts, self.updates)
        for number in range(self.changes):
            at = number % self.tables
            dice = self.random.random()
            if dice < inserts or not self.live[at]:
                yield self._insert(at)
            elif dice < inserts + updates:
                yield from self._update(at)
            else:
                yield self._delete(at)
        self.distinct = sum(map(len, self.ever))

    def _insert(self, at: int, op: Any = "c") -> Change:
        id, self.next[at] = self.next[at], self.next[at] + 1
        self.live[at].append(id)
        return self._put(at, id, State(0, 0), op)

    def _put(self, at: int, id: int, state: State, op: Any, **more: Any) -> Change:
        self.rows[at][id] = state
        self._touch(at, id)
        row = values(at, id, state)
        return self._change(op, at, after=tuple(row[number] for number in self.columns), **more)

    def _touch(self, at: int, id: int) -> None:
        self.touched[at].add(id)
        self.ever[at].add(id)

    def _update(self, at: int) -> Iterator[Change]:
        live = len(self.live[at])
        place = self.random.randrange(min(self.hot_keys or live, live))
        id = self.live[at][place]
        state, kind = self.rows[at][id], self.random.randrange(800)
        unchanged = (TOAST,) if kind % 8 == 0 and TOAST in self.columns else ()
        after = State(state.version + 1, state.body if unchanged else state.version + 1)
        if kind >= 8:
            yield self._put(at, id, after, "u", unchanged=unchanged)
            return
        new, self.next[at] = self.next[at], self.next[at] + 1
        del self.rows[at][id]
        self.live[at][place] = new
        self._touch(at, id)
        after = State(after.version, state.body if unchanged else after.version)
        gone = self._change("d", at, before=self._before(id), other_key=(new,))
        here = self._put(at, new, after, "c", sub=1, other_key=(id,))
        yield gone
        yield here

    def _delete(self, at: int) -> Change:
        live = self.live[at]
        place = self.random.randrange(len(live))
        live[place], live[-1] = live[-1], live[place]
        id = live.pop()
        del self.rows[at][id]
        self._touch(at, id)
        return self._change("d", at, before=self._before(id))

    def _before(self, id: int) -> tuple[Any, ...]:
        return (id, *([None] * (len(self.columns) - 1)))

    def _change(self, op: Any, at: int, sub: int = 0, **more: Any) -> Change:
        self.lsn += 0 if sub else 8
        shape = self.shapes[at]
        source = {
            "version": "1", "connector": "postgresql", "name": self.prefix, "ts_ms": 1_750_000_000_000,
            "snapshot": "false", "db": "bench", "schema": "public", "table": shape.path[1], "txId": self.lsn >> 10,
            "lsn": self.lsn, "sequence": None, "commit_lsn": self.lsn, "tx_index": 0, "tx_sub": sub,
        }  # fmt: skip
        return Change(op, shape, Position(self.lsn, 0, sub), source, **more)

    # -- what must come out -------------------------------------------------------------------------------------------

    def slice(self, changes: int) -> Slice:
        """Of what was touched since the last one."""
        rows, gone = {}, {}
        for at, touched in enumerate(self.touched):
            held = self.rows[at]
            rows[at] = b"".join(text(at, id, held[id]) for id in touched if id in held)
            gone[at] = "".join(f"{id}\n" for id in touched if id not in held).encode()
            touched.clear()
        return Slice(rows, gone, changes)

    def expected(self, at: int) -> bytes:
        return b"".join(text(at, id, state) for id, state in self.rows[at].items())


def values(at: int, id: int, state: State) -> tuple[Any, ...]:
    version = state.version
    cents = (id * 7 + version) % 10_000_000
    return (
        id, (id * 31 + at) % 100_000, STATUS[(id + version) % 4], cents.to_bytes(4, "big", signed=True), version,
        f"Customer number {id} of {at}", f"user{id}.{version}@example.com", version % 2 == 0, id / 8 + version,
        f"2026-0{id % 9 + 1}-1{version % 9}T12:{id % 60:02d}:{version % 60:02d}.123456Z", body(at, state.body),
    )  # fmt: skip


def body(at: int, version: int) -> str:
    return f"{at}.{version} " + "lorem ipsum dolor sit amet " * 2


def text(at: int, id: int, state: State) -> bytes:
    """COPY's text of a row."""
    row = list(values(at, id, state))
    cents = int.from_bytes(row[3], "big")
    row[3] = f"{cents // 100}.{cents % 100:02d}"
    return ("\t".join(map(str, row)) + "\n").encode()


class Feed:
    """Writes a workload into Kafka as a source does: schemas first, then changes in transactions."""

    def __init__(self, bootstrap: str, schema_topic: str) -> None:
        self.schema_topic = schema_topic
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "bench", "linger.ms": 5, "compression.type": "lz4",
             "queue.buffering.max.messages": 200_000, "log_level": 2}
        )  # fmt: skip
        self._producer.init_transactions(TIMEOUT_S)
        self._log = SchemaLog()
        self._encoders: dict[str, Encoder] = {}
        self.create([schema_topic])

    def schema(self, id: int) -> Any:
        found = self._log.by_id(id)
        assert found is not None
        return found.schema

    def create(self, topics: Sequence[str]) -> None:
        for future in self._admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            future.result(TIMEOUT_S)

    def register(self, registrations: Sequence[Registration]) -> list[int]:
        ids = []
        for item in registrations:
            planned = self._log.plan_registration(item.subject, item.schema, item.meta)
            for record in planned.records:
                key, value = encode_record(record)
                self._producer.produce(self.schema_topic, value, key)
                self._log.apply(record.key, record.value)
            ids.append(planned.id)
        return ids

    def write(self, prefix: str, changes: Sequence[Change]) -> list[OutRecord]:
        """One transaction."""
        encoder = self._encoders.setdefault(prefix, Encoder(prefix, self.register))
        self._producer.begin_transaction()
        records = encoder.encode(changes)
        for record in records:
            self._producer.produce(record.topic, record.value, record.key, 0, headers=record.headers)
        self._producer.commit_transaction(TIMEOUT_S)
        return records

    def load(self, workload: Workload) -> list[Slice]:
        """All of it; the pieces, of which the first is what stands there before."""
        self.create(workload.topics)
        slices = []
        for changes, size in ((workload.first(), workload.preload), (workload.mixed(), workload.slice_changes)):
            pending: list[Change] = []
            count = 0
            for change in changes:
                pending.append(change)
                count += change.op != "d" or change.other_key is None
                if len(pending) >= SLICE:
                    self.write(workload.prefix, pending)
                    pending = []
                if count >= size:
                    slices.append(workload.slice(count))
                    count = 0
            self.write(workload.prefix, pending)
            if count:
                slices.append(workload.slice(count))
        return slices
