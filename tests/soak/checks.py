"""Is everything there, once, and in order? Readers that go on all the time, and a comparison row by row when the load rests."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import fastavro
import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from .bank import ACCOUNTS, BALANCE
from .ledger import Ledger

KEYS_SHOWN: Final = 5
FRAME_BYTES: Final = 5
Rows = tuple[Sequence[str], Sequence[tuple[Any, ...]]]
"""Names of columns, and rows."""
Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """Keys of rows that one side lacks, or that are other there."""

    table: str
    missing: tuple[Any, ...] = ()
    unexpected: tuple[Any, ...] = ()
    other: tuple[Any, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"{len(keys)} {word} (keys {', '.join(map(str, keys[:KEYS_SHOWN]))})"
            for word, keys in (("missing", self.missing), ("unexpected", self.unexpected), ("different", self.other))
            if keys
        ]
        return f"{self.table}: {', '.join(parts)}"


def difference(table: str, source: Rows, target: Rows) -> Difference | None:
    """Compares by the first column, the key, in the columns that the source has. A target has columns of its own besides,
    and those that the source has dropped. Returns None where they are equal."""
    left, twice = _by_key(source, source[0])
    right, again = _by_key(target, source[0])
    found = Difference(
        table,
        tuple(sorted(left.keys() - right.keys(), key=str)),
        tuple(sorted([*(right.keys() - left.keys()), *twice, *again], key=str)),
        tuple(sorted((key for key in left.keys() & right.keys() if left[key] != right[key]), key=str)),
    )
    return found if found.missing or found.unexpected or found.other else None


def _by_key(rows: Rows, names: Sequence[str]) -> tuple[dict[Any, tuple[Any, ...]], list[Any]]:
    """Rows by their keys, and the keys that came twice. A column that is not there yet has no values."""
    places = [rows[0].index(name) if name in rows[0] else None for name in names]
    found: dict[Any, tuple[Any, ...]] = {}
    twice = []
    for row in rows[1]:
        told = tuple(None if place is None else row[place] for place in places)
        if told[0] in found:
            twice.append(told[0])
        found[told[0]] = told
    return found, twice


def ledger_difference(ledgers: Sequence[Ledger], accounts: Rows) -> str:
    """Says where balances are not what the clients' ledgers make them; empty: nowhere."""
    wanted = {number: BALANCE + sum(ledger.moved.get(number, 0) for ledger in ledgers) for number in range(ACCOUNTS)}
    found = dict(accounts[1])
    wrong = sorted(number for number in wanted if found.get(number) != wanted[number])
    return (
        f"{len(wrong)} balances of the source are not those of the ledger (accounts {wrong[:KEYS_SHOWN]})"
        if wrong
        else ""
    )


def postgres_rows(dsn: str, table: str) -> Rows:
    """Returns all rows; none where the table is not there yet."""
    with psycopg.connect(dsn, connect_timeout=5) as connection:
        try:
            found = connection.execute(f"select * from {table}")
        except psycopg.errors.UndefinedTable:
            return [], []
        return [column.name for column in found.description or ()], found.fetchall()


def parquet_rows(folder: Path) -> Rows:
    """Returns the rows of the files that the newest manifest names; none where there is none yet, or where its files have
    been replaced meanwhile."""
    from pyarrow import parquet

    manifests = sorted((folder / "_cdc").glob("*.json"))
    try:
        named = json.loads(manifests[-1].read_text())["files"]
        tables = [parquet.ParquetFile(folder / file["path"]).read() for file in named]
    except (IndexError, FileNotFoundError):
        return [], []
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    return names, [tuple(row.get(name) for name in names) for table in tables for row in table.to_pylist()]


