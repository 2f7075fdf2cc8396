"""How far the stream has to come before tables are emptied and their rows are read again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cdcworker.connectors.postgres.wire import format_lsn

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Log:
    """The server's log: `mark` writes to its end and gives the LSN and the id of that transaction, all transactions with
    ids below `oldest` have ended, and what lies before `safe_lsn` has been handed on."""

    mark: Callable[[], tuple[int, int]]
    oldest: Callable[[], int]
    safe_lsn: int


class Boundary:
    """Where the log ended when tables were found to be emptied. Changes that are still to come lie before: rows that
    they make must not outlive the truncate, since what became of them may be in no log.

    Tables that are found together wait together. Those that are found meanwhile wait for the next boundary, not these
    for theirs: tables that come more often than the stream catches up put off nobody.
    """

    def __init__(self) -> None:
        self.lsn: int | None = None
        self._again = ""
        self._group: dict[int, int] = {}
        self._barrier = 0

    def passed(self, found: Mapping[int, int], again: str, log_: Log) -> frozenset[int]:
        """Those of the tables that were `found`, by number of their entries, which may be emptied. One whose number has
        changed has been away again. `again`: what has befallen all of them; another one begins anew."""
        self._group = {oid: entry for oid, entry in self._group.items() if found.get(oid) == entry}
        if not self._group or again != self._again:
            self._group, self._again, self.lsn = dict(found), again, None
            _, self._barrier = log_.mark()
        if self.lsn is None:
            # Transactions that were open then come before it, since a part of what they did may have been published.
            if log_.oldest() <= self._barrier:
                return frozenset()
            # A transaction of its own, so that an idle log comes past it.
            self.lsn, _ = log_.mark()
            log.info("tables are emptied and read again once the stream is at lsn=%s", format_lsn(self.lsn))
        return frozenset(self._group if log_.safe_lsn >= self.lsn else ())

    @property
    def blocked(self) -> bool:
        """By transactions that were open when something was found."""
        return bool(self._group) and self.lsn is None

    def forget(self) -> None:
        """What may be emptied has been."""
        self._group, self.lsn = {}, None
