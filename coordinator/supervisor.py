"""The worker's side: run what the own assignment names, report it, restart what failed within a budget."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cdcworker.coordinator import jobs
from cdcworker.coordinator.api import Record
from cdcworker.coordinator.errors import TASK_CRASHED, TASK_FENCED, TASK_START_TIMEOUT, TASK_STUCK
from cdcworker.coordinator.events import (
    FenceIds,
    KillTask,
    PauseTask,
    ResumeTask,
    StartTask,
    StopTask,
    TaskExited,
    TaskReport,
    TaskTopics,
    TellTask,
)
from cdcworker.coordinator.fences import is_sink
from cdcworker.coordinator.herd_state import LocalTask, Turn
from cdcworker.coordinator.model import AssignedTask, Assignment, Command, JsonObject, TaskId, TaskStatus
from cdcworker.coordinator.numbers import joined, with_failure
from cdcworker.coordinator.reports import last_status, left_by_others, report
from cdcworker.coordinator.restarts import is_quarantine, policy_for, policy_of, quarantine
from cdcworker.coordinator.state import is_wanted, task_set_of
from cdcworker.coordinator.status import topics_record
from cdcworker.schemas.errors import CdcError, Where

logger = logging.getLogger(__name__)

EXIT_FENCED = 3
"""Exit code of a task process whose transactional id somebody else took over."""

MEASURED = frozenset({"cpu_cores", "rss_bytes"})
"""Numbers that the worker takes of a task by itself: no sign that the task comes along."""


def own_assignment(turn: Turn) -> Assignment | None:
    """The own assignment, if it was made for this boot."""
    assignment = turn.cluster.assignments.get(turn.me.worker_id)
    return assignment if assignment is not None and assignment.boot_id == turn.me.boot_id else None


def is_drain_over(turn: Turn) -> bool:
    return turn.work.drain_until is not None and turn.mono >= turn.work.drain_until


# --- reconcile ------------------------------------------------------------------------------------------------------


def reconcile(turn: Turn) -> None:
    """Stop what is no longer ours, start what is; called after every event that may have changed either."""
    assignment = own_assignment(turn)
    desired = _desired(turn, assignment)
    for task_id, local in sorted(turn.work.local.items()):
        _settle(turn, local, desired.get(task_id))
    if may_start(turn):
        for _, entry in sorted(desired.items()):
            _take_up_if_free(turn, entry)
    _release(turn, assignment.revoke if assignment else ())


def reconcile_one(turn: Turn, task_id: TaskId) -> None:
    """The same for the one task that something was heard of: many may end at the same moment."""
    assignment, entry = own_assignment(turn), _desired_one(turn, task_id)
    local = turn.work.local.get(task_id)
    if local is not None:
        _settle(turn, local, entry)
    if entry is not None and may_start(turn):
        _take_up_if_free(turn, entry)
    _release(turn, _of(assignment.revoke, task_id) if assignment else ())


def _settle(turn: Turn, local: LocalTask, entry: AssignedTask | None) -> None:
    if entry == local.task:
        _keep(turn, local)
    else:
        _let_go(turn, local, replaced=entry is not None)


def _take_up_if_free(turn: Turn, entry: AssignedTask) -> None:
    if entry.id not in turn.work.local and not _was_stopped(turn, entry):
        _take_up(turn, entry)


def _release(turn: Turn, revoked: Iterable[AssignedTask]) -> None:
    for entry in revoked:
        # An older start of the same task may still be about to stop: how it ends is told with this entry's release.
        local_task = turn.work.local.get(entry.id)
        is_over = local_task is None or local_task.task.task_epoch > entry.task_epoch
        if is_over and not _was_stopped(turn, entry):
            report(turn, entry, "STOPPED", left_by_others(turn, entry))


def may_start(turn: Turn) -> bool:
    """The own lease is fresh; without one nothing is started (INV-12: own monotonic clock)."""
    acked = turn.work.acked
    return acked is not None and turn.mono - acked < turn.settings.mute_after_s


def _desired(turn: Turn, assignment: Assignment | None) -> dict[TaskId, AssignedTask]:
    """Assigned entries whose connector still wants them; an outdated one runs on until the leader replaces it."""
    if assignment is None or is_drain_over(turn):
        return {}
    return {entry.id: entry for entry in assignment.tasks if _is_desired(turn, entry)}


def _desired_one(turn: Turn, task_id: TaskId) -> AssignedTask | None:
    assignment = own_assignment(turn)
    if assignment is None or is_drain_over(turn):
        return None
    return next((entry for entry in _of(assignment.tasks, task_id) if _is_desired(turn, entry)), None)


def _of(entries: Iterable[AssignedTask], task_id: TaskId) -> list[AssignedTask]:
    """Those of one task. Compared in place: a worker has thousands of entries, and as many may end at once."""
    name, number = task_id
    return [entry for entry in entries if entry[2] == number and entry[0] == name]


def _is_desired(turn: Turn, entry: AssignedTask) -> bool:
    local = turn.work.local.get(entry.id)
    is_running = local is not None and local.task == entry and local.has_process
    return is_wanted(turn.cluster, entry) or (is_running and _is_outdated(turn, entry))


def _is_outdated(turn: Turn, entry: AssignedTask) -> bool:
    """The task exists, in a newer set than the entry's."""
    tasks = task_set_of(turn.cluster, entry.connector)
    if tasks is None or tasks.incarnation != entry.incarnation or entry.task >= len(tasks.tasks):
        return False
    return turn.cluster.connectors[entry.connector].target_state != "STOPPED"


