"""The restart policy: how often and how soon a failed task is started again, as pure functions of its past."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcworker.coordinator.errors import TASK_QUARANTINED
from cdcworker.coordinator.herd_state import HerdSettings, LocalTask, Turn
from cdcworker.coordinator.model import JsonObject, TaskId
from cdcworker.schemas.errors import CdcError

RESTART_MAX: Final = "task.restart.max"
RESTART_DATA_MAX: Final = "task.restart.data.max"
RESTART_WINDOW_MS: Final = "task.restart.window.ms"
RESTART_BACKOFF_MS: Final = "task.restart.backoff.ms"
RESTART_BACKOFF_MAX_MS: Final = "task.restart.backoff.max.ms"
START_TIMEOUT_MS: Final = "task.start.timeout.ms"

CHARGES_MAX: Final = 100
"""Restarts that are remembered, so also the largest budget: they travel in every status record (INV-10)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One connector's budget. A task that ran for the whole window without a failure has all of it again."""

    restarts_max: int
    data_restarts_max: int
    window_s: float
    backoff_min_s: float
    backoff_max_s: float
    start_timeout_s: float

    def budget(self, kind: object) -> int:
        """Restarts within the window for an error of this kind; what cannot pass by itself has none."""
        return {"transient": self.restarts_max, "data": self.data_restarts_max}.get(str(kind), 0)

    def delay_s(self, task_id: TaskId, before: int) -> float:
        """The pause after a failure with so many before it: doubling, its upper half spread over the tasks.

        Tasks that failed together (one database, one broker) must not come back together; the same task waits as long
        in every replay.
        """
        ceiling = min(self.backoff_min_s * 2.0 ** min(before, 32), self.backoff_max_s)
        digest = hashlib.blake2b(f"{task_id}:{before}".encode(), digest_size=4).digest()
        return ceiling * (0.5 + int.from_bytes(digest) / 2**33)

    def charged(self, times: Iterable[float], mono: float) -> tuple[float, ...]:
        """Those charges that still count."""
        return tuple(at for at in times if at > mono - self.window_s)[-CHARGES_MAX:]


def policy_of(config: Mapping[str, str], settings: HerdSettings) -> Policy:
    """The connector's own keys over the herd's settings; a value that is no number counts as not given."""

    def number(key: str, default: float, most: float = float("inf")) -> float:
        text = config.get(key, "").strip()
        return min(float(text), most) if text.isascii() and text.isdigit() else default

    return Policy(
        restarts_max=int(number(RESTART_MAX, settings.restarts_max, CHARGES_MAX)),
        data_restarts_max=int(number(RESTART_DATA_MAX, 0, CHARGES_MAX)),
        window_s=number(RESTART_WINDOW_MS, settings.restart_window_s * 1000) / 1000,
        backoff_min_s=number(RESTART_BACKOFF_MS, settings.backoff_min_s * 1000) / 1000,
        backoff_max_s=number(RESTART_BACKOFF_MAX_MS, settings.backoff_max_s * 1000) / 1000,
        start_timeout_s=number(START_TIMEOUT_MS, settings.start_timeout_s * 1000) / 1000,
    )


def policy_for(turn: Turn, local: LocalTask) -> Policy:
    connector = turn.cluster.connectors.get(local.task.connector)
    return policy_of(connector.config if connector else {}, turn.settings)


def quarantine(task_id: TaskId, cause: JsonObject) -> JsonObject:
    """The error of a task whose budget is used up; `cause` is the last failure."""
    error = CdcError(
        TASK_QUARANTINED,
        f"too many restarts, the last one for: {cause.get('message', 'no reason')}",
        where={"task": str(task_id)},
    )
    return {**error.to_dict(), "cause": cause}


def is_quarantine(error: JsonObject | None) -> bool:
    return error is not None and error.get("code") == TASK_QUARANTINED
