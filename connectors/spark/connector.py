"""The Spark sink as a connector: how it splits, what it checks, how a task of it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from cdcworker.connectors.api import Config, Finding, LettersAsked, SinkOffsets, SinkPlace, SinkSpec, TaskContext
from cdcworker.connectors.config import ConfigDef
from cdcworker.connectors.spark import policy
from cdcworker.connectors.spark.cluster import cluster_of
from cdcworker.connectors.spark.config import CONFIG_DEF, CORES, MEMORY, PARQUET_RECORDS_MAX, data_topics
from cdcworker.connectors.spark.warehouses import (
    alter,
    check_files,
    jars_of,
    open_writer,
    probe,
    spark_settings,
    stored,
    target_of,
)
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.spark.session import Engine


def records_of(given: Config, config: Mapping[str, Any]) -> int:
    """Of files each batch is one more per table: fewer and larger ones unless a number is given. A batch of a lake brings
    the rows that it changes into the driver, of several tables at once."""
    few = "max.batch.records" in given or config["warehouse"] != "parquet"
    return int(config["max.batch.records"]) if few else PARQUET_RECORDS_MAX


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
        from cdcworker.connectors.spark.driver import Driver
        from cdcworker.connectors.spark.settings import Settings

        config = CONFIG_DEF.parse(spec.config)
        writer = open_writer(config, spec.connector, spec.task, context.file_roots)
        settings = Settings(
            config["trigger.interval.ms"],
            records_of(spec.config, config),
            config["spark.driver.memory"],
            config["spark.cores"],
            config["output.mode"] == "log",
            config["errors.tolerance"] == "all",
            policy.pausing(config),
            config["consistency"] == "source",
            spark_settings(config),
            cluster_of(config),
            target_of(config),
        )
        Driver(spec, context, writer, settings).run()

    def prepare(self, spec: SinkSpec) -> Engine:
        """A warm session, which a `run` in this process takes over."""
        from cdcworker.connectors.spark import standby

        config = self._config
        memory, cores = config.get("spark.driver.memory", MEMORY), config.get("spark.cores", CORES)
        return standby.prepare(spec, memory, int(cores), spark_settings(config))

    def offsets(self, place: SinkPlace) -> SinkOffsets:
        return stored(CONFIG_DEF.parse(self._config), place)

    def trace(self, place: SinkPlace, change: Mapping[str, Any]) -> Mapping[str, Any]:
        from cdcworker.connectors.spark.warehouses import trace

        return trace(CONFIG_DEF.parse(self._config), place, change)

    def alter_offsets(self, place: SinkPlace, changes: SinkOffsets | None) -> None:
        """The rows stay: records that are read again meet rows that are as new, or newer, and change nothing. A change log
        gets them a second time."""
        config = CONFIG_DEF.parse(self._config)
        alter(config, place, changes)
        if place.kafka and target_of(config):
            from cdcworker.connectors.spark.groups import Group
            from cdcworker.connectors.spark.witness import forget, group_of

            with contextlib.closing(Group(place.kafka, group_of(place.connector))) as group:
                forget(group, changes)

    def dead_letters(self, place: SinkPlace, asked: LettersAsked) -> Mapping[str, Any]:
        from cdcworker.connectors.spark.asked import listed

        return listed(CONFIG_DEF.parse(self._config), place, asked)

    def redrive(self, place: SinkPlace, asked: LettersAsked) -> Mapping[str, Any]:
        """The sink may run meanwhile; its batches wait for the letters of one step, or go on from what that step made."""
        from cdcworker.connectors.spark.asked import redriven

        return redriven(CONFIG_DEF.parse(self._config), place, asked)

    def check_files(self, roots: Sequence[str]) -> None:
        check_files(CONFIG_DEF.parse(self._config), roots)

    def check(self) -> Sequence[Finding]:
        """Whether the warehouse lets us in and lets us create what we need."""
        try:
            probe(CONFIG_DEF.parse(self._config))
        except CdcError as exc:
            key = {
                "spark.target_auth": "warehouse.password",
                "spark.target_database": "warehouse.dbname",
                "spark.target_rights": "warehouse.user",
            }.get(exc.code, "warehouse.hostname")
            return [Finding(key, "error", exc.code, exc.message, exc.hint)]
        return []
