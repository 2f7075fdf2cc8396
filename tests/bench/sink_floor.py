"""What the sink benchmark's figures stand on: decoding alone, and reading alone, with no work behind it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdcworker.connectors.spark import read
from cdcworker.connectors.spark.decode import decode_native, decode_pure, native
from cdcworker.connectors.spark.kafka import Brokers
from cdcworker.connectors.spark.reading import Reader
from cdcworker.connectors.spark.schemas import Shape
from cdcworker.connectors.spark.session import Engine, Runtime
from cdcworker.connectors.spark.settings import Settings
from measure import cpu_s, tree
from sink_load import Workload

DECODED = 20_000


def compare_decoders() -> dict[str, float]:
    """Processor time of the native decoder and of fastavro over the same records."""
    import numpy as np
    from cdcworker.schemas.encode import Encoder
    from cdcworker.schemas.log import SchemaLog

    module, log = native(), SchemaLog()
    if module is None:
        return {"native_vs_fastavro_ratio": 0.0}
    schemas: list[Any] = []

    def register(registrations: Sequence[Any]) -> list[int]:
        schemas[:] = [item.schema for item in registrations]
        return [log.plan_registration(item.subject, item.schema, item.meta).id for item in registrations]

    workload = Workload("decoded", 1, DECODED, 0)
    frames = [record.value for record in Encoder("decoded", register).encode(list(workload.first()))]
    data = b"".join(frames)
    offsets = np.concatenate([[0], np.cumsum([len(frame) for frame in frames])]).astype(np.int64)
    plan = Shape(1, schemas[-1]).plan

    def took(run: Any, times: int) -> float:
        best = []
        for _ in range(times):
            began = time.thread_time()
            run()
            best.append(time.thread_time() - began)
        return min(best)

    fast = took(lambda: decode_native(module, plan, data, offsets, 5), 9)
    slow = took(lambda: decode_pure(plan, data, offsets, 5), 2)
    return {"native_records_per_cpu_s": DECODED / fast, "native_vs_fastavro_ratio": slow / fast}


# -- reading ------------------------------------------------------------------------------------------------------------


def compare_readers(spec: Mapping[str, Any], preload: int, changes: int, broker: int) -> dict[str, float]:
    """Changes per second of the same batches brought into this process as Arrow and dropped: by our reader inside Spark's
    tasks, and by Spark's own source, which no sink over it can pass."""
    figures: dict[str, float] = {}
    settings = Settings()
    folder = Path(spec["state_dir"], "floor")
    folder.mkdir(parents=True)
    runtime = Runtime(str(Path(spec["java_home"], "bin", "java")), tuple(spec["jars"]), cache=spec["cache_dir"])
    engine = Engine(runtime, folder, lambda: False)
    try:
        partitions = Brokers(spec["kafka"]).partitions(spec["topics"])
        reader = Reader(engine.session(), folder, spec["kafka"], settings.cores)
        for name in ("reader", "source"):
            reader.begin({})
            checkpoint = folder / name

            def bring(frame: Any, number: int, own: bool = name == "reader", at: Path = checkpoint) -> int:
                found = reader.read(frame, at, number) if own else frame.coalesce(settings.cores).toArrow()
                return int(found.num_rows)

            frame = read.stream(engine.session(), spec["kafka"], partitions, {}, settings.records_max)
            figures |= {
                f"read_by_{name}_{what}": value
                for what, value in _drain(frame, checkpoint, bring, broker, preload, changes).items()
            }
    finally:
        engine.close()
        shutil.rmtree(folder, ignore_errors=True)
    return figures


def _drain(
    frame: Any, checkpoint: Path, bring: Callable[[Any, int], int], broker: int, preload: int, changes: int
) -> dict[str, float]:
    """Past what stood there before, until nothing is left. Some changes have two records."""
    marks: list[tuple[float, float, int]] = []

    def on_batch(part: Any, number: int) -> None:
        rows = bring(part, number) + (marks[-1][2] if marks else 0)
        marks.append((time.monotonic(), cpu_s(tree(os.getpid())) + cpu_s(tree(broker)), rows))

    query = frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    first = next(mark for mark in marks if mark[2] >= preload)
    last = marks[-1]
    done = changes * (last[2] - first[2]) / (last[2] - preload)
    return {"changes_per_s": done / (last[0] - first[0]), "cpu_s_per_million": (last[1] - first[1]) / done * 1e6}
