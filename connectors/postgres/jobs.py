"""Loads on demand: what is asked for becomes loads, and all loads are reported with their rate and their end in sight."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.jobs import SNAPSHOT, BadRequest, snapshot_spec
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres import tables
from cdcworker.connectors.postgres.errors import SNAPSHOT_REFUSED
from cdcworker.connectors.postgres.progress import Load, Origin, Progress
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.session import Session

log = logging.getLogger(__name__)

RATE_S: Final = 15.0
TABLES_SHOWN_MAX: Final = 20

Asked = Callable[[], Sequence[JsonObject]]


class Jobs:
    """Called at boundaries of the stream."""

    def __init__(self, asked: Asked, clock: Callable[[], float] = time.monotonic) -> None:
        self._asked = asked
        self._clock = clock
        self._seen: Sequence[JsonObject] | None = None
        self._rates: dict[str, deque[tuple[float, int]]] = {}

    def look(self, session: Session) -> bool:
        """Take up what was asked for since the last look; whether there was anything."""
        asked = self._asked()
        if asked is self._seen or session.snapshot is None:
            return False
        self._seen = asked
        return sum(self._take(session, job) for job in asked if job.get("kind") == SNAPSHOT) > 0

    def _take(self, session: Session, job: JsonObject) -> bool:
        assert session.snapshot
        progress, identity, wanted = session.snapshot.progress, str(job["id"]), job.get("wanted")
        load = progress.load(identity)
        if load is not None:
            return change(session, load, str(wanted))
        if not job.get("own", True) or any(done["id"] == identity for done in progress.done):
            return False
        if wanted == "CANCELLED":
            progress.loads.append(Load(identity, "request", started_ms=tables.now_ms()))
            session.snapshot.loader.end(progress.loads[-1], "CANCELLED")
            return True
        begin(session, identity, "request", job.get("spec", {}), paused=wanted == "PAUSED")
        return True

    # -- reports ----------------------------------------------------------------------------------------------------

    def report(self, progress: Progress) -> list[JsonObject]:
        """Every load that is under way, and those that have ended, but for rows that are read again by themselves."""
        now = self._clock()
        loads = [load for load in progress.loads if load.origin != "moved"]
        self._rates = {load.id: self._rates.get(load.id, deque()) for load in loads}
        return [*(self._shown(load, now) for load in loads), *map(_ended, progress.done)]

    def _shown(self, load: Load, now: float) -> JsonObject:
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


def begin(session: Session, identity: str, origin: Origin, spec: Mapping[str, Any], *, paused: bool = False) -> None:
    """A load of the tables that the request names. One that cannot be carried out ends at once and says why."""
    assert session.snapshot
    loader = session.snapshot.loader
    try:
        load = _load_of(session, identity, origin, snapshot_spec(spec))
    except (BadRequest, CdcError) as exc:
        error = exc if isinstance(exc, CdcError) else CdcError(SNAPSHOT_REFUSED, str(exc))
        if error.retriable:
            raise error from exc
        load = Load(identity, origin, started_ms=tables.now_ms())
        loader.progress.loads.append(load)
        loader.end(load, "FAILED", error)
        return
    if not load.tables:
        loader.progress.loads.append(load)
        loader.end(load, "COMPLETED")
        return
    load.paused = paused
    session.observe()
    loader.add(load)
    hit("snapshot.asked")
    log.info("snapshot begins id=%s origin=%s tables=%d", identity, origin, len(load.tables))


def _load_of(session: Session, identity: str, origin: Origin, spec: JsonObject) -> Load:
    published = slots.published(session.catalog, session.settings)
    chosen = tables.matching(published, spec["tables"])
    if not chosen and session.settings.filters.share.count > 1:
        # They may be another slot's.
        return Load(identity, origin, started_ms=tables.now_ms())
    if not chosen:
        text = f"no captured table is named by {', '.join(spec['tables'])[:200]}"
        raise CdcError(SNAPSHOT_REFUSED, text)
    load = tables.new_load(session, identity, origin, chosen, fresh=False)
    load.rows_per_s = int(spec.get("rows_per_s", 0))
    for pattern, condition in spec.get("filters", {}).items():
        names = {table[0] for table in tables.matching(chosen, [pattern])}
        for table in load.tables:
            if table.oid in names:
                table.filter = condition
    return load


def change(session: Session, load: Load, wanted: str) -> bool:
    """Pause, go on, or give up; whether that changed anything."""
    assert session.snapshot
    if wanted == "CANCELLED":
        _cancel(session, load)
        return True
    paused = wanted == "PAUSED"
    if load.paused == paused:
        return False
    load.paused = paused
    session.snapshot.loader.moves += 1
    log.info("snapshot %s id=%s", "paused" if paused else "resumed", load.id)
    return True


def _cancel(session: Session, load: Load) -> None:
    """Tables that were never loaded are streamed from now on as they are: their rows are nobody's wish any more."""
    assert session.snapshot
    progress = session.snapshot.progress
    loaded = set(progress.loaded)
    progress.loaded.extend(t.oid for t in load.tables if t.fresh and t.oid not in loaded)
    session.snapshot.loader.end(load, "CANCELLED")


def cancel_tables(session: Session, load: Load, patterns: Sequence[str]) -> None:
    """Some of its tables only, of a load on demand. One that has no others is cancelled with the last of them."""
    assert session.snapshot
    names = {table[0] for table in tables.matching([(t.oid, t.schema, t.name) for t in load.tables], patterns)}
    for table in [table for table in load.tables if table.oid in names]:
        load.drop(table, cancelled=True)
        log.info(
            "table cancelled table=%s id=%s rows=%d left=%d", table.full_name, load.id, table.rows, len(load.tables)
        )
    if names:
        session.snapshot.loader.leave("CANCELLED")
