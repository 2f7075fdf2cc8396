"""What a worker says of its tasks in the status log: each report is sent again until it has been read there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.errors import TASK_CRASHED
from cdcworker.coordinator.herd_state import Report, Turn
from cdcworker.coordinator.jobs import NUMBERS
from cdcworker.coordinator.model import AssignedTask, JsonObject, TaskId, TaskState, TaskStatus
from cdcworker.coordinator.restarts import is_quarantine, policy_for
from cdcworker.coordinator.status import status_order, task_key, task_status_record
from cdcworker.schemas.errors import CdcError


def last_status(turn: Turn, task_id: TaskId) -> TaskStatus | None:
    """The newest thing said about a task, by its former owners or by this process."""
    sent = turn.work.reports.get(task_id)
    said = [s for s in (sent.status if sent else None, turn.status.tasks.get(task_id)) if s is not None]
    return max(said, key=status_order, default=None)


def left_by_others(turn: Turn, entry: AssignedTask) -> JsonObject | None:
    """How the last process of a task ended whose entry is revoked before this worker ran it, as far as that is bad.

    Of one that was running when it was last heard of nobody knows whether it ended a transaction: a start would have
    ended it, and there was none.
    """
    last = last_status(turn, entry.id)
    if last is None:
        return None
    if last.error is not None or last.state == "STOPPED":
        return last.error
    return CdcError(TASK_CRASHED, "its last owner was not heard to stop it", where={"task": str(entry.id)}).to_dict()


def report(turn: Turn, entry: AssignedTask, state: TaskState, left_by: JsonObject | None = None) -> None:
    """Append the task's status; it is sent again until it has been read from the log (R10: epoch, then seq).

    `left_by`: how a process ended that may have left a transaction open; tells the leader to fence what it let go.
    """
    seq = turn.work.seq + 1
    local = turn.work.local.get(entry.id)
    mine = local if local is not None and local.task == entry else None
    last = last_status(turn, entry.id)
    if mine is not None:
        error, restarts = (
            mine.error,
            tuple(round(turn.mono - at, 1) for at in policy_for(turn, mine).charged(mine.restarts, turn.mono)),
        )
    else:  # let go: what it was charged with goes to its next owner
        restarts = last.restarts if last else ()
        error = last.error if last and is_quarantine(last.error) else left_by
    status = TaskStatus(
        connector=entry.connector,
        task=entry.task,
        state=state,
        worker_id=turn.me.worker_id,
        task_epoch=entry.task_epoch,
        seq=seq,
        error=error,
        metrics=_numbers(mine.metrics if mine else {}, last),
        restarts=restarts,
    )
    sent = turn.work.reports.get(entry.id)
    if sent is not None and sent.status.task_epoch > entry.task_epoch:
        return
    turn.work = replace(turn.work, seq=seq)
    turn.set_report(entry.id, Report(status, turn.mono))
    if mine is not None:
        turn.set_local(entry.id, replace(mine, fresh=False))
    turn.append(task_status_record(status))


def _numbers(own: JsonObject, last: TaskStatus | None) -> JsonObject:
    """Numbers of this owner; what was said of jobs stays until the task says something else."""
    if NUMBERS in own or last is None or NUMBERS not in last.metrics:
        return own
    return {**own, NUMBERS: last.metrics[NUMBERS]}


def confirm_reports(turn: Turn, records: Sequence[Record]) -> None:
    """Forget reports that the log shows, or shows a later one of; the record counts, a tombstone may follow at once."""
    if not turn.work.reports:
        return
    seen = {(record.key, _order_of(record)) for record in records if record.value is not None}
    kept = {}
    for task_id, sent in turn.work.reports.items():
        status, order = turn.status.tasks.get(task_id), status_order(sent.status)
        if (task_key(task_id), order) not in seen and (status is None or status_order(status) < order):
            kept[task_id] = sent
    turn.work = replace(turn.work, reports=kept)


def _order_of(record: Record) -> tuple[int, int] | None:
    value = record.value or {}
    epoch, seq = value.get("task_epoch"), value.get("seq")
    return (epoch, seq) if isinstance(epoch, int) and isinstance(seq, int) else None


def resend_reports(turn: Turn) -> None:
    due = (item for item in turn.work.reports.items() if turn.mono - item[1].sent >= turn.settings.resend_s)
    for task_id, sent in sorted(due, key=itemgetter(0)):
        turn.append(task_status_record(sent.status))
        turn.set_report(task_id, replace(sent, sent=turn.mono))


def report_numbers(turn: Turn) -> None:
    """New numbers of all tasks in one append; the more tasks the cluster has, the less often."""
    settings = turn.settings
    if turn.mono < turn.work.numbers_due:
        return
    interval = max(settings.metrics_interval_s, len(turn.status.tasks) / settings.status_records_per_s)
    turn.work = replace(turn.work, numbers_due=turn.mono + interval)
    for _, local in sorted(turn.work.local.items()):
        if local.fresh and local.phase in ("running", "paused"):
            report(turn, local.task, "RUNNING" if local.phase == "running" else "PAUSED")
