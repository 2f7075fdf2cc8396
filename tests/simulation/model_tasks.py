"""Ownership of one task as an explicit-state model: assign, initialise, check, read, commit, revoke, report, reassign.

The leader may take any worker for dead at any time and be wrong; a process may sleep between any two of its steps, so
each is also its own zombie; a commit may lose its answer and arrive late. Task epochs are ranks and the data topic is
its newest record, so nothing is bounded. Whether a process still owns its task, whether a report releases it and which
report counts is asked of the production rules.

Invariants, at each commit: task epochs never go down; whoever commits has read the newest position; no transaction is
torn. While nobody is taken for dead: never two processes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

from cdcworker.coordinator.core.ownership import is_released
from cdcworker.coordinator.log.status_fold import LeaseReader, StatusState, fold_status, task_status_record
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Connector,
    TaskSet,
    TaskStatus,
)
from cdcworker.worker.protocol.task_spec import TaskSpec
from cdcworker.worker.source.task_identity import owns

from .model_search import Violation

Step = Literal["init", "check", "read"]
RUNS = 3
"""The process has done all three steps of its start; before, the phase counts those that it has done."""
HALF, FULL, DATA_ONLY = 4, 5, 6
"""The phases of a commit: data written, data and position written; or, with a broken rule, only the data committed."""
ABSENT = -1


@dataclass(frozen=True)
class Rules:
    """The rules of processes and leader; each default is the rule of the design, every other value breaks it."""

    order: tuple[Step, ...] = ("init", "check", "read")
    asks: Literal["log", "parent", "nobody"] = "log"
    new_producer_after_timeout: bool = True
    one_transaction: bool = True
    reads_to: Literal["end", "stable"] = "end"
    waits_for_report: bool = True
    faults: bool = True


class Worker(NamedTuple):
    given: int = 0
    """The task epoch by which the log assigns it the task, 0 for none; and by which it must let it go."""
    revoked: int = 0
    sees: int = 0
    """The task epoch by which its own view of the log assigns it the task."""
    phase: int = ABSENT
    epoch: int = 0
    """The task epoch of the process."""
    newest: bool = False
    """Tells whether its producer is the last one initialised."""
    knows: bool = False
    """The position that it read or wrote last is the newest."""
    late: int = 0
    """The task epoch of a commit without an answer that is still under way."""
    report: int = 0
    """The task epoch of a report of a stop that is under way."""


class State(NamedTuple):
    last: int
    """The task epoch of the newest record in the data topic."""
    told: int
    """The newest report in the status log: of which epoch, and whether it says stopped."""
    is_stop: bool
    missing: bool
    """Tells whether data is committed whose position is not."""
    pinned: int
    """The transaction of another task in the same partition: 0 none, 1 open, 2 open with a position committed above
    it."""
    workers: tuple[Worker, ...]


Become = Callable[[Worker], State]


def start(workers: int) -> State:
    return State(0, 0, False, False, 0, (Worker(),) * workers)


# --- production rules -----------------------------------------------------------------------------------------------


def _entry(epoch: int) -> AssignedTask:
    return AssignedTask("c", "i", 0, epoch)


@cache
def is_owner(epoch: int, given: int, revoked: int) -> bool:
    """Tells whether the process of this epoch may go on, with a log that assigns its worker the task by that epoch."""
    tasks = (_entry(given),) if given else ()
    state = ClusterState(
        connectors={"c": Connector("c", "i", 1, {}, "RUNNING", "source")},
        task_sets={"c": TaskSet("i", 1, ({},))},
        assignments={"w": Assignment("b", tasks, (_entry(revoked),) if revoked else ())},
    )
    spec = SimpleNamespace(connector="c", task=0, incarnation="i", task_epoch=epoch, worker_id="w", boot_id="b")
    return owns(state, cast(TaskSpec, spec))


def _status(epoch: int, is_stop: bool) -> TaskStatus:
    return TaskStatus("c", 0, "STOPPED" if is_stop else "RUNNING", "w", epoch, seq=2 if is_stop else 1)


@cache
def may_move(told: int, is_stop: bool, epoch: int) -> bool:
    """Tells whether the newest report lets the leader reassign the revoked task."""
    status = StatusState(tasks={_entry(told).id: _status(told, is_stop)} if told else {})
    return is_released(cast(Any, SimpleNamespace(status=status)), _entry(epoch))


@cache
def newer_report(told: int, is_stop: bool, epoch: int, says_stop: bool) -> tuple[int, bool]:
    records = [task_status_record(_status(epoch, says_stop))]
    if told:
        records.insert(0, task_status_record(_status(told, is_stop)))
    (status,) = fold_status(StatusState(), records, LeaseReader("x", "x", 0.0, 1.0)).tasks.values()
    return status.task_epoch, status.state == "STOPPED"


# --- steps ----------------------------------------------------------------------------------------------------------


def steps_of(rules: Rules, *, calm: bool = False):
    """The step function. `calm`: nothing fails and nothing is taken away any more."""

    def steps(state: State) -> Iterator[tuple[str, State]]:
        yield from _assigns(state, rules)
        if rules.reads_to == "stable":
            yield "another task's transaction begins or ends", _canonical(state._replace(pinned=int(not state.pinned)))
        for number, worker in enumerate(state.workers):

            def become(changed: Worker, number: int = number) -> State:
                workers = (*state.workers[:number], changed, *state.workers[number + 1 :])
                return _canonical(state._replace(workers=workers))

            for what, after in _leader_steps(state, worker, rules, calm, become):
                yield f"the leader {what} w{number}", after
            for what, after in _worker_steps(state, number, worker, rules, become):
                yield f"w{number} {what}", after
            if worker.phase != ABSENT:
                for what, after in _process_steps(state, number, worker, rules, calm, become):
                    yield f"w{number}'s process {what}", after
            if worker.late:
                yield f"w{number}'s late commit arrives", _late(state, number, worker)
        if rules.faults and not calm:
            lost = tuple(w._replace(newest=False) for w in state.workers)
            yield "somebody fences the id", _canonical(state._replace(workers=lost))

    return steps


def is_settled(state: State) -> bool:
    """The worker to which the log gives the task runs it, and what it commits next will be taken."""
    return any(w.given and w.phase == RUNS and w.epoch == w.given and w.newest and w.knows for w in state.workers)


def _assigns(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Assigns the task once nobody has it and its former owner has reported the stop."""
    is_free = not any(w.given or (w.revoked and rules.waits_for_report) for w in state.workers)
    if is_free:
        for number, worker in enumerate(state.workers):
            workers = list(state.workers)
            workers[number] = worker._replace(given=_highest(state) + 1)
            yield f"the leader assigns w{number}", _canonical(state._replace(workers=tuple(workers)))


