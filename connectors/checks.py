"""Checks of databases and brokers that validation and the doctor share: what was measured, why it matters, and how to
mend it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cdcworker.schemas.errors import CODES, CdcError, declare
from cdcworker.schemas.threads import start_thread

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
class Repair:
    """The remedy of a finding: statements for the database, and in words what no statement can do."""

    statements: tuple[str, ...] = ()
    steps: str = ""
    safe: bool = False
    """Neither restarts, locks for long, loses anything, nor gives rights beyond what the config names."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that a check found. `measured` is what is there; `message` says what is wrong with it."""

    status: Status
    measured: str
    message: str = ""
    code: str = ADVICE
    key: str = ""
    hint: str = ""
    fix: Repair | None = None


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One row of a doctor's table."""

    name: str
    """group.what, stable."""
    why: str
    run: Callable[[Any], Iterable[CheckResult]]
    validates: bool = True
    """Whether validation asks it too, before a connector starts; else it is advice that only a doctor gives."""
    deep: bool = False
    """Reads more than catalogs: only when asked for."""

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class ExaminedTarget:
    """One check with one of its results, and how long the check took."""

    check: DoctorCheck
    result: CheckResult
    took_s: float


class CheckSkipped(Exception):
    """A check cannot run, because of something that another check reports."""


def ok(measured: str) -> CheckResult:
    return CheckResult("ok", measured)


def examine(
    checks: Iterable[DoctorCheck],
    examined: Any,
    *,
    timeout_s: float = TIMEOUT_S,
    translate: Callable[[Exception], CdcError | None] = lambda _: None,
    abandon: Callable[[], None] = lambda: None,
) -> Iterator[ExaminedTarget]:
    """Runs each check on `examined`, by itself and within its time; one that fails or hangs does not stop the others.

    `abandon` is called when one has hung, so that the next does not wait for the same thing.
    """
    for check in checks:
        began = time.monotonic()
        for result in _run_within(check, examined, timeout_s, translate, abandon):
            yield ExaminedTarget(check, result, time.monotonic() - began)


def _run_within(
    check: DoctorCheck,
    examined: Any,
    timeout_s: float,
    translate: Callable[[Exception], CdcError | None],
    abandon: Callable[[], None],
) -> list[CheckResult]:
    results: list[CheckResult] = []
    finished: list[bool] = []

    def work() -> None:
        try:
            results.extend(check.run(examined))
        except Exception as exc:  # noqa: BLE001 - a broken check is a result, not the end of the examination
            results.append(_unknown(exc, translate))
        finished.append(True)

    # A daemon: one that never comes back must not keep the program from ending.
    thread = start_thread(work, name=f"check-{check.name}", kind="check")
    thread.join(timeout_s)
    if not finished:
        abandon()
        return [*results, CheckResult("unknown", "", f"no result within {timeout_s:g} s", UNKNOWN)]
    return results or [ok("")]


def _unknown(exc: Exception, translate: Callable[[Exception], CdcError | None]) -> CheckResult:
    if isinstance(exc, CheckSkipped):
        return CheckResult("unknown", "", str(exc), UNKNOWN)
    error = exc if isinstance(exc, CdcError) else translate(exc)
    if error is not None:
        return CheckResult("unknown", "", error.message, error.code, hint=error.hint)
    return CheckResult("unknown", "", f"the check failed itself with {type(exc).__name__}", UNKNOWN)


def hint_of(result: CheckResult) -> str:
    """Returns in words what to do."""
    if result.hint:
        return result.hint
    if result.fix is not None:
        return fix_text(result.fix)
    return "" if result.status == "ok" else CODES[result.code].hint


def fix_text(fix: Repair) -> str:
    parts = [*(f"{statement};" for statement in fix.statements), *([fix.steps] if fix.steps else [])]
    return " ".join(parts)