@dataclass
class Positions:
    """The last position and the next offset of each topic, and what was wrong."""

    last: dict[str, Place] = field(default_factory=dict)
    next: dict[str, int] = field(default_factory=dict)
    records: int = 0
    wrong: list[str] = field(default_factory=list)

    def take(self, topic: str, offset: int, place: Place) -> None:
        last = self.last.get(topic)
        if last is not None and place <= last:
            word = "twice" if place == last else "after a later one"
            self.wrong.append(f"{topic} offset {offset}: position {place} comes {word}, {last}")
        else:
            self.last[topic] = place
        self.next[topic] = offset + 1
        self.records += 1

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"last": self.last, "next": self.next}))
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Positions:
        if not path.exists():
            return cls()
        told = json.loads(path.read_text())
        return cls({topic: tuple(place) for topic, place in told["last"].items()}, told["next"])


class TopicReader(threading.Thread):
    """Reads committed records of topics with one partition each; a broker that is away is waited for."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], positions: Positions, schema: Callable[[int], Any]
    ) -> None:
        """`schema` gives the writer's schema of an id, however long it takes."""
        super().__init__(name="topic reader", daemon=True)
        self.positions = positions
        self.error: BaseException | None = None
        self._schema = schema
        self._schemas: dict[int, Any] = {}
        self._ending = threading.Event()
        self.reached: dict[str, int] = {}
        """The offset of each topic at which nothing more was to be read."""
        self._settings = {"bootstrap.servers": bootstrap, "group.id": "soak", "isolation.level": "read_committed"}
        own = {"enable.auto.commit": False, "auto.offset.reset": "error", "enable.partition.eof": True}
        # Topics that the sources make later are looked for.
        self._consumer = Consumer({**self._settings, **own, "topic.metadata.refresh.interval.ms": 5_000})
        self._places = [TopicPartition(topic, 0, positions.next.get(topic, OFFSET_BEGINNING)) for topic in topics]

    def run(self) -> None:
        self._consumer.assign(self._places)
        try:
            while not self._ending.is_set():
                for message in self._consumer.consume(500, 0.2):
                    if message.error() is not None:
                        self._refused(message)
                    elif message.value() is not None:
                        self.positions.take(message.topic(), message.offset(), self._place(message.value()))
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            self._consumer.close()

    def ends(self) -> dict[str, int]:
        """Returns of each topic the offset behind its last record, by a consumer of its own: another thread would wait for
        the one that reads."""
        other = Consumer(self._settings)
        try:
            marks = {place.topic: other.get_watermark_offsets(place, timeout=30) for place in self._places}
        finally:
            other.close()
        return {topic: high for topic, (_, high) in marks.items()}

    def stop(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join(30)

    def _refused(self, message: Any) -> None:
        if message.error().code() == KafkaError._PARTITION_EOF:
            self.reached[message.topic()] = message.offset()
        elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
            self.positions.wrong.append(f"{message.topic()}: records were removed before they were read")

    def _place(self, value: bytes) -> Place:
        number = int.from_bytes(value[1:FRAME_BYTES])
        if number not in self._schemas:
            self._schemas[number] = self._schema(number)
        source = fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), self._schemas[number], None)["source"]
        return source["commit_lsn"], source["tx_index"], source["tx_sub"]


class SumReader(threading.Thread):
    """Reads the sums of the warehouse again and again; it counts reads, and those that were wrong."""

    def __init__(self, dsn: Callable[[], str], sums: Mapping[str, int], rest_s: float) -> None:
        """`sums` has what the balances of each table add up to."""
        super().__init__(name="sum reader", daemon=True)
        self.reads = 0
        self.wrong: list[str] = []
        self._dsn, self._sums, self._rest_s = dsn, sums, rest_s
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(self._rest_s):
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._dsn(), connect_timeout=5) as connection:
                connection.autocommit = True
                while not self._ending.wait(self._rest_s):
                    self._look(connection)

    def stop(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join(30)

    def _look(self, connection: Any) -> None:
        for table, wanted in self._sums.items():
            told = connection.execute(f"select count(*), sum(balance) from {table}").fetchone()
            self.reads += 1
            if tuple(told) != (ACCOUNTS, wanted):
                self.wrong.append(
                    f"{table} of the warehouse: {told[0]} accounts, the sum is off by {(told[1] or 0) - wanted}"
                )
