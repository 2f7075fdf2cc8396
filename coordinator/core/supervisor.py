"""The supervisor of a worker's tasks: runs the assigned ones, reports them, and restarts failed ones within a
budget."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core import jobs
from cdcworker.coordinator.core.events import (
    FenceIds,
    KillTask,
    PauseTask,
    ResumeTask,
    StartTask,
    StopTask,
    TaskExited,
    TaskMeasured,
    TaskReport,
    TaskTopics,
    TellTask,
)
from cdcworker.coordinator.core.fences import is_sink
from cdcworker.coordinator.core.herd_state import LocalTask, StateTransition
from cdcworker.coordinator.core.restart_policy import is_quarantine, policy_for, policy_of, quarantine
from cdcworker.coordinator.core.status_reports import last_status, previous_end, report
from cdcworker.coordinator.errors import TASK_CRASHED, TASK_FENCED, TASK_START_TIMEOUT, TASK_STUCK
from cdcworker.coordinator.log.config_fold import should_run, task_set_of
from cdcworker.coordinator.log.connections import as_run
from cdcworker.coordinator.log.status_fold import topics_record
from cdcworker.coordinator.log.task_metrics import RETRYING, merge_metrics, with_failure
from cdcworker.coordinator.model import AssignedTask, Assignment, Command, JsonObject, TaskId, TaskStatus
from cdcworker.schemas.errors import CdcError, Where

logger = logging.getLogger(__name__)

EXIT_FENCED = 3
"""The exit code of a task process whose transactional id was fenced by another one."""

WORKER_METRICS = frozenset({"cpu_cores", "rss_bytes"})
"""Metrics that the worker itself measures of a task process: they are no sign of progress."""


def own_assignment(transition: StateTransition) -> Assignment | None:
    """Returns this worker's assignment if it was made for this boot."""
    assignment = transition.cluster.assignments.get(transition.me.worker_id)
    return assignment if assignment is not None and assignment.boot_id == transition.me.boot_id else None


def is_drain_over(transition: StateTransition) -> bool:
    """Tells whether the time for the drain is up."""
    return transition.work.drain_until is not None and transition.mono >= transition.work.drain_until


# --- reconcile ------------------------------------------------------------------------------------------------------


def reconcile(transition: StateTransition) -> None:
    """Stops tasks that are no longer assigned here and starts those that are."""
    assignment = own_assignment(transition)
    desired = _desired(transition, assignment)
    for task_id, local in sorted(transition.work.local.items()):
        _reconcile_task(transition, local, desired.get(task_id))
    if may_start(transition):
        for _, entry in sorted(desired.items()):
            _start_if_free(transition, entry)
    _report_released(transition, assignment.revoke if assignment else ())


def reconcile_one(transition: StateTransition, task_id: TaskId) -> None:
    """Reconciles the one task that an event is about: many tasks may end at the same moment."""
    assignment, entry = own_assignment(transition), _desired_one(transition, task_id)
    local = transition.work.local.get(task_id)
    if local is not None:
        _reconcile_task(transition, local, entry)
    if entry is not None and may_start(transition):
        _start_if_free(transition, entry)
    _report_released(transition, _entries_of(assignment.revoke, task_id) if assignment else ())


def _reconcile_task(transition: StateTransition, local: LocalTask, entry: AssignedTask | None) -> None:
    if entry == local.task:
        _keep_running(transition, local)
    else:
        _stop_unassigned(transition, local, replaced=entry is not None)


def _start_if_free(transition: StateTransition, entry: AssignedTask) -> None:
    if entry.id not in transition.work.local and not _was_reported_stopped(transition, entry):
        _start_assigned(transition, entry)


def _report_released(transition: StateTransition, revoked: Iterable[AssignedTask]) -> None:
    for entry in revoked:
        # An older start of the task may still be stopping: its end is reported with the release of this entry.
        local_task = transition.work.local.get(entry.id)
        is_over = local_task is None or local_task.task.task_epoch > entry.task_epoch
        if is_over and not _was_reported_stopped(transition, entry):
            report(transition, entry, "STOPPED", previous_end(transition, entry))


