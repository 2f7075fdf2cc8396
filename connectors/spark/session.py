"""The Spark session of a sink task: every setting with its reason."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.spark.errors import GATEWAY
from cdcworker.connectors.spark.gateway import Gateway, java_program
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.api import SinkSpec
    from pyspark.sql import SparkSession

ARROW_ROWS = 20_000
ARROW_BYTES = "32m"


def settings(state: Path, cores: int, partitions: int) -> dict[str, str]:
    """No secret among them: they are process arguments."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "cdcworker-sink",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The driver and its only executor are one process: nothing listens to the outside.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(state / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        # A consumer per partition stays open; the default of 64 would close and reopen them.
        "spark.kafka.consumer.cache.capacity": str(max(64, 2 * partitions)),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.sql.execution.arrow.maxBytesPerBatch": ARROW_BYTES,
        # The path of a Unix socket has at most 107 characters.
        "spark.python.unix.domain.socket.enabled": str(len(tempfile.gettempdir()) < 40).lower(),
        # A batch is bounded by its number of records; a second limit would fail it instead of bounding it.
        "spark.driver.maxResultSize": "0",
        # Local disk: a plain rename is atomic, and the checkpoint is a cache (saves 65 ms a batch).
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.redaction.regex": "(?i)secret|password|token|jaas|credential|key",
    }


def jvm_options(memory: str) -> list[str]:
    """A small driver: C1 code is there at once and fast enough, one collector thread is enough."""
    small = ["-Xms128m", "-Xss2m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    # A process that ran out of memory limps; one that ends is noticed.
    return [f"-Xmx{memory}", *small, "-XX:+ExitOnOutOfMemoryError"]


@contextlib.contextmanager
def spark_session(
    spec: SinkSpec, state: Path, memory: str, cores: int, stopping: Callable[[], bool]
) -> Iterator[tuple[SparkSession, Gateway]]:
    """A session over a Java process of its own; both are gone afterwards."""
    names = settings(state, cores, 64 * max(1, len(spec.topics)))
    # py4j tells of every call at INFO.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    gateway = Gateway(java_program(spec.java_home), spec.jars, names, jvm_options(memory), state / "local", stopping)
    try:
        yield _build(gateway), gateway
    finally:
        gateway.close()
        _forget()


def _build(gateway: Gateway) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    try:
        with gateway.environment():
            return SparkSession.builder.getOrCreate()
    except (Py4JError, OSError) as exc:
        raise CdcError(GATEWAY, f"Spark's session did not start ({type(exc).__name__})") from exc


def _forget() -> None:
    """Drop pyspark's globals, which point at the process that is gone, so that a next run starts afresh."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    session: Any = SparkSession
    with contextlib.suppress(Exception):
        if context._gateway is not None:
            context._gateway.shutdown()
    context._gateway = context._jvm = context._active_spark_context = None
    session._instantiatedSession = session._activeSession = None
