"""What a small source or a target may be able to do besides reading or writing: be looked at before it works, and be closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from cdcworker.connectors.api.context import CheckFinding


@runtime_checkable
class Checks(Protocol):
    """A source or a target that can be looked at before anything is read or written. Runs in a child process with a time limit."""

    def check(self) -> Sequence[CheckFinding]:
        """Returns what is wrong. Changes nothing."""


@runtime_checkable
class Closes(Protocol):
    """A source or a target that holds something open."""

    def close(self) -> None:
        """Lets go of everything, also after an error. There will be no further call."""
