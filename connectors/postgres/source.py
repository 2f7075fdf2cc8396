"""The PostgreSQL source connector: a task for each of its slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from cdcworker.connectors.api import Config, Finding, SourceTask, TaskContext
from cdcworker.connectors.config import ConfigDef
from cdcworker.connectors.postgres.accepted import renamed
from cdcworker.connectors.postgres.config import CONFIG_DEF, parse
from cdcworker.connectors.postgres.task import PostgresTask
from cdcworker.schemas.change import JsonObject

if TYPE_CHECKING:
    from cdcworker.connectors.checkup import Examined, Fix

__all__ = ["PostgresSource", "PostgresTask"]


class PostgresSource:
    """Logical decoding by pgoutput, with a snapshot beside the stream."""

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
        from cdcworker.connectors.postgres.position import StoredPosition

        StoredPosition.from_json(position)

    def check(self) -> Sequence[Finding]:
        """Live findings about server, rights, slot, publication and tables; opens connections."""
        from cdcworker.connectors.postgres.check import check

        return list(check(parse(self._config)))

    def examine(self, positions: Mapping[int, JsonObject], *, deep: bool = False) -> Iterator[Examined]:
        """The doctor's table: what was measured, why it matters, what mends it. `positions` is what each task has stored,
        where that is known."""
        from cdcworker.connectors.postgres.doctor import examine_all

        return examine_all(parse(self._config), positions, deep=deep)

    def mend(self, fix: Fix, administrator: str | None = None) -> None:
        """Runs what the doctor proposed; changes the database."""
        from cdcworker.connectors.postgres.mend import mend

        mend(parse(self._config), fix.statements, administrator)
