"""What is looked at now and then between two transactions: new tables, what the publication lets through, and whether a
table that is held back is asked for. And marks, by which a log is known again."""

from __future__ import annotations

import logging
import time
from typing import Final

import psycopg
from cdcworker.connectors.capture.tables.truncate_barrier import TruncateBarrier
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.pgoutput import OWN_PREFIX
from cdcworker.connectors.postgres.server.publication_operations import PublicationOperations
from cdcworker.connectors.postgres.source import captured_tables as tables
from cdcworker.connectors.postgres.source.session import Session
from cdcworker.connectors.postgres.transport.server_functions import PUSH
from cdcworker.schemas.change import JsonObject

log = logging.getLogger(__name__)

ASKED_S: Final = 1.0
"""Seconds between two looks at the requests for snapshots."""
OPEN_S: Final = 1.0
"""Seconds between two looks at tables while older transactions are open."""
AGAIN_S: Final = 0.2
"""The fewest seconds between two looks at tables: a look waits for a lock half as long at most."""
MARK_S: Final = 60.0
"""Seconds between two marks in the log."""
MARK_BYTES: Final = 16 * 1024 * 1024
"""So much log behind a mark is worth another one, also where none of its changes was published."""


class PeriodicChecks:
    """Does the checks that are due, over the catalog connection."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._tables_at = self._asked_at = self._marked_at = time.monotonic()
        self._tables_s = settings.raw["table.discovery.interval.ms"] / 1000 or float("inf")
        self._mark_s = float("inf") if settings.is_temporary else MARK_S
        self._operations = PublicationOperations(settings)
        self._boundary = TruncateBarrier()

    def go(self, session: Session) -> float:
        """Looks at what is due, and returns when something may be due again, on the monotonic clock."""
        now = time.monotonic()
        if now - self._asked_at >= ASKED_S:
            self._asked_at = now
            session.scope.require_no_return()
        if now - self._marked_at >= self._mark_s:
            self._marked_at = now
            self._mark(session)
        assert session.snapshot
        scheduler = session.snapshot.loader
        again = self._operations.look(session.catalog, scheduler, now)
        if again or self._is_due(session, now):
            self._tables_at = now
            if session.settings.modes.composite == "record":
                described = map(session.decoder.plan, scheduler.progress.known())
                session.scope.composites.look(session.catalog, filter(None, described))
            # Else the stream is behind: the gap stays, and is looked at again.
            if tables.look(session, self._boundary, again=self._operations.whole) and self._operations.whole:
                self._operations.made_good(scheduler)
        is_waiting = session.scope.look_due or self._boundary.blocked or self._boundary.position is not None
        return now + min(AGAIN_S if is_waiting else ASKED_S, ASKED_S, self._tables_s)

    def _mark(self, session: Session) -> None:
        """Marks the log, unless the last thing that was published is a mark: an idle log would be marked for ever."""
        position, marked = session.position, session.decoder.marked_lsn
        if position.commit_lsn > marked or position.safe_lsn - marked > MARK_BYTES:
            try:
                session.catalog.execute(PUSH, (OWN_PREFIX,))
            except psycopg.Error as exc:
                if session.catalog.closed:
                    raise
                log.info("no mark was written into the log error=%s", translate(exc))

    def _is_due(self, session: Session, now: float) -> bool:
        since = now - self._tables_at
        if self._boundary.blocked and since >= OPEN_S:
            return True
        is_passed = self._boundary.position is not None and session.position.safe_lsn >= self._boundary.position
        return since >= self._tables_s or (since >= AGAIN_S and (session.scope.look_due or is_passed))

    def stored(self, position: JsonObject) -> None:
        self._operations.stored(position)
