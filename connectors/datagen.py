"""The `datagen` source: seeded rows at a steady rate, and deliberate trouble on request; needs nothing outside."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, Literal, NoReturn

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.config import converters
from cdcworker.connectors.config.common_keys import ACCEPTED, SOURCE_KEYS, TASKS_MAX
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, Importance, between, matches, non_empty, one_of
from cdcworker.connectors.config.topic_creation import group_keys
from cdcworker.connectors.kit.source_block import source_schema
from cdcworker.connectors.transform_chain.config import PREDICATES_KEY, TRANSFORMS_KEY, transform_checks, transform_keys
from cdcworker.schemas.change import Change, Column, JsonObject, Op, PollBatch, Position, Row, Table
from cdcworker.schemas.errors import CdcError, declare

FAULT_TRANSIENT: Final = declare(
    "datagen.fault_transient", "transient", "A passing failure was asked for", "Lower fail.prob to have fewer of them."
)
FAULT_CONFIG: Final = declare(
    "datagen.fault_config", "config", "A failure of the configuration was asked for", "Set fail.prob to 0."
)
FAULT_DATA: Final = declare(
    "datagen.fault_data", "data", "A record that cannot be handled was asked for", "Set fail.prob to 0."
)
POSITION_INVALID: Final = declare(
    "datagen.position_invalid",
    "config",
    "The stored position is not one of this source",
    "Reset the connector's offsets, or give it another name.",
)
FAULTS: Final = {"transient": FAULT_TRANSIENT, "configuration": FAULT_CONFIG, "data": FAULT_DATA}

VERSION: Final = 1
BATCH_ROWS_MAX: Final = 1_000
POLL_S_MAX: Final = 0.1
BATCH_S_MIN: Final = 0.05
"""Rows of one moment go out together: a Kafka transaction for each would cost more than the rows."""
TASKS: Final = "datagen.tasks"
"""In a task's share that an earlier version has made: into how many tasks the rate is split."""
PAGE: Final = 4_096

SOURCE_SCHEMA: Final = source_schema("cdcworker.datagen")
COLUMNS: Final = (
    Column("id", "long", optional=False, column_id=1),
    Column("n", "long", optional=False, column_id=2),
    Column("amount", "long", column_id=3),
    Column("note", "string", column_id=4),
)


def _row_keys() -> Iterable[ConfigKey]:
    group, key = "Rows", ConfigKey
    high: Importance = "HIGH"
    yield key(
        "topic.prefix",
        required=True,
        importance=high,
        group="Topics",
        validator=matches(r"[A-Za-z0-9._\-]{1,200}", "letters, digits, dot, hyphen and underscore"),
        doc="First part of every topic; a table's topic is `<topic.prefix>.task<N>.<table>`.",
        topics="prefix",
    )
    yield key(
        "tables", "LIST", ["rows"], importance=high, group=group, validator=_tables,
        doc="Tables of each task; all of them get a row of each number, in one source transaction.",
    )  # fmt: skip
    yield key(
        "rows.per.second", "DOUBLE", 10.0, importance=high, group=group, validator=between(-1, 10_000_000),
        doc="Rows of the connector per second, over all tasks and tables. 0: none, -1: as fast as Kafka takes them.",
    )  # fmt: skip
    yield key(
        "max.rows", "LONG", -1, group=group, validator=between(-1),
        doc="Rows of each table after which the task idles; -1: no end.",
    )  # fmt: skip
    yield key("seed", "LONG", 0, group=group, doc="Rows are a function of seed, task, table and number.")
    yield key(
        "keys", "LONG", 0, group=group, validator=between(0),
        doc="How many keys a table has: row `n` changes key `n % keys`. 0: each row is a new key.",
    )  # fmt: skip
    yield key(
        "row.bytes", "INT", 32, group=group, validator=between(0, 900_000), doc="Length of the text column.",
    )  # fmt: skip


