"""The numbers that a source task reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.report import snapshot_numbers
from cdcworker.connectors.mysql.server.log_files import log_files
from cdcworker.connectors.mysql.source.log_lag import log_lag
from cdcworker.connectors.mysql.source.session import Session
from cdcworker.schemas.change import JsonObject

TELL_S = 0.9
FILES_S = 30.0


class TaskReport:
    """Reports the task's numbers to the worker. `more` returns further numbers."""

    def __init__(self, context: TaskContext, jobs: SnapshotJobs, more: Callable[[], JsonObject]) -> None:
        self._context = context
        self._jobs = jobs
        self._more = more
        self.events = 0
        """How many changes the task has handed on."""
        self._due_at = self._files_at = float("-inf")
        self._files: Mapping[str, int] = {}
        """The log's files with their sizes, as they were at the last look."""

    def tick(self, session: Session, now: float) -> None:
        """Called after a batch, with the time of the monotonic clock: a source that is never idle tells its numbers too."""
        if now < self._due_at:
            return
        self._due_at = now + TELL_S
        report: JsonObject = {"events": self.events, **self._more()}
        if not session.complete:
            report |= self._lag(session, now)
        if session.snapshot:
            report |= snapshot_numbers(session.snapshot, self._jobs)
        report["quarantine"] = session.scope.quarantine.report()
        report["tables_held"] = len(report["quarantine"])
        self._context.report(report)

    def _lag(self, session: Session, now: float) -> JsonObject:
        """Returns how far the task is behind; the whole log's size is looked at seldom, since the server locks its list for that."""
        position = replace(session.position, gtids=str(session.state.executed.gtids))
        connection, facts = session.catalog.get(), session.facts
        if now >= self._files_at or session.position.place.file not in self._files:
            self._files, self._files_at = log_files(connection), now + FILES_S
        lag = log_lag(connection, facts, position, self._files)
        # The stream has not said yet where it is on a server to which it has moved.
        told = {} if lag.bytes is None else {"lag_bytes": lag.bytes}
        return {**told, **lag.numbers(facts.expiry_s, time.time())}
