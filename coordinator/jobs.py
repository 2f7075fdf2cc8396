"""Jobs: work that a connector's tasks are asked to do beside their usual one, such as reading a table once more.

A job is a record of the config log, `job/<connector>/<id>`. Its tasks are told of it, take it up, and report how far they
have come among their numbers, under `jobs`. When all of them have ended it, the leader writes down how: from then on
no task is told of it any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.model import ChangeJob, ClusterState, Job, JsonObject, PutJob, Reply, TaskStatus
from cdcworker.coordinator.records import job_key, job_record, tombstone

if TYPE_CHECKING:
    from cdcworker.coordinator.herd_state import Turn
    from cdcworker.coordinator.leader import Batch

OPEN_MAX: Final = 100
"""Jobs of a connector that have not ended; more are refused. # INV-10"""
ENDED_MAX: Final = 50
"""Those that have are forgotten beyond this, the oldest first."""
NUMBERS: Final = "jobs"
"""Where a task's numbers tell of its jobs; they outlive its owner, so that nobody has to guess while it moves."""
ENDED: Final = ("COMPLETED", "CANCELLED", "FAILED")
_NAMESPACE: Final = uuid.UUID("0b7f7a5e-58a4-5a35-8a3e-2f3f3f1f5a77")

Decided = tuple[Reply, tuple[Record, ...]]


def of(state: ClusterState, connector: str) -> list[Job]:
    """The connector's jobs, oldest first; those of an earlier connector of its name are void."""
    known = state.connectors.get(connector)
    if known is None:
        return []
    found = (job for job in state.jobs.values() if job.connector == connector and job.incarnation == known.incarnation)
    return sorted(found, key=lambda job: (job.created_ms, job.id))


def put(state: ClusterState, request: PutJob, request_id: str, wall_ms: int) -> Decided:
    """A new job, or the one that already does the same."""
    connector = state.connectors.get(request.connector)
    if connector is None:
        return Reply("not_found"), ()
    still = [job for job in of(state, request.connector) if job.outcome is None]
    same = next((job for job in still if (job.kind, dict(job.spec)) == (request.kind, dict(request.spec))), None)
    if same is not None:
        return Reply("ok", version=connector.version, job=same.id), ()
    if len(still) >= OPEN_MAX:
        return Reply("conflict", detail=f"the connector has {OPEN_MAX} jobs that have not ended"), ()
    made = Job(
        connector=connector.name,
        id=uuid.uuid5(_NAMESPACE, request_id).hex[:12],
        incarnation=connector.incarnation,
        kind=request.kind,
        spec=dict(request.spec),
        created_ms=wall_ms,
        updated_ms=wall_ms,
    )
    return Reply("ok", created=True, version=connector.version, job=made.id), (job_record(made),)


def change(state: ClusterState, request: ChangeJob, wall_ms: int) -> Decided:
    """Pause, resume or cancel. A job that its tasks began by themselves gets a record with what is wanted of it."""
    connector = state.connectors.get(request.connector)
    if connector is None:
        return Reply("not_found"), ()
    job = next((job for job in of(state, request.connector) if job.id == request.job), None)
    if job is None and request.known_kind:
        job = Job(
            connector.name, request.job, connector.incarnation, request.known_kind, {}, created_ms=wall_ms, own=False
        )
    if job is None:
        return Reply("not_found", detail="no such job"), ()
    if job.wanted == request.wanted:
        return Reply("ok", version=connector.version, job=job.id), ()
    if job.outcome is not None or job.wanted == "CANCELLED":
        return Reply("conflict", detail="the job has ended or is about to"), ()
    changed = replace(job, wanted=request.wanted, updated_ms=wall_ms)
    return Reply("ok", version=connector.version, job=job.id), (job_record(changed),)


def gone(state: ClusterState, connector: str) -> tuple[Record, ...]:
    """Tombstones for all that is known of a connector that is deleted."""
    return tuple(tombstone(job_key(job.connector, job.id)) for job in state.jobs.values() if job.connector == connector)


