"""A run of Spark for the archive of its classes alone: made with an image, in which a sink cannot write it later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdcworker.connectors.scratch_folder import TemporaryFolder
from cdcworker.connectors.sink_errors import GATEWAY
from cdcworker.connectors.spark.runtime import kafka_source
from cdcworker.connectors.spark.runtime.java_gateway import java_program
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.schemas.errors import CdcError

NOBODY = "127.0.0.1:1"
"""No broker: Kafka's client is loaded all the same."""
BATCH_S_MAX = 300.0


def archive_classes(java_home: str, jars: Sequence[str], cache: Path) -> Path:
    """Make the archive for these libraries in `cache`, unless it is there; its path. CdcError `spark.gateway` when it was
    not made."""
    state = TemporaryFolder()
    touch = kafka_source.toucher({"bootstrap.servers": NOBODY}, "none")
    runtime = JavaRuntime(java_program(java_home), tuple(jars), cache=str(cache))
    engine = SparkEngine(runtime, state.path, lambda: False, touch, state.close)
    try:
        _batch(engine, state.path / "checkpoint")
        gateway = engine.gateway
        made = gateway.archive_classes(lambda: False, 0, waits=True) if gateway is not None else None
        if made is not None:
            made.join()
        path = gateway.class_archive if gateway is not None else None
    finally:
        engine.close()
    if path is None:
        raise CdcError(GATEWAY, "the archive of classes was not made", where={"folder": str(cache)})
    return path


def _batch(engine: SparkEngine, checkpoint: Path) -> None:
    """Loads the classes of a sink's batch, as far as that needs no Kafka. An archive without them would look complete."""
    source = engine.session().readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    query = (
        source.writeStream.foreachBatch(lambda frame, _: frame.toArrow())
        .option("checkpointLocation", str(checkpoint))
        # It ends by itself: one that is stopped has Spark warn of work that it does not find to break off.
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(BATCH_S_MAX):
        raise CdcError(GATEWAY, f"no batch went through Spark within {BATCH_S_MAX:.0f} s")
