"""A sink task in a thread of this process, without Spark. `world` has `kafka`, `name`, `schema_topic` and `tmp_path`."""

from __future__ import annotations

import threading

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.sink_engine.kafka_batch_source import KafkaBatchSource
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.policy import policy_of
from cdcworker.connectors.sink_engine.pump import Pump, SinkTelemetry
from cdcworker.connectors.sink_engine.stage_progress import StageProgress
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.coordinator.kafka.clients import reader_config
from cdcworker.schemas.errors import CdcError

from tests.change_streams import NARROW

NAMES = [item.name for item in NARROW.columns]


class Task:
    """A sink task in a thread of this process."""

    def __init__(self, world, attempt, config):
        self.config = CONFIG_DEF.parse(config)
        self.topics = tuple(self.config["topics"])
        self.reports, self.failed, self.stop = [], [], threading.Event()
        kafka = {"bootstrap.servers": world.kafka.bootstrap}
        consumer = reader_config(kafka, client_id="pump")
        epoch, state = (1, attempt), str(world.tmp_path)
        self.spec = SinkSpec(
            world.name, 0, "i", epoch, self.topics, kafka, world.schema_topic, config, state, consumer=consumer
        )
        self.context = TaskContext(
            world.name, 0, 1, "i", state, stopping=self.stop.is_set, report=self.reports.append, file_roots=(state,)
        )
        telemetry = SinkTelemetry(StageProgress(lambda *_: None), SinkMetrics())
        source = KafkaBatchSource(consumer, telemetry.progress, telemetry.metrics, 0.05)
        folder = world.tmp_path / f"run{attempt}"
        writer = kind_of(self.config).open(self.config, WriterTask(world.name, file_roots=(state,)))
        policy = policy_of(config, self.config)
        self.pump = Pump(self.spec, self.context, source, writer, policy, telemetry, folder)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.pump.run()
        except CdcError as exc:
            self.failed.append(exc)

    def rows(self):
        """What a reader finds in the table of the first topic."""
        task = WriterTask(self.spec.connector, file_roots=self.context.file_roots)
        reader = kind_of(self.config).open(self.config, task)
        try:
            found = reader.rows(self.topics[0])
            if found is None:
                return {}
            rows = [row for batch in found.batches for row in batch.select(NAMES).to_pylist()]
            found.close()
            return {(row["id"],): list(row.values()) for row in rows}
        finally:
            reader.close()

    def close(self):
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        assert not self.failed
