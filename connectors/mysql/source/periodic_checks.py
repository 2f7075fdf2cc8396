"""What is looked at now and then between two transactions: new tables, and whether a table that is held back is asked for."""

from __future__ import annotations

import time
from typing import Final

from cdcworker.connectors.mysql.source import captured_tables as tables
from cdcworker.connectors.mysql.source.session import Session

ASKED_S: Final = 1.0
"""Seconds between two looks at the requests for snapshots."""
AGAIN_S: Final = 0.2
"""The fewest seconds between two looks at tables, while one waits to come back."""


class PeriodicChecks:
    """Does the checks that are due, over the catalog connection."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s` lies between two looks for new tables; 0: they are looked for at starts only."""
        self._tables_s = interval_s or float("inf")
        self._tables_at = self._asked_at = time.monotonic()

    def go(self, session: Session) -> float:
        """Looks at what is due, and returns when something may be due again, on the monotonic clock."""
        now = time.monotonic()
        if now - self._asked_at >= ASKED_S:
            self._asked_at = now
            session.scope.require_no_return()
        interval_s = min(self._tables_s, AGAIN_S) if _is_owed(session) else self._tables_s
        if now - self._tables_at >= interval_s:
            self._tables_at = now
            tables.look(session)
        return now + min(AGAIN_S if _is_owed(session) else ASKED_S, ASKED_S, self._tables_s)


def _is_owed(session: Session) -> bool:
    return session.snapshot is not None and session.snapshot.progress.owed
