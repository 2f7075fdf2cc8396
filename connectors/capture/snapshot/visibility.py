"""Which transactions a read of the database saw, and places in the log that the stream passes."""

from __future__ import annotations

from typing import Any, Protocol

TransactionId = Any
"""A transaction's id as the source's stream says it, and as JSON holds it: a number in PostgreSQL."""


class LogPlace(Protocol):
    """A place in a source's log between two transactions, as its reads and its stream tell it: a number where the log has one order
    (PostgreSQL: an LSN), a set of transactions where it is only known which ones lie before it. Of two places neither need be at
    or behind the other."""

    def __ge__(self, other: Any, /) -> bool:
        """Returns whether everything before the other place lies before this one."""


class Visibility(Protocol):
    """What one read saw (PostgreSQL: pg_snapshot). `str()` of it is stored, and read back by the source."""

    @property
    def exact(self) -> bool:
        """Returns whether it is known of every transaction. Otherwise what may be invisible counts as invisible."""

    def sees(self, transaction: TransactionId, /) -> bool:
        """Returns whether the transaction of an event is visible for certain."""

    def reaches(self, place: Any, /) -> bool:
        """Returns whether it saw everything before a place of the log that the stream has passed. Always true where places tell nothing
        of that: there each transaction is asked for."""

    def sees_delivered(self, transaction: TransactionId, /) -> bool:
        """Returns whether a transaction is visible that the stream had delivered before the read began."""

    def all_ended(self, upto: int, exempt: frozenset[int], /) -> bool:
        """Returns whether every transaction up to this id had ended, but for the exempt."""