def may_start(transition: StateTransition) -> bool:
    """Tells whether the own lease is recent enough to start tasks, by the own monotonic clock (INV-12)."""
    acked = transition.work.lease_acked
    return acked is not None and transition.mono - acked < transition.settings.stop_producing_after_s


def _desired(transition: StateTransition, assignment: Assignment | None) -> dict[TaskId, AssignedTask]:
    """Returns the assigned tasks that should run. One of an older task set runs on until the leader replaces it."""
    if assignment is None or is_drain_over(transition):
        return {}
    return {entry.id: entry for entry in assignment.tasks if _is_desired(transition, entry)}


def _desired_one(transition: StateTransition, task_id: TaskId) -> AssignedTask | None:
    assignment = own_assignment(transition)
    if assignment is None or is_drain_over(transition):
        return None
    return next((entry for entry in _entries_of(assignment.tasks, task_id) if _is_desired(transition, entry)), None)


def _entries_of(entries: Iterable[AssignedTask], task_id: TaskId) -> list[AssignedTask]:
    """Returns the entries of one task. They are compared in place: a worker has thousands, and as many may end at
    once."""
    name, number = task_id
    return [entry for entry in entries if entry[2] == number and entry[0] == name]


def _is_desired(transition: StateTransition, entry: AssignedTask) -> bool:
    local = transition.work.local.get(entry.id)
    is_running = local is not None and local.task == entry and local.has_process
    return should_run(transition.cluster, entry) or (is_running and _is_outdated(transition, entry))


def _is_outdated(transition: StateTransition, entry: AssignedTask) -> bool:
    """Tells whether the task still exists, in a newer task set than the entry's."""
    tasks = task_set_of(transition.cluster, entry.connector)
    if tasks is None or tasks.incarnation != entry.incarnation or entry.task >= len(tasks.tasks):
        return False
    return transition.cluster.connectors[entry.connector].target_state != "STOPPED"


def _was_reported_stopped(transition: StateTransition, entry: AssignedTask) -> bool:
    """Tells whether a stop was reported for this task epoch: the leader may have assigned the task elsewhere since."""
    last = last_status(transition, entry.id)
    if last is None:
        return False
    return last.task_epoch > entry.task_epoch or (last.task_epoch == entry.task_epoch and last.state == "STOPPED")


def _start_assigned(transition: StateTransition, entry: AssignedTask) -> None:
    """Starts a task that is new on this worker, with the rest of its restart budget: a move does not renew the
    budget."""
    tasks, last = task_set_of(transition.cluster, entry.connector), last_status(transition, entry.id)
    is_new = tasks is None or last is None or last.task_epoch < tasks.task_epoch
    if is_new or _has_pending_restart(transition, entry, last):
        _start(transition, LocalTask(entry, "starting"))  # it never ran with this config, or a restart was requested
        return
    assert last is not None
    local = LocalTask(entry, "failed", restarts=tuple(transition.mono - age for age in last.restarts))
    if is_quarantine(last.error):
        transition.set_local(entry.id, replace(local, error=last.error))
        report(transition, entry, "FAILED")
    else:
        _start(transition, local)


def _keep_running(transition: StateTransition, local: LocalTask) -> None:
    if local.phase == "waiting":
        if transition.mono >= local.due and may_start(transition) and should_run(transition.cluster, local.task):
            _start(transition, local)
    elif local.phase == "stopping" or local.killed:
        _kill_if_late(transition, local)
    elif local.phase == "starting" and transition.mono >= local.due:
        _kill_late_start(transition, local)
    elif local.has_process:
        paused = transition.cluster.connectors[local.task.connector].target_state == "PAUSED"
        if paused != local.paused:
            transition.emit(PauseTask(local.task) if paused else ResumeTask(local.task))
            transition.set_local(local.task.id, replace(local, paused=paused))
        _tell_jobs(transition, transition.work.local[local.task.id])


