"""One sink task: fence, ledger, a streaming query from there, and each micro-batch into the warehouse."""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from cdcworker.connectors.api import SinkBatch, SinkSpec, TableWriter, TaskContext
from cdcworker.connectors.spark import read, remade, standby
from cdcworker.connectors.spark.behind import Behind
from cdcworker.connectors.spark.errors import JVM_DIED, QUERY_FAILED, from_spark
from cdcworker.connectors.spark.groups import Group
from cdcworker.connectors.spark.kafka import Brokers, SchemaLogReader, jvm_settings
from cdcworker.connectors.spark.metrics import Metrics
from cdcworker.connectors.spark.patience import Patience
from cdcworker.connectors.spark.paused import PausedTables
from cdcworker.connectors.spark.reading import Reader
from cdcworker.connectors.spark.records import Assembler
from cdcworker.connectors.spark.schemas import Shapes
from cdcworker.connectors.spark.session import Engine
from cdcworker.connectors.spark.settings import Settings
from cdcworker.connectors.spark.stages import BATCH_BYTES_MAX, Built, Raw, Stages
from cdcworker.connectors.spark.state import StateFolder
from cdcworker.connectors.spark.whole import Whole, WholeTransactions
from cdcworker.connectors.spark.witness import Witness, group_of, note_of
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

TOPICS_EVERY_S = 5.0
REPORT_EVERY_S = 1.0
WATCH_S = 0.1
BATCH_END_S_MAX = 5.0
"""How long a stop waits for the batch that runs; then its statement is cancelled and its transaction is gone."""
QUERY_STOP_S_MAX = 3.0
BEGIN_S_MAX = 120.0
"""For Spark's start, and for what comes before the first trigger of a query."""
TRIGGER_S_MAX = 300.0
"""For a trigger until its batch comes in; Kafka's clients try for long when a broker is away."""
SETTLED_S = 30.0
"""A Java process this old has loaded what a first batch needs, and its task has caught up a little."""
RECORDS_MIN = 20
SHRINK = 8


