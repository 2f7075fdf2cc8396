"""Checks of the outside that validation and doctors share: what was measured, why it matters, and how to mend it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cdcworker.schemas.errors import CODES, CdcError, declare

Status = Literal["ok", "note", "warning", "error", "unknown"]
STATUSES: tuple[Status, ...] = ("ok", "note", "warning", "error", "unknown")
TIMEOUT_S = 5.0

ADVICE = declare(
    "doctor.advice",
    "config",
    "A check of the doctor asks for attention",
    "The check says what it measured, why that matters and what mends it: `cdcworker doctor`.",
)
UNKNOWN = declare(
    "doctor.unknown",
    "environment",
    "A check of the doctor could not come to a result",
    "Its text says what was in the way: a right, a connection, or time. Nothing follows from it either way.",
)


@dataclass(frozen=True, slots=True)
class Fix:
    """What mends it: statements for the database, and in words what no statement can do."""

    statements: tuple[str, ...] = ()
    steps: str = ""
    safe: bool = False
    """Neither restarts, locks for long, loses anything, nor gives rights beyond what the config names."""


@dataclass(frozen=True, slots=True)
class Result:
    """One thing that a check found. `measured` is what is there; `message` says what is wrong with it."""

    status: Status
    measured: str
    message: str = ""
    code: str = ADVICE
    key: str = ""
    hint: str = ""
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One row of a doctor's table."""

    name: str
    """group.what, stable."""
    why: str
    run: Callable[[Any], Iterable[Result]]
    validates: bool = True
    """Whether validation asks it too, before a connector starts; else it is advice that only a doctor gives."""
    deep: bool = False
    """Reads more than catalogs: only when asked for."""

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Examined:
    check: Check
    result: Result
    took_s: float


class Unexamined(Exception):
    """A check cannot run, and another one has said why."""


def ok(measured: str) -> Result:
    return Result("ok", measured)


def examine(
    checks: Iterable[Check],
    patient: Any,
    *,
    timeout_s: float = TIMEOUT_S,
    translate: Callable[[Exception], CdcError | None] = lambda _: None,
    abandon: Callable[[], None] = lambda: None,
) -> Iterator[Examined]:
    """Each check by itself and within its time; one that fails or hangs takes none of the others with it.

    `abandon` is called when one has hung, so that the next does not wait for the same thing.
    """
    for check in checks:
        began = time.monotonic()
        for result in _boxed(check, patient, timeout_s, translate, abandon):
            yield Examined(check, result, time.monotonic() - began)


def _boxed(
    check: Check,
    patient: Any,
    timeout_s: float,
    translate: Callable[[Exception], CdcError | None],
    abandon: Callable[[], None],
) -> list[Result]:
    results: list[Result] = []
    finished: list[bool] = []

    def work() -> None:
        try:
            results.extend(check.run(patient))
        except Exception as exc:  # noqa: BLE001 - a broken check is a result, not the end of the examination
            results.append(_unknown(exc, translate))
        finished.append(True)

    # A daemon: one that never comes back must not keep the program from ending.
    thread = threading.Thread(target=work, name=f"check-{check.name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not finished:
        abandon()
        return [*results, Result("unknown", "", f"no result within {timeout_s:g} s", UNKNOWN)]
    return results or [ok("")]


def _unknown(exc: Exception, translate: Callable[[Exception], CdcError | None]) -> Result:
    if isinstance(exc, Unexamined):
        return Result("unknown", "", str(exc), UNKNOWN)
    error = exc if isinstance(exc, CdcError) else translate(exc)
    if error is not None:
        return Result("unknown", "", error.message, error.code, hint=error.hint)
    return Result("unknown", "", f"the check failed itself with {type(exc).__name__}", UNKNOWN)


def hint_of(result: Result) -> str:
    """What to do, in words."""
    if result.hint:
        return result.hint
    if result.fix is not None:
        return fix_text(result.fix)
    return "" if result.status == "ok" else CODES[result.code].hint


def fix_text(fix: Fix) -> str:
    parts = [*(f"{statement};" for statement in fix.statements), *([fix.steps] if fix.steps else [])]
    return " ".join(parts)
