"""The numbers that a source task reports."""

from __future__ import annotations

from collections.abc import Callable

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.report import snapshot_numbers
from cdcworker.connectors.mysql.server.log_files import end_place, file_number, log_files
from cdcworker.connectors.mysql.source.session import Session
from cdcworker.schemas.change import JsonObject

TELL_S = 0.9


class TaskReport:
    """Reports the task's numbers to the worker. `more` returns further numbers."""

    def __init__(self, context: TaskContext, jobs: SnapshotJobs, more: Callable[[], JsonObject]) -> None:
        self._context = context
        self._jobs = jobs
        self._more = more
        self.events = 0
        """How many changes the task has handed on."""
        self._due_at = float("-inf")

    def tick(self, session: Session, now: float) -> None:
        """Called after a batch, with the time of the monotonic clock: a source that is never idle tells its numbers too."""
        if now < self._due_at:
            return
        self._due_at = now + TELL_S
        report: JsonObject = {"events": self.events, **self._more()}
        lag = None if session.complete else lag_bytes(session)
        if lag is not None:
            report["lag_bytes"] = lag
        if session.snapshot:
            report |= snapshot_numbers(session.snapshot, self._jobs)
        report["quarantine"] = session.scope.quarantine.report()
        report["tables_held"] = len(report["quarantine"])
        self._context.report(report)


def lag_bytes(session: Session) -> int | None:
    """Returns how much log lies behind the position; None where the stream has not said yet where it is."""
    place = session.position.place
    if not place.file:
        return None
    file, end = end_place(session.catalog.get(), session.facts)
    if file == place.file:
        return max(0, end - place.position)
    own = file_number(place.file)
    behind = ((file_number(name), size) for name, size in log_files(session.catalog.get()).items())
    return sum(max(0, size - place.position) if number == own else size for number, size in behind if number >= own)
