"""The `datagen` source: seeded rows at a steady rate, and deliberate trouble on request; needs nothing outside."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import ClassVar, Final, Literal

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.config.common_keys import TASKS_MAX
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.datagen.config import CONFIG_DEF, SOURCE_SCHEMA, DatagenSettings, parse
from cdcworker.connectors.datagen.injected_faults import InjectedFaults
from cdcworker.schemas.change import Change, Column, JsonObject, Op, PollBatch, Position, Row, Table
from cdcworker.schemas.errors import CdcError, declare

POSITION_INVALID: Final = declare(
    "datagen.position_invalid",
    "config",
    "The stored position is not one of this source",
    "Reset the connector's offsets, or give it another name.",
)

VERSION: Final = 1
BATCH_ROWS_MAX: Final = 1_000
POLL_S_MAX: Final = 0.1
BATCH_S_MIN: Final = 0.05
"""Rows of one moment go out together: a Kafka transaction for each would cost more than the rows."""

COLUMNS: Final = (
    Column("id", "long", optional=False, column_id=1),
    Column("n", "long", optional=False, column_id=2),
    Column("amount", "long", column_id=3),
    Column("note", "string", column_id=4),
)


class DatagenSource:
    """Rows out of nothing; each task writes tables of its own, so that a change of `tasks.max` moves none."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF
    stands_alone: ClassVar[Literal[True]] = True

    def __init__(self, config: Config) -> None:
        self._config = dict(config)

    def split(self, tasks_max: int) -> Sequence[Config]:
        # Without the key there is one task, which has the whole rate.
        count = {TASKS_MAX.name: str(tasks_max)} if tasks_max > 1 or TASKS_MAX.name in self._config else {}
        return [{**self._config, **count} for _ in range(tasks_max)]

    def task(self, share: Config, context: TaskContext) -> SourceTask:
        return DatagenTask(parse(share), context)

    def check_position(self, position: JsonObject) -> None:
        _next_of(position)

    def check(self) -> Sequence[CheckFinding]:
        """There is nothing outside that could be wrong."""
        return []


def table_of(task: int, name: str) -> Table:
    return Table((f"task{task}", name), task, COLUMNS, (0,), SOURCE_SCHEMA)


def row_of(settings: DatagenSettings, table: Table, n: int) -> Row:
    """Row `n` of a table: the same whenever it is asked for."""
    text = f"{settings.seed}:{'.'.join(table.path)}:{n}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    repeats = settings.row_bytes // len(digest) + 1
    key = n % settings.keys if settings.keys else n
    return (key, n, int(digest[:8], 16), (digest * repeats)[: settings.row_bytes])


class DatagenTask:
    """Position: the number of the next row, the same for all tables of the task."""

    def __init__(
        self,
        settings: DatagenSettings,
        context: TaskContext,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._tables = [table_of(context.task, name) for name in settings.tables]
        self._trouble = InjectedFaults(settings.trouble)
        self._next = 0
        self._first = 0
        self._since = 0.0
        self._polled = float("-inf")

    def open(self, position: JsonObject | None) -> None:
        self._trouble.at("start")
        self._next = self._first = _next_of(position)
        self._since = self._clock()

    def poll(self) -> PollBatch:
        self._trouble.at("poll")
        self._wait()
        self._polled = self._clock()
        self._trouble.leak(self._polled)
        settings, due = self._settings, self._due(self._polled)
        changes: list[Change] = []
        ts_ms = time.time_ns() // 1_000_000
        until = min(due, self._next + max(1, BATCH_ROWS_MAX // len(self._tables)))
        idle = until == due and (settings.rate is not None or self._ended())
        while self._next < until:
            if self._trouble.before(self._next, held=bool(changes)):
                break
            changes += self._step(self._next, ts_ms)
            self._next += 1
        watermark = {"commit_lsn": self._next + 1, "ts_ms": ts_ms}
        if not changes:
            return PollBatch(watermark=watermark, idle=True)
        return PollBatch(changes, {"v": VERSION, "next": self._next}, watermark, idle)

    def ack(self, position: JsonObject) -> None:
        """There is nobody to tell."""

    def close(self) -> None:
        self._trouble.at("stop")

    def _due(self, now: float) -> int:
        """The number before which rows are due. A task that was away makes none for the time that it missed."""
        settings = self._settings
        due = self._next + BATCH_ROWS_MAX
        if settings.rate is not None:
            due = self._first + int((now - self._since) * settings.rate) + 1 if settings.rate else self._next
        if settings.rows_max is not None:
            due = min(due, settings.rows_max)
        return max(due, self._next)

    def _ended(self) -> bool:
        return self._settings.rows_max is not None and self._next >= self._settings.rows_max

    def _wait(self) -> None:
        """Until the next row is due, but not long; a fast task rests a little after each batch."""
        rate, now, wait = self._settings.rate, self._clock(), POLL_S_MAX
        if not self._ended():
            if rate is None:
                return
            if rate:
                wait = self._since + (self._next - self._first) / rate - now
        wait = min(POLL_S_MAX, max(wait, self._polled + BATCH_S_MIN - now))
        if wait > 0:
            self._sleep(wait)

    def _step(self, n: int, ts_ms: int) -> Iterable[Change]:
        """Row `n` of every table: one transaction of the source."""
        op: Op = "u" if self._settings.keys and n >= self._settings.keys else "c"
        for index, table in enumerate(self._tables):
            source = {
                "version": _version(),
                "connector": "datagen",
                "name": self._settings.prefix,
                "ts_ms": ts_ms,
                "schema": table.path[0],
                "table": table.path[1],
                "commit_lsn": n + 1,
                "tx_index": index,
                "tx_sub": 0,
            }
            row = row_of(self._settings, table, n)
            yield Change(op, table, Position(n + 1, index, 0), source, after=row)


def _next_of(position: JsonObject | None) -> int:
    if position is None:
        return 0
    n = position.get("next")
    if position.get("v") != VERSION or not isinstance(n, int) or n < 0:
        raise CdcError(POSITION_INVALID, "the stored position names no next row")
    return n


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("cdcworker")
