"""Batches that a streaming query of Spark's reads from Kafka."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.sink_engine.batch_source import ReadBatch, ReadPlan, SourceEnded, SourceState
from cdcworker.connectors.sink_engine.pump import BEGIN_S_MAX, SinkTelemetry
from cdcworker.connectors.sink_engine.stage_progress import READING
from cdcworker.connectors.sink_errors import JVM_DIED, QUERY_FAILED, from_spark
from cdcworker.connectors.spark.callback_exchange import CallbackExchange
from cdcworker.connectors.spark.runtime import kafka_source, warm_session
from cdcworker.connectors.spark.runtime.client_properties import jvm_settings
from cdcworker.connectors.spark.runtime.range_reader import RangeReader
from cdcworker.connectors.spark.runtime.session import SparkEngine
from cdcworker.connectors.spark.settings import SparkSettings
from cdcworker.connectors.warehouses.abilities import UsesSpark
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.untrusted.driver_text import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

QUERY_STOP_S_MAX: Final = 3.0
TRIGGER_S_MAX: Final = 300.0
"""How much longer than usual a trigger may take until its batch comes in; Kafka's clients try for long when a broker is away."""
EXIT_S_MAX: Final = 2.0
"""A Java process that was killed closes its sockets first: its end is known a moment later."""
EXIT_POLL_S: Final = 0.02
SETTLED_S: Final = 30.0
"""A Java process this old has loaded what a first batch needs, and its task has caught up a little."""