class Driver:
    """Runs one task until it is told to stop. The query's batches come in on a thread of py4j's and go on in others, so that
    Spark reads the next one meanwhile: the checkpoint may be ahead of the ledger, which alone decides."""

    def __init__(self, spec: SinkSpec, context: TaskContext, writer: TableWriter, settings: Settings) -> None:
        self._spec = spec
        self._context = context
        self._writer = writer
        self._settings = settings
        self._state = StateFolder(Path(spec.state_dir, "sink", quote(spec.connector, safe=""), str(spec.task)))
        self._brokers = Brokers(spec.kafka)
        self._behind = Behind(self._brokers.begin_ends)
        note, group = note_of(spec.incarnation, settings.target), group_of(spec.connector)
        self._witness = Witness(Group(spec.kafka, group), note, spec.topics) if settings.target else None
        self._kafka = jvm_settings(spec.kafka)
        self._schemas = SchemaLogReader(spec.kafka, spec.schema_topic)
        shapes = Shapes(self._schemas, context.stopping)
        self._assembler = Assembler(shapes, settings.log, settings.tolerant)
        self._whole: WholeTransactions | None = None
        if settings.whole:
            held = self._state.path / "held"
            self._whole = WholeTransactions(spec.topics, shapes, self._assembler.build, held)
        self._topics = [*spec.topics, *(self._whole.topics if self._whole else ())]
        self._checkpoint = self._state.path
        self._records_max = settings.records_max
        self._offsets: dict[tuple[str, int], int] = {}
        self._built: dict[tuple[str, int], int] = {}
        """Offsets like those of the ledger, with what is being applied."""
        self._batch = 0
        self._busy = threading.Lock()
        self._stages = Stages(self._build, self._apply, context.beat)
        self._paused = PausedTables(settings.pausing)
        self._halting = False
        self._triggered = False
        """A trigger was seen and had its time; the next one is another after a batch or a rest."""
        self._error: BaseException | None = None
        self._reported = 0.0
        self._engine: Engine | None = None
        self._reader: Reader | None = None
        self.metrics = Metrics()
        self._patience = Patience(context.stopping, self._rest, lambda: self.metrics.batches)

    def run(self) -> None:
        try:
            self._state.open()
            # The longest part of a start goes on beside all others.
            self._engine = self._new_engine()
            # The fence comes before the ledger is read: from here on no older owner commits, and it stands still.
            self._patience.run(self._fence)
            self.metrics.mark("fenced")
            self._schemas.refresh()
            self.metrics.mark("loaded")
            while not self._context.stopping():
                self._session()
        except CdcError:
            if not self._context.stopping():
                raise
        finally:
            for part in (self._engine, self._writer, self._schemas, self._witness, self._state):
                if part is not None:
                    part.close()

    def _fence(self) -> None:
        if self._witness is not None:
            cast("Any", self._writer).expect(self._witness.written())
        self._writer.fence(self._spec.epoch)

    def _new_engine(self) -> Engine:
        spec, settings = self._spec, self._settings
        runtime = standby.runtime_of(spec, settings.memory, settings.cores, settings.spark, settings.cluster)
        touch = read.toucher(self._kafka, spec.schema_topic)
        engine = standby.take(runtime) or Engine(runtime, self._state.path, self._context.stopping, touch)
        attach = getattr(self._writer, "attach", None)
        if attach is not None:
            attach(engine.session, self._stages.within)
        return engine

    def _session(self) -> None:
        """Queries over one Java process. One that dies, as it does when rows are too large for its heap, is followed
        by another with smaller batches; a few times, then that is an error."""
        stopping = self._context.stopping
        self._context.beat("the start of Spark", BEGIN_S_MAX)
        engine = self._engine = self._engine or self._new_engine()
        try:
            while not stopping():
                self._patience.run(lambda: self._query(engine))
        except Exception as exc:
            if isinstance(self._error, CdcError) or engine.alive or not engine.ready or stopping():
                raise
            if self._records_max // SHRINK < RECORDS_MIN:
                raise CdcError(JVM_DIED, "Spark's Java process ended", where={"records": self._records_max}) from exc
            self._records_max //= SHRINK
            log.warning("Spark's Java process ended: smaller batches records_max=%d", self._records_max)
        finally:
            self._engine = self._reader = None
            engine.close()

    # -- the query ----------------------------------------------------------------------------------------------------

    def _query(self, engine: Engine) -> None:
        """One query over the topics that exist now; returns when there are more, or on a stop."""
        with self._busy:
            # A batch of the query before may still be ending: until then its paused tables are, and the connection is
            # for one thread at a time.
            self._stages.wait()
        partitions: Mapping[str, int] = self._await_topics()
        if not partitions:
            return
        self._context.beat("the start of a query", BEGIN_S_MAX)
        with self._busy:
            self._stages.reset()
            self._paused.claim(self._writer.claim, self._topics)
            self._offsets = dict(self._writer.ledger())
            self._built = dict(self._offsets)
            # Before anybody waits for the ends of a topic that is not gone on with.
            partitions = self._paused.checked(self._check, partitions)
            if not partitions:
                return
            if self._whole is not None:
                writer = cast("Any", self._writer)
                self._whole.begin(writer.through(), self._offsets, self._ends, getattr(writer, "ahead", dict)())
        self._behind.begin({topic: count for topic, count in partitions.items() if topic in self._spec.topics})
        # A new checkpoint every time: the ledger decides where to begin, and it makes the checkpoint a cache (INV-8).
        checkpoint = self._checkpoint = self._state.path / "checkpoints" / uuid.uuid4().hex
        self._halting = self._triggered = False
        self._error = None
        records_max = self._records_max
        self.metrics.limits = records_max, self._settings.records_max
        session = engine.session()
        self.metrics.mark("session")
        self.metrics.session_start_s = engine.start_s
        frame = read.stream(session, self._kafka, partitions, self._offsets, records_max)
        self._reader = self._reader or Reader(session, self._state.path, self._kafka, self._settings.cores)
        self._reader.begin(self._offsets)
        query = (
            frame.writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=f"{self._settings.trigger_ms} milliseconds")
            .start()
        )
        self.metrics.mark("query")
        log.info("query started topics=%d partitions=%d", len(partitions), sum(partitions.values()))
        try:
            self._watch(query, partitions, engine)
        finally:
            self._end(query)
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _check(self, partitions: Mapping[str, int]) -> None:
        self._brokers.check(partitions, self._offsets)
        remade.check(cast("Any", self._writer), self._brokers, self._offsets, list(partitions))

    def _await_topics(self) -> dict[str, int]:
        """Partition counts of the topics that exist; a topic that does not exist yet is waited for."""
        while not self._context.stopping():
            wanted = self._paused.reading(self._topics)
            found = self._brokers.partitions(wanted) if wanted else {}
            if found:
                return found
            self._context.beat("topics that do not exist yet", 0.0)
            self._report()
            self._wait(TOPICS_EVERY_S / 5)
        return {}

    def _watch(self, query: StreamingQuery, partitions: Mapping[str, int], engine: Engine) -> None:
        looked, records_max = time.monotonic(), self._records_max
        while not self._context.stopping():
            self._error = self._error or self._stages.error
            if not query.isActive or self._error is not None:
                self._raise(query)
            if self._records_max != records_max:
                log.info("the query starts again with smaller batches records_max=%d", self._records_max)
                return
            if time.monotonic() - self._reported > REPORT_EVERY_S:
                self._look(query)
                self._report()
                if self.metrics.batches:
                    engine.archive_classes(SETTLED_S)
            if self._paused.due() or not self._paused.topics.isdisjoint(partitions):
                log.info("the query starts again paused=%d", len(self._paused.topics))
                return
            if len(partitions) < len(self._topics) and time.monotonic() - looked > TOPICS_EVERY_S:
                looked = time.monotonic()
                wanted = [topic for topic in self._topics if topic not in self._paused.topics]
                if self._brokers.partitions(wanted).keys() != partitions.keys():
                    log.info("topics appeared: the query starts again")
                    return
            time.sleep(WATCH_S)

    def _look(self, query: StreamingQuery) -> None:
        """A query between two triggers comes along; a trigger has its time until it ends or its batch comes in."""
        status = query.status
        if self._busy.locked() or self._stages.busy:
            return
        if not status["isTriggerActive"]:
            self._triggered = False
            self._context.beat("the next trigger", 0.0)
            if not status["isDataAvailable"]:
                self.metrics.lag_s = 0.0
                self._patience.retrying.over()
        elif not self._triggered:
            self._triggered = True
            self._context.beat("a trigger", TRIGGER_S_MAX)

    def _raise(self, query: StreamingQuery) -> None:
        error = self._error or query.exception()
        if isinstance(error, CdcError):
            raise error
        if self._error is not None:
            log.error("batch failed error=%s", type(self._error).__name__, exc_info=self._error)
            raise CdcError(INTERNAL, f"a batch failed with {type(self._error).__name__}") from self._error
        if error is None:
            raise CdcError(QUERY_FAILED, "the query ended by itself")
        log.error("query ended error=%s", str(error).partition("\n")[0][:500])
        raise from_spark(error, {"connector": self._spec.connector, "task": self._spec.task}) from error

    def _end(self, query: StreamingQuery) -> None:
        """Stop between batches; a stop from inside one makes Spark complain at length. When the task stops there is
        nothing to be said to Spark: its process ends, and the next owner waits for ours."""
        self._halting = True
        deadline = time.monotonic() + BATCH_END_S_MAX
        if not self._idle(deadline):
            log.warning("the batch takes long and is cancelled")
            self._writer.cancel()
        if not self._context.stopping():
            standby.bounded(query.stop, QUERY_STOP_S_MAX)

    def _idle(self, deadline: float) -> bool:
        """Whether nothing is built or applied any more before the deadline."""
        if not self._busy.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        self._busy.release()
        return self._stages.wait(max(0.0, deadline - time.monotonic()))

    # -- a batch ------------------------------------------------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        with self._busy:
            if self._halting or self._context.stopping():
                return
            try:
                # Of a batch before that failed the watch hears by itself.
                self._stages.read(lambda: self._read(frame, number))
                self._triggered = False
            except BaseException as exc:
                if not self._halting:
                    self._error = exc
                raise

    def _read(self, frame: DataFrame, number: int) -> Raw:
        hit("sink.batch_start")
        began = time.monotonic()
        self.metrics.mark("batch")
        assert self._reader is not None
        records = self._reader.read(frame, self._checkpoint, number)
        self.metrics.mark("read")
        read_to = read.read_to(self._checkpoint, number)
        self._behind.read(records, read_to)
        self._bound(records.num_rows, records.nbytes)
        return Raw(records, read_to, records.num_rows, records.nbytes, round((time.monotonic() - began) * 1000))

    def _build(self, raw: Raw) -> Built | None:
        if self._halting:
            return None
        began = time.monotonic()
        batches: Iterable[SinkBatch] | None
        if self._whole is not None:
            batches = self._whole.take(raw.take(), raw.read_to)
        else:
            batch = self._assembler.build(raw.take(), self._built, self._batch)
            self._built.update({place: end for place, (_, end) in batch.offsets.items()})
            batches = [batch] if batch.offsets else None
        self._batch += 1
        build_ms = round((time.monotonic() - began) * 1000)
        return Built(batches, raw.rows, raw.read_ms, build_ms) if batches is not None else None

    def _ends(self) -> Mapping[tuple[str, int], int]:
        """Behind everything that has been written, of the tables that are not paused."""
        ends = self._brokers.ends([topic for topic in self._spec.topics if topic not in self._paused.topics])
        assert self._whole is not None
        self._whole.lacks(self._brokers.partitions(self._whole.topics), ends)
        return ends

    def _apply(self, built: Built) -> None:
        if self._halting:
            return
        began = time.monotonic()
        batch, counts = self._paused.apply_all(self._write, built.batches)
        if isinstance(built.batches, Whole):
            built.batches.drop()
        if not counts:
            return
        apply_ms = round((time.monotonic() - began) * 1000)
        self._offsets.update({place: end for place, (_, end) in batch.offsets.items()})
        took = {"read": built.read_ms, "build": built.build_ms, "apply": apply_ms}
        self.metrics.add(counts, batch, took, built.records)
        self._behind.applied(batch)
        self._patience.retrying.over()
        self.metrics.mark("applied")
        if self.metrics.batches == 1:
            log.info(
                "first batch applied %s", " ".join(f"{name}_ms={ms}" for name, ms in self.metrics.start_ms.items())
            )
        self._report()

    def _write(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        if self._whole is None:
            return self._writer.apply(next(iter(batches)))
        found: Mapping[str, Any] = cast("Any", self._writer).apply_all(batches)
        return found

    def _bound(self, rows: int, size: int) -> None:
        """Kafka's source counts records only: where they are large, fewer of them make a batch."""
        if size > BATCH_BYTES_MAX:
            self._records_max = min(self._records_max, max(RECORDS_MIN, rows * BATCH_BYTES_MAX // (2 * size)))

    def _report(self) -> None:
        self._reported = time.monotonic()
        if self._witness is not None:
            self._witness.tell(self._offsets)
        self._context.report(
            {
                **self.metrics.numbers(),
                **self._behind.numbers(self._offsets),
                **self._patience.retrying.numbers(),
                **self._paused.numbers(),
                "offsets": {f"{topic}-{partition}": offset for (topic, partition), offset in self._offsets.items()},
            }
        )

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._context.stopping():
            self._context.beat("a warehouse that is away", BEGIN_S_MAX)
            self._report()
            self._wait(min(left, REPORT_EVERY_S))

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._context.stopping():
            time.sleep(WATCH_S)
