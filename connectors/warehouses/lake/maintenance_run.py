"""Runs of maintenance over the tables that a task writes. They go on beside its batches: rows are read and files are written while
batches are applied, and a table is the run's alone for its commits only."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.sink_errors import (
    FENCED,
    LEDGER_MOVED,
    MAINTENANCE_FAILED,
    TARGET_BROKEN,
    from_os,
)
from cdcworker.connectors.warehouses.lake.claimed_tables import ClaimedTables, ThreadView
from cdcworker.connectors.warehouses.lake.file_faults import is_broken, translated
from cdcworker.connectors.warehouses.lake.maintenance.plan import CompactionBudget, FileSize, groups_of
from cdcworker.connectors.warehouses.lake.maintenance.policy import MaintenancePolicy, MaintenanceWindow
from cdcworker.connectors.warehouses.lake.maintenance.rewrite import DataFileView
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import ExpiryGoal, TableSize
from cdcworker.connectors.warehouses.lake.side_tables import tombstone_schema, tombstones_place
from cdcworker.connectors.warehouses.lake.tables import CompactsFiles, LakeName, RemovesOrphans, TableVersion
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

ENDED: Final = frozenset((FENCED,))
"""Errors that end a run: another task owns the tables."""


@dataclass(slots=True)
class MaintenanceResult:
    """What a run has done."""

    began_ms: int
    took_s: float = 0.0
    rewritten_files: int = 0
    rewritten_bytes: int = 0
    written_files: int = 0
    written_bytes: int = 0
    expired_snapshots: int = 0
    removed_files: int = 0
    conflicts: int = 0
    """Files that were written in vain, since somebody else had changed the table."""
    before: dict[str, TableSize] = field(default_factory=dict)
    after: dict[str, TableSize] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """By table the code of the last error."""
    whole: bool = False
    """Whether all tables had their turn."""

    def numbers(self) -> dict[str, Any]:
        """Returns it as JSON."""
        return {
            "began_ms": self.began_ms,
            "took_s": round(self.took_s, 3),
            "rewritten": {"files": self.rewritten_files, "bytes": self.rewritten_bytes},
            "written": {"files": self.written_files, "bytes": self.written_bytes},
            "expired_snapshots": self.expired_snapshots,
            "removed_files": self.removed_files,
            "conflicts": self.conflicts,
            "before": _totals(self.before),
            "after": _totals(self.after),
            "tables": {name: _size(size) for name, size in self.after.items()},
            "errors": dict(self.errors),
            "whole": self.whole,
        }


def _size(size: TableSize) -> dict[str, int]:
    return {"files": size.files, "bytes": size.bytes, "deletes": size.deletes}


def _totals(sizes: Mapping[str, TableSize]) -> dict[str, int]:
    return {name: sum(getattr(size, name) for size in sizes.values()) for name in ("files", "bytes", "deletes")}


class LakeMaintenance:
    """The maintenance of the tables that a writer has claimed. One thread uses it, another one than the writer's."""

    def __init__(self, writer: ClaimedTables, policy: MaintenancePolicy, sink: str) -> None:
        self._writer = writer
        self._policy = policy
        self._sink = sink
        self._large: set[str] = set()
        """Names of files that do not fit into memory."""
        self._tended: dict[LakeName, int] = {}
        """The number of the state that a table had when its tombstones were pruned."""
        self._view: ThreadView | None = None
        self._next = ""
        """The topic with which the next run begins: one that did not come to all tables goes on there."""

    @property
    def interval_s(self) -> float:
        return self._policy.interval_s

    def maintain(self, stopping: Callable[[], bool], *, at_once: bool = False) -> Mapping[str, Any] | None:
        there, policy = self._writer.maintained(), self._policy
        if at_once:
            policy = replace(policy, window=MaintenanceWindow())
        if not there or not is_open(policy):
            return None
        with translated({"sink": self._sink}):
            view = self._view = self._writer.thread_view(self._view)
            run = MaintenanceRun(self._writer, policy, view, self._sink, self._large, self._tended)
            self._next = run.all(there, self._next, stopping)
        return run.result.numbers()


