"""Lakes in the sink benchmark: a sink's current state, and its rows as an independent reader of Spark finds them, beside a
writer that does nothing but add the same rows to tables of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.tables import LakeName
from pyspark.sql import SparkSession

from ..measure import cpu_s, tree
from . import equal as whole
from .load import FEW, Workload
from .stage import Stage, sink, steady

KINDS = ("iceberg", "delta")
LARGE = tuple(f"{kind}_large" for kind in KINDS)
INSERTS, UPDATES = 0.8, 0.15
"""Of the changes of many tables; the rest are deletes."""
LARGE_ROWS = 2_000_000
LARGE_INSERTS, LARGE_UPDATES = 0.1, 0.85
BATCHES_MIN = 3
"""Fewer have no steady state."""
SCANS = 3


def part(stage: Stage, kind: str, changes: int, tables: int) -> dict[str, float]:
    """Into many tables of current state."""
    workload = Workload(f"lake_{kind}", tables, changes // 5, changes, columns=FEW, inserts=INSERTS, updates=UPDATES)
    figures = _run(stage, kind, workload)
    return {f"{kind}_{name}": value for name, value in figures.items()}


def large(stage: Stage, kind: str, changes: int) -> dict[str, float]:
    """Changes of rows all over one table of two million."""
    rows = min(LARGE_ROWS, 2 * changes)
    workload = Workload(f"large_{kind}", 1, rows, changes, columns=FEW, inserts=LARGE_INSERTS, updates=LARGE_UPDATES)
    figures = _run(stage, kind, workload)
    return {f"{kind}_large_{name}": value for name, value in figures.items()}


def _run(stage: Stage, kind: str, workload: Workload) -> dict[str, float]:
    stage.feed.load(workload)
    settings = {"warehouse": kind, "warehouse.path": str(stage.root / f"{workload.prefix}_tables")}
    if workload.changes < BATCHES_MIN * (
        kind_of(CONFIG_DEF.parse({"topics": "any", **settings})).records_max or 100_000
    ):
        settings["max.batch.records"] = str(workload.changes // BATCHES_MIN)
    with sink(stage, workload.topics, **settings) as run:
        figures = steady(run, workload)
    spec = stage.spec(f"sink{stage.sinks}", workload.topics, settings)
    with _reader(stage, spec) as (writer, session):
        for at, topic in enumerate(workload.topics):
            found = whole.read(writer.rows(topic), names=workload.names)
            whole.check(found, workload, at, f"{topic} in {kind}")
        return figures | _compared(session, writer, kind, workload)


@contextmanager
def _reader(stage: Stage, spec: Mapping[str, Any]) -> Iterator[tuple[Any, SparkSession]]:
    parsed = CONFIG_DEF.parse(spec["config"])
    settings = tuple(kind_of(parsed).spark_settings.items())
    state = stage.root / "check"
    state.mkdir(exist_ok=True)
    runtime = JavaRuntime(f"{spec['java_home']}/bin/java", tuple(spec["jars"]), settings=settings)
    engine = SparkEngine(runtime, state, lambda: False)
    opened = kind_of(parsed).open(parsed, WriterTask(spec["connector"], file_roots=spec["file_roots"]))
    with closing(engine), closing(opened) as writer:
        writer.attach(engine.session)
        yield writer, writer._spark()


def _compared(session: SparkSession, writer: Any, kind: str, workload: Workload) -> dict[str, float]:
    """Writes the rows as they are in the end into fresh tables, and scans both."""
    before, seconds, rows = cpu_s(tree(_java(session))), 0.0, 0
    pairs = []
    for at in range(workload.tables):
        found = whole.expected(workload, at)
        place, fresh = LakeName("public", f"t{at:02d}"), LakeName("public", f"fresh{at:02d}")
        table, target = writer._tables.name(place), writer._tables.name(fresh)
        rows += found.num_rows
        began = time.monotonic()
        source = writer._stage.view(session, "bench_rows", found)
        session.sql(f"CREATE TABLE {target} ({statements.definition(found.schema)}) USING {kind}")
        session.sql(f"INSERT INTO {target} SELECT * FROM {source}")
        seconds += time.monotonic() - began
        pairs.append((table, target))
    used = cpu_s(tree(_java(session))) - before
    names = ", ".join(map(statements.quoted, workload.names))
    fresh_s = _scanned(session, names, [target for _, target in pairs])
    return {
        "bare_rows_per_s": rows / seconds,
        "bare_cpu_s_per_million": used / rows * 1e6,
        "scan_ratio_after": _scanned(session, names, [table for table, _ in pairs]) / fresh_s,
        "scan_fresh_cpu_s": fresh_s,
    }


def _scanned(session: SparkSession, names: str, tables: list[str]) -> float:
    """CPU seconds of a scan of all rows and columns; the least of a few."""

    def scan() -> float:
        before = cpu_s(tree(_java(session)))
        for table in tables:
            session.sql(f"SELECT sum(xxhash64({names})), count(*) FROM {table}").collect()
        return cpu_s(tree(_java(session))) - before

    return min(scan() for _ in range(SCANS))


def _java(session: SparkSession) -> int:
    return int(session._jvm.java.lang.ProcessHandle.current().pid())