def _leader_steps(
    state: State, worker: Worker, rules: Rules, calm: bool, become: Become
) -> Iterator[tuple[str, State]]:
    if worker.given and not worker.revoked and not calm:
        yield "revokes", become(worker._replace(given=0, revoked=worker.given))
    if (worker.given or worker.revoked) and rules.faults and not calm:
        yield "takes for dead", become(worker._replace(given=0, revoked=0))
    if worker.revoked and may_move(state.told, state.is_stop, worker.revoked):
        yield "hears of the stop of", become(worker._replace(revoked=0))


def _worker_steps(
    state: State, number: int, worker: Worker, rules: Rules, become: Become
) -> Iterator[tuple[str, State]]:
    if worker.sees != worker.given:
        yield "reads the log", become(worker._replace(sees=worker.given))
    if worker.phase == ABSENT and worker.sees:
        others = [n for n, w in enumerate(state.workers) if w.phase != ABSENT and n != number]
        if others and not rules.faults:
            raise Violation(f"w{number} starts the task while w{others[0]} runs it")
        yield "starts a process", become(worker._replace(phase=0, epoch=worker.sees))
    if worker.phase != ABSENT and worker.epoch != worker.sees:
        ended = _ended(worker)
        yield "stops its process", become(ended if worker.sees else ended._replace(report=worker.epoch))
    has_let_go = worker.phase == ABSENT and worker.revoked and worker.sees == worker.given
    if has_let_go and not worker.report and not may_move(state.told, state.is_stop, worker.revoked):
        yield "says that it does not run the task", become(worker._replace(report=worker.revoked))
    if worker.report:
        epoch, is_stop = newer_report(state.told, state.is_stop, worker.report, True)
        workers = (*state.workers[:number], worker._replace(report=0), *state.workers[number + 1 :])
        yield "'s report arrives", _canonical(state._replace(told=epoch, is_stop=is_stop, workers=workers))


def _ended(worker: Worker) -> Worker:
    return worker._replace(phase=ABSENT, epoch=0, knows=False)


def _process_steps(
    state: State, number: int, worker: Worker, rules: Rules, calm: bool, become: Become
) -> Iterator[tuple[str, State]]:
    if worker.phase < RUNS:
        yield from _start_steps(state, number, worker, rules, become)
    elif worker.phase == RUNS:
        yield "produces", become(worker._replace(phase=HALF) if worker.newest else _again(worker))
    elif worker.phase == HALF:
        yield "adds its position", become(worker._replace(phase=FULL) if worker.newest else _again(worker))
    elif worker.phase == FULL:
        yield "commits", _committed(state, number, worker, rules)
        if not calm and worker.newest:
            after = _again(worker) if rules.new_producer_after_timeout else worker._replace(phase=RUNS)
            yield "gets no answer to its commit", become(after._replace(late=worker.epoch))
    else:
        yield "commits its position", _position_committed(state, number, worker)
    if rules.faults and not calm:
        yield "is killed", become(_ended(worker))


def _again(worker: Worker) -> Worker:
    """Returns the worker at the start of its next session: whatever failed, that begins with a new producer."""
    return worker._replace(phase=0, knows=False)


