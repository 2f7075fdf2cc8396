"""What is looked at now and then between two transactions: new tables, what the publication lets through, and whether a
table that is held back is asked for. And marks, by which a log is known again."""

from __future__ import annotations

import logging
import time
from typing import Final

import psycopg
from cdcworker.connectors.postgres import tables
from cdcworker.connectors.postgres.boundary import Boundary
from cdcworker.connectors.postgres.changes import OWN_PREFIX
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.operations import Operations
from cdcworker.connectors.postgres.session import Session
from cdcworker.connectors.postgres.standby import PUSH
from cdcworker.schemas.change import JsonObject

log = logging.getLogger(__name__)

ASKED_S: Final = 1.0
"""Between two looks at what is asked for."""
OPEN_S: Final = 1.0
"""Between two looks while older transactions are open."""
AGAIN_S: Final = 0.2
"""At the least between two looks at tables: a look waits as long for a lock as half of it."""
MARK_S: Final = 60.0
"""Between two marks."""
MARK_BYTES: Final = 16 * 1024 * 1024
"""Of the log behind a mark that are worth another one, also where none of its changes was published."""


class Rounds:
    """Over the connection beside the stream."""

    def __init__(self, settings: Settings) -> None:
        self._tables_at = self._asked_at = self._marked_at = time.monotonic()
        self._tables_s = settings.raw["table.discovery.interval.ms"] / 1000 or float("inf")
        self._operations = Operations(settings)
        self._boundary = Boundary()

    def go(self, session: Session) -> None:
        now = time.monotonic()
        if now - self._asked_at >= ASKED_S:
            self._asked_at = now
            session.look_for_returns()
        if now - self._marked_at >= MARK_S:
            self._marked_at = now
            self._mark(session)
        again = self._operations.look(session, now)
        if again or self._is_due(session, now):
            self._tables_at = now
            session.composites.look(session)
            # Else the stream is behind: the gap stays, and is looked at again.
            if tables.look(session, self._boundary, again=self._operations.whole) and self._operations.whole:
                self._operations.made_good(session)

    def _mark(self, session: Session) -> None:
        """Not behind a mark that is the last that was published, or an idle log would be marked for ever."""
        assert session.changes
        position, marked = session.position, session.changes.marked_lsn
        if position.commit_lsn > marked or position.safe_lsn - marked > MARK_BYTES:
            try:
                session.catalog.execute(PUSH, (OWN_PREFIX,))
            except psycopg.Error as exc:
                if session.catalog.closed:
                    raise
                log.info("the log is not marked now error=%s", translate(exc))

    def _is_due(self, session: Session, now: float) -> bool:
        since = now - self._tables_at
        if self._boundary.blocked and since >= OPEN_S:
            return True
        is_passed = self._boundary.lsn is not None and session.position.safe_lsn >= self._boundary.lsn
        return since >= self._tables_s or (since >= AGAIN_S and (session.look_due or is_passed))

    def stored(self, position: JsonObject) -> None:
        self._operations.stored(position)
