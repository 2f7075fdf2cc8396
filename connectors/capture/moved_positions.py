"""What every database's source says when it goes on at another place: the transactions that are missed, and those that come again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

TIME_FORM: Final = "a time with its zone (2026-01-31T12:00:00Z)"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(text: str) -> int | None:
    """Returns the microseconds since 1970 of a time in ISO 8601; None for a text that is none. Raises ValueError for one without zone."""
    if "T" not in text.upper() or ":" not in text:
        # A date alone reads like a GTID of MariaDB.
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        raise ValueError(f"a time needs its zone: {TIME_FORM}")
    since = found - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class TransactionSum:
    """How many transactions there are of one kind, and where the first and the last of them commit."""

    def __init__(self, what: str) -> None:
        """`what` ends the sentence: `missed`."""
        self._what = what
        self._transactions = 0
        self._changes = 0
        self._first = ""
        self._last = ""

    def add(self, place: str, changes: int) -> None:
        """Adds the transaction that comes next in the log; `place` is where it commits."""
        self._first = self._first or place
        self._last = place
        self._transactions += 1
        self._changes += changes

    def text(self) -> str:
        """Returns a sentence; empty where there are none."""
        if not self._transactions:
            return ""
        which = "1 transaction" if self._transactions == 1 else f"{self._transactions} transactions"
        is_or_are = "is" if self._transactions == 1 else "are"
        places = f"commits from {self._first} to {self._last}"
        return f"{which} with {changes_text(self._changes)} {is_or_are} {self._what}: {places}"


def changes_text(count: int) -> str:
    """Returns a number of changes in words: `1 change`, `2 changes`."""
    return "1 change" if count == 1 else f"{count} changes"