def _tell_jobs(transition: StateTransition, local: LocalTask) -> None:
    """Tells a task the open jobs of its connector when they have changed."""
    open_jobs = jobs.open_jobs(transition.cluster, local.task.connector) if transition.cluster.jobs else ()
    if open_jobs != local.jobs_sent:
        transition.emit(TellTask(local.task, open_jobs))
        transition.set_local(local.task.id, replace(local, jobs_sent=open_jobs))


def _stop_unassigned(transition: StateTransition, local: LocalTask, replaced: bool) -> None:
    if not local.has_process:
        transition.set_local(local.task.id, None)
        if not replaced:
            report(transition, local.task, "STOPPED", local.error)
    elif local.phase == "stopping" or local.killed:
        _kill_if_late(transition, local)
    else:
        _stop(transition, local)


def _stop(transition: StateTransition, local: LocalTask) -> None:
    transition.emit(StopTask(local.task))
    due = transition.mono + transition.settings.stop_timeout_s
    transition.set_local(local.task.id, replace(local, phase="stopping", due=due))


def _kill_if_late(transition: StateTransition, local: LocalTask) -> None:
    if transition.mono < local.due:
        return
    if local.killed:
        _abandon(transition, local)
    else:
        logger.warning("task does not stop, its process is killed task=%s", local.task.id)
        kill(transition, local)


def kill(transition: StateTransition, local: LocalTask) -> None:
    """Kills the process of a task; it is abandoned if it is not reaped within `kill_timeout_s`."""
    transition.emit(KillTask(local.task))
    due = transition.mono + transition.settings.kill_timeout_s
    transition.set_local(local.task.id, replace(local, phase="stopping", killed=True, due=due))


def _kill_late_start(transition: StateTransition, local: LocalTask) -> None:
    """Kills a task that did not start in time. The phase stays `starting`, so that its exit counts as a failure."""
    logger.warning("task does not start, its process is killed task=%s", local.task.id)
    error = CdcError(TASK_START_TIMEOUT, "the task has not come up in its time", where={"task": str(local.task.id)})
    kill(transition, local)
    transition.set_local(
        local.task.id, replace(transition.work.local[local.task.id], phase="starting", error=error.to_dict())
    )


def _abandon(transition: StateTransition, local: LocalTask) -> None:
    """Abandons a process that SIGKILL did not end: the task must not wait for it, its next owner fences it (INV-5)."""
    logger.error("killed process is not reaped and is abandoned task=%s", local.task.id)
    error = CdcError(TASK_STUCK, "the process does not end", where={"task": str(local.task.id)}).to_dict()
    on_exited(transition, TaskExited(local.task, 0, error))
    remaining = transition.work.local.get(local.task.id)
    if remaining is not None and remaining.task == local.task:
        # This worker cannot start the task again beside the old process: another worker can, or an operator acts.
        transition.set_local(local.task.id, replace(remaining, phase="failed", error=error))
        report(transition, local.task, "FAILED")


def _start(transition: StateTransition, local: LocalTask) -> None:
    entry = local.task
    connector, tasks = transition.cluster.connectors[entry.connector], task_set_of(transition.cluster, entry.connector)
    assert tasks is not None
    paused = connector.target_state == "PAUSED"
    config = {**as_run(transition.cluster, connector).config, **tasks.tasks[entry.task]}
    due = transition.mono + policy_of(config, transition.settings).start_timeout_s
    starting = replace(local, phase="starting", paused=paused, killed=False, due=due, jobs_sent=())
    transition.set_local(entry.id, starting)
    transition.emit(StartTask(entry, connector.kind, config, paused, local.attempt, connector.topic_prefixes))
    _tell_jobs(transition, starting)


# --- reports of task processes --------------------------------------------------------------------------------------


