"""Jobs: additional work for a connector's tasks, such as an on-demand snapshot of a table.

A job is the record `job/<connector>/<id>` of the config log. The connector's tasks are told of it and report their
progress in their metrics, under `jobs`. When all tasks have ended the job, the leader records its outcome, and the
tasks are no longer told of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core.herd_state import StateTransition
from cdcworker.coordinator.core.write_batch import WriteBatch
from cdcworker.coordinator.log.config_records import job_key, job_record, tombstone
from cdcworker.coordinator.model import ChangeJob, ClusterState, Job, JsonObject, PutJob, Reply, TaskStatus

OPEN_MAX: Final = 100
"""The most open jobs of a connector; further ones are refused (INV-10)."""
ENDED_MAX: Final = 50
"""The most ended jobs of a connector that are kept; the oldest ones are deleted first."""
JOBS_METRIC: Final = "jobs"
"""The metric in which a task reports its jobs. It is kept when the task changes its owner."""
ENDED: Final = ("COMPLETED", "CANCELLED", "FAILED")
"""The final states of a job."""
UNTIL_ENDED: Final = "repair"
"""The member of a job's spec that goes once the job has ended or is cancelled: it holds keys of rows."""
_NAMESPACE: Final = uuid.UUID("0b7f7a5e-58a4-5a35-8a3e-2f3f3f1f5a77")

ReplyAndRecords = tuple[Reply, tuple[LogRecord, ...]]


def of(state: ClusterState, connector: str) -> list[Job]:
    """Returns the connector's jobs, oldest first, without those of an earlier incarnation of the connector."""
    known = state.connectors.get(connector)
    if known is None:
        return []
    current = (
        job for job in state.jobs.values() if job.connector == connector and job.incarnation == known.incarnation
    )
    return sorted(current, key=lambda job: (job.created_ms, job.id))


def put(state: ClusterState, request: PutJob, request_id: str, wall_ms: int) -> ReplyAndRecords:
    """Creates a job, or returns the open one that is equal."""
    connector = state.connectors.get(request.connector)
    if connector is None:
        return Reply("not_found"), ()
    still_open = [job for job in of(state, request.connector) if job.outcome is None]
    same = next((job for job in still_open if (job.kind, dict(job.spec)) == (request.kind, dict(request.spec))), None)
    if same is not None:
        return Reply("ok", version=connector.version, job=same.id), ()
    if len(still_open) >= OPEN_MAX:
        return Reply("conflict", detail=f"the connector has {OPEN_MAX} jobs that have not ended"), ()
    job = Job(
        connector=connector.name,
        id=uuid.uuid5(_NAMESPACE, request_id).hex[:12],
        incarnation=connector.incarnation,
        kind=request.kind,
        spec=dict(request.spec),
        created_ms=wall_ms,
        updated_ms=wall_ms,
    )
    return Reply("ok", created=True, version=connector.version, job=job.id), (job_record(job),)


def change(state: ClusterState, request: ChangeJob, wall_ms: int) -> ReplyAndRecords:
    """Pauses, resumes or cancels a job. A job that the tasks started by themselves gets a record for its requested
    state."""
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
    if request.wanted == "CANCELLED":
        # Its tasks may be gone for long, and nobody needs the keys any more.
        changed = replace(changed, spec=_without_keys(job.spec))
    return Reply("ok", version=connector.version, job=job.id), (job_record(changed),)


def tombstones_of(state: ClusterState, connector: str) -> tuple[LogRecord, ...]:
    """Returns the tombstones of all jobs of a connector."""
    return tuple(tombstone(job_key(job.connector, job.id)) for job in state.jobs.values() if job.connector == connector)


def open_jobs(state: ClusterState, connector: str) -> tuple[JsonObject, ...]:
    """Returns the open jobs of a connector in the form in which its tasks are told of them."""
    return tuple(
        {"id": job.id, "kind": job.kind, "wanted": job.wanted, "spec": dict(job.spec), "own": job.own}
        for job in of(state, connector)
        if job.outcome is None
    )


# --- reports of tasks -----------------------------------------------------------------------------------------------