def _was_stopped(turn: Turn, entry: AssignedTask) -> bool:
    """A stop that was reported is final for its task epoch: the leader may have given the task to another worker."""
    last = last_status(turn, entry.id)
    if last is None:
        return False
    return last.task_epoch > entry.task_epoch or (last.task_epoch == entry.task_epoch and last.state == "STOPPED")


def _take_up(turn: Turn, entry: AssignedTask) -> None:
    """Start a task that is new here, with what its former owners left of its budget: a move gives no fresh one."""
    tasks, last = task_set_of(turn.cluster, entry.connector), last_status(turn, entry.id)
    is_new = tasks is None or last is None or last.task_epoch < tasks.task_epoch
    if is_new or _is_to_restart(turn, entry, last):
        _start(turn, LocalTask(entry, "starting"))  # never ran, not with this config, or somebody asked for it
        return
    assert last is not None
    local = LocalTask(entry, "failed", restarts=tuple(turn.mono - age for age in last.restarts))
    if is_quarantine(last.error):
        turn.set_local(entry.id, replace(local, error=last.error))
        report(turn, entry, "FAILED")
    else:
        _start(turn, local)


def _keep(turn: Turn, local: LocalTask) -> None:
    if local.phase == "waiting":
        if turn.mono >= local.due and may_start(turn) and is_wanted(turn.cluster, local.task):
            _start(turn, local)
    elif local.phase == "stopping" or local.killed:
        _kill_if_late(turn, local)
    elif local.phase == "starting" and turn.mono >= local.due:
        _kill_late_start(turn, local)
    elif local.has_process:
        paused = turn.cluster.connectors[local.task.connector].target_state == "PAUSED"
        if paused != local.paused:
            turn.emit(PauseTask(local.task) if paused else ResumeTask(local.task))
            turn.set_local(local.task.id, replace(local, paused=paused))
        _tell(turn, turn.work.local[local.task.id])


def _tell(turn: Turn, local: LocalTask) -> None:
    """Jobs of its connector, when they are others than it knows of."""
    wanted = jobs.told(turn.cluster, local.task.connector) if turn.cluster.jobs else ()
    if wanted != local.told:
        turn.emit(TellTask(local.task, wanted))
        turn.set_local(local.task.id, replace(local, told=wanted))


def _let_go(turn: Turn, local: LocalTask, replaced: bool) -> None:
    if not local.has_process:
        turn.set_local(local.task.id, None)
        if not replaced:
            report(turn, local.task, "STOPPED", local.error)
    elif local.phase == "stopping" or local.killed:
        _kill_if_late(turn, local)
    else:
        _stop(turn, local)


def _stop(turn: Turn, local: LocalTask) -> None:
    turn.emit(StopTask(local.task))
    due = turn.mono + turn.settings.stop_timeout_s
    turn.set_local(local.task.id, replace(local, phase="stopping", due=due))


def _kill_if_late(turn: Turn, local: LocalTask) -> None:
    if turn.mono < local.due:
        return
    if local.killed:
        _give_up(turn, local)
    else:
        logger.warning("task does not stop, killing it task=%s", local.task.id)
        kill(turn, local)


def kill(turn: Turn, local: LocalTask) -> None:
    turn.emit(KillTask(local.task))
    due = turn.mono + turn.settings.kill_timeout_s
    turn.set_local(local.task.id, replace(local, phase="stopping", killed=True, due=due))