def _trouble_keys() -> Iterable[ConfigKey]:
    def chance(name: str, doc: str) -> ConfigKey:
        return ConfigKey(
            name, "DOUBLE", 0.0, importance="LOW", group="Trouble", validator=between(0, 1), doc=doc
        )  # fmt: skip

    yield chance("fail.prob", "Chance of each row that the task fails before it.")
    yield ConfigKey(
        "fail.class", default="transient", importance="LOW", group="Trouble", validator=one_of(*FAULTS),
        recommended=tuple(FAULTS), doc="What kind of failure that is.", connects=False,
    )  # fmt: skip
    yield chance("crash.prob", "Chance of each row that the process kills itself before it.")
    yield chance("hang.prob", "Chance of each row that the task hangs before it, deaf to a stop.")
    yield chance("spin.prob", "Chance of each row that the task loops for ever before it, at full speed.")
    yield ConfigKey(
        "hang.in", default="none", importance="LOW", group="Trouble", validator=one_of("none", "start", "poll", "stop"),
        recommended=("none", "start", "poll", "stop"), doc="Where the task always hangs.",
    )  # fmt: skip
    yield ConfigKey(
        "leak.bytes.per.second", "LONG", 0, importance="LOW", group="Trouble", validator=between(0),
        doc="Memory that the task takes each second and never gives back.",
    )  # fmt: skip


def _tables(names: Sequence[str]) -> str | None:
    if not names:
        return non_empty(names)
    wrong = len(set(names)) != len(names) or any(not name.replace("_", "a").isalnum() for name in names)
    return "expects different names of letters, digits and underscores" if wrong else None


CONFIG_DEF = ConfigDef(
    [
        *_row_keys(),
        TASKS_MAX,
        *_trouble_keys(),
        *converters.converter_keys(),
        TRANSFORMS_KEY,
        PREDICATES_KEY,
        *SOURCE_KEYS,
    ],
    accepted={
        **{name: note for name, note in ACCEPTED.items() if not name.startswith(("key.conv", "value.conv"))},
        **converters.ACCEPTED,
        "name": "",
        "connector.class": "",
        "errors.tolerance": "No record of this source is bad.",
    },
    check=transform_checks(field["name"] for field in SOURCE_SCHEMA["fields"]),
    more=lambda config: (*transform_keys(config), *group_keys(config)),
)


@dataclass(frozen=True, slots=True)
class DatagenSettings:
    """A task's share of a parsed configuration. `rate` are numbers per second; None: no limit."""

    prefix: str
    tables: tuple[str, ...]
    rate: float | None
    rows_max: int | None
    seed: int
    keys: int
    row_bytes: int
    trouble: Mapping[str, Any]


def parse(share: Mapping[str, str]) -> DatagenSettings:
    """CdcError `config.invalid` with all problems at once."""
    raw = CONFIG_DEF.parse({name: text for name, text in share.items() if name != TASKS})
    tables, rate = tuple(raw["tables"]), raw["rows.per.second"]
    return DatagenSettings(
        prefix=raw["topic.prefix"],
        tables=tables,
        rate=rate / len(tables) / int(share.get(TASKS, raw[TASKS_MAX.name])) if rate >= 0 else None,
        rows_max=raw["max.rows"] if raw["max.rows"] >= 0 else None,
        seed=raw["seed"],
        keys=raw["keys"],
        row_bytes=raw["row.bytes"],
        trouble={key.name: raw[key.name] for key in _trouble_keys()},
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


class InjectedFaults:
    """What a task does wrong on purpose. Its dice are not seeded: a restart must not meet the same fate for ever."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._dice = random.SystemRandom()
        self._hoard: list[bytearray] = []
        self._leaked_at: float | None = None
        self._any = any(value for name, value in settings.items() if name.endswith(".prob"))
        self._fate: str | None = None

    def at(self, place: str) -> None:
        if self._settings["hang.in"] == place:
            _hang()

    def before(self, n: int, *, held: bool) -> bool:
        """Strikes, or says that it will at the next call, because rows are `held` that have to go out first."""
        if not self._any:
            return False
        self._fate = self._fate or self._drawn()
        if self._fate is None:
            return False
        if not held:
            self._strike(self._fate, n)
        return True

    def _drawn(self) -> str | None:
        for name in ("fail.prob", "crash.prob", "hang.prob", "spin.prob"):
            chance = self._settings[name]
            if chance and self._dice.random() < chance:
                return name
        return None

    def _strike(self, fate: str, n: int) -> NoReturn:
        if fate == "crash.prob":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "spin.prob":
            _spin()
        if fate != "fail.prob":
            _hang()
        kind = self._settings["fail.class"]
        raise CdcError(FAULTS[kind], f"a {kind} failure as configured", where={"row": n})

    def leak(self, now: float) -> None:
        rate = self._settings["leak.bytes.per.second"]
        if not rate:
            return
        since, self._leaked_at = self._leaked_at or now, now
        block = bytearray(int((now - since) * rate))
        block[::PAGE] = b"\1" * len(block[::PAGE])  # memory that is not written to is not taken
        self._hoard.append(block)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


def _spin() -> NoReturn:
    while True:
        pass