def _start_steps(
    state: State, number: int, worker: Worker, rules: Rules, become: Become
) -> Iterator[tuple[str, State]]:
    match rules.order[worker.phase] if worker.phase < len(rules.order) else "go":
        case "init":
            workers = [w._replace(newest=False) for w in state.workers]
            workers[number] = worker._replace(newest=True, phase=worker.phase + 1, late=0)
            yield "initialises its producer", _canonical(state._replace(workers=tuple(workers)))
        case "check":
            given = worker.sees if rules.asks == "parent" else worker.given
            if rules.asks == "nobody" or is_owner(worker.epoch, given, worker.revoked):
                yield "finds itself assigned", become(worker._replace(phase=worker.phase + 1))
            else:
                yield "finds itself not assigned and ends", become(_ended(worker))
        case "read":
            knows = not state.missing and not (rules.reads_to == "stable" and state.pinned == 2)
            after = become(worker._replace(phase=worker.phase + 1, knows=knows))
            yield "reads its position", after
        case "go":
            yield "starts to work", become(worker._replace(phase=RUNS, newest=True))


def _committed(state: State, number: int, worker: Worker, rules: Rules) -> State:
    if not worker.newest:
        return _canonical(state._replace(workers=_with(state, number, _again(worker))))
    _check(state, number, worker)
    workers = _with(_others_outdated(state), number, worker._replace(phase=RUNS, knows=True))
    if not rules.one_transaction:
        workers = _with(state._replace(workers=workers), number, worker._replace(phase=DATA_ONLY, knows=True))
    state = state._replace(workers=workers, missing=not rules.one_transaction)
    epoch, is_stop = newer_report(state.told, state.is_stop, worker.epoch, False)
    pinned = 2 if state.pinned else 0
    return _canonical(state._replace(last=worker.epoch, told=epoch, is_stop=is_stop, pinned=pinned))


def _position_committed(state: State, number: int, worker: Worker) -> State:
    if not worker.newest:
        return _canonical(state._replace(workers=_with(state, number, _again(worker))))
    return _canonical(state._replace(workers=_with(state, number, worker._replace(phase=RUNS)), missing=False))


def _late(state: State, number: int, worker: Worker) -> State:
    """The broker takes it for whatever transaction this producer has open now."""
    if not worker.newest:
        return _canonical(state._replace(workers=_with(state, number, worker._replace(late=0))))
    if worker.phase == HALF:
        raise Violation(f"w{number}'s late commit ends its next transaction, which is half written")
    if worker.late < state.last:
        raise Violation(f"w{number}'s late commit is of the task's older owner")
    workers = _with(_others_outdated(state), number, worker._replace(late=0, knows=worker.phase >= RUNS))
    return _canonical(state._replace(last=worker.late, workers=workers, pinned=2 if state.pinned else 0))


def _check(state: State, number: int, worker: Worker) -> None:
    if worker.epoch < state.last:
        raise Violation(f"w{number} commits as the task's older owner")
    if not worker.knows:
        raise Violation(f"w{number} commits from an older position: changes are written twice")


def _others_outdated(state: State) -> State:
    return state._replace(workers=tuple(w._replace(knows=False) for w in state.workers))


def _with(state: State, number: int, worker: Worker) -> tuple[Worker, ...]:
    return (*state.workers[:number], worker, *state.workers[number + 1 :])


# --- one form for states that differ in nothing that matters ----------------------------------------------------------


def _highest(state: State) -> int:
    return max(state.last, state.told, *(e for w in state.workers for e in _epochs(w)))


def _epochs(w: Worker) -> tuple[int, ...]:
    return (w.given, w.revoked, w.sees, w.epoch, w.late, w.report)


def _canonical(state: State) -> State:
    """Returns the state in canonical form: workers are interchangeable, and only the order of task epochs counts."""
    workers = tuple(map(_plain, state.workers))
    last, told = state.last, state.told
    in_log = [e for w in workers for e in (w.given, w.revoked) if e]
    lowest = min(in_log, default=1 << 30)
    if told < lowest:
        told = 0
    if any(0 < w.report < lowest for w in workers):
        workers = tuple(w._replace(report=0) if w.report < lowest else w for w in workers)
    if not any(0 < e < last for w in workers for e in (w.epoch, w.late, w.sees, w.given)):
        last = 0
    seen = {last, told}
    for w in workers:
        seen.update(_epochs(w))
    seen.discard(0)
    if seen and max(seen) != len(seen):
        rank = {0: 0, **{epoch: number for number, epoch in enumerate(sorted(seen), 1)}}
        last, told = rank[last], rank[told]
        workers = tuple(
            w._replace(
                given=rank[w.given],
                revoked=rank[w.revoked],
                sees=rank[w.sees],
                epoch=rank[w.epoch],
                late=rank[w.late],
                report=rank[w.report],
            )
            for w in workers
        )
    is_stop = state.is_stop and told > 0
    return state._replace(last=last, told=told, is_stop=is_stop, workers=tuple(sorted(workers)))


def _plain(worker: Worker) -> Worker:
    if worker.newest and worker.phase == ABSENT and not worker.late:
        return worker._replace(newest=False)
    return worker
