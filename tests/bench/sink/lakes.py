"""Lakes in the sink benchmark: a sink's current state, and its rows as an independent reader of Spark finds them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.connectors.warehouses.kind import WriterTask

from . import equal as whole
from .load import Workload
from .stage import Stage, sink, steady

KINDS = ("iceberg", "delta")
OF_CHANGES = 5
"""A lake gets the fifth part: a table's commit costs most there, whatever the number of rows."""
BATCH_MAX = 100_000


def part(stage: Stage, kind: str, changes: int, tables: int) -> dict[str, float]:
    """Into tables of current state."""
    workload = Workload(f"lake_{kind}", tables, changes // 5, changes)
    stage.feed.load(workload)
    settings = {"warehouse": kind, "warehouse.path": str(stage.root / kind)}
    # So few changes would be one batch.
    settings["max.batch.records"] = str(min(BATCH_MAX, changes // 3))
    with sink(stage, workload.topics, **settings) as run:
        figures = steady(run, workload)
    _check(stage.spec(f"sink{stage.sinks}", workload.topics, settings), workload, stage.root)
    return {f"{kind}_{name}": value for name, value in figures.items()}


def _check(spec: Mapping[str, Any], workload: Workload, root: Path) -> None:
    """Each row of each table is there, once, with all its columns as they were sent last."""
    parsed = CONFIG_DEF.parse(spec["config"])
    settings = tuple(kind_of(parsed).spark_settings.items())
    state = root / "check"
    state.mkdir(exist_ok=True)
    runtime = JavaRuntime(str(Path(spec["java_home"], "bin", "java")), tuple(spec["jars"]), settings=settings)
    engine = SparkEngine(runtime, state, lambda: False)
    with (
        closing(engine),
        closing(kind_of(parsed).open(parsed, WriterTask(spec["connector"], file_roots=spec["file_roots"]))) as writer,
    ):
        writer.attach(engine.session)
        for at, topic in enumerate(workload.topics):
            whole.check(whole.read(writer.rows(topic)), workload, at, f"{topic} in {parsed['warehouse']}")
