"""Checks and what they find: each is a function that raises `Problem`, with a time limit, since a plugin may hang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from cdcworker.schemas.errors import CdcError, raised_at
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.conformance.task_process import NotInTime

LIMIT_S: Final = 30.0


class Problem(Exception):
    """What a connector does otherwise than it has to."""


class Check(NamedTuple):
    """One thing that is looked at. The name says what has to hold."""

    name: str
    run: Callable[[], None]


class Finding(NamedTuple):
    """The result of a check; without a problem it holds."""

    name: str
    problem: str = ""


def findings(checks: Iterable[Check]) -> Iterator[Finding]:
    """Yields the result of each check. An exception of the plugin's own is a problem as well."""
    for check in checks:
        try:
            check.run()
        except (Problem, NotInTime, CdcError) as error:
            yield Finding(check.name, str(error))
        except Exception as error:  # noqa: BLE001 - a plugin's own code
            yield Finding(check.name, f"unexpected {type(error).__name__} at {raised_at(error)}: {error}")
        else:
            yield Finding(check.name)


def require(condition: object, problem: str) -> None:
    """Raises Problem unless the condition holds."""
    if not condition:
        raise Problem(problem)


def limited(call: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Returns what a call returns, or raises what it raises. Problem: it did not come back in time."""
    out: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            out.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
            errors.append(error)

    thread = SupervisedThread(run, name="checked-call")
    thread.start()
    thread.join(limit_s)
    require(not thread.is_alive(), f"{what} has not come back after {limit_s:g} s")
    if errors:
        raise errors[0]
    return out[0]
