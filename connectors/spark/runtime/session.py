"""The Spark session of a sink task: every setting with its reason."""

from __future__ import annotations

import contextlib
import importlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.arrow.decode import native
from cdcworker.connectors.config.definition import Secret
from cdcworker.connectors.sink_errors import CLUSTER_UNREACHABLE, GATEWAY
from cdcworker.connectors.spark.runtime import redaction
from cdcworker.connectors.spark.runtime.cluster import SparkCluster
from cdcworker.connectors.spark.runtime.java_gateway import JavaGateway
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import start_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

ARROW_ROWS = 20_000
ARROW_BYTES = "32m"
WAIT_S = 0.05
CLOSE_S_MAX = 2.0
OF_QUERIES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
FIRST_NEEDED = ("pyspark", "pyspark.sql.pandas.serializers", "pyarrow.compute")
"""Imported while Java starts."""


def settings(state: Path, cores: int) -> dict[str, str]:
    """No secret among them: they are process arguments."""
    return {
        "spark.app.name": "cdcworker-sink",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(state / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # A statement holds defaults and names of others' tables: ${env:…} in them is text.
        "spark.sql.variable.substitute": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        # A consumer per partition stays open; the default of 64 would close and reopen them.
        "spark.kafka.consumer.cache.capacity": "16384",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.sql.execution.arrow.maxBytesPerBatch": ARROW_BYTES,
        # The path of a Unix socket has at most 107 characters.
        "spark.python.unix.domain.socket.enabled": str(len(tempfile.gettempdir()) < 40).lower(),
        # What was read goes to the driver as it is, not by way of the store of blocks and its server.
        "spark.task.maxDirectResultSize": "64m",
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
        **redaction.settings(),
    }


def local(cores: int) -> dict[str, str]:
    """The driver and its only executor are one process: nothing listens to the outside, and no other process of this
    machine is listened to. Spark makes the secret of a local master itself, in its own memory."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A frame of an unknown peer would be read as an object of Java's.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
    }


def jvm_options(memory: str) -> list[str]:
    """A small driver: C1 code is there at once and fast enough, one collector thread is enough. What a batch brings is
    garbage soon after: a large young generation throws it away before it is moved."""
    small = ["-Xms128m", "-Xss2m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m"]
    # C1 alone is given 48 MB, which the code of fifty tables' merges fills within minutes: from then on all is interpreted.
    small += ["-XX:NewRatio=1", "-XX:SurvivorRatio=2"]
    # A process that ran out of memory limps; one that ends is noticed. Nobody reads its counters, and a file of them
    # would be left behind.
    return [f"-Xmx{memory}", *small, "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData"]


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """What a Java process is started with. One that was started earlier with the same can be used."""

    java: str
    jars: tuple[str, ...]
    memory: str = "1g"
    cores: int = 2
    cache: str = ""
    """Folder for the archive of classes; empty: none."""
    settings: tuple[tuple[str, str], ...] = ()
    """Of Spark, besides its usual ones."""
    cluster: SparkCluster | None = None

    def all_settings(self, state: Path) -> dict[str, str | Secret]:
        usual: dict[str, str | Secret] = dict(settings(state, self.cores))
        usual |= local(self.cores) if self.cluster is None else self.cluster.settings(self.cores, self.jars)
        return {**usual, **dict(self.settings)}


class SparkEngine:
    """Spark's Java process and a session over it. A thread of its own brings both up, while the task does whatever does
    not need them."""

    def __init__(
        self,
        runtime: JavaRuntime,
        state: Path,
        stopping: Callable[[], bool],
        touch: Callable[[Any], None] = lambda _jvm: None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`touch` gets the JVM as soon as it answers, in another thread: to load what the first batch will need.
        `release` is called when all is gone that could use `state`."""
        self.runtime = runtime
        self._state = state
        self._stopping = stopping
        self._closing = self._archiving = False
        self._touch = touch
        self._release = release
        self._gateway: JavaGateway | None = None
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        self._archive: threading.Thread | None = None
        self._began = time.monotonic()
        self.start_s = 0.0
        self._thread = start_thread(self._bring_up, name="spark-start")

    def session(self) -> SparkSession:
        """Waits for it; raises why there is none."""
        while self._thread.is_alive():
            self._thread.join(WAIT_S)
        if self._error is not None:
            raise self._error
        assert self._session is not None
        return self._session

    @property
    def gateway(self) -> JavaGateway | None:
        return self._gateway

    @property
    def ready(self) -> bool:
        """Returns whether the session has started: an end of the process after that is no failure to start."""
        return self._session is not None

    @property
    def alive(self) -> bool:
        """Not known to have ended: it may still be on its way."""
        return self._thread.is_alive() or (self._gateway is not None and self._gateway.alive)

    def archive_classes(self, after_s: float) -> None:
        """Creates the archive of the process's classes if there is none: once, when the process is `after_s` old."""
        if not self._archiving and self._gateway is not None and time.monotonic() - self._began > after_s:
            self._archiving = True
            self._archive = self._gateway.archive_classes(lambda: self._closing or self._stopping())

    def _bring_up(self) -> None:
        runtime = self.runtime
        _quiet()
        try:
            self._gateway = JavaGateway(
                runtime.java,
                runtime.jars,
                runtime.all_settings(self._state),
                jvm_options(runtime.memory),
                self._state / "local",
                Path(runtime.cache) if runtime.cache else None,
            )
            # Of packages whose parts import each other, by one thread only.
            for name in FIRST_NEEDED:
                importlib.import_module(name)
            native()
            self._gateway.connect(lambda: self._closing or self._stopping())
            self._session = self._build()
            self.start_s = round(time.monotonic() - self._began, 2)
        except BaseException as exc:  # noqa: BLE001 - raised to whoever asks for the session
            self._error = exc

    def _build(self) -> SparkSession:
        assert self._gateway is not None
        try:
            return _build(self._gateway, self._touch)
        except CdcError as exc:
            if self.runtime.cluster is None or not self._gateway.alive:
                raise
            where = {"master": self.runtime.cluster.master}
            raise CdcError(CLUSTER_UNREACHABLE, "Spark's cluster did not take the driver", where=where) from exc

    def close(self) -> None:
        """Both are gone afterwards; a start that is under way is broken off."""
        self._closing = True
        while True:
            alive = self._thread.is_alive()
            if self._gateway is not None:
                self._gateway.close()
            if not alive:
                break
            self._thread.join(WAIT_S)
        if self._archive is not None:
            self._archive.join(CLOSE_S_MAX)
        _forget()
        self._release()

    def answers(self) -> bool:
        """Returns whether the process can be called; waits as long as that takes."""
        gateway = self._session and self._session.sparkContext._gateway
        try:
            return gateway is not None and bool(gateway.jvm.java.lang.System.nanoTime())
        except Exception:  # noqa: BLE001 - py4j's own, and what sockets raise
            return False


def _quiet() -> None:
    """py4j tells of every call at INFO, and on the root logger, with a trace, of each that is broken off: whoever made the
    call says that better. pyspark writes each error by itself, with the value that it is about."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    for name in OF_QUERIES:
        logging.getLogger(name).disabled = True
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _build(gateway: JavaGateway, touch: Callable[[Any], None]) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    try:
        with gateway.environment():
            context._ensure_initialized()
            start_thread(_try, touch, context._jvm, name="spark-touch")
            return SparkSession.builder.getOrCreate()
    except (Py4JError, OSError) as exc:
        raise CdcError(GATEWAY, f"Spark's session did not start ({type(exc).__name__})") from exc


def _try(touch: Callable[[Any], None], jvm: Any) -> None:
    try:
        touch(jvm)
    except Exception as exc:  # noqa: BLE001 - the first batch loads it itself
        log.debug("preloading failed error=%s", type(exc).__name__)


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