def on_report(transition: StateTransition, event: TaskReport) -> None:
    """Takes a state or metrics that the task's process reported."""
    local = transition.work.local.get(event.task.id)
    if local is None or local.task != event.task or not local.has_process:
        return
    local = replace(local, metrics=merge_metrics(local.metrics, event.metrics))
    if local.phase == "starting" and not local.killed and (event.state or event.metrics.keys() - WORKER_METRICS):
        local = replace(local, due=transition.mono + policy_for(transition, local).start_timeout_s)
    if event.state == "FAILED":
        local = replace(local, error=event.error)  # the policy decides when the process has ended
    elif event.state in ("RUNNING", "PAUSED") and local.phase != "stopping" and not local.killed:
        local = replace(local, phase="running" if event.state == "RUNNING" else "paused", error=None)
    transition.set_local(event.task.id, replace(local, has_new_metrics=local.has_new_metrics or bool(event.metrics)))
    if local.phase in ("running", "paused") and event.state in ("RUNNING", "PAUSED"):
        report(transition, event.task, event.state)


def on_measured(transition: StateTransition, event: TaskMeasured) -> None:
    """Takes numbers of a task that reads nothing; one that runs again meanwhile tells its own."""
    local = transition.work.local.get(event.task.id)
    if local is None or local.task != event.task or local.phase == "stopping":
        return
    if local.phase == "running" and not local.metrics.get(RETRYING):
        return
    metrics = merge_metrics(local.metrics, event.metrics)
    transition.set_local(event.task.id, replace(local, metrics=metrics, has_new_metrics=True))


def on_topics(transition: StateTransition, event: TaskTopics) -> None:
    """Records the topics that a task uses, when there are new ones."""
    local = transition.work.local.get(event.task.id)
    if local is None or local.task != event.task:
        return
    known = transition.status.topics.get(event.task.id, frozenset()) | transition.work.topics.get(
        event.task.id, frozenset()
    )
    topics = known | frozenset(event.topics)
    if topics != known:
        transition.work = replace(transition.work, topics={**transition.work.topics, event.task.id: topics})
        transition.append(topics_record(event.task.id, topics))


def on_exited(transition: StateTransition, event: TaskExited) -> None:
    """Reports a stop, or restarts the task after a failure."""
    local = transition.work.local.get(event.task.id)
    if local is None or local.task != event.task or not local.has_process:
        return
    if local.phase != "stopping":
        _on_failed(transition, local, _error_of(local, event))
        return
    if event.code != 0 or event.error is not None:
        local = replace(local, error=_error_of(local, event))
    entry = _desired_one(transition, local.task.id)
    if entry == local.task:  # stopped for a restart or for lack of a lease: still assigned
        transition.set_local(
            local.task.id, replace(local, phase="waiting", due=transition.mono, attempt=local.attempt + 1)
        )
        report(transition, local.task, "RESTARTING")
    else:
        transition.set_local(local.task.id, None)
        if entry is None:
            report(transition, local.task, "STOPPED", local.error)
        elif local.error is not None:  # the entry that replaces it may be revoked before it has ever run
            report(transition, local.task, "RESTARTING", local.error)


def _error_of(local: LocalTask, event: TaskExited) -> JsonObject:
    if event.code == EXIT_FENCED:
        return CdcError(TASK_FENCED, "the task was fenced", where={"task": str(local.task.id)}).to_dict()
    error = local.error or event.error
    if error is not None:
        return error
    where: Where = {"task": str(local.task.id), "exit_code": event.code}
    return CdcError(TASK_CRASHED, "the task's process ended by itself", where=where).to_dict()


