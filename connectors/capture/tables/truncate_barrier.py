"""How far the stream has to come before tables are emptied and their rows are read again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The server's log: `mark` writes to its end and returns the position and the id of that transaction, all transactions
    with ids below `oldest()` have ended, what lies before `safe` has been handed on, and `text` writes a position as the
    database does."""

    mark: Callable[[], tuple[int, int]]
    oldest: Callable[[], int]
    safe: int
    text: Callable[[int], str] = str


class TruncateBarrier:
    """Where the log ended when tables were found that have to be emptied. Changes that are still to come lie before that: rows that
    they make must not outlive the truncate, since what became of them may be in no log.

    Tables that are found together wait together. Those that are found meanwhile wait for the next boundary, not these
    for theirs: tables that come more often than the stream catches up put off nobody.
    """

    def __init__(self) -> None:
        self.position: int | None = None
        self._again = ""
        self._group: dict[int, int] = {}
        self._barrier = 0

    def passed(self, found: Mapping[int, int], again: str, log_: ServerLog) -> frozenset[int]:
        """Returns those of the tables that were `found`, by number of their entries, which may be emptied. One whose
        number has changed has been away again. `again`: the event for which all tables are emptied, if there is one; with another event
        the wait begins anew."""
        self._group = {table_id: entry for table_id, entry in self._group.items() if found.get(table_id) == entry}
        if not self._group or again != self._again:
            self._group, self._again, self.position = dict(found), again, None
            _, self._barrier = log_.mark()
        if self.position is None:
            # Transactions that were open then come before it, since a part of what they did may have been published.
            if log_.oldest() <= self._barrier:
                return frozenset()
            # A transaction of its own, so that an idle log comes past it.
            self.position, _ = log_.mark()
            log.info("tables are emptied and read again once the stream is at position=%s", log_.text(self.position))
        return frozenset(self._group if log_.safe >= self.position else ())

    @property
    def blocked(self) -> bool:
        """Returns whether transactions that were open when a table was found empty are still running."""
        return bool(self._group) and self.position is None

    def forget(self) -> None:
        """Called once the tables that may be emptied have been."""
        self._group, self.position = {}, None
