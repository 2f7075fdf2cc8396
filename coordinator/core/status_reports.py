"""A worker's reports about its tasks in the status log: each is sent again until it was read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core.herd_state import Phase, StateTransition, TaskStateReport
from cdcworker.coordinator.core.jobs import JOBS_METRIC
from cdcworker.coordinator.core.restart_policy import is_quarantine, policy_for
from cdcworker.coordinator.errors import TASK_CRASHED
from cdcworker.coordinator.log.status_fold import status_order, task_key, task_status_record
from cdcworker.coordinator.model import AssignedTask, JsonObject, TaskId, TaskState, TaskStatus
from cdcworker.schemas.errors import CdcError

_REPORTED: dict[Phase, TaskState] = {
    "running": "RUNNING",
    "paused": "PAUSED",
    "waiting": "RESTARTING",
    "failed": "FAILED",
}
"""The state under which new metrics of a task are reported. One that starts or stops reports what comes of it."""


def last_status(transition: StateTransition, task_id: TaskId) -> TaskStatus | None:
    """Returns the newest status of a task, of its former owners or of this process."""
    sent = transition.work.reports.get(task_id)
    statuses = [s for s in (sent.status if sent else None, transition.status.tasks.get(task_id)) if s is not None]
    return max(statuses, key=status_order, default=None)


def previous_end(transition: StateTransition, entry: AssignedTask) -> JsonObject | None:
    """Returns the error of the last process of a task that this worker never started; None if it stopped cleanly.

    A task last reported as running may have left a transaction open, as no start on this worker has fenced it.
    """
    last = last_status(transition, entry.id)
    if last is None:
        return None
    if last.error is not None or last.state == "STOPPED":
        return last.error
    return CdcError(TASK_CRASHED, "its last owner did not report its stop", where={"task": str(entry.id)}).to_dict()


def report(
    transition: StateTransition, entry: AssignedTask, state: TaskState, previous_error: JsonObject | None = None
) -> None:
    """Appends the task's status; it is sent again until it was read back. Readers order reports by epoch, then seq.

    `previous_error` is the error of a process that may have left a transaction open: the leader then
    fences the released task.
    """
    seq = transition.work.seq + 1
    local = transition.work.local.get(entry.id)
    mine = local if local is not None and local.task == entry else None
    last = last_status(transition, entry.id)
    if mine is not None:
        error, restarts = (
            mine.error,
            tuple(
                round(transition.mono - at, 1)
                for at in policy_for(transition, mine).within_window(mine.restarts, transition.mono)
            ),
        )
    else:  # released: the rest of the restart budget goes to its next owner
        restarts = last.restarts if last else ()
        error = last.error if last and is_quarantine(last.error) else previous_error
    status = TaskStatus(
        connector=entry.connector,
        task=entry.task,
        state=state,
        worker_id=transition.me.worker_id,
        task_epoch=entry.task_epoch,
        seq=seq,
        error=error,
        metrics=_metrics(mine.metrics if mine else {}, last),
        restarts=restarts,
    )
    sent = transition.work.reports.get(entry.id)
    if sent is not None and sent.status.task_epoch > entry.task_epoch:
        return
    transition.work = replace(transition.work, seq=seq)
    transition.set_report(entry.id, TaskStateReport(status, transition.mono))
    if mine is not None:
        transition.set_local(entry.id, replace(mine, has_new_metrics=False))
    transition.append(task_status_record(status))


def _metrics(own: JsonObject, last: TaskStatus | None) -> JsonObject:
    """Returns the metrics of this owner; the reported jobs are unconfirmed until the task reports others."""
    if JOBS_METRIC in own or last is None or JOBS_METRIC not in last.metrics:
        return own
    return {**own, JOBS_METRIC: last.metrics[JOBS_METRIC]}


def confirm_reports(transition: StateTransition, records: Sequence[LogRecord]) -> None:
    """Drops reports that were read back, or were overtaken by a later one. A tombstone may follow a record at once."""
    if not transition.work.reports:
        return
    seen = {(record.key, _order_of(record)) for record in records if record.value is not None}
    unconfirmed = {}
    for task_id, sent in transition.work.reports.items():
        status, order = transition.status.tasks.get(task_id), status_order(sent.status)
        if (task_key(task_id), order) not in seen and (status is None or status_order(status) < order):
            unconfirmed[task_id] = sent
    transition.work = replace(transition.work, reports=unconfirmed)


def _order_of(record: LogRecord) -> tuple[int, int] | None:
    value = record.value or {}
    epoch, seq = value.get("task_epoch"), value.get("seq")
    return (epoch, seq) if isinstance(epoch, int) and isinstance(seq, int) else None


def resend_reports(transition: StateTransition) -> None:
    """Sends reports again that were not read back in time."""
    due = (
        item
        for item in transition.work.reports.items()
        if transition.mono - item[1].sent >= transition.settings.resend_s
    )
    for task_id, sent in sorted(due, key=itemgetter(0)):
        transition.append(task_status_record(sent.status))
        transition.set_report(task_id, replace(sent, sent=transition.mono))


def report_metrics(transition: StateTransition) -> None:
    """Reports new metrics of all tasks in one append; the more tasks the cluster has, the less often."""
    settings = transition.settings
    if transition.mono < transition.work.metrics_due:
        return
    interval = max(settings.metrics_interval_s, len(transition.status.tasks) / settings.status_records_per_s)
    transition.work = replace(transition.work, metrics_due=transition.mono + interval)
    for _, local in sorted(transition.work.local.items()):
        state = _REPORTED.get(local.phase)
        if local.has_new_metrics and state is not None:
            report(transition, local.task, state)
