"""The PostgreSQL source connector: a task for each of its slots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.source import MEANINGS, SourceTask
from cdcworker.connectors.capture.config.debezium_keys import renamed
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF, parse
from cdcworker.connectors.postgres.source.task import PostgresTask
from cdcworker.schemas.change import JsonObject

if TYPE_CHECKING:
    from cdcworker.connectors.api.abilities import RoleOption, RoleRequest, StandingTask
    from cdcworker.connectors.api.source import DropRequest, Leftover, TranslatedOffset, WatchedTask
    from cdcworker.connectors.capture.tables.compared_source import ComparedSource
    from cdcworker.connectors.checks import DoctorCheck, ExaminedTarget, Repair
    from cdcworker.connectors.sql_script import ScriptStep
    from cdcworker.schemas.errors import CdcError

__all__ = ["PostgresSource", "PostgresTask"]


LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class PostgresSource:
    """Reads a PostgreSQL database by logical decoding (pgoutput), with a snapshot beside the stream."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def __init__(self, config: Config) -> None:
        self._config = renamed(config)

    def split(self, tasks_max: int) -> Sequence[Config]:
        """One slot is one ordered stream that one task reads: as many tasks as slots are asked for."""
        count = int(CONFIG_DEF.parse(self._config)["slot.count"])
        return [self._config] * max(1, min(count, tasks_max))

    def task(self, share: Config, context: TaskContext) -> SourceTask:
        return PostgresTask(parse(share).of_task(context.task), context)

    def check_position(self, position: JsonObject) -> None:
        from cdcworker.connectors.postgres.position import StoredPosition, progress_of

        if snapshot := StoredPosition.from_json(position).snapshot:
            progress_of(snapshot)

    def without_keys(self, position: JsonObject) -> JsonObject:
        from cdcworker.connectors.capture.snapshot.progress import without_keys

        snapshot = position.get("snapshot")
        return {**position, "snapshot": without_keys(snapshot)} if isinstance(snapshot, dict) else position

    def verify_position(self, task: int, position: JsonObject) -> str:
        """Asks the server whether the slot still has what lies behind the position; opens one connection."""
        from cdcworker.connectors.postgres.doctor.written_positions import verify
        from cdcworker.connectors.postgres.position import StoredPosition

        return verify(parse(self._config).of_task(task), StoredPosition.from_json(position))

    def verify_source(self) -> ComparedSource:
        from cdcworker.connectors.postgres.doctor.compared_source import OpenedPostgresSource

        return OpenedPostgresSource(parse(self._config))

    def moved_position(self, task: int, position: JsonObject, to: str) -> TranslatedOffset:
        """Looks at what the slot holds, without confirming it; opens two connections."""
        from cdcworker.connectors.capture.moved_positions import TIME_FORM, time_of
        from cdcworker.connectors.postgres.doctor.moved_positions import NOT_THERE, LogTime, moved
        from cdcworker.connectors.postgres.position import StoredPosition
        from cdcworker.schemas.errors import CdcError

        try:
            time = time_of(to)
            place = to if to in MEANINGS else self.parse_position(to) if time is None else LogTime(time)
        except ValueError as exc:
            raise CdcError(NOT_THERE, f"{exc}; or {', '.join((*MEANINGS, TIME_FORM))}") from None
        return moved(parse(self._config).of_task(task), StoredPosition.from_json(position), place)

    def is_debezium_offset(self, offset: Mapping[str, Any]) -> bool:
        from cdcworker.connectors.postgres.doctor.debezium_offsets import is_debezium

        return is_debezium(offset)

    def from_debezium(self, task: int, offset: Mapping[str, Any]) -> TranslatedOffset:
        """Looks at what the slot holds, without confirming it; opens two connections."""
        from cdcworker.connectors.postgres.doctor.debezium_offsets import to_position

        return to_position(parse(self._config).of_task(task), offset)

    def to_debezium(self, task: int, position: JsonObject) -> TranslatedOffset:
        """Looks at what the slot holds where a transaction was handed on in part."""
        from cdcworker.connectors.postgres.doctor.debezium_offsets import to_offset
        from cdcworker.connectors.postgres.position import StoredPosition

        return to_offset(parse(self._config).of_task(task), StoredPosition.from_json(position))

    def leftovers(self) -> Sequence[Leftover]:
        from cdcworker.connectors.postgres.server.leftovers import leftovers

        return leftovers(parse(self._config))

    def drop_leftovers(self, asked: DropRequest) -> Iterator[tuple[Leftover, CdcError | None]]:
        from cdcworker.connectors.postgres.server.leftovers import drop

        return drop(parse(self._config), asked)

    def watched(self, context: TaskContext, *, rows: bool = False) -> AbstractContextManager[WatchedTask]:
        """Reads by a temporary slot, and by the config's publication or one that is dropped at the end."""
        from cdcworker.connectors.postgres.source.watch import watched

        return watched(self._config, context, rows=rows)

    @staticmethod
    def position_name() -> str:
        return "LSN"

    @staticmethod
    def position_text(commit: int) -> str:
        """Returns an LSN as PostgreSQL shows it: 0/16B3748."""
        return f"{commit >> 32:X}/{commit & 0xFFFFFFFF:X}"

    @staticmethod
    def parse_position(text: str) -> int:
        """Takes an LSN in PostgreSQL's form, or its number. Raises ValueError."""
        found = LSN.fullmatch(text)
        if found:
            return int(found[1], 16) << 32 | int(found[2], 16)
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise ValueError("an LSN is like 0/16B3748, or a number")
        return int(text)

    @classmethod
    def config_of(cls, text: str) -> Config:
        """Reads libpq's connection string, in either of its forms."""
        from cdcworker.connectors.postgres.config.connection_string import config_of

        return config_of(text)

    @classmethod
    def role_options(cls) -> Sequence[RoleOption]:
        from cdcworker.connectors.postgres.server.roles import OPTIONS

        return OPTIONS

    @classmethod
    def role_script(cls, wanted: RoleRequest) -> list[ScriptStep]:
        """Returns the SQL for the owner of the tables."""
        from cdcworker.connectors.postgres.server.roles import SourceRole, source_script

        return source_script(SourceRole(wanted.role, wanted.database, wanted.tables, **wanted.options))

    def check(self) -> Sequence[CheckFinding]:
        """Live findings about server, rights, slot, publication and tables; opens connections."""
        from cdcworker.connectors.postgres.doctor.live_checks import check

        return list(check(parse(self._config)))

    def examine(self, positions: Mapping[int, Mapping[str, Any]], *, deep: bool = False) -> Iterator[ExaminedTarget]:
        """The doctor's table: what was measured, why it matters, what mends it. `positions` is what each task has stored,
        where that is known."""
        from cdcworker.connectors.postgres.doctor.checks import examine_all
        from cdcworker.connectors.postgres.doctor.live_checks import key_of

        for item in examine_all(parse(self._config), {n: dict(one) for n, one in positions.items()}, deep=deep):
            result = item.result
            if result.status != "ok":
                result = replace(result, key=key_of(result.code, result.key))
            yield replace(item, result=result)

    @classmethod
    def checks(cls) -> Sequence[DoctorCheck]:
        from cdcworker.connectors.postgres.doctor.checks import CHECKS

        return CHECKS

    def measure_lag(self, task: StandingTask) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What the slot keeps, and how far its task is behind; opens one connection."""
        from cdcworker.connectors.postgres.server.slot_measurement import measure

        return measure(parse(self._config).of_task(task.task), task)

    def repair(self, fix: Repair, administrator: str | None = None) -> None:
        """Runs the statements that a check proposed; changes the database."""
        from cdcworker.connectors.postgres.doctor.repair import apply_statements

        apply_statements(parse(self._config), fix.statements, administrator)
