"""From a commit on the server to a reader of committed records, at a thousand transactions a second."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TopicPartition

from ..measure import cpu_s, tree, wait
from .floor import floor
from .records import consumer, long_at, stored
from .server import RATE, WRITERS
from .stage import Stage

WARM_S = 60.0
"""A broker that has just been started compiles its own code first."""


TIMEOUT_S = 180.0


@dataclass
class Read:
    """What a reader has met."""

    ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


def latency(stage: Stage[Any], seconds: int, rows: int = 1, name: str = "paced_1") -> dict[str, float]:
    """Milliseconds between just before the commit and the record in a consumer's hands. `rows`: of a transaction."""
    server, runner = stage.server, stage.runner
    server.make_paced(name)
    runner.start(name, server.config(name, name, {}))
    wait(f"a position of {name}", lambda: bool(runner.offsets(name)), TIMEOUT_S)
    # In processes of their own: writers that share an interpreter with the reader would hold it up.
    argv = [server.paced_writer(name, rows, number) for number in range(WRITERS)]
    writers = [subprocess.Popen(one, stdin=subprocess.PIPE) for one in argv]
    topic = server.topic(name, name)
    wait("the first paced row", lambda: stored(stage.kafka.bootstrap, topic) > 0, TIMEOUT_S)
    before, found = _commits(stage, name), Read()
    _read(stage, topic, seconds, found)
    commits, commit_s = (after - first for after, first in zip(_commits(stage, name), before, strict=True))
    # The same broker, as warm, and the same writers beside it, but no source.
    runner.ask(name, "pause")
    paced = floor(stage.kafka.bootstrap, f"floor_{name}", RATE * rows)
    runner.ask(name, "resume")
    for writer in writers:
        writer.communicate()
    check_table(stage, topic, name)
    stage.stop(name)
    found.ms.sort()
    return {
        **paced,
        "latency_p50_ms": found.ms[len(found.ms) // 2],
        "latency_p99_ms": found.ms[int(len(found.ms) * 0.99)],
        "latency_max_ms": found.ms[-1],
        "latency_rows_per_s": len(found.ms) / seconds,
        "latency_cpu_us_per_row": found.cpu_s / len(found.ms) * 1e6,
        "kafka_commits_per_s": commits / (seconds + WARM_S),
        "kafka_commit_ms": 1000 * commit_s / max(commits, 1),
    }


def check_table(stage: Stage[Any], topic: str, table: str) -> None:
    """Each row of the table once in its topic."""
    left = stage.server.numbers(table)
    one = consumer(stage.kafka.bootstrap, "bench-check")
    one.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while left:
            if time.monotonic() > deadline:
                sys.exit(f"{topic}: {len(left)} rows are missing")
            for message in one.consume(10_000, 0.5):
                if message.error() is None:
                    row = long_at(message.key(), 5)
                    if row not in left:
                        sys.exit(f"{topic}: row {row} was not expected, or not again")
                    left.remove(row)
        if one.consume(1, 0.5):
            sys.exit(f"{topic}: more records than rows")
    finally:
        one.close()


def _commits(stage: Stage[Any], name: str) -> tuple[float, float]:
    """Kafka transactions of the task so far, and the seconds that their commits took."""
    lines = stage.runner.rest.get("/metrics").text.splitlines()
    return tuple(  # type: ignore[return-value]
        next((float(line.split()[-1]) for line in lines if line.startswith(figure + "{") and name in line), 0.0)
        for figure in ("cdc_source_commits_total", "cdc_source_commit_seconds_total")
    )


def _read(stage: Stage[Any], topic: str, seconds: int, found: Read) -> None:
    one = consumer(stage.kafka.bootstrap, "bench-latency")
    try:
        one.assign([TopicPartition(topic, 0, stored(stage.kafka.bootstrap, topic))])
        warm = time.monotonic() + WARM_S
        end, cpu = warm + seconds, 0.0
        while (now := time.monotonic()) < end:
            # One at a time: who asks for several waits for the last of them with the first in hand.
            message = one.poll(0.1)
            if now > warm and not cpu:
                cpu = cpu_s(tree(stage.runner.pid))
            if message is not None and message.error() is None and message.value() and now > warm:
                found.ms.append((time.time_ns() // 1000 - _written_us(message.value())) / 1000)
        found.cpu_s = cpu_s(tree(stage.runner.pid)) - cpu
    finally:
        one.close()


def _written_us(value: bytes) -> int:
    at = 7
    while value[at] & 128:
        at += 1
    return long_at(value, at + 1)