def _kill_late_start(turn: Turn, local: LocalTask) -> None:
    """Its exit is a failure like any other; the phase stays, so that it is not taken for a stop."""
    logger.warning("task does not start, killing it task=%s", local.task.id)
    error = CdcError(TASK_START_TIMEOUT, "the task has not come up in its time", where={"task": str(local.task.id)})
    kill(turn, local)
    turn.set_local(local.task.id, replace(turn.work.local[local.task.id], phase="starting", error=error.to_dict()))


def _give_up(turn: Turn, local: LocalTask) -> None:
    """A process that not even SIGKILL ends must not hold back the task: its next owner fences it (INV-5)."""
    logger.error("killed task is not reaped, giving it up task=%s", local.task.id)
    error = CdcError(TASK_STUCK, "the process does not end", where={"task": str(local.task.id)}).to_dict()
    on_exited(turn, TaskExited(local.task, 0, error))
    left = turn.work.local.get(local.task.id)
    if left is not None and left.task == local.task:
        # This very start cannot be repeated beside its own remains: a new owner can, or a person sees to it.
        turn.set_local(local.task.id, replace(left, phase="failed", error=error))
        report(turn, local.task, "FAILED")


def _start(turn: Turn, local: LocalTask) -> None:
    entry = local.task
    connector, tasks = turn.cluster.connectors[entry.connector], task_set_of(turn.cluster, entry.connector)
    assert tasks is not None
    paused = connector.target_state == "PAUSED"
    config = {**connector.config, **tasks.tasks[entry.task]}
    due = turn.mono + policy_of(config, turn.settings).start_timeout_s
    fresh = replace(local, phase="starting", paused=paused, killed=False, due=due, told=())
    turn.set_local(entry.id, fresh)
    turn.emit(StartTask(entry, connector.kind, config, paused, local.attempt))
    _tell(turn, fresh)


# --- what processes say ---------------------------------------------------------------------------------------------


def on_report(turn: Turn, event: TaskReport) -> None:
    local = turn.work.local.get(event.task.id)
    if local is None or local.task != event.task or not local.has_process:
        return
    local = replace(local, metrics=joined(local.metrics, event.metrics))
    if local.phase == "starting" and not local.killed and (event.state or event.metrics.keys() - MEASURED):
        local = replace(local, due=turn.mono + policy_for(turn, local).start_timeout_s)
    if event.state == "FAILED":
        local = replace(local, error=event.error)  # the policy decides when the process has ended
    elif event.state in ("RUNNING", "PAUSED") and local.phase != "stopping" and not local.killed:
        local = replace(local, phase="running" if event.state == "RUNNING" else "paused", error=None)
    turn.set_local(event.task.id, replace(local, fresh=local.fresh or bool(event.metrics)))
    if local.phase in ("running", "paused") and event.state in ("RUNNING", "PAUSED"):
        report(turn, event.task, event.state)


def on_topics(turn: Turn, event: TaskTopics) -> None:
    local = turn.work.local.get(event.task.id)
    if local is None or local.task != event.task:
        return
    known = turn.status.topics.get(event.task.id, frozenset()) | turn.work.topics.get(event.task.id, frozenset())
    topics = known | frozenset(event.topics)
    if topics != known:
        turn.work = replace(turn.work, topics={**turn.work.topics, event.task.id: topics})
        turn.append(topics_record(event.task.id, topics))


def on_exited(turn: Turn, event: TaskExited) -> None:
    local = turn.work.local.get(event.task.id)
    if local is None or local.task != event.task or not local.has_process:
        return
    if local.phase != "stopping":
        _failed(turn, local, _error_of(local, event))
        return
    if event.code != 0 or event.error is not None:
        local = replace(local, error=_error_of(local, event))
    entry = _desired_one(turn, local.task.id)
    if entry == local.task:  # stopped for a restart or for want of a lease: not given up
        turn.set_local(local.task.id, replace(local, phase="waiting", due=turn.mono, attempt=local.attempt + 1))
        report(turn, local.task, "RESTARTING")
    else:
        turn.set_local(local.task.id, None)
        if entry is None:
            report(turn, local.task, "STOPPED", local.error)
        elif local.error is not None:  # the entry that replaces it may be revoked before it has ever run
            report(turn, local.task, "RESTARTING", local.error)


