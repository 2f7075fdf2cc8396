"""The sink's bookkeeping in ClickHouse: for each topic the state of its table, which holds the offsets. A state is one row, of which the
newest version counts: rows come first, then the states of all tables of a batch in one insert. What is written twice because somebody died
between the two is the same versions of the same rows."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.table_batch import DeadLetter
from cdcworker.connectors.sink_errors import FENCED, TARGET_GONE
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.tables import TablePlace, literal
from cdcworker.connectors.warehouses.dead_letters import headers_text
from cdcworker.connectors.warehouses.table_state import Manifest, collision, moved, parse
from cdcworker.schemas.errors import CdcError

Epoch = tuple[int, int]

BOOKKEEPING: Final = "_cdcworker"
STATE: Final = f"{BOOKKEEPING}.state"
FENCE: Final = f"{BOOKKEEPING}.fence"
LETTERS: Final = f"{BOOKKEEPING}.dead_letter"
_TABLES: Final = (
    f"""{STATE} (sink String, topic String, database String, table String, state String, at DateTime64(6, 'UTC') DEFAULT now64(6),
        version UInt128) ENGINE = ReplacingMergeTree(version) ORDER BY (sink, topic)""",
    f"""{FENCE} (sink String, task UInt32, task_epoch UInt32, attempt UInt32, at DateTime64(6, 'UTC') DEFAULT now64(6),
        version UInt64) ENGINE = ReplacingMergeTree(version) ORDER BY (sink, task)""",
    f"""{LETTERS} (sink String, topic String, partition Int32, offset Int64, code String, cause String, key Nullable(String),
        value Nullable(String), headers String, at_ms Int64, version UInt64)
        ENGINE = ReplacingMergeTree(version) ORDER BY (sink, topic, partition, offset)""",
)


def version_of(state: Manifest) -> int:
    """Returns a number that is higher the newer a state is: whatever an older task writes late has no effect."""
    epoch, attempt = state.epoch
    return (epoch << 96) | (attempt << 64) | state.version


class ClickHouseLedger:
    """The bookkeeping of one sink task."""

    def __init__(self, client: Client, sink: str, task: int = 0) -> None:
        self.sink = sink
        self._client = client
        self._task = task

    def is_there(self) -> bool:
        """Returns whether the bookkeeping has been made."""
        found = self._client.ask(
            f"SELECT count() AS n FROM system.tables WHERE database = '{BOOKKEEPING}' AND name = 'dead_letter'"
        )
        return bool(found["n"][0].as_py())

    def create(self) -> None:
        """Makes the bookkeeping where it is not."""
        if self.is_there():
            return
        self._client.do(f"CREATE DATABASE IF NOT EXISTS {BOOKKEEPING}")
        for table in _TABLES:
            self._client.do(f"CREATE TABLE IF NOT EXISTS {table}")

    # -- fences -------------------------------------------------------------------------------------------------------

    def epoch(self) -> Epoch:
        """Returns the fence of the task; zeros: there is none."""
        found = self._client.ask(
            f"SELECT task_epoch, attempt FROM {FENCE} FINAL WHERE sink = {literal(self.sink)} AND task = {self._task}"
        ).to_pylist()
        return (found[0]["task_epoch"], found[0]["attempt"]) if found else (0, 0)

    def raise_fence(self, epoch: Epoch, *, every_task: bool = False) -> None:
        """Raises the fence of the task, or of all tasks of the sink. CdcError of kind `fenced` where a higher one is there."""
        found = self._client.ask(
            f"SELECT task, task_epoch, attempt FROM {FENCE} FINAL WHERE sink = {literal(self.sink)}"
        ).to_pylist()
        tasks = {row["task"] for row in found} if every_task else {self._task}
        if any((row["task_epoch"], row["attempt"]) > epoch for row in found if row["task"] in tasks):
            raise CdcError(FENCED, "the target's fence holds a newer epoch", where={"sink": self.sink})
        number = (epoch[0] << 32) | epoch[1]
        for task in sorted(tasks):
            self._client.do(
                f"INSERT INTO {FENCE} (sink, task, task_epoch, attempt, version)"
                f" VALUES ({literal(self.sink)}, {task}, {epoch[0]}, {epoch[1]}, {number})"
            )

    # -- states -------------------------------------------------------------------------------------------------------

    def states(self, topics: Collection[str] | None = None) -> dict[str, tuple[TablePlace, Manifest]]:
        """Returns, by topic, the newest states of the sink's tables and where those are."""
        some = "" if topics is None else f" AND topic IN ({', '.join(map(literal, topics))})"
        if topics is not None and not topics:
            return {}
        found = self._client.ask(
            f"SELECT database, table, state FROM {STATE} FINAL WHERE sink = {literal(self.sink)}{some}"
        )
        rows = [[bytes(row[name]).decode() for name in ("database", "table", "state")] for row in found.to_pylist()]
        states = [(TablePlace(database, table), parse(text)) for database, table, text in rows]
        return {state.topic: (place, state) for place, state in states}

    def owner(self, place: TablePlace) -> Manifest | None:
        """Returns the state of the table there, whichever sink and topic it is of; None: there is none."""
        found = self._client.ask(
            f"SELECT state FROM {STATE} FINAL WHERE database = {literal(place.database)} AND table = {literal(place.table)}"
        ).to_pylist()
        return parse(bytes(found[0]["state"]).decode()) if found else None

    def check_owner(self, place: TablePlace, topic: str) -> None:
        """CdcError TARGET_COLLISION where the table is another topic's, or another sink's."""
        found = self.owner(place)
        if found is not None and (found.sink, found.topic) != (self.sink, topic):
            raise collision(found, topic)

    def commit(self, made: Sequence[tuple[TablePlace, Manifest]], epoch: Epoch) -> list[Manifest]:
        """Stores the next states of tables in one step; returns them. CdcError where one of them is not as it was any more."""
        import pyarrow as pa

        now = self.states([state.topic for _, state in made])
        out, rows = [], []
        for place, state in made:
            there = now.get(state.topic)
            if (there[1].version if there else 0) != state.version:
                raise self._overtaken(state, there and there[1], epoch)
            out.append(state.next(epoch))
            number = version_of(out[-1]).to_bytes(16, "little")
            rows.append((self.sink, state.topic, *place, out[-1].text(), number))
        names = ("sink", "topic", "database", "table", "state", "version")
        columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
        kinds = {"version": pa.binary(16)}
        self._client.insert(STATE, pa.table({n: pa.array(c, kinds.get(n, pa.string())) for n, c in columns.items()}))
        return out

    def _overtaken(self, mine: Manifest, found: Manifest | None, epoch: Epoch) -> CdcError:
        where = {"sink": mine.sink, "topic": mine.topic}
        if found is None:
            return CdcError(TARGET_GONE, "the sink's bookkeeping of a table is not there any more", where=where)
        if found.epoch > epoch:
            return CdcError(FENCED, "a newer task writes this table", where=where)
        return moved(mine)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def add_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Stores records that are set aside."""
        import pyarrow as pa

        if not letters:
            return
        kinds = {"partition": pa.int32(), "offset": pa.int64(), "key": pa.binary(), "value": pa.binary()}
        names = ("topic", "partition", "offset", "code", "cause", "key", "value")
        columns: dict[str, Any] = {
            name: pa.array([getattr(letter, name) for letter in letters], kinds.get(name, pa.string()))
            for name in names
        }
        columns["headers"] = pa.array([headers_text(letter.headers) for letter in letters])
        columns["sink"] = pa.array([self.sink] * len(letters))
        columns["at_ms"] = pa.array([time.time_ns() // 1_000_000] * len(letters), pa.int64())
        columns["version"] = pa.array([0] * len(letters), pa.uint64())
        self._client.insert(LETTERS, pa.table(columns))

    def forget_letters(self, topics: Collection[str], offsets: Mapping[tuple[str, int], int]) -> None:
        """Deletes dead letters behind the offsets: their records are read once more, and set aside again or not."""
        found = self._client.ask(
            f"SELECT topic, partition, max(offset) AS last FROM {LETTERS} WHERE sink = {literal(self.sink)}"
            " GROUP BY topic, partition"
        )
        for row in found.to_pylist():
            topic, number = bytes(row["topic"]).decode(), row["partition"]
            at = offsets.get((topic, number), 0)
            if topic in topics and row["last"] >= at:
                self._client.do(
                    f"DELETE FROM {LETTERS} WHERE sink = {literal(self.sink)} AND topic = {literal(topic)}"
                    f" AND partition = {number} AND offset >= {at}"
                )
