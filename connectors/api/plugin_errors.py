"""What a plugin raises: each class of error says what the engine does about it. A message names places, never values of records."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.schemas.errors import CdcError, declare, raised_at

UNAVAILABLE: Final = declare(
    "plugin.unavailable",
    "transient",
    "What the plugin talks to does not answer now",
    "Look at that system. The task tries again by itself.",
)
MISCONFIGURED: Final = declare(
    "plugin.misconfigured",
    "config",
    "The plugin cannot work with its configuration",
    "Correct what the message names, and start the task again.",
)
RECORD_REFUSED: Final = declare(
    "plugin.record_refused",
    "data",
    "The plugin, or what it talks to, will not take a record",
    "Look at the record at the place that is named. In a sink errors.tolerance=all makes it a dead letter, and the others go on.",
)
FAILED: Final = declare(
    "plugin.failed",
    "internal",
    "The plugin has failed in a way that it does not foresee",
    "Report it to the plugin's author with the place that the message names.",
)


class Unavailable(TargetUnavailable):
    """What the plugin talks to does not answer now: it is asked again, after `retry_after_s` where it has said when."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, **where: str | int) -> None:
        super().__init__(UNAVAILABLE, message, where=where, retry_after_s=retry_after_s)


class Misconfigured(CdcError):
    """The configuration is wrong: the task halts until somebody changes it. `key` names the key where one is known."""

    def __init__(self, message: str, *, key: str = "", **where: str | int) -> None:
        super().__init__(MISCONFIGURED, message, where={**({"key": key} if key else {}), **where})


class RecordRefused(CdcError):
    """A record that will never be taken: in a sink it is a dead letter where the config allows them, else the task halts."""

    def __init__(self, message: str, **where: str | int) -> None:
        super().__init__(RECORD_REFUSED, message, where=where)


def failed(error: BaseException) -> CdcError:
    """Returns the error for an exception that a plugin's code has raised: its type and its place. Its text may hold values and is
    left out."""
    where = raised_at(error)
    return CdcError(FAILED, f"unexpected {type(error).__name__}", where={"at": where} if where else None)
