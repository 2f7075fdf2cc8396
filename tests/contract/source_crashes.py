"""A source's process killed, paused and failed at every step, against what a witness has seen of the database.

The witness shares nothing with the source: it says which changes were committed, in which order and in which transactions. The topics
have to hold exactly these; with at-least-once delivery these at least, where what comes again is a run of what was there before, in its
order. A database gives its own `CrashStage`.

One change is (transaction, operation, id, v, big): `c`, `u`, `d`, `t` (truncate) or `m` (a message of PostgreSQL: prefix and content for
id and v; its transaction is None where it belongs to none). A changed key is a deletion and an insertion.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.worker.conformance.task_cluster import EPOCH, TaskCluster
from cdcworker.worker.conformance.task_process import TaskProcess
from cdcworker.worker.protocol.task_spec import TaskSpec
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.waiting import pause

DEADLINE_S = 90.0
ACTIONS = ("kill", "error:{}.connection_lost", "stop", "sleep:1")
EXACT, LOOSE = "exactly-once", "at-least-once"
SOURCE_POINTS = (
    "source.schema_written",
    "source.begun",
    "source.before_produce",
    "source.half_produced",
    "source.produced",
    "source.before_commit",
    "source.after_commit",
    "source.before_ack",
)
MESSAGES = "message"
"""Where logical messages are, beside the tables' names."""
UNSENT = "__debezium_unavailable_value"
"""Of a large value that an update left as it was."""
Told = tuple[int | str | None, str, int | str | None, str | None, str | None]
LEAST = {MESSAGES: 10}
"""Of a table more than 1000 changes are compared, of messages these."""
LOOSE_SESSION_S = 5.0
"""Nothing fences what a process has queued that was stopped: it expires with the lease, before which nobody takes its
place."""


def actions_of(code: str) -> tuple[str, ...]:
    """Returns what happens at a failpoint, where a source's codes begin with `code`."""
    return tuple(action.format(code) for action in ACTIONS)


