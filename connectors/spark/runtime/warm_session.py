"""A Spark session that waits for its task: started and warmed ahead, so that a task which moves stands still for a moment
only."""

from __future__ import annotations

import importlib
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.scratch_folder import StateFolder
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.connectors.spark.runtime import kafka_source
from cdcworker.connectors.spark.runtime.client_properties import jvm_settings
from cdcworker.connectors.spark.runtime.cluster import SparkCluster
from cdcworker.connectors.spark.runtime.java_gateway import java_program
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import start_thread

log = logging.getLogger(__name__)

WARM_S_MAX = 20.0
STOP_S_MAX = 5.0
RECORDS = 100
ROUNDS = 2
"""Batches that a new session reads for nothing: what they load is there for the first real one."""
BATCH_PARTS = (
    "psycopg",
    "pyarrow.csv",
    "cdcworker.connectors.sink_engine.pump",
    "cdcworker.connectors.spark.query_source",
    "cdcworker.connectors.warehouses.postgres.writer",
)

Settings = tuple[tuple[str, str], ...]

_waiting: list[SparkEngine] = []
"""Of this process, which becomes one task at most."""


def runtime_of(
    spec: SinkSpec, memory: str, cores: int, more: Settings, cluster: SparkCluster | None = None
) -> JavaRuntime:
    return JavaRuntime(java_program(spec.java_home), spec.jars, memory, cores, spec.cache_dir, more, cluster)


def prepare(spec: SinkSpec, memory: str, cores: int, more: Settings = ()) -> SparkEngine:
    """Bring a session up and send a few records of the schema log through it."""
    state = StateFolder(Path(spec.state_dir, "standby"))
    state.open()
    touch = kafka_source.toucher(jvm_settings(spec.kafka), spec.schema_topic)
    engine = SparkEngine(runtime_of(spec, memory, cores, more), state.path, lambda: False, touch, state.close)
    try:
        engine.session()
        for name in BATCH_PARTS:
            importlib.import_module(name)
        for _ in range(ROUNDS):
            if not _warm(engine, spec, state.path / "warm"):
                break
    except BaseException:
        engine.close()
        raise
    _waiting.append(engine)
    return engine


def _warm(engine: SparkEngine, spec: SinkSpec, checkpoint: Path) -> bool:
    """Returns whether a batch went through. That none did is no failure: the first of the task then takes longer."""
    done = threading.Event()

    def on_batch(frame: Any, _: int) -> None:
        frame.toArrow()
        done.set()

    try:
        engine.session().range(1).toArrow()
        partitions = SinkBrokers(spec.kafka).partitions([spec.schema_topic])
        if partitions:
            frame = kafka_source.stream(engine.session(), jvm_settings(spec.kafka), partitions, {}, RECORDS)
            query = frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(checkpoint)).start()
            done.wait(WARM_S_MAX)
            bounded(query.stop, STOP_S_MAX)
    except (CdcError, Exception) as exc:  # noqa: BLE001
        log.info("the session could not be warmed up error=%s", type(exc).__name__)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return done.is_set()


def bounded(stop: Callable[[], Any], seconds: float) -> None:
    """Call it in a thread that is left alone when it takes longer: the process behind it may not answer."""

    def run() -> None:
        try:
            stop()
        except Exception as exc:  # noqa: BLE001 - the process behind it goes away next
            log.info("stopping the query failed error=%s", type(exc).__name__)

    thread = start_thread(run, name="query-stop")
    thread.join(seconds)


def take(runtime: JavaRuntime) -> SparkEngine | None:
    """The session that waits in this process, if it is what is wanted."""
    if not _waiting:
        return None
    engine = _waiting.pop()
    if engine.runtime == runtime and engine.alive:
        log.info("task uses the warm session")
        return engine
    log.info("warm session does not fit the task memory=%s cores=%d", runtime.memory, runtime.cores)
    engine.close()
    return None