def reported(status: TaskStatus | None) -> dict[str, JsonObject]:
    """Returns the jobs that a task reports, by id."""
    jobs: Any = status.metrics.get(JOBS_METRIC) if status is not None else None
    if not isinstance(jobs, list):
        return {}
    return {str(item["id"]): item for item in jobs if isinstance(item, dict) and _is_sound(item)}


def _is_sound(item: JsonObject) -> bool:
    """Tells whether a report has an id and can be combined with others: whoever can write to the status log can write
    any JSON."""
    numbers = (item.get(name, 0) for name in _SUMS)
    are_numbers = all(isinstance(number, int | float) or number is None for number in numbers)
    return "id" in item and are_numbers and isinstance(item.get("tables", []), list)


def merged(parts: Iterable[Mapping[str, Any]]) -> JsonObject | None:
    """Combines the reports of several tasks about one job: their sums, and the least advanced of their states."""
    out: JsonObject | None = None
    for part in parts:
        if out is None:
            out = dict(part)
            continue
        for name in _SUMS:
            if isinstance(part.get(name), int | float):
                out[name] = (out.get(name) or 0) + part[name]
        out["tables"] = [*out.get("tables", ()), *part.get("tables", ())]
        out["state"] = _less_advanced(str(out.get("state")), str(part.get("state")))
        out["error"] = out.get("error") or part.get("error")
        ends = [item["ended_ms"] for item in (out, part) if item.get("ended_ms")]
        out["ended_ms"] = max(ends) if len(ends) == 2 else None
    return out


_SUMS: Final = ("rows", "bytes", "tables_done", "tables_cancelled", "tables_total", "rows_estimate", "rows_per_s")
_ORDER: Final = ("PENDING", "RUNNING", "PAUSED", "FAILED", "CANCELLED", "COMPLETED")


def _less_advanced(left: str, right: str) -> str:
    known = [state for state in _ORDER if state in (left, right)]
    return known[0] if known else left


# --- decisions of the leader ----------------------------------------------------------------------------------------


def record_outcomes(transition: StateTransition, batch: WriteBatch) -> None:
    """Records the outcomes of ended jobs; deletes the oldest ended jobs and those of former connectors."""
    if not batch.draft.jobs:
        return
    ended: dict[str, list[Job]] = {}
    for known in sorted(batch.draft.jobs.values(), key=lambda job: (job.updated_ms, job.id)):
        connector = batch.draft.connectors.get(known.connector)
        if connector is None or connector.incarnation != known.incarnation:
            batch.add(tombstone(job_key(known.connector, known.id)))
            continue
        job = replace(known, spec=_without_keys(known.spec)) if _has_left_keys(known) else known
        if job is not known:
            batch.add(job_record(job))
        if job.outcome is not None:
            ended.setdefault(job.connector, []).append(job)
        else:
            outcome = _outcome(transition, batch.draft, job)
            if outcome is not None:
                ended_job = replace(job, spec=_without_keys(job.spec), outcome=outcome)
                batch.add(job_record(replace(ended_job, updated_ms=transition.now.wall_ms)))
    for jobs in ended.values():
        for job in jobs[: max(0, len(jobs) - ENDED_MAX)]:
            batch.add(tombstone(job_key(job.connector, job.id)))


def _has_left_keys(job: Job) -> bool:
    """Returns whether a job that is over still holds keys of rows: a leader of an older version has ended or cancelled it."""
    return UNTIL_ENDED in job.spec and (job.outcome is not None or job.wanted == "CANCELLED")


def _without_keys(spec: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in spec.items() if name != UNTIL_ENDED}


def _outcome(transition: StateTransition, state: ClusterState, job: Job) -> JsonObject | None:
    tasks = state.task_sets.get(job.connector)
    count = len(tasks.tasks) if tasks is not None else 0
    statuses = [status for task, status in transition.status.tasks.items() if task.connector == job.connector]
    parts = [part for status in statuses if (part := reported(status).get(job.id)) is not None]
    if not count or len(parts) < count or any(part.get("state") not in ENDED for part in parts):
        return None
    whole = merged(parts)
    return (
        None if whole is None else {name: whole.get(name) for name in _OUTCOME_MEMBERS if whole.get(name) is not None}
    )


_OUTCOME_MEMBERS: Final = (
    "state", "rows", "bytes", "tables_done", "tables_cancelled", "tables_total", "started_ms", "ended_ms", "error",
)  # fmt: skip
