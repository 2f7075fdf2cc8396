"""Tables of a batch that stop alone: a pass over it finds all of them, so that the next one applies it without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from cdcworker.connectors.sink_errors import SCHEMA_REFUSED, TARGET_BROKEN
from cdcworker.schemas.errors import CdcError

Result = TypeVar("Result")
OF_A_TABLE = (SCHEMA_REFUSED, TARGET_BROKEN)


class TablesRefused(CdcError):
    """The first one's error, with those of all tables and what was written of the others meanwhile."""

    def __init__(self, errors: Sequence[CdcError], written: Mapping[str, Any] | None = None) -> None:
        first = errors[0]
        super().__init__(first.code, first.message, where=first.where, hint=first.hint, fix=first.fix)
        self.errors = tuple(errors)
        self.written = dict(written or {})


class TableRefusals:
    """Collects the refused tables of one pass over a batch; any thread that writes a table may add one."""

    def __init__(self) -> None:
        self._errors: list[CdcError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    @property
    def topics(self) -> set[str]:
        return {topic_of(error) for error in self._errors}

    @contextlib.contextmanager
    def of_a_table(self) -> Iterator[None]:
        """Holds back what stops one table only."""
        try:
            yield
        except CdcError as exc:
            if not topic_of(exc):
                raise
            self._errors.append(exc)

    def held(self, work: Callable[..., Result]) -> Callable[..., Result | None]:
        """Returns the work so that it collects refused tables instead of raising; it returns None for those."""

        def one(*args: Any) -> Result | None:
            with self.of_a_table():
                return work(*args)
            return None

        return one

    def tell(self, written: Mapping[str, Any] | None = None) -> None:
        """CdcError Refused where there were any. What is `written` stays so, whatever becomes of the batch."""
        if self._errors:
            raise TablesRefused(self._errors, written) from self._errors[0]


def topic_of(error: CdcError) -> str:
    """Whose table alone the error stops; empty: it is the task's."""
    return str(error.where.get("topic", "")) if error.code in OF_A_TABLE else ""


def errors_of(error: CdcError) -> Sequence[CdcError]:
    return error.errors if isinstance(error, TablesRefused) else (error,)


def written_of(error: CdcError) -> Sequence[Mapping[str, Any]]:
    """Returns the counts of what stays written although there was the error."""
    return [error.written] if isinstance(error, TablesRefused) and error.written else []
