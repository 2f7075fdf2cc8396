"""The stage of the sink benchmark: a warehouse, a broker with its load, and a sink in a process of its own between them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from cdcworker.connectors.spark.spark_host import jars_of
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java

from ..measure import cpu_s, rss_mb, tree, wait
from .load import Feed, Workload

SCHEMAS = "bench.schemas"
TIMEOUT_S = 900.0


@dataclass
class Stage:
    root: Path
    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    feed: Feed
    sinks: int = 0

    @property
    def dsn(self) -> str:
        return self.postgres.dsn("warehouse")

    def spec(self, name: str, topics: Sequence[str], config: Mapping[str, str]) -> dict[str, Any]:
        info = psycopg.conninfo.conninfo_to_dict(self.dsn)
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
        return {
            "connector": name,
            "task": 0,
            "incarnation": "bench",
            "epoch": [1, 0],
            "topics": list(topics),
            "kafka": {"bootstrap.servers": self.kafka.bootstrap},
            "schema_topic": SCHEMAS,
            "state_dir": str(self.root / "state"),
            "java_home": str(find_java().home),
            "jars": [str(path) for name in jars_of(config).split("+") for path in jars.ensure(name)],
            "cache_dir": str(jars.cache_dir()),
            "file_roots": [str(self.root)],
            "config": {
                "connector.class": "spark",
                "topics": ",".join(topics),
                **{f"warehouse.{ours}": str(info[theirs]) for ours, theirs in names.items()},
                **config,
            },
        }


@dataclass
class Run:
    """A sink that runs; the clock, the reports and the processor seconds of everybody when they came in."""

    process: subprocess.Popen[str]
    reports: list[tuple[float, dict[str, Any], dict[str, float]]] = field(default_factory=list)

    def until(self, changes: int) -> tuple[float, dict[str, Any], dict[str, float]]:
        wait(f"{changes} changes", lambda: self.changes() >= changes or self.process.poll() is not None, TIMEOUT_S)
        if self.changes() < changes:
            sys.exit(f"the sink ended: {self.reports[-1:]}")
        return next(row for row in self.reports if row[1].get("changes", 0) >= changes)

    def changes(self) -> int:
        return int(self.reports[-1][1].get("changes", 0)) if self.reports else 0


@contextmanager
def sink(stage: Stage, topics: Sequence[str], **config: str) -> Iterator[Run]:
    stage.sinks += 1
    spec = stage.spec(f"sink{stage.sinks}", topics, config)
    with (stage.root / f"sink{stage.sinks}.log").open("w") as log:
        argv = [sys.executable, str(Path(__file__).with_name("child.py"))]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    run = Run(process)
    assert process.stdin is not None
    assert process.stdout is not None
    lines = process.stdout

    def read() -> None:
        for line in lines:
            now = time.monotonic()
            run.reports.append((now, json.loads(line), used(stage, process.pid)))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        print(json.dumps(spec), file=process.stdin, flush=True)
        yield run
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(5)


def used(stage: Stage, pid: int) -> dict[str, float]:
    return {
        "sink": cpu_s(tree(pid)),
        "postgres": cpu_s(tree(stage.postgres.pid)),
        "broker": cpu_s(tree(stage.kafka.pid)),
    }


def steady(run: Run, workload: Workload) -> dict[str, float]:
    """From the first batch past what stood there before to the last."""
    total = workload.preload + workload.changes
    start, first, cpu = run.until(workload.preload)
    end, last, cpu_end = run.until(total)
    million = (last["changes"] - first["changes"]) / 1e6
    figures = {f"{name}_cpu_s_per_million": (cpu_end[name] - cpu[name]) / million for name in cpu}
    # What two cores that nobody else uses could do at best: a figure that a busy machine disturbs least.
    ceiling = 2e6 / sum(figures.values())
    return {
        "changes_per_s": million * 1e6 / (end - start),
        "changes_per_s_by_cpu_of_2_cores": ceiling,
        "rss_mb": rss_mb(tree(run.process.pid)),
        **figures,
    }
