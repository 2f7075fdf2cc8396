"""The source connector of MySQL and MariaDB: one task, since a server has one binary log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.capture.config.debezium_keys import renamed
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.mysql.config.settings import CONFIG_DEF, parse
from cdcworker.connectors.mysql.source.task import MySqlTask
from cdcworker.schemas.change import JsonObject

__all__ = ["MySqlSource", "MySqlTask"]


class MySqlSource:
    """Reads a MySQL or MariaDB server by its binary log, with a snapshot beside the stream."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def __init__(self, config: Config) -> None:
        self._config = renamed(config)

    def split(self, tasks_max: int) -> Sequence[Config]:
        """One log is one ordered stream that one task reads."""
        del tasks_max
        return [self._config]

    def task(self, share: Config, context: TaskContext) -> SourceTask:
        return MySqlTask(parse(share), context)

    def check_position(self, position: JsonObject) -> None:
        from cdcworker.connectors.mysql.source.position import StoredPosition, progress_of

        if snapshot := StoredPosition.from_json(position).snapshot:
            progress_of(snapshot)

    def without_keys(self, position: JsonObject) -> JsonObject:
        from cdcworker.connectors.capture.snapshot.progress import without_keys

        snapshot = position.get("snapshot")
        return {**position, "snapshot": without_keys(snapshot)} if isinstance(snapshot, dict) else position

    def verify_position(self, task: int, position: JsonObject) -> str:
        """Asks the server whether its log still has what lies behind the position."""
        del task
        from cdcworker.connectors.mysql.source.position import StoredPosition
        from cdcworker.connectors.mysql.source.position_checks import verify

        verify(parse(self._config), StoredPosition.from_json(position))
        return ""

    def check(self) -> Sequence[CheckFinding]:
        """Live findings about server, log, rights and tables; opens connections."""
        from cdcworker.connectors.mysql.server.checks import check

        return list(check(parse(self._config)))
