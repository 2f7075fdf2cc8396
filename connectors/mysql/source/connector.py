"""The source connector of MySQL and MariaDB: one task, since a server has one binary log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.capture.config.debezium_keys import renamed
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.mysql.config.settings import CONFIG_DEF, parse
from cdcworker.connectors.mysql.source import places
from cdcworker.connectors.mysql.source.task import MySqlTask
from cdcworker.schemas.change import JsonObject

if TYPE_CHECKING:
    from cdcworker.connectors.api.abilities import RoleOption, RoleRequest, StandingTask
    from cdcworker.connectors.api.source import TranslatedOffset, WatchedTask
    from cdcworker.connectors.capture.tables.compared_source import ComparedSource
    from cdcworker.connectors.checks import DoctorCheck, ExaminedTarget, Repair
    from cdcworker.connectors.sql_script import ScriptStep

__all__ = ["MySqlSource", "MySqlTask"]


class MySqlSource:
    """Reads a MySQL or MariaDB server by its binary log, with a snapshot beside the stream."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF
    roles_of_server: ClassVar[Literal[True]] = True

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

    def verify_source(self) -> ComparedSource:
        from cdcworker.connectors.mysql.doctor.compared_source import MySqlSourceSide

        return MySqlSourceSide(parse(self._config))

    def moved_position(self, task: int, position: JsonObject, to: str) -> TranslatedOffset:
        """Looks at the server's log; reads of it what lies between the two places."""
        del task
        from cdcworker.connectors.mysql.source.moved_positions import moved
        from cdcworker.connectors.mysql.source.position import StoredPosition

        return moved(parse(self._config), StoredPosition.from_json(position), to)

    def is_debezium_offset(self, offset: Mapping[str, Any]) -> bool:
        from cdcworker.connectors.mysql.source.debezium_offsets import is_debezium

        return is_debezium(offset)

    def from_debezium(self, task: int, offset: Mapping[str, Any]) -> TranslatedOffset:
        """Reads the transaction in which the offset lies."""
        del task
        from cdcworker.connectors.mysql.source.debezium_offsets import to_position

        return to_position(parse(self._config), offset)

    def to_debezium(self, task: int, position: JsonObject) -> TranslatedOffset:
        """Reads the transaction that was handed on in part, where there is one."""
        del task
        from cdcworker.connectors.mysql.source.debezium_offsets import to_offset
        from cdcworker.connectors.mysql.source.position import StoredPosition

        return to_offset(parse(self._config), StoredPosition.from_json(position))

    def check(self) -> Sequence[CheckFinding]:
        """Live findings about server, log, rights and tables; opens connections."""
        from cdcworker.connectors.mysql.doctor.checks import check

        return list(check(parse(self._config)))

    def examine(self, positions: Mapping[int, Mapping[str, Any]], *, deep: bool = False) -> Iterator[ExaminedTarget]:
        """The doctor's table: what was measured, why it matters, what mends it. `positions` is what the task has stored, where that
        is known."""
        from cdcworker.connectors.mysql.source.examination import examine

        return examine(parse(self._config), positions, deep=deep)

    @classmethod
    def checks(cls) -> Sequence[DoctorCheck]:
        from cdcworker.connectors.mysql.source.examination import CHECKS

        return CHECKS

    def repair(self, fix: Repair, administrator: str | None = None) -> None:
        """Runs the statements that a check proposed; changes the server's settings or grants."""
        from cdcworker.connectors.mysql.doctor.repair import apply_statements

        apply_statements(parse(self._config), fix.statements, administrator)

    def watched(self, context: TaskContext, *, rows: bool = False) -> AbstractContextManager[WatchedTask]:
        """Reads the log under a server id of its own; nothing is written to the server."""
        from cdcworker.connectors.mysql.source.watch import watched

        return watched(self._config, context, rows=rows)

    @staticmethod
    def place_text(source: Mapping[str, Any]) -> str:
        return places.place_text(source)

    @staticmethod
    def parse_place(text: str) -> str:
        """Takes a GTID, or a file and a position."""
        return places.parse_place(text)

    @staticmethod
    def has_place(source: Mapping[str, Any], text: str) -> bool:
        return places.has_place(source, text)

    @staticmethod
    def stored_place(position: Mapping[str, Any]) -> tuple[int, str]:
        return places.stored_place(position)

    @classmethod
    def config_of(cls, text: str) -> Config:
        """Reads mysql://user:password@host:port/database."""
        from cdcworker.connectors.mysql.config.connection_string import config_of

        return config_of(text)

    @classmethod
    def role_options(cls) -> Sequence[RoleOption]:
        from cdcworker.connectors.mysql.server.roles import OPTIONS

        return OPTIONS

    @classmethod
    def role_script(cls, wanted: RoleRequest) -> list[ScriptStep]:
        """Returns the SQL for the server's administrator."""
        from cdcworker.connectors.mysql.server.roles import SourceUser, source_script

        return source_script(SourceUser(wanted.role, wanted.tables, **wanted.options))

    def measure_lag(self, task: StandingTask) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """How far the task is behind its server, and how long that keeps what was not read; opens one connection."""
        from cdcworker.connectors.mysql.source.standing_measurement import measure

        return measure(parse(self._config), task)
