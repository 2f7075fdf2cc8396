"""The restart policy: how often and how soon a failed task is restarted, as pure functions of its past restarts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcworker.coordinator.core.herd_state import HerdSettings, LocalTask, StateTransition
from cdcworker.coordinator.errors import TASK_QUARANTINED
from cdcworker.coordinator.model import JsonObject, TaskId
from cdcworker.schemas.errors import CdcError

RESTART_MAX: Final = "task.restart.max"
RESTART_DATA_MAX: Final = "task.restart.data.max"
RESTART_WINDOW_MS: Final = "task.restart.window.ms"
RESTART_BACKOFF_MS: Final = "task.restart.backoff.ms"
RESTART_BACKOFF_MAX_MS: Final = "task.restart.backoff.max.ms"
START_TIMEOUT_MS: Final = "task.start.timeout.ms"

RESTARTS_REMEMBERED_MAX: Final = 100
"""The most restarts that are remembered, hence the largest budget: every status record carries them (INV-10)."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The restart budget of a connector's tasks. A task without failures for a whole window has its full budget
    again."""

    restarts_max: int
    data_restarts_max: int
    window_s: float
    backoff_min_s: float
    backoff_max_s: float
    start_timeout_s: float

    def budget(self, kind: object) -> int:
        """Returns the restarts allowed within the window for this kind of error; 0 for errors that do not pass by
        themselves."""
        return {"transient": self.restarts_max, "data": self.data_restarts_max}.get(str(kind), 0)

    def delay_s(self, task_id: TaskId, failures_before: int) -> float:
        """Returns the pause before a restart, given the failures before it: it doubles, and its upper half varies by
        task.

        Tasks that failed together (one database, one broker) must not restart together. The pause is a hash of the task
        and the count, so it is the same in every replay.
        """
        ceiling = min(self.backoff_min_s * 2.0 ** min(failures_before, 32), self.backoff_max_s)
        digest = hashlib.blake2b(f"{task_id}:{failures_before}".encode(), digest_size=4).digest()
        return ceiling * (0.5 + int.from_bytes(digest) / 2**33)

    def within_window(self, times: Iterable[float], mono: float) -> tuple[float, ...]:
        """Returns the restarts at these monotonic times that lie within the window and count against the budget."""
        return tuple(at for at in times if at > mono - self.window_s)[-RESTARTS_REMEMBERED_MAX:]


def policy_of(config: Mapping[str, str], settings: HerdSettings) -> RestartPolicy:
    """Returns the policy of a connector config, with the herder's settings as defaults. A value that is no number is
    ignored."""

    def number(key: str, default: float, largest: float = float("inf")) -> float:
        text = config.get(key, "").strip()
        return min(float(text), largest) if text.isascii() and text.isdigit() else default

    return RestartPolicy(
        restarts_max=int(number(RESTART_MAX, settings.restarts_max, RESTARTS_REMEMBERED_MAX)),
        data_restarts_max=int(number(RESTART_DATA_MAX, 0, RESTARTS_REMEMBERED_MAX)),
        window_s=number(RESTART_WINDOW_MS, settings.restart_window_s * 1000) / 1000,
        backoff_min_s=number(RESTART_BACKOFF_MS, settings.backoff_min_s * 1000) / 1000,
        backoff_max_s=number(RESTART_BACKOFF_MAX_MS, settings.backoff_max_s * 1000) / 1000,
        start_timeout_s=number(START_TIMEOUT_MS, settings.start_timeout_s * 1000) / 1000,
    )


def policy_for(transition: StateTransition, local: LocalTask) -> RestartPolicy:
    """Returns the policy of a task's connector."""
    connector = transition.cluster.connectors.get(local.task.connector)
    return policy_of(connector.config if connector else {}, transition.settings)


def quarantine(task_id: TaskId, cause: JsonObject) -> JsonObject:
    """Returns the error of a task whose restart budget is used up; `cause` is the last failure."""
    error = CdcError(
        TASK_QUARANTINED,
        f"too many restarts, the last one for: {cause.get('message', 'no reason')}",
        where={"task": str(task_id)},
    )
    return {**error.to_dict(), "cause": cause}


def is_quarantine(error: JsonObject | None) -> bool:
    """Tells whether an error means that the task's restart budget is used up."""
    return error is not None and error.get("code") == TASK_QUARANTINED