def _on_failed(transition: StateTransition, local: LocalTask, error: JsonObject) -> None:
    """Schedules a restart, or fails the task when its budget is used up.

    A fenced task that is still assigned is the rightful owner: its restart fences the other process.
    """
    settings, mono, policy = transition.settings, transition.mono, policy_for(transition, local)
    restarts = policy.within_window(local.restarts, mono)
    fences = tuple(at for at in local.fences if at > mono - settings.fence_window_s)
    if error.get("kind") == "fenced":
        used, budget, fences = len(fences), settings.fences_max, (*fences, mono)
    else:
        used, budget = len(restarts), policy.budget(error.get("kind"))
        restarts = (*restarts, mono) if budget else restarts
    metrics = with_failure(local.metrics, error)
    local = replace(local, error=error, restarts=restarts, fences=fences, metrics=metrics)
    if used < budget:
        due = mono + policy.delay_s(local.task.id, used)
        local = replace(local, phase="waiting", due=due, attempt=local.attempt + 1)
    else:
        # An error that is never retried keeps its own code: only a used-up budget quarantines the task.
        local = replace(local, phase="failed", error=quarantine(local.task.id, error) if budget else error)
        _fence_leftovers(transition, local.task, error)
    logger.warning("task failed task=%s phase=%s error=%s", local.task.id, local.phase, error.get("code"))
    transition.set_local(local.task.id, local)
    report(transition, local.task, "RESTARTING" if local.phase == "waiting" else "FAILED")


def _fence_leftovers(transition: StateTransition, entry: AssignedTask, error: JsonObject) -> None:
    """Fences a source task that failed for good: its open transaction would block read_committed readers until its
    time-out. After being fenced itself it does not: another owner may be producing."""
    if error.get("kind") != "fenced" and not is_sink(transition.cluster, entry.connector):
        transition.emit(FenceIds((entry.id,)))


# --- restart commands -----------------------------------------------------------------------------------------------


def execute_commands(transition: StateTransition, accepted: Sequence[LogRecord]) -> None:
    """Executes the commands among new records: each at most once per boot, none after its expiry."""
    for record in accepted:
        kind, _, command_id = record.key.partition("/")
        command = (
            transition.cluster.commands.get(command_id) if kind == "command" and record.value is not None else None
        )
        if command is None or command_id in transition.work.executed:
            continue
        if command.expires_ms < transition.now.wall_ms:
            late_s = (transition.now.wall_ms - command.expires_ms) / 1000
            text = "command ignored, since it has expired by this worker's clock command=%s late_s=%.0f"
            logger.warning(text, command_id, late_s)
            continue
        transition.work = replace(transition.work, executed=transition.work.executed | {command_id})
        if command.kind == "restart":
            _restart(transition, command)
    known = transition.work.executed & transition.cluster.commands.keys()
    if known != transition.work.executed:
        transition.work = replace(transition.work, executed=known)


def _applies_to(command: Command, entry: AssignedTask) -> bool:
    scope = command.scope
    return (
        scope.get("connector") == entry.connector
        and scope.get("task") in (None, entry.task)
        and scope.get("incarnation", entry.incarnation) == entry.incarnation
    )


def _has_pending_restart(transition: StateTransition, entry: AssignedTask, last: TaskStatus | None) -> bool:
    """Tells whether a restart was requested while the task had no live owner: then this start is that restart."""
    return last is not None and any(
        command.kind == "restart"
        and _applies_to(command, entry)
        and command.expires_ms >= transition.now.wall_ms
        and isinstance(after := command.scope.get("after"), int)
        and last.task_epoch <= after
        for command in transition.cluster.commands.values()
    )


def _restart(transition: StateTransition, command: Command) -> None:
    for task_id, local in sorted(transition.work.local.items()):
        if not _applies_to(command, local.task) or (command.scope.get("only_failed") and local.has_process):
            continue
        reset = replace(local, restarts=(), fences=(), error=None)
        if not local.has_process:
            # The error of a waiting task stays until it runs: if the task is released before, it tells the leader that
            # a transaction may be open.
            error = local.error if local.phase == "waiting" else None
            waiting = replace(reset, phase="waiting", due=transition.mono, attempt=local.attempt + 1, error=error)
            transition.set_local(task_id, waiting)
            report(transition, local.task, "RESTARTING")
        elif local.phase != "stopping" and not local.killed:
            _stop(transition, reset)
        else:  # it is stopping already
            transition.set_local(task_id, replace(reset, error=local.error))