class MaintenanceRun:
    """One run. `large` and `tended` are what earlier runs have found out."""

    def __init__(
        self,
        writer: ClaimedTables,
        policy: MaintenancePolicy,
        view: ThreadView,
        sink: str,
        large: set[str],
        tended: dict[LakeName, int],
    ) -> None:
        self._writer = writer
        self._policy = policy
        self._tables = view.tables
        self._side = view.side
        self._session = view.session
        self._sink = sink
        self._large = large
        self._tended = tended
        self._budget = CompactionBudget(policy.run_bytes_max, policy.run_files_max)
        self._stopping: Callable[[], bool] = lambda: False
        self.result = MaintenanceResult(time.time_ns() // 1_000_000)

    def all(self, there: Mapping[str, LakeName], first: str, stopping: Callable[[], bool]) -> str:
        """Maintains the tables, one after the other from the topic `first` on, until all had their turn or it is to stop. What
        fails for one is noted, and the others go on. Returns the topic that is the next one: one that had no turn, or the
        first for which too little was left of what a run may read; empty: there is none."""
        began, result = time.monotonic(), self.result
        self._stopping = lambda: stopping() or not is_open(self._policy)
        topics = sorted(there, key=lambda topic: (topic < first, topic))
        left = short = ""
        for topic in topics:
            if self._stopping():
                left = topic
                break
            with self._noted(there[topic]):
                self._table(topic, there[topic])
            if self._budget.is_short and not short:
                # Not the same one again, or it alone would be compacted.
                short = topic if topic != topics[0] else topics[1 % len(topics)]
        for place in self._writer.shared_places() if self._policy.expires and not left else ():
            with self._noted(place):
                result.expired_snapshots += self._expire_shared(place)
        result.whole, result.took_s = not left, time.monotonic() - began
        return left or short

    @contextlib.contextmanager
    def _noted(self, place: LakeName) -> Iterator[None]:
        name = ".".join(place)
        try:
            with translated({"sink": self._sink, "table": name}):
                yield
        except Exception as exc:
            error = failure(exc, name)
            if error.code in ENDED:
                raise error from exc
            self.result.errors[name] = error.code
            log.warning("a table was not maintained table=%s code=%s error=%s", name, error.code, error.message)

    def _table(self, topic: str, place: LakeName) -> None:
        policy, result, name = self._policy, self.result, ".".join(place)
        before = self._size(place)
        if before is not None:
            result.before[name] = result.after[name] = before
        if policy.compacts:
            self._compact(topic, place)
        if not self._stopping():
            result.expired_snapshots += self._expire(topic, place)
        if policy.removes_orphans and not self._stopping():
            result.removed_files += self._remove_orphans(topic, place)
        after = self._size(place)
        if after is not None:
            result.after[name] = after

    def _size(self, place: LakeName) -> TableSize | None:
        return self._tables.size(place) if isinstance(self._tables, CompactsFiles) else None

    # -- compaction ---------------------------------------------------------------------------------------------------

    def _compact(self, topic: str, place: LakeName) -> None:
        found = self._writer.owned(self._tables, topic, place)
        if found is None or found.state is None or found.state.arrow is None:
            return
        self._compact_one(_Compacted(topic, place, place, found.state.arrow))
        if found.state.tombstones:
            side = tombstones_place(place)
            self._compact_one(_Compacted(topic, place, side, tombstone_schema()))

    def _compact_one(self, one: _Compacted) -> None:
        tables = self._tables
        if not isinstance(tables, CompactsFiles):
            return
        with self._writer.alone(one.owner):
            found = self._load(one)
            views = None if found is None else tables.file_views(one.place, found, one.schema)
        there = {number: view for number, view in enumerate(views or ()) if view.name not in self._large}
        sizes = [FileSize(number, view.bytes, view.rows, _live(view), view.memory) for number, view in there.items()]
        for group in groups_of(sizes, self._policy.file_bytes, self._budget):
            if self._stopping():
                return
            self._rewrite(tables, one, [there[file.number] for file in group])

    def _rewrite(self, tables: CompactsFiles, one: _Compacted, files: Sequence[DataFileView]) -> None:
        result = self.result
        done = tables.rewrite(one.place, files, one.schema)
        fitting = 0 if done is None else len(done.files)
        if fitting < len(files):
            # One file alone is no reason to write it again, so the first that can be too large is the second one.
            self._large.add(files[max(fitting, min(1, len(files) - 1))].name)
        if done is None:
            return
        try:
            with self._writer.alone(one.owner):
                found = self._load(one)
                if found is None:
                    return
                version = tables.commit_rewrite(one.place, found, one.schema, done)
                if one.place == one.owner:
                    self._writer.moved_on(one.topic, version)
        except CdcError as exc:
            if exc.code != LEDGER_MOVED:
                raise
            result.conflicts += 1
            return
        result.rewritten_files += len(done.files)
        result.rewritten_bytes += sum(view.bytes for view in done.files)
        result.written_files += bool(done.bytes)
        result.written_bytes += done.bytes

    def _load(self, one: _Compacted) -> TableVersion | None:
        """Whoever does not own the topic's table any more changes nothing of it."""
        found = self._writer.owned(self._tables, one.topic, one.owner)
        return found if found is None or one.place == one.owner else self._tables.load(one.place)

    # -- expiry -------------------------------------------------------------------------------------------------------

    def _expire(self, topic: str, place: LakeName) -> int:
        with self._writer.alone(place):
            found = self._writer.owned(self._tables, topic, place)
            if found is None or found.state is None:
                return 0
            count = 0
            if self._policy.expires:
                goal = ExpiryGoal(self._policy.age_s, self._policy.kept_min)
                count = self._tables.tend(place, goal, self._writer.kept_versions(place))
            # Tombstones are no history of rows: they go also where that is kept.
            if self._tended.get(place) != found.state.version:
                self._side.tend(self._session, place, found.state)
                if self._policy.expires and found.state.tombstones:
                    self._tables.tend(tombstones_place(place))
                self._tended[place] = found.state.version
            after = self._tables.load(place)
            if after is not None and after.version != found.version and after.note == found.note:
                self._writer.moved_on(topic, after.version)
            return count

    def _expire_shared(self, place: LakeName) -> int:
        with self._writer.alone(place):
            if self._tables.load(place) is None:
                return 0
            return self._tables.tend(place, ExpiryGoal(self._policy.age_s, self._policy.kept_min))

    def _remove_orphans(self, topic: str, place: LakeName) -> int:
        tables, policy = self._tables, self._policy
        if not isinstance(tables, RemovesOrphans) or self._writer.owned(tables, topic, place) is None:
            return 0
        # Without expiry all versions stay, and their files.
        goal = ExpiryGoal(policy.age_s if policy.expires else math.inf, policy.kept_min)
        count = tables.remove_orphans(place, policy.orphan_age_s, goal, self._writer.kept_versions(place))
        side = tombstones_place(place)
        if tables.load(side) is not None:
            count += tables.remove_orphans(side, policy.orphan_age_s, goal, ())
        return count


@dataclass(frozen=True, slots=True)
class _Compacted:
    """A table that is compacted: that of a topic, or one beside it, whose `owner` is the topic's."""

    topic: str
    owner: LakeName
    place: LakeName
    schema: pa.Schema


def _live(view: DataFileView) -> int:
    return view.rows if view.gone is None else view.rows - int(view.gone.sum())


def is_open(policy: MaintenancePolicy, now: dt.datetime | None = None) -> bool:
    """Returns whether it is a time for maintenance."""
    now = now or dt.datetime.now(dt.UTC)
    return policy.window.holds(now.hour * 60 + now.minute)


def failure(exc: Exception, table: str) -> CdcError:
    """Returns the error of a table that was not maintained."""
    where = {"table": table}
    if any(isinstance(each, Exception) and is_broken(each) for each in (exc, exc.__cause__)):
        return CdcError(TARGET_BROKEN, "a file of the table is missing, or holds something else", where=where)
    if isinstance(exc, CdcError):
        return exc
    if isinstance(exc, OSError):
        return from_os(exc, where)
    log.debug("maintenance failed", exc_info=exc)
    return CdcError(MAINTENANCE_FAILED, f"maintenance failed with {type(exc).__name__}", where=where)