def _error_of(local: LocalTask, event: TaskExited) -> JsonObject:
    if event.code == EXIT_FENCED:
        return CdcError(TASK_FENCED, "the task was fenced", where={"task": str(local.task.id)}).to_dict()
    error = local.error or event.error
    if error is not None:
        return error
    where: Where = {"task": str(local.task.id), "exit_code": event.code}
    return CdcError(TASK_CRASHED, "the task's process ended by itself", where=where).to_dict()


def _failed(turn: Turn, local: LocalTask, error: JsonObject) -> None:
    """Wait and start again, or give up. A fenced task that is still assigned is the rightful owner: it fences back."""
    settings, mono, policy = turn.settings, turn.mono, policy_for(turn, local)
    restarts = policy.charged(local.restarts, mono)
    fences = tuple(at for at in local.fences if at > mono - settings.fence_window_s)
    if error.get("kind") == "fenced":
        used, budget, fences = len(fences), settings.fences_max, (*fences, mono)
    else:
        used, budget = len(restarts), policy.budget(error.get("kind"))
        restarts = (*restarts, mono) if budget else restarts
    numbers = with_failure(local.metrics, error)
    local = replace(local, error=error, restarts=restarts, fences=fences, metrics=numbers)
    if used < budget:
        due = mono + policy.delay_s(local.task.id, used)
        local = replace(local, phase="waiting", due=due, attempt=local.attempt + 1)
    else:
        # An error that cannot pass keeps its own code: only a used-up budget is a quarantine.
        local = replace(local, phase="failed", error=quarantine(local.task.id, error) if budget else error)
        _end_leftovers(turn, local.task, error)
    logger.warning("task failed task=%s phase=%s error=%s", local.task.id, local.phase, error.get("code"))
    turn.set_local(local.task.id, local)
    report(turn, local.task, "RESTARTING" if local.phase == "waiting" else "FAILED")


def _end_leftovers(turn: Turn, entry: AssignedTask, error: JsonObject) -> None:
    """Nobody starts a task that is given up: a transaction that its process left open would hold back all who read the
    same partitions until its time-out. One that moves at this very moment is the rightful owner and fences back."""
    if error.get("kind") != "fenced" and not is_sink(turn.cluster, entry.connector):
        turn.emit(FenceIds((entry.id,)))


# --- restart commands -----------------------------------------------------------------------------------------------


def execute_commands(turn: Turn, taken: Sequence[Record]) -> None:
    """Commands read from the tail of the log: each at most once per boot, none after its expiry."""
    for record in taken:
        kind, _, command_id = record.key.partition("/")
        command = turn.cluster.commands.get(command_id) if kind == "command" and record.value is not None else None
        if command is None or command_id in turn.work.executed or command.expires_ms < turn.now.wall_ms:
            continue
        turn.work = replace(turn.work, executed=turn.work.executed | {command_id})
        if command.kind == "restart":
            _restart(turn, command)
    known = turn.work.executed & turn.cluster.commands.keys()
    if known != turn.work.executed:
        turn.work = replace(turn.work, executed=known)


def _concerns(command: Command, entry: AssignedTask) -> bool:
    scope = command.scope
    return (
        scope.get("connector") == entry.connector
        and scope.get("task") in (None, entry.task)
        and scope.get("incarnation", entry.incarnation) == entry.incarnation
    )


def _is_to_restart(turn: Turn, entry: AssignedTask, last: TaskStatus | None) -> bool:
    """A restart was asked for while the task was nobody's, or its owner's who died: this start is the one."""
    return last is not None and any(
        command.kind == "restart"
        and _concerns(command, entry)
        and command.expires_ms >= turn.now.wall_ms
        and isinstance(after := command.scope.get("after"), int)
        and last.task_epoch <= after
        for command in turn.cluster.commands.values()
    )


def _restart(turn: Turn, command: Command) -> None:
    for task_id, local in sorted(turn.work.local.items()):
        if not _concerns(command, local.task) or (command.scope.get("only_failed") and local.has_process):
            continue
        fresh = replace(local, restarts=(), fences=(), error=None)
        if not local.has_process:
            turn.set_local(task_id, replace(fresh, phase="waiting", due=turn.mono, attempt=local.attempt + 1))
            report(turn, local.task, "RESTARTING")
        elif local.phase != "stopping" and not local.killed:
            _stop(turn, fresh)
        else:  # it ends already
            turn.set_local(task_id, replace(fresh, error=local.error))
