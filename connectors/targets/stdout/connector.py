"""The sink of lines, as a connector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.record_sink.connector import RecordSink


def _absolute(value: str) -> str | None:
    return None if value.startswith("/") and "\0" not in value else "expects an absolute path"


CONFIG_DEF: Final = config_def(
    [
        ConfigKey(
            "file", required=True, importance="HIGH", group="Lines", validator=_absolute, connects=True,
            doc="The file to which lines are appended. What a task prints goes to the worker's log, which holds no rows.",
        )
    ],
    {},
)  # fmt: skip


class StdoutSink(RecordSink):
    """Lines of JSON."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.stdout.target import LinesTarget, opened

        return LinesTarget(opened(allowed_path(place.config["file"], place.file_roots)), owned=True)

    def check_files(self, roots: Sequence[str]) -> None:
        allowed_path(self.config_def.parse(self._config)["file"], roots)

    def check(self) -> Sequence[CheckFinding]:
        """The folders are checked before; the file is made by the task."""
        return []
