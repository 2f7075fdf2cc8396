"""What the sink benchmark's figures stand on: decoding alone, and reading alone, with no work behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdcworker.connectors.arrow.decode import decode_native, decode_pure, native
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchema
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.connectors.spark.runtime import kafka_source as read
from cdcworker.connectors.spark.runtime.range_reader import RangeReader
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.connectors.spark.settings import SparkSettings
from cdcworker.connectors.warehouses.parquet.kind import RECORDS_MAX

from ..measure import cpu_s, tree
from .load import Workload

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
    plan = EnvelopeSchema(1, schemas[-1]).plan

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
    with _reading(spec) as (reader, stream):
        for name in ("reader", "source"):

            def bring(frame: Any, number: int, at: Path, own: bool = name == "reader") -> int:
                found = reader.read(frame, at, number) if own else frame.coalesce(SparkSettings().cores).toArrow()
                return int(found.num_rows)

            found = stream(name, SparkSettings().records_max, bring, broker, preload, changes)
            figures |= {f"read_by_{name}_{what}": value for what, value in found.items()}
    return figures


def parquet_limit(
    spec: Mapping[str, Any], preload: int, changes: int, broker: int, schemas: Callable[[int], Any]
) -> dict[str, float]:
    """Changes per second read, decoded and written as Parquet files, a file per table and batch: no types of the source,
    no manifests, nothing that is waited for on the disk, one thing after the other."""
    from cdcworker.connectors.arrow import array_ops as arrays
    from cdcworker.connectors.arrow.decode import decode
    from cdcworker.connectors.warehouses.parquet.buckets import repeating
    from pyarrow import Table, parquet

    shapes: dict[int, EnvelopeSchema] = {}
    with _reading(spec) as (reader, stream):

        def bring(frame: Any, number: int, at: Path) -> int:
            found = reader.read(frame, at, number)
            for topic, rows in arrays.by_topic(found).items():
                value = arrays.one(rows["value"])
                ids = arrays.frame_ids(value)
                for id in set(ids[ids > 0].tolist()):
                    shape = shapes.setdefault(id, EnvelopeSchema(id, schemas(id)))
                    made = decode(shape.plan, *arrays.chosen(value, (ids == id).nonzero()[0])).field("after")
                    table = Table.from_arrays(made.flatten(), shape.fields)
                    few = repeating(table)
                    path = at.parent / f"{topic}-{number}.parquet"
                    parquet.write_table(table, path, compression="zstd", compression_level=1, use_dictionary=few)
            return int(found.num_rows)

        figures = stream("limit", batch_of(changes), bring, broker, preload, changes)
    return {
        "parquet_limit_per_s": figures["changes_per_s"],
        "parquet_limit_cpu_s_per_million": figures["cpu_s_per_million"],
    }


def batch_of(changes: int) -> int:
    """As the sink's, unless so few changes would be one batch."""
    return min(RECORDS_MAX, changes // 4)


@contextlib.contextmanager
def _reading(spec: Mapping[str, Any]) -> Iterator[tuple[RangeReader, Callable[..., dict[str, float]]]]:
    """A reader, and what drains the topics by it."""
    folder = Path(spec["state_dir"], "floor")
    folder.mkdir(parents=True)
    runtime = JavaRuntime(str(Path(spec["java_home"], "bin", "java")), tuple(spec["jars"]), cache=spec["cache_dir"])
    engine = SparkEngine(runtime, folder, lambda: False)
    try:
        partitions = SinkBrokers(spec["kafka"]).partitions(spec["topics"])
        reader = RangeReader(engine.session(), folder, spec["kafka"], SparkSettings().cores)

        def stream(name: str, records_max: int, bring: Callable[..., int], *more: int) -> dict[str, float]:
            reader.begin({})
            frame = read.stream(engine.session(), spec["kafka"], partitions, {}, records_max)
            at = folder / name
            return _drain(frame, at, lambda part, number: bring(part, number, at), *more)

        yield reader, stream
    finally:
        engine.close()
        shutil.rmtree(folder, ignore_errors=True)


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
