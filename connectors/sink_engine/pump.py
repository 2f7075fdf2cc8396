"""One sink task: fence, ledger, a source that reads from there, and each batch into the warehouse."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.external_registry.schemas import client_of
from cdcworker.connectors.sink_engine.batch_applier import WarehouseApplier, Write, write_single
from cdcworker.connectors.sink_engine.batch_builders import EventualBuilder, ReadTopics, SinkBuilder, TransactionBuilder
from cdcworker.connectors.sink_engine.batch_source import BatchLimit, BatchSource, Partition, ReadPlan, SourceEnded
from cdcworker.connectors.sink_engine.kafka.brokers import SchemaLogReader, SinkBrokers
from cdcworker.connectors.sink_engine.kafka.group_offsets import OffsetGroup
from cdcworker.connectors.sink_engine.kafka.lag import SinkLag
from cdcworker.connectors.sink_engine.kafka.written_tables import WrittenTables, group_of, note_of
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.paused_tables import PausedTables
from cdcworker.connectors.sink_engine.pipeline import Pipeline
from cdcworker.connectors.sink_engine.policy import SinkPolicy
from cdcworker.connectors.sink_engine.reporter import REPORT_EVERY_S, SinkReporter
from cdcworker.connectors.sink_engine.stage_progress import StageProgress
from cdcworker.connectors.sink_engine.target_retry import TargetRetry
from cdcworker.connectors.transactions.whole_transactions import WholeTransactions
from cdcworker.connectors.warehouses import recreated_topics
from cdcworker.connectors.warehouses.abilities import AppliesTogether, ExpectsTables, KnowsTopicIds
from cdcworker.schemas.errors import INTERNAL, CdcError

log = logging.getLogger(__name__)

TOPICS_EVERY_S: Final = 5.0
"""How often the pump looks for topics that did not exist when it began to read."""
WATCH_S: Final = 0.1
BATCH_END_S_MAX: Final = 5.0
"""How long a stop waits for the batch that runs; then its statement is cancelled and its transaction is rolled back."""
BEGIN_S_MAX: Final = 120.0
"""How much longer than usual the steps before the first batch may take."""


@dataclass(frozen=True, slots=True)
class SinkTelemetry:
    """The progress and the metrics to which both the source and the pump of a task report."""

    progress: StageProgress
    metrics: SinkMetrics


class Pump:
    """Runs one task until it is told to stop. The source reads the next batch while this one is built and applied: it may be
    ahead of the ledger, which alone decides where a next run begins."""

    def __init__(
        self,
        spec: SinkSpec,
        context: TaskContext,
        source: BatchSource,
        writer: TableWriter,
        policy: SinkPolicy,
        telemetry: SinkTelemetry,
        folder: Path,
    ) -> None:
        """`folder` is the run's own, for records that wait for the end of their transactions."""
        self._spec = spec
        self._context = context
        self._source = source
        self._writer = writer
        self._metrics = telemetry.metrics
        self._brokers = SinkBrokers(spec.kafka)
        self._schemas = SchemaLogReader(spec.kafka, spec.schema_topic, client_of(spec.config, "value"))
        self._written_tables = _written_tables(spec, policy)
        self._lag = SinkLag(self._brokers.begin_ends)
        self._limit = BatchLimit(policy.records_max)
        self._paused = PausedTables(policy.pauses_tables)
        self._retry = TargetRetry(context.stopping, self._wait_for_target, lambda: self._metrics.batches)
        self._reporter = SinkReporter(
            context, self._metrics, self._lag, self._paused, self._retry.retrying, self._written_tables
        )
        self._builder, write = self._new_builder(policy, folder)
        self._topics = [*spec.topics, *self._builder.topics]
        applier = WarehouseApplier(write, self._paused, self._reporter)
        self._pipeline = Pipeline(source, self._builder, applier, telemetry.progress, self._lag, self._limit)

    def _new_builder(self, policy: SinkPolicy, folder: Path) -> tuple[SinkBuilder, Write]:
        schemas = EnvelopeSchemas(self._schemas, self._context.stopping)
        assembler = Assembler(schemas, policy.is_log, policy.is_tolerant, keeps_versions=policy.keeps_versions)
        if not policy.shows_transactions:
            return EventualBuilder(assembler), write_single(self._writer)
        if not isinstance(self._writer, AppliesTogether):
            raise TypeError("a warehouse that shows whole transactions needs a writer that applies batches together")
        topics = ReadTopics(self._brokers, self._spec.topics, self._paused)
        transactions = WholeTransactions(self._spec.topics, schemas, assembler.build, folder / "held", topics)
        return TransactionBuilder(transactions, self._writer), self._writer.apply_all

    def run(self) -> None:
        """Reads and applies until `context.stopping()`. Raises CdcError when the task cannot go on."""
        try:
            # The longest part of a start goes on beside all others.
            self._source.start()
            # The fence comes before the ledger is read: from here on no older owner commits, and it stands still.
            self._retry.run(self._fence)
            self._metrics.mark("fenced")
            self._schemas.refresh()
            self._metrics.mark("loaded")
            while not self._context.stopping():
                self._read_until_lost()
        except CdcError:
            if not self._context.stopping():
                raise
        finally:
            for part in (self._source, self._writer, self._schemas, self._written_tables):
                if part is not None:
                    part.close()

    def _fence(self) -> None:
        if self._written_tables is not None and isinstance(self._writer, ExpectsTables):
            self._writer.expect(self._written_tables.written())
        self._writer.fence(self._spec.epoch)

    def _read_until_lost(self) -> None:
        """Reads with one process of the source. One that dies, as it does when rows are too large for its memory, is followed by
        another with smaller batches; a few times, then that is an error."""
        try:
            while not self._context.stopping():
                self._retry.run(self._read)
        except Exception as exc:
            lost = None
            if not isinstance(self._pipeline.error, CdcError) and not self._context.stopping():
                lost = self._source.lost()
            if lost is None:
                raise
            if not self._limit.shrink():
                raise CdcError(lost.code, lost.message, where={"records": self._limit.records}) from exc
            log.warning("%s: smaller batches records_max=%d", lost.message, self._limit.records)

    # -- one plan of reading ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads the topics that exist now; returns when there are more, or on a stop."""
        # A batch of the plan before may still be ending: until then its paused tables are not known, and the writer is for one
        # thread at a time.
        self._pipeline.wait()
        partitions: Mapping[str, int] = self._await_topics()
        if not partitions:
            return
        self._context.beat("the start of a query", BEGIN_S_MAX)
        plan = self._plan(partitions)
        if plan is None:
            return
        self._lag.begin({topic: count for topic, count in plan.partitions.items() if topic in self._spec.topics})
        self._metrics.limits = plan.records_max, self._limit.configured
        try:
            self._source.open(plan)
            self._pipeline.start()
            self._watch(plan)
        finally:
            self._end()

    def _plan(self, partitions: Mapping[str, int]) -> ReadPlan | None:
        """Claims the topics and reads where the ledger stands (INV-8); None: no table of them can be gone on with."""
        self._paused.claim(self._writer.claim, self._topics)
        offsets = dict(self._writer.ledger())
        self._reporter.begin(offsets)
        # Before anybody waits for the ends of a topic that is not gone on with.
        partitions = self._paused.checked(lambda left: self._check(left, offsets), partitions)
        if not partitions:
            return None
        self._builder.begin(offsets)
        return ReadPlan(partitions, offsets, self._limit.records)

    def _check(self, partitions: Mapping[str, int], offsets: Mapping[Partition, int]) -> None:
        self._brokers.check(partitions, offsets)
        if isinstance(self._writer, KnowsTopicIds):
            recreated_topics.check(self._writer, self._brokers, offsets, list(partitions))

    def _await_topics(self) -> dict[str, int]:
        """Returns partition counts of the topics that exist; waits while there is none."""
        while not self._context.stopping():
            wanted = self._paused.reading(self._topics)
            found = self._brokers.partitions(wanted) if wanted else {}
            if found:
                return found
            self._context.beat("topics that do not exist yet", 0.0)
            self._reporter.report()
            self._wait(TOPICS_EVERY_S / 5)
        return {}

    def _watch(self, plan: ReadPlan) -> None:
        """Supervises the threads of the pipeline; returns when the plan is no longer the right one."""
        looked = time.monotonic()
        while not self._context.stopping():
            self._raise_failure()
            if self._reporter.is_due:
                self._look()
                self._reporter.report()
            if self._is_outdated(plan):
                return
            if len(plan.partitions) < len(self._topics) and time.monotonic() - looked > TOPICS_EVERY_S:
                looked = time.monotonic()
                if self._has_new_topics(plan):
                    return
            time.sleep(WATCH_S)

    def _is_outdated(self, plan: ReadPlan) -> bool:
        if self._limit.records != plan.records_max:
            log.info("the query restarts with smaller batches records_max=%d", self._limit.records)
            return True
        if self._paused.due() or not self._paused.topics.isdisjoint(plan.partitions):
            log.info("the query restarts, as tables were paused or are tried again paused=%d", len(self._paused.topics))
            return True
        return False

    def _has_new_topics(self, plan: ReadPlan) -> bool:
        wanted = [topic for topic in self._topics if topic not in self._paused.topics]
        if self._brokers.partitions(wanted).keys() == plan.partitions.keys():
            return False
        log.info("topics appeared, the query restarts")
        return True

    def _look(self) -> None:
        """Says what the source waits for, while no batch is under way: each of its steps has its time."""
        if self._pipeline.busy:
            return
        state = self._source.state()
        if state is None:
            return
        self._context.beat(state.doing, state.allow_s)
        if state.is_caught_up:
            self._reporter.caught_up()

    def _raise_failure(self) -> None:
        error = self._pipeline.error
        if error is None:
            return
        if isinstance(error, SourceEnded):
            raise error.error from error
        if isinstance(error, CdcError):
            raise error
        log.error("batch failed error=%s", type(error).__name__, exc_info=error)
        raise CdcError(INTERNAL, f"a batch failed with {type(error).__name__}") from error

    def _end(self) -> None:
        """Stops between two batches, or cancels the one that takes too long."""
        self._pipeline.halt()
        if not self._pipeline.wait(BATCH_END_S_MAX):
            log.warning("the batch did not end in time and is cancelled")
            self._writer.cancel()
        self._source.end()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _wait_for_target(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._context.stopping():
            self._context.beat("a warehouse that is away", BEGIN_S_MAX)
            self._reporter.report()
            self._wait(min(left, REPORT_EVERY_S))

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._context.stopping():
            time.sleep(WATCH_S)


def _written_tables(spec: SinkSpec, policy: SinkPolicy) -> WrittenTables | None:
    if not policy.location:
        return None
    group = OffsetGroup(spec.kafka, group_of(spec.connector))
    return WrittenTables(group, note_of(spec.incarnation, policy.location), spec.topics)
