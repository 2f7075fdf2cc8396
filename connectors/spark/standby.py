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

from cdcworker.connectors.api import SinkSpec
from cdcworker.connectors.spark import read
from cdcworker.connectors.spark.cluster import Cluster
from cdcworker.connectors.spark.gateway import java_program
from cdcworker.connectors.spark.kafka import Brokers, jvm_settings
from cdcworker.connectors.spark.session import Engine, Runtime
from cdcworker.connectors.spark.state import StateFolder
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

WARM_S_MAX = 20.0
STOP_S_MAX = 5.0
RECORDS = 100
ROUNDS = 2
"""Batches that a new session reads for nothing: what they load is there for the first real one."""
BATCH_PARTS = ("psycopg", "pyarrow.csv", "cdcworker.connectors.spark.driver", "cdcworker.connectors.spark.postgres")

Settings = tuple[tuple[str, str], ...]

_waiting: list[Engine] = []
"""Of this process, which becomes one task at most."""


def runtime_of(spec: SinkSpec, memory: str, cores: int, more: Settings, cluster: Cluster | None = None) -> Runtime:
    return Runtime(java_program(spec.java_home), spec.jars, memory, cores, spec.cache_dir, more, cluster)


def prepare(spec: SinkSpec, memory: str, cores: int, more: Settings = ()) -> Engine:
    """Bring a session up and send a few records of the schema log through it."""
    state = StateFolder(Path(spec.state_dir, "standby"))
    state.open()
    touch = read.toucher(jvm_settings(spec.kafka), spec.schema_topic)
    engine = Engine(runtime_of(spec, memory, cores, more), state.path, lambda: False, touch, state.close)
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


def _warm(engine: Engine, spec: SinkSpec, checkpoint: Path) -> bool:
    """Whether a batch went through. That none did is no failure: the first of the task then takes longer."""
    done = threading.Event()

    def on_batch(frame: Any, _: int) -> None:
        frame.toArrow()
        done.set()

    try:
        engine.session().range(1).toArrow()
        partitions = Brokers(spec.kafka).partitions([spec.schema_topic])
        if partitions:
            frame = read.stream(engine.session(), jvm_settings(spec.kafka), partitions, {}, RECORDS)
            query = frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(checkpoint)).start()
            done.wait(WARM_S_MAX)
            bounded(query.stop, STOP_S_MAX)
    except (CdcError, Exception) as exc:  # noqa: BLE001
        log.info("standby is not warm error=%s", type(exc).__name__)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return done.is_set()


def bounded(stop: Callable[[], Any], seconds: float) -> None:
    """Call it in a thread that is left alone when it takes longer: the process behind it may not answer."""

    def run() -> None:
        try:
            stop()
        except Exception as exc:  # noqa: BLE001 - the process behind it goes away next
            log.info("query did not stop in order error=%s", type(exc).__name__)

    thread = threading.Thread(target=run, name="query-stop", daemon=True)
    thread.start()
    thread.join(seconds)


def take(runtime: Runtime) -> Engine | None:
    """The session that waits in this process, if it is what is wanted."""
    if not _waiting:
        return None
    engine = _waiting.pop()
    if engine.runtime == runtime and engine.alive:
        log.info("task takes the waiting session")
        return engine
    log.info("waiting session is not what the task needs memory=%s cores=%d", runtime.memory, runtime.cores)
    engine.close()
    return None