class SparkQuerySource:
    """Runs one streaming query per plan. Its batches come in on a thread of py4j's, which reads them, so that their jobs are the
    query's and end with it. A checkpoint is made anew for each query: the ledger decides where to begin, and it makes the
    checkpoint a cache (INV-8)."""

    def __init__(
        self,
        spec: SinkSpec,
        context: TaskContext,
        settings: SparkSettings,
        telemetry: SinkTelemetry,
        writer: TableWriter,
        folder: Path,
    ) -> None:
        """`folder` is the run's own. A writer that uses Spark gets the session of each Java process."""
        self._spec = spec
        self._context = context
        self._settings = settings
        self._progress = telemetry.progress
        self._metrics = telemetry.metrics
        self._writer = writer
        self._folder = folder
        self._kafka = jvm_settings(spec.kafka)
        self._engine: SparkEngine | None = None
        self._reader: RangeReader | None = None
        self._query: StreamingQuery | None = None
        self._checkpoint = folder
        self._exchange: CallbackExchange[ReadBatch] = CallbackExchange()
        self._error: BaseException | None = None
        self._halting = False
        self._is_unreachable = False
        """The Java process could not be called: it has ended, or is about to."""
        self._in_trigger = False
        """A trigger was seen and has its time; the next one is another after a batch or a rest."""

    def start(self) -> None:
        """Starts Spark's Java process, or takes the one that waits in this process, and returns at once."""
        spec, settings = self._spec, self._settings
        runtime = warm_session.runtime_of(spec, settings.memory, settings.cores, settings.spark, settings.cluster)
        touch = kafka_source.toucher(self._kafka, spec.schema_topic)
        self._engine = warm_session.take(runtime) or SparkEngine(runtime, self._folder, self._context.stopping, touch)
        if isinstance(self._writer, UsesSpark):
            self._writer.attach(self._engine.session, self._progress.step)

    def open(self, plan: ReadPlan) -> None:
        """Starts a query from the plan's offsets on."""
        assert self._engine is not None
        self._context.beat("the start of Spark", BEGIN_S_MAX)
        session = self._engine.session()
        self._metrics.mark("session")
        self._metrics.session_start_s = self._engine.start_s
        self._checkpoint = self._folder / "checkpoints" / uuid.uuid4().hex
        self._exchange = CallbackExchange()
        self._error = None
        self._halting = self._in_trigger = self._is_unreachable = False
        frame = kafka_source.stream(session, self._kafka, plan.partitions, plan.offsets, plan.records_max)
        self._reader = self._reader or RangeReader(session, self._folder, self._kafka, self._settings.cores)
        self._reader.begin(plan.offsets)
        self._query = (
            frame.writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{self._settings.trigger_ms} milliseconds")
            .start()
        )
        self._metrics.mark("query")
        log.info("query started topics=%d partitions=%d", len(plan.partitions), sum(plan.partitions.values()))

    def next(self, timeout_s: float) -> ReadBatch | None:
        """Returns the batch of the trigger that runs; the query's next trigger comes after the next call."""
        batch = self._exchange.take(timeout_s)
        if batch is None and not self._halting:
            self._raise_failure()
        if self._metrics.batches and self._engine is not None:
            self._engine.archive_classes(SETTLED_S)
        return batch

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        """Spark calls this in a thread of py4j's and waits for it."""
        if self._halting or self._context.stopping():
            return
        try:
            batch = self._read(frame, number)
        except BaseException as exc:
            if not self._halting:
                self._error = exc
            raise
        self._exchange.put(batch)
        self._in_trigger = False

    def _read(self, frame: DataFrame, number: int) -> ReadBatch:
        with self._progress.one(READING):
            hit("sink.batch_start")
            began = time.monotonic()
            self._metrics.mark("batch")
            assert self._reader is not None
            records = self._reader.read(frame, self._checkpoint, number)
            self._metrics.mark("read")
            read_to = kafka_source.read_to(self._checkpoint, number)
            read_ms = round((time.monotonic() - began) * 1000)
            return ReadBatch(records, read_to, records.num_rows, records.nbytes, read_ms)

    def _raise_failure(self) -> None:
        if self._error is not None:
            with self._calling_java():
                raise self._error
        query = self._query
        if query is None:
            return
        with self._calling_java():
            if query.isActive:
                return
            error: Any = query.exception()
        if error is None:
            raise SourceEnded(CdcError(QUERY_FAILED, "the query ended by itself"))
        log.error("query ended error=%s", kept(str(error)))
        where: dict[str, str | int] = {"connector": self._spec.connector, "task": self._spec.task}
        raise SourceEnded(from_spark(error, where)) from error

    @contextlib.contextmanager
    def _calling_java(self) -> Iterator[None]:
        """Notes what only a Java process that ends raises: whatever is no CdcError."""
        try:
            yield
        except CdcError:
            raise
        except Exception:
            self._is_unreachable = True
            raise

    def state(self) -> SourceState | None:
        """A query between two triggers is alive; a trigger has its time until it ends or its batch comes in."""
        query = self._query
        if query is None:
            return None
        with self._calling_java():
            status = query.status
        if not status["isTriggerActive"]:
            self._in_trigger = False
            return SourceState("the next trigger", 0.0, not status["isDataAvailable"])
        if self._in_trigger:
            return None
        self._in_trigger = True
        return SourceState("a trigger", TRIGGER_S_MAX, False)

    def halt(self) -> None:
        """Begins no further batch. A query that is stopped from inside one complains at length."""
        self._halting = True
        self._exchange.close()

    def end(self) -> None:
        """Stops the query. When the task stops Spark need not be told: its process ends, and the next owner waits for ours."""
        query, self._query = self._query, None
        if query is None:
            return
        self.halt()
        if not self._context.stopping():
            warm_session.bounded(query.stop, QUERY_STOP_S_MAX)
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def lost(self) -> CdcError | None:
        """Returns JVM_DIED if Spark's Java process had started and has ended; starts another one then."""
        engine = self._engine
        if engine is None or not engine.ready:
            return None
        deadline = time.monotonic() + (EXIT_S_MAX if self._is_unreachable else 0.0)
        while engine.alive and time.monotonic() < deadline:
            time.sleep(EXIT_POLL_S)
        if engine.alive:
            return None
        self._close_engine()
        self.start()
        return CdcError(JVM_DIED, "Spark's Java process ended")

    def _close_engine(self) -> None:
        engine, self._engine, self._reader = self._engine, None, None
        if engine is not None:
            engine.close()

    def close(self) -> None:
        """Ends Spark's Java process."""
        self._exchange.close()
        self._close_engine()
