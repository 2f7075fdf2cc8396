"""Traces one committed insert through a source task: the functions that it passes, and the Python calls of a turn.

A real PostgreSQL and a real broker run; a native source task reads the socket's stream in this process, in a thread that
`sys.setprofile` watches. A turn lasts from one poll of the task to the next. The row's way is every function of ours that
is on the stack, below the session's loop, when bytes are read from the socket, when the native path is given them, or when
a producer is given the record; the native core counts as one function. Figures are medians; the last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
from cdcworker.connectors.postgres.pgoutput import HEADER, ROW_KINDS
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.coordinator.log.config_fold import assignment_record, connector_record, leader_record, task_set_record
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, Leader, TaskSet
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.protocol.control import TaskControl, TaskReporter
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from cdcworker.worker.source.start import run_source

from .measure import finish, wait

GROUP, CONNECTOR, EPOCH = "trace", "shop", 1
FUNCTIONS_MAX, CALLS_MAX = 8, 60
IDLE_TURNS = 15
LEASE_S = 3600.0
LOOP, POLL = ("session", "run"), ("task", "poll")
NATIVE, PRODUCERS = "cdcworker.connectors.postgres.decode.native_path", "cdcworker.worker.producers."
TOPIC = "trace.public.items"


@dataclass
class Turn:
    """What was called between two polls. `way`: functions on the row's way, in the order of their entry."""

    calls: Counter[str] = field(default_factory=Counter)
    way: dict[str, None] = field(default_factory=dict)
    rows: int = 0

    @property
    def count(self) -> int:
        return self.calls.total()


