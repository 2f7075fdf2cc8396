"""The PostgreSQL source connector: one slot, so one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cdcworker.connectors.api import Config, Finding, SourceTask, TaskContext
from cdcworker.connectors.config import ConfigDef
from cdcworker.connectors.postgres.config import CONFIG_DEF, parse
from cdcworker.connectors.postgres.task import PostgresTask

__all__ = ["PostgresSource", "PostgresTask"]


class PostgresSource:
    """Logical decoding by pgoutput, with a snapshot beside the stream."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def __init__(self, config: Config) -> None:
        self._config = dict(config)

    def split(self, tasks_max: int) -> Sequence[Config]:
        """One slot is one ordered stream, and the walsender is its limit: always one task."""
        del tasks_max
        return [self._config]

    def task(self, share: Config, context: TaskContext) -> SourceTask:
        return PostgresTask(parse(share), context)

    def check(self) -> Sequence[Finding]:
        """Live findings about server, rights, slot, publication and tables; opens connections."""
        from cdcworker.connectors.postgres.check import check

        return check(parse(self._config))
