"""What is looked at now and then between two transactions: new tables, and what the publication lets through."""

from __future__ import annotations

import time

from cdcworker.connectors.postgres import tables
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.operations import Operations
from cdcworker.connectors.postgres.session import Session
from cdcworker.schemas.change import JsonObject


class Rounds:
    """Over the connection beside the stream."""

    def __init__(self, settings: Settings) -> None:
        self._tables_at = time.monotonic()
        self._tables_s = settings.raw["table.discovery.interval.ms"] / 1000 or float("inf")
        self._operations = Operations(settings)

    def go(self, session: Session) -> None:
        now = time.monotonic()
        again = self._operations.look(session, now)
        if again or now - self._tables_at >= self._tables_s:
            self._tables_at = now
            # Else a table is locked: the gap stays, and is looked at again.
            if tables.look(session, again=again) and again:
                self._operations.made_good(session)

    def stored(self, position: JsonObject) -> None:
        self._operations.stored(position)