class Tracer:
    """The profile function of the task's thread; `turns` are those that have ended."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._turn: Turn | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._called(frame)
        elif event == "c_call" and self._turn is not None and argument.__name__ == "recv_into":
            self._pass(frame)

    def _called(self, frame: FrameType) -> None:
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if name == POLL[1] and module.endswith(f".source.{POLL[0]}"):
            if self._turn is not None:
                self.turns.append(self._turn)
            self._turn = Turn()
        if self._turn is None:
            return
        self._turn.calls[f"{module.removeprefix('cdcworker.')}.{frame.f_code.co_qualname}"] += 1
        if module == NATIVE and name.startswith("feed") and _brings_rows(frame):
            self._pass(frame)
            self._turn.way["native core"] = None
        elif (
            module.startswith(PRODUCERS) and name.startswith("produce") and frame.f_locals.get("topic", TOPIC) == TOPIC
        ):
            self._pass(frame)
            self._turn.rows += 1

    def _pass(self, frame: FrameType | None) -> None:
        """The functions of ours on the stack below the session's loop are on the row's way."""
        found: list[str] = []
        while frame is not None:
            module = str(frame.f_globals.get("__name__"))
            if module.endswith(f".source.{LOOP[0]}") and frame.f_code.co_name == LOOP[1]:
                break
            if module.startswith("cdcworker."):
                found.append(f"{module.removeprefix('cdcworker.')}.{frame.f_code.co_qualname}")
            frame = frame.f_back
        else:
            return
        assert self._turn
        self._turn.way |= dict.fromkeys(reversed(found))


def _brings_rows(frame: FrameType) -> bool:
    """Whether the native path is given a buffer of rows or the message of one, not the begin or the end of a transaction."""
    data = frame.f_locals.get("data")
    return data is None or data[HEADER] in ROW_KINDS


def assigned(kafka: dict[str, str], config: dict[str, str], state_dir: Path) -> TaskSpec:
    """The spec of a task that the cluster's topics say is this process's."""
    names = TopicNames.of_group(GROUP)
    ensure_topics(kafka, internal_topics(names), client_id="trace", replication_factor=1)
    records = [
        leader_record(Leader(1, "w", "boot", "")),
        connector_record(Connector(CONNECTOR, "inc", 1, config, "RUNNING", "source")),
        task_set_record(CONNECTOR, TaskSet("inc", 1, ({},))),
        assignment_record("w", Assignment("boot", (AssignedTask(CONNECTOR, "inc", 0, EPOCH),))),
    ]
    log = KafkaCompactedLog(kafka, names.configs, client_id="trace-configs")
    log.append([LogRecord(record.key, record.value, {"e": "1", "w": "w", "v": "1"}) for record in records], 10.0)
    log.close()
    return TaskSpec(
        kind="source",
        connector=CONNECTOR,
        task=0,
        incarnation="inc",
        task_epoch=EPOCH,
        attempt=0,
        worker_id="w",
        boot_id="boot",
        paused=False,
        config=config,
        kafka=kafka,
        group_id=GROUP,
        topics=ClusterTopics(names.configs, names.offsets, names.status, names.schemas),
        offsets_partitions=25,
        session_timeout_s=LEASE_S,
        state_dir=str(state_dir),
    )


def config_of(postgres: EmbeddedPostgres, options: dict[str, str]) -> dict[str, str]:
    info = psycopg.conninfo.conninfo_to_dict(postgres.dsn("trace"))
    names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    return {
        "name": CONNECTOR,
        "connector.class": "postgres",
        **{f"database.{ours}": str(info[theirs]) for ours, theirs in names.items()},
        "database.sslmode": "disable",
        "database.transport": "socket",
        "topic.prefix": "trace",
        **options,
    }


def traced(postgres: EmbeddedPostgres, kafka: EmbeddedKafka, root: Path, inserts: int) -> list[Turn]:
    """The turns in which `inserts` rows were committed one by one, and the idle ones behind them."""
    config = config_of(postgres, {})
    spec = assigned({"bootstrap.servers": kafka.bootstrap}, config, root / "state")
    control, tracer = TaskControl(LEASE_S), Tracer()
    with open(os.devnull, "wb") as nowhere:
        reporter = TaskReporter(nowhere.fileno(), lambda: None)

        def run() -> None:
            sys.setprofile(tracer)
            run_source(spec, config, control, reporter)

        thread = threading.Thread(target=run, name="task")
        thread.start()
        try:
            insert(postgres, inserts, tracer)
        finally:
            control.apply({"type": "stop"})
            thread.join()
    return tracer.turns


def insert(postgres: EmbeddedPostgres, inserts: int, tracer: Tracer) -> None:
    """One row after the other, each in a transaction of its own, and idle turns behind them. What is due once a second falls
    into few of the turns with a row then, however slow the machine is."""
    turns = tracer.turns

    def one(connection: psycopg.Connection[Any]) -> None:
        rows = sum(turn.rows > 0 for turn in turns)
        connection.execute("insert into items (name) values ('a row')")
        wait("the row is committed", lambda: sum(turn.rows > 0 for turn in turns) > rows, 60, 0.001)

    with psycopg.connect(postgres.dsn("trace"), autocommit=True) as connection:
        # The first ones meet a task that starts, a table without a plan and a topic that is not there.
        for _ in range(3):
            one(connection)
        turns.clear()
        for _ in range(inserts):
            one(connection)
        ended = len(turns)
        wait("idle turns", lambda: len(turns) > ended + IDLE_TURNS, 60, 0.001)


def typical(turns: list[Turn]) -> Turn:
    """One whose number of calls is the median."""
    middle = statistics.median_low(turn.count for turn in turns)
    return next(turn for turn in turns if turn.count == middle)


def shown(title: str, turn: Turn) -> None:
    print(f"{title}: {turn.count} Python calls")
    for name, count in turn.calls.most_common():
        print(f"  {count:3} {name}")


def measured(inserts: int, show: Callable[[str, Turn], None] = lambda title, turn: None) -> dict[str, int]:
    """Figures of a run against servers of its own."""
    with tempfile.TemporaryDirectory(prefix="cdc-trace-") as folder:
        root = Path(folder)
        root.chmod(0o711)
        with EmbeddedPostgres(root / "postgres") as postgres, EmbeddedKafka(root / "kafka") as kafka:
            postgres.create_database("trace")
            with psycopg.connect(postgres.dsn("trace"), autocommit=True) as connection:
                connection.execute("create table items (id bigserial primary key, name text not null)")
            began = time.monotonic()
            turns = traced(postgres, kafka, root, inserts)
    busy, idle = typical([t for t in turns if t.rows]), typical([t for t in turns if not t.rows])
    show("a turn with one row", busy)
    show("an idle turn", idle)
    print(f"the row's way ({len(busy.way)} functions):")
    for name in busy.way:
        print(f"  {name}")
    return {
        "functions": len(busy.way),
        "functions_goal": FUNCTIONS_MAX,
        "calls_row_turn": busy.count,
        "calls_goal": CALLS_MAX,
        "calls_idle_turn": idle.count,
        "turns": len(turns),
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inserts", type=int, default=50)
    options = parser.parse_args()
    finish(measured(options.inserts, shown))


if __name__ == "__main__":
    main()
