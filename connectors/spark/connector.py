"""The Spark sink as a connector: how it splits its topics, what it checks, how a task of it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.sink import DeadLetterFilter, LedgerAccess, SinkOffsets, SinkSpec
from cdcworker.connectors.checks import ADVICE
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of, role_options, role_script
from cdcworker.connectors.spark.config import CONFIG_DEF, CORES, MEMORY
from cdcworker.connectors.spark.runtime.cluster import LOCAL, cluster_of
from cdcworker.connectors.spark.spark_host import jars_of, spark_host, spark_settings
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.schemas.topics import data_topics

if TYPE_CHECKING:
    from cdcworker.connectors.api.abilities import RoleOption, RoleRequest, StandingTask
    from cdcworker.connectors.spark.runtime.session import SparkEngine
    from cdcworker.connectors.sql_script import ScriptStep
    from cdcworker.connectors.verify.databases import TargetSide

_OF_SESSION: Final = ("spark.driver.memory", "spark.cores", "warehouse")
"""Keys that a running session cannot change any more."""


class SparkSink:
    """Kafka topics into a warehouse; one Spark driver per task."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def __init__(self, config: Config) -> None:
        self._config = dict(config)
        self.jars = jars_of(config)

    def split(self, tasks_max: int, topics: Sequence[str]) -> Sequence[Config]:
        """Topics dealt out by name, so that the same list gives the same shares."""
        parsed = CONFIG_DEF.parse(self._config)
        names = sorted(set(parsed["topics"])) if parsed["topics"] else data_topics(topics)
        # One position for all tables takes one transaction for all tables.
        count = 1 if parsed["consistency"] == "source" else max(1, min(tasks_max, len(names)))
        # A share is laid over the connector's config, where the pattern still stands.
        base = {**self._config, "topics.regex": ""}
        return [{**base, "topics": ",".join(names[number::count])} for number in range(count) if names]

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        """Reads with Spark and writes into the warehouse until `context.stopping()`."""
        from cdcworker.connectors.scratch_folder import StateFolder
        from cdcworker.connectors.sink_engine.metrics import SinkMetrics
        from cdcworker.connectors.sink_engine.policy import policy_of
        from cdcworker.connectors.sink_engine.pump import Pump, SinkTelemetry
        from cdcworker.connectors.sink_engine.stage_progress import StageProgress
        from cdcworker.connectors.sink_engine.table_maintenance import MaintenanceThread
        from cdcworker.connectors.spark.query_source import SparkQuerySource
        from cdcworker.connectors.spark.settings import settings_of

        config = CONFIG_DEF.parse(spec.config)
        settings, policy = settings_of(config), policy_of(spec.config, config)
        task = WriterTask(spec.connector, spec.task, context.file_roots, settings.cluster is not None)
        writer = kind_of(config).open(config, task)
        state = StateFolder(Path(spec.state_dir, "sink", quote(spec.connector, safe=""), str(spec.task)))
        telemetry = SinkTelemetry(StageProgress(context.beat), SinkMetrics())
        source = SparkQuerySource(spec, context, settings, telemetry, writer, state.path)
        pump = Pump(spec, context, source, writer, policy, telemetry, state.path)
        maintenance = kind_of(config).maintenance(config, writer, spec.connector)
        with contextlib.closing(state), MaintenanceThread(maintenance, telemetry.metrics, context):
            state.open()
            pump.run()

    @classmethod
    def prepared_config(cls, config: Config) -> Config | None:
        """On a cluster it would hold cores that do nothing."""
        if config.get("spark.launcher", LOCAL).strip() != LOCAL:
            return None
        return {key: config[key] for key in _OF_SESSION if key in config}

    def prepare(self, spec: SinkSpec) -> SparkEngine:
        """A warm session, which a `run` in this process takes over."""
        from cdcworker.connectors.spark.runtime import warm_session

        config = self._config
        memory, cores = config.get("spark.driver.memory", MEMORY), config.get("spark.cores", CORES)
        return warm_session.prepare(spec, memory, int(cores), spark_settings(config))

    def offsets(self, place: LedgerAccess) -> SinkOffsets:
        """Returns the next offset of each partition that the ledger knows."""
        config = CONFIG_DEF.parse(self._config)
        with kind_of(config).admin(config, place, spark_host(config, place)) as admin:
            return admin.offsets()

    def measure_lag(self, task: StandingTask) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What Kafka holds behind the ledger's offsets: as the task has last reported them, or else as they are kept where no
        Spark is needed to read them."""
        from cdcworker.connectors.sink_engine.kafka.standing_lag import measure, reported_offsets

        config = CONFIG_DEF.parse(self._config)
        offsets = reported_offsets(task.numbers) or self._kept_offsets(config, task)
        return measure(task, offsets, config["topics"] or sorted({topic for topic, _ in offsets}))

    def _kept_offsets(self, config: Mapping[str, Any], task: StandingTask) -> dict[tuple[str, int], int]:
        """Returns the offsets of the group that lakes and files commit to, or of the ledger in a database."""
        if not kind_of(config).location(config):
            kept = self.offsets(LedgerAccess(task.connector, kafka=task.kafka))
            return {place: offset for place, offset in kept.items() if offset is not None}
        from cdcworker.connectors.sink_engine.kafka.group_offsets import OffsetGroup
        from cdcworker.connectors.sink_engine.kafka.written_tables import group_of

        with contextlib.closing(OffsetGroup(task.kafka, group_of(task.connector))) as group:
            return {place: offset for place, (offset, _) in group.committed(config["topics"] or None).items()}

    def trace(self, place: LedgerAccess, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns what the target knows of one change, which is given as `cdcworker tail` prints it."""
        config = CONFIG_DEF.parse(self._config)
        with kind_of(config).admin(config, place, spark_host(config, place)) as admin:
            return admin.trace(change)

    def alter_offsets(self, place: LedgerAccess, changes: SinkOffsets | None) -> None:
        """Sets offsets in the ledger; the rows stay: records that are read again meet rows that are as new, or newer, and change
        nothing. A change log gets them a second time."""
        config = CONFIG_DEF.parse(self._config)
        kind = kind_of(config)
        with kind.admin(config, place, spark_host(config, place)) as admin:
            admin.alter(changes)
        if place.kafka and kind.location(config):
            from cdcworker.connectors.sink_engine.kafka.group_offsets import OffsetGroup
            from cdcworker.connectors.sink_engine.kafka.written_tables import forget, group_of

            with contextlib.closing(OffsetGroup(place.kafka, group_of(place.connector))) as group:
                forget(group, changes)

    def dead_letters(self, place: LedgerAccess, asked: DeadLetterFilter) -> Mapping[str, Any]:
        """Returns how many dead letters there are, and those that are wanted, without what is in them."""
        from cdcworker.connectors.sink_engine.dead_letter_requests import listed

        config = CONFIG_DEF.parse(self._config)
        return listed(config, place, asked, spark_host(config, place))

    def redrive(self, place: LedgerAccess, asked: DeadLetterFilter) -> Mapping[str, Any]:
        """Applies dead letters again. The sink may run meanwhile; its batches wait for the letters of one step, or go on from
        what that step made."""
        from cdcworker.connectors.external_registry.schemas import client_of
        from cdcworker.connectors.sink_engine.dead_letter_requests import redriven

        config = CONFIG_DEF.parse(self._config)
        return redriven(config, place, asked, spark_host(config, place), client_of(self._config, "value"))

    def verify_side(self, access: LedgerAccess) -> AbstractContextManager[TargetSide]:
        """Opens the warehouse for a comparison with the source."""
        config = CONFIG_DEF.parse(self._config)
        return kind_of(config).verify_side(config, access, spark_host(config, access))

    @property
    def maintains_tables(self) -> bool:
        return kind_of(self._config).has_maintenance

    def check_files(self, roots: Sequence[str]) -> None:
        """CdcError when the worker with these file roots does not let a connector write to the target's folders."""
        config = CONFIG_DEF.parse(self._config)
        kind_of(config).check_paths(config, roots)

    @classmethod
    def role_options(cls) -> Sequence[RoleOption]:
        return role_options()

    @classmethod
    def role_script(cls, wanted: RoleRequest) -> list[ScriptStep]:
        """Returns the statements for the warehouse's owner."""
        return role_script(wanted)

    def check(self) -> Sequence[CheckFinding]:
        """Returns why the warehouse does not let the sink in, or does not let it create what it needs, and what of Spark's
        cluster is open. Which folders a worker opens to connectors only a task on it knows."""
        config = CONFIG_DEF.parse(self._config)
        return [*_of_cluster(config), *kind_of(config).probe(config)]


def _of_cluster(config: Mapping[str, Any]) -> Iterator[CheckFinding]:
    cluster = cluster_of(config)
    if cluster is not None and not cluster.authenticated:
        text = "the standalone cluster has no secret: whoever reaches the driver's port can run code in it"
        hint = "Give its daemons spark.authenticate.secret, and the connector the same, by a reference."
        yield CheckFinding("spark.authenticate.secret", "warning", ADVICE, text, hint)