def told(state: ClusterState, connector: str) -> tuple[JsonObject, ...]:
    """What the connector's tasks are to know: every job that has not ended, and what is wanted of it."""
    return tuple(
        {"id": job.id, "kind": job.kind, "wanted": job.wanted, "spec": dict(job.spec), "own": job.own}
        for job in of(state, connector)
        if job.outcome is None
    )


# -- what tasks report ------------------------------------------------------------------------------------------------


def reported(status: TaskStatus | None) -> dict[str, JsonObject]:
    """Jobs by id, from a task's numbers."""
    found: Any = status.metrics.get(NUMBERS) if status is not None else None
    if not isinstance(found, list):
        return {}
    return {str(item["id"]): item for item in found if isinstance(item, dict) and "id" in item}


def merged(parts: Iterable[Mapping[str, Any]]) -> JsonObject | None:
    """One job as several tasks have it: sums of numbers, and the state that it has as a whole."""
    out: JsonObject | None = None
    for part in parts:
        if out is None:
            out = dict(part)
            continue
        for name in _SUMS:
            if isinstance(part.get(name), int | float):
                out[name] = out.get(name, 0) + part[name]
        out["tables"] = [*out.get("tables", ()), *part.get("tables", ())]
        out["state"] = _worse(str(out.get("state")), str(part.get("state")))
        out["error"] = out.get("error") or part.get("error")
        ends = [item["ended_ms"] for item in (out, part) if item.get("ended_ms")]
        out["ended_ms"] = max(ends) if len(ends) == 2 else None
    return out


_SUMS: Final = ("rows", "bytes", "tables_done", "tables_cancelled", "tables_total", "rows_estimate", "rows_per_s")
_ORDER: Final = ("PENDING", "RUNNING", "PAUSED", "FAILED", "CANCELLED", "COMPLETED")


def _worse(left: str, right: str) -> str:
    known = [state for state in _ORDER if state in (left, right)]
    return known[0] if known else left


# -- the leader's part ------------------------------------------------------------------------------------------------


def settle(turn: Turn, batch: Batch) -> None:
    """Write down how jobs have ended, and forget the oldest of those that have."""
    if not batch.draft.jobs:
        return
    ended: dict[str, list[Job]] = {}
    for job in sorted(batch.draft.jobs.values(), key=lambda job: (job.updated_ms, job.id)):
        connector = batch.draft.connectors.get(job.connector)
        if connector is None or connector.incarnation != job.incarnation:
            batch.add(tombstone(job_key(job.connector, job.id)))
        elif job.outcome is not None:
            ended.setdefault(job.connector, []).append(job)
        else:
            outcome = _outcome(turn, batch.draft, job)
            if outcome is not None:
                batch.add(job_record(replace(job, outcome=outcome, updated_ms=turn.now.wall_ms)))
    for jobs in ended.values():
        for job in jobs[: max(0, len(jobs) - ENDED_MAX)]:
            batch.add(tombstone(job_key(job.connector, job.id)))


def _outcome(turn: Turn, state: ClusterState, job: Job) -> JsonObject | None:
    tasks = state.task_sets.get(job.connector)
    count = len(tasks.tasks) if tasks is not None else 0
    statuses = [status for task, status in turn.status.tasks.items() if task.connector == job.connector]
    parts = [found for status in statuses if (found := reported(status).get(job.id)) is not None]
    if not count or len(parts) < count or any(part.get("state") not in ENDED for part in parts):
        return None
    whole = merged(parts)
    return None if whole is None else {name: whole.get(name) for name in _KEPT if whole.get(name) is not None}


_KEPT: Final = (
    "state", "rows", "bytes", "tables_done", "tables_cancelled", "tables_total", "started_ms", "ended_ms", "error",
)  # fmt: skip