class Child(TaskProcess):
    """The worker's own task process. `is_behind` tells whether a stored position is at a place of the log or behind it."""

    def __init__(self, spec: TaskSpec, failpoints: str, is_behind: Callable[[JsonObject, Any], bool]) -> None:
        self._is_behind = is_behind
        self.lease_s = 0.6 * spec.session_timeout_s
        self.leased_at = 0.0
        super().__init__(spec, failpoints)

    def reached(self, place: Any) -> bool:
        positions = [message.get("position") for message in self.messages if message["type"] == "metrics"]
        return bool(positions) and positions[-1] is not None and self._is_behind(positions[-1], place)

    def stopped(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def wait(self, condition, what: str) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + DEADLINE_S, f"not in time: {what}\n{self.log.decode()[-3000:]}"
            self.lease()
            pause(began)

    def lease(self) -> None:
        """As its worker would, until it hears nothing of the process any more."""
        now = time.monotonic()
        if now - self.leased_at > self.lease_s / 10 and self.lease_s and not self.ended():
            if self.stopped():
                self.lease_s = 0.0
            else:
                self.leased_at = now
                with contextlib.suppress(OSError):
                    self.say(type="lease", until=now + self.lease_s, takes_turns=True)

    def silent(self) -> bool:
        """It has noticed that it is not the owner any more."""
        return self.ended() or b"session dropped" in self.log or b"fenced times" in self.log

    def ended(self) -> bool:
        return self.process.poll() is not None

    def met(self, point: str, action: str) -> bool:
        """Whether the failpoint has done what it was armed for; fails when the process has ended in another way."""
        if self.ended():
            assert action == "kill", f"ended without meeting {point}\n{self.log.decode()[-3000:]}"
            assert self.process.returncode == -signal.SIGKILL
            return True
        if action == "stop":
            return self.stopped()
        return action != "kill" and f"failpoint {point.rpartition('>')[2]}".encode() in self.log


class CrashStage(ABC):
    """One source, one topic per table, one witness, any number of processes one after the other."""

    def __init__(self, bootstrap: str, rng: random.Random, state_dir: Path, delivery: str, slots: int = 1) -> None:
        self.rng, self._state_dir, self.delivery, self.slots = rng, state_dir, delivery, slots
        self.cluster = TaskCluster(bootstrap, "scripted")
        self.epoch = EPOCH
        self.next_id = 1
        self.more: dict[str, str] = {}
        """Configuration beside that of every stage."""
        self.children: list[Child] = []
        self._went_on_at = 0.0
        self.tables: tuple[str, ...] = ("t",)
        self.kept: tuple[str, ...] = self.tables
        """Whose changes are compared."""

    # -- what a database gives ----------------------------------------------------------------------------------------

    @abstractmethod
    def config(self) -> dict[str, str]:
        """Returns how the source reads the database."""

    @abstractmethod
    def work(self, shape: int, point: str = "") -> Any:
        """Transactions of all kinds, overlapping, and what `point` is met by; returns the place that a reader has to reach.
        `shape`: columns are added."""

    @abstractmethod
    def end(self) -> Any:
        """Returns the place at which the log ends."""

    @abstractmethod
    def is_behind(self, position: JsonObject, place: Any) -> bool:
        """Returns whether a stored position is at this place or behind it."""

    @abstractmethod
    def insert(self, count: int) -> None:
        """Inserts so many rows into the tables, in one transaction."""

    @abstractmethod
    def witnessed_all(self) -> list[tuple[str, Told]]:
        """Returns (table, change) of everything, in the order of the log."""

    @abstractmethod
    def place_of(self, table: str) -> str:
        """Returns a table's topic behind the prefix."""

    def check_more(self) -> None:
        """What has to hold besides, at the end."""
        if self.delivery == EXACT and self.slots == 1:
            check_together(self)

    # -- processes ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for child in self.children:
            child.close()
        self.cluster.close()

    def spec(self, number: int = 0) -> TaskSpec:
        """Of a new owner: whoever ran before is fenced by it."""
        self.epoch += 1
        self.cluster.assign(self.epoch, tasks=self.slots)
        config = {
            **self.config(),
            "name": "shop",
            "topic.prefix": self.cluster.prefix,
            "topic.creation.default.partitions": "1",
            "snapshot.mode": "no_data",
            "heartbeat.interval.ms": "300",
            "delivery": self.delivery,
            "tasks.max": "2",
            **self.more,
        }
        data = {**self.cluster.task_spec({}, self.epoch).to_json(), "task": number}
        if self.delivery == LOOSE:
            data["session_timeout_s"] = LOOSE_SESSION_S
        return TaskSpec.from_json({**data, "config": config, "state_dir": str(self._state_dir)})

    def child(self, failpoints: str = "", number: int = 0) -> Child:
        self.children.append(Child(self.spec(number), failpoints, self.is_behind))
        return self.children[-1]

    def go_on(self, point: str = "") -> None:
        """A transaction now and then: a step is met as often as it takes."""
        self.now_and_then(0.2, 1)

    def now_and_then(self, every_s: float, count: int) -> None:
        """Inserts rows, unless it did a moment ago."""
        now = time.monotonic()
        if now - self._went_on_at > every_s:
            self._went_on_at = now
            self.insert(count)

    # -- what there is ------------------------------------------------------------------------------------------------

    def witnessed(self, table: str) -> list[Told]:
        return of_table(self.witnessed_all(), table)

    def keys(self, table: str) -> list[dict]:
        """Of a topic's records."""
        decoder = RecordDecoder(self.cluster.schemas())
        return [decoder.decode(key) for _, key, _ in self.cluster.read(self.topic(table))]

    def topic(self, table: str) -> str:
        return f"{self.cluster.prefix}.{self.place_of(table)}"

    def delivered(self, table: str) -> list[tuple[int, dict]]:
        """(offset, envelope) of a topic, as a reader of committed records gets them."""
        settings = {"group.id": "witness", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({**self.cluster.kafka, **settings, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.topic(table), 0, OFFSET_BEGINNING)])
        decoder, found = RecordDecoder(self.cluster.schemas()), []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error():
                break
            if message is not None and message.value() is not None:
                found.append((message.offset(), decoder.decode(message.value())))
        consumer.close()
        return found


def told_of(record: dict) -> Told:
    """The change of a record that was read from its topic."""
    xid, op = transaction_of(record), record["op"]
    if op == "m":
        return xid, op, record["message"]["prefix"], record["message"]["content"].decode(), None
    row = (record["before"] if op == "d" else record["after"]) or {}
    return xid, op, row.get("id"), *((row["v"], row.get("big")) if op in "cur" else (None, None))


def transaction_of(record: dict) -> Any:
    """What names a record's transaction in the words of its database."""
    source = record["source"]
    return source["gtid"] if "gtid" in source else source["txId"]


def position_of(record: dict) -> tuple[int, int, int]:
    source = record["source"]
    return source["commit_lsn"], source["tx_index"], source["tx_sub"]


def of_table(lines: Iterable[tuple[str, Told]], table: str) -> list[Told]:
    return [told for name, told in lines if name == table]


def check_loosely(stage: CrashStage, table: str = "t") -> int:
    """No loss, and the order of the log: a record comes behind the one before it, or again. How many came again."""
    records, witnessed = [record for _, record in stage.delivered(table)], stage.witnessed(table)
    assert len(witnessed) > LEAST.get(table, 1000)
    positions = sorted({position_of(record) for record in records})
    assert len(positions) == len(witnessed), (len(positions), len(witnessed))
    number, last = {position: n for n, position in enumerate(positions)}, -1
    for record in records:
        at = number[position_of(record)]
        assert told_of(record) == witnessed[at]
        assert at <= last + 1, (at, last)
        last = at
    assert last == len(witnessed) - 1
    return len(records) - len(witnessed)


def check(stage: CrashStage, table: str = "t", *, whole: bool = True) -> None:
    """No loss, no duplicate, the order of the log; `whole`: each source transaction in one of Kafka."""
    records = stage.delivered(table)
    witnessed = stage.witnessed(table)
    assert len(witnessed) > LEAST.get(table, 1000)
    check_told([told_of(record) for _, record in records], witnessed)
    positions = [position_of(record) for _, record in records]
    assert positions == sorted(set(positions))
    # A Kafka transaction ends with a marker that takes an offset: within a source transaction there is none but for
    # the tombstones of deletes.
    for xid, group in groupby(records, key=lambda item: transaction_of(item[1])):
        part = list(group)
        tombstones = sum(record["op"] == "d" for _, record in part[:-1])
        assert not whole or xid is None or part[-1][0] - part[0][0] == len(part) - 1 + tombstones


def check_told(told: list, witnessed: list) -> None:
    wrong = next((n for n, pair in enumerate(zip(told, witnessed, strict=False)) if pair[0] != pair[1]), None)
    assert wrong is None, (wrong, told[wrong], witnessed[wrong])
    assert len(told) == len(witnessed)


def check_together(stage: CrashStage) -> None:
    """By their positions the records of all tables of a slot are in the order of the log."""
    found = [(name, record) for name in stage.kept for _, record in stage.delivered(name)]
    found.sort(key=lambda item: position_of(item[1]))
    check_told([(name, told_of(record)) for name, record in found], stage.witnessed_all())


def strike(stage: CrashStage, turn: int, point: str, action: str, count: int) -> None:
    """One life that meets the failpoint, which is seen to fire; of several tasks each in turn."""
    stage.work(turn, point)
    number = turn % stage.slots
    child = stage.child(f"{point}={action}@{count}", number)
    child.wait(lambda: child.met(point, action) or stage.go_on(point), f"{action} at {point}, {count} times met")
    target = stage.end()
    if action == "stop":
        succeed(stage, child, number, target)
    elif action != "kill":
        child.wait(lambda: child.reached(target), "the end in spite of an error")
    child.close()


def succeed(stage: CrashStage, child: Child, number: int, target: Any) -> None:
    """The stopped process wakes when another has its place."""
    lapsed = time.monotonic() + (LOOSE_SESSION_S if stage.delivery == LOOSE else 0)
    child.wait(lambda: time.monotonic() >= lapsed, "the end of its lease")
    other = stage.child(number=number)
    other.wait(lambda: other.reached(target), "the successor's end")
    os.kill(child.process.pid, signal.SIGCONT)
    if stage.delivery == LOOSE:
        child.wait(child.silent, "that who was replaced falls silent")
    else:
        child.wait(child.ended, "the end of who was replaced")
        assert child.process.returncode != 0
    other.close()


def run(stage: CrashStage, cases: list[tuple[str, str, int]]) -> None:
    """Lives that meet a failpoint each, and one that reads all; then the topics are compared with the witness."""
    for turn, (point, action, count) in enumerate(cases):
        strike(stage, turn, point, action, count)
    target = stage.work(0)
    for number in range(stage.slots):
        last = stage.child(number=number)
        last.wait(lambda: last.reached(target), "the end")  # noqa: B023 - called at once
        assert last.stop() == 0
    for table in stage.kept:
        if stage.delivery == EXACT:
            check(stage, table)
        else:
            print(f"came again: {check_loosely(stage, table)}")
    stage.check_more()
