"""Loads on demand: requests become loads, and all loads are reported with their rate and the time that is left."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.capture.config.table_names import matching
from cdcworker.connectors.capture.snapshot.load_host import LoadHost
from cdcworker.connectors.capture.snapshot.progress import Origin, SnapshotLoad, SnapshotProgress, now_ms
from cdcworker.connectors.capture.snapshot.repair import repair_load
from cdcworker.connectors.snapshot_jobs import REPAIR, SNAPSHOT, BadJobRequest, snapshot_spec
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

log = logging.getLogger(__name__)

RATE_S: Final = 15.0
TABLES_SHOWN_MAX: Final = 20

Asked = Callable[[], Sequence[JsonObject]]


class SnapshotJobs:
    """Called at boundaries of the stream."""

    def __init__(self, asked: Asked, clock: Callable[[], float] = time.monotonic) -> None:
        self._asked = asked
        self._clock = clock
        self.seen: Sequence[JsonObject] | None = None
        """The requests as they were at the last look."""
        self._rates: dict[str, deque[tuple[float, int]]] = {}

    def look(self, host: LoadHost) -> bool:
        """Begins and changes loads as was requested since the last look. Returns whether anything was."""
        asked = self._asked()
        if asked is self.seen:
            return False
        self.seen = asked
        return sum(self._take(host, job) for job in asked if job.get("kind") == SNAPSHOT) > 0

    def _take(self, host: LoadHost, job: JsonObject) -> bool:
        progress, identity, wanted = host.scheduler.progress, str(job["id"]), job.get("wanted")
        load = progress.load(identity)
        if load is not None:
            return change(host, load, str(wanted))
        if not job.get("own", True) or any(done["id"] == identity for done in progress.done):
            return False
        if wanted == "CANCELLED":
            progress.loads.append(SnapshotLoad(identity, "request", started_ms=now_ms()))
            host.scheduler.end(progress.loads[-1], "CANCELLED")
            return True
        begin(host, identity, "request", job.get("spec", {}), paused=wanted == "PAUSED")
        return True

    # -- reports ----------------------------------------------------------------------------------------------------

    def report(self, progress: SnapshotProgress) -> list[JsonObject]:
        """Returns the loads that are under way and those that have ended, without the load of moved rows, which nobody asked for."""
        now = self._clock()
        loads = [load for load in progress.loads if load.origin != "moved"]
        self._rates = {load.id: self._rates.get(load.id, deque()) for load in loads}
        return [*(self._shown(load, now) for load in loads), *map(_ended, progress.done)]

    def _shown(self, load: SnapshotLoad, now: float) -> JsonObject:
        rows = load.rows_total
        rate = self._rate(self._rates[load.id], now, rows)
        guesses = [max(table.estimate, table.rows) for table in load.tables]
        known = all(table.estimate >= 0 and not table.filter for table in load.tables)
        whole = load.rows + sum(guesses) if known else None
        waits = next((table.waits_for for table in load.tables if table.waits_for), "")
        return {
            "id": load.id,
            "kind": SNAPSHOT,
            "origin": load.origin,
            "state": "PAUSED" if load.paused else "RUNNING",
            "rows": rows,
            "bytes": load.bytes_total,
            "rows_estimate": whole,
            "rows_per_s": round(rate, 1),
            "eta_s": round((whole - rows) / rate, 1) if whole is not None and rate > 0 and not load.paused else None,
            "tables_done": load.tables_done,
            "tables_cancelled": load.tables_cancelled,
            "tables_total": load.tables_done + load.tables_cancelled + len(load.tables),
            "tables": [_table(table) for table in load.tables[:TABLES_SHOWN_MAX]],
            "waits_for": load.waits_for or waits,
            "started_ms": load.started_ms,
        }

    def _rate(self, seen: deque[tuple[float, int]], now: float, rows: int) -> float:
        seen.append((now, rows))
        while len(seen) > 2 and now - seen[0][0] > RATE_S:
            seen.popleft()
        since, before = seen[0]
        return (rows - before) / (now - since) if now > since else 0.0


def _table(table: Any) -> JsonObject:
    begun = bool(table.parts) or table.attempt
    return {
        "table": table.full_name,
        "state": "RUNNING" if begun else "PENDING",
        "rows": table.rows,
        "bytes": table.bytes,
        "rows_estimate": table.estimate if table.estimate >= 0 else None,
        "waits_for": table.waits_for,
    }


def _ended(done: Mapping[str, Any]) -> JsonObject:
    cancelled = done.get("tables_cancelled", 0)
    total = done.get("tables_done", 0) + cancelled
    return {"kind": SNAPSHOT, "tables_total": total, "tables_cancelled": cancelled, **done}


# -- what changes loads -----------------------------------------------------------------------------------------------


def begin(host: LoadHost, identity: str, origin: Origin, spec: Mapping[str, Any], *, paused: bool = False) -> None:
    """Begins a load of the tables that the request names. A request that cannot be carried out becomes a load that has FAILED."""
    loader = host.scheduler
    try:
        load = (
            repair_load(host, identity, spec)
            if REPAIR in spec and origin == "request"
            else _load_of(host, identity, origin, snapshot_spec(spec))
        )
    except (BadJobRequest, CdcError) as exc:
        error = exc if isinstance(exc, CdcError) else CdcError(host.errors.snapshot_refused, str(exc))
        if error.retriable:
            raise error from exc
        load = SnapshotLoad(identity, origin, started_ms=now_ms())
        loader.progress.loads.append(load)
        loader.end(load, "FAILED", error)
        return
    if not load.tables:
        loader.progress.loads.append(load)
        loader.end(load, "COMPLETED")
        return
    load.paused = paused
    host.observe()
    loader.add(load)
    hit("snapshot.asked")
    log.info("snapshot begins id=%s origin=%s tables=%d", identity, origin, len(load.tables))


def _load_of(host: LoadHost, identity: str, origin: Origin, spec: JsonObject) -> SnapshotLoad:
    chosen = matching(host.captured(), spec["tables"])
    if not chosen and host.is_shared:
        # They may be another task's.
        return SnapshotLoad(identity, origin, started_ms=now_ms())
    if not chosen:
        text = f"no captured table is named by {', '.join(spec['tables'])[:200]}"
        raise CdcError(host.errors.snapshot_refused, text)
    load = host.new_load(identity, origin, chosen)
    load.rows_per_s = int(spec.get("rows_per_s", 0))
    for pattern, condition in spec.get("filters", {}).items():
        names = {table[0] for table in matching(chosen, [pattern])}
        for table in load.tables:
            if table.table_id in names:
                table.filter = condition
    return load


def change(host: LoadHost, load: SnapshotLoad, wanted: str) -> bool:
    """Pauses, resumes or cancels a load. Returns whether that changed anything."""
    if wanted == "CANCELLED":
        _cancel(host, load)
        return True
    paused = wanted == "PAUSED"
    if load.paused == paused:
        return False
    load.paused = paused
    host.scheduler.note_progress()
    log.info("snapshot %s id=%s", "paused" if paused else "resumed", load.id)
    return True


def _cancel(host: LoadHost, load: SnapshotLoad) -> None:
    """Cancels a load. Its tables that were never loaded count as loaded: they are only streamed from now on."""
    progress = host.scheduler.progress
    loaded = set(progress.loaded)
    progress.loaded.extend(t.table_id for t in load.tables if t.fresh and t.table_id not in loaded)
    host.scheduler.end(load, "CANCELLED")


def cancel_tables(host: LoadHost, load: SnapshotLoad, patterns: Sequence[str]) -> None:
    """Cancels some tables of a load on demand. With the last of its tables the load is cancelled."""
    names = {table[0] for table in matching([(t.table_id, t.schema, t.name) for t in load.tables], patterns)}
    for table in [table for table in load.tables if table.table_id in names]:
        load.drop(table, cancelled=True)
        log.info(
            "table cancelled table=%s id=%s rows=%d left=%d", table.full_name, load.id, table.rows, len(load.tables)
        )
    if names:
        host.scheduler.drop_unlisted_tables("CANCELLED")
