"""What an error calls for: the one place that turns its kind into an action."""

from __future__ import annotations

import random
from typing import Final, Literal, NamedTuple

from cdcworker.schemas.errors import INTERNAL, CdcError

ActionKind = Literal["retry", "restart", "quarantine", "halt", "yield"]
"""`retry` in place after a pause, `restart` in a new process, `quarantine` the table that `where` names, `halt` until a
person acts, `yield` to the other owner."""

RETRY_DELAY_S_MIN: Final = 0.2
RETRY_DELAY_S_MAX: Final = 5.0
"""Half of the time in which a source goes on once a standby was promoted: the other half is for its start."""
RETRIES_MAX: Final = 18
"""About a minute in place. What lasts longer is worth a fresh process, which the worker starts at a slower pace."""

_TRANSIENT_ENVIRONMENT: Final = frozenset({"kafka.unreachable"})
"""At a start these are the environment's fault; for a task that ran they pass."""


class ErrorAction(NamedTuple):
    kind: ActionKind
    delay_s: float = 0.0


def decide(error: CdcError, attempt: int = 0) -> ErrorAction:
    """The action for an error met for the `attempt`-th time in a row (0: the first). Unknown means halt."""
    if error.kind == "fenced":
        return ErrorAction("yield", backoff(attempt))
    if error.retriable or error.code in _TRANSIENT_ENVIRONMENT:
        return ErrorAction("retry", backoff(attempt)) if attempt < RETRIES_MAX else ErrorAction("restart")
    if error.kind == "data" and "table" in error.where:
        return ErrorAction("quarantine")
    return ErrorAction("halt")


def backoff(attempt: int) -> float:
    """Returns a delay that doubles with each attempt up to its maximum; its upper half is random, so that many do not come back at
    once."""
    ceiling = min(RETRY_DELAY_S_MAX, RETRY_DELAY_S_MIN * 2.0 ** min(attempt, 16))
    return ceiling * (0.5 + random.random() / 2)  # noqa: S311  spreads retries, protects nothing


def unexpected(exc: BaseException) -> CdcError:
    """Returns the error for an exception that the code did not foresee: its type and its place in the code. Its text may hold values
    and is left out."""
    place = exc.__traceback__
    where = ""
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        module = place.tb_frame.f_globals.get("__name__", file)
        if str(module).startswith("cdcworker."):
            where = f"{module}:{place.tb_lineno}"
        place = place.tb_next
    return CdcError(INTERNAL, f"unexpected {type(exc).__name__}", where={"at": where} if where else None)
