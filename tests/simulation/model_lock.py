"""Leader fencing where no broker checks the group: a lock node's number, a claim in the log, and a fixed producer id.

As in the model of the group nothing is bounded: lock nodes are ranks, the log is what its newest records say. Whether
a claim may be made, and whether it may lead once it was read back, is asked of the production rules.

Invariants, at each decision in the log: no claim of a newer lock node stands before it; whoever writes has read all
that is before it; the fold takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from cdcworker.coordinator.api import Term
from cdcworker.coordinator.log.leader_claim import is_newest_claim, reason_not_to_claim
from cdcworker.coordinator.model import ClusterState, Presence

from .model_leader import CURRENT, NONE, counts
from .model_search import Violation

FREE, INITED, READ, LEADS, SKIPS = range(5)
"""The roles: no claim, producer initialised, log read since, claim read back. SKIPS: the log was read before the
producer was initialised."""
IDLE, CLAIM, CLAIM_LATE, DECISION, DECISION_LATE = range(5)


@dataclass(frozen=True)
class Rules:
    """The rules of the workers; each default is the rule of the design."""

    transactional_id: bool = True
    own_claim: bool = True
    """The claim is a transaction of its own, and decisions follow when it was read back as the newest."""
    claim_per_init: bool = True
    """Tells whether a worker claims after it has initialised its producer; otherwise it decides once it has read the
    log."""
    looks_first: bool = True
    """Tells whether a lock node older than a claim in the log must not claim."""
    reads: Literal["after init", "before init"] = "after init"


class Worker(NamedTuple):
    owner: bool = False
    """Tells whether it owns the newest lock node."""
    term: int = NONE
    """The lock node that it holds, as far as it knows."""
    hint: int = NONE
    """The lock node by which it claimed."""
    role: int = FREE
    whole: bool = False
    ahead: int = 0
    write: int = IDLE
    newest: bool = False


class State(NamedTuple):
    claim: int
    """The newest lock node that has a claim in the log."""
    last: int
    """The lock node of the last decision."""
    workers: tuple[Worker, ...]


Become = Callable[[Worker], State]


def start(workers: int) -> State:
    return State(NONE, NONE, (Worker(),) * workers)


@cache
def may_claim(mine: int, newest: int) -> bool:
    return reason_not_to_claim(_log(newest, "other"), Term(None, 100 + mine, "e"), None) is None


@cache
def may_lead(mine: int, newest: int) -> bool:
    """Tells whether a worker may lead after its claim was read back."""
    me = Presence("me", "me", "", "", "")
    log = _log(newest, "other")
    log.settings[f"claim/{100 + mine}"] = {"ensemble": "e", "epoch": 7, "boot_id": "me"}
    return is_newest_claim(log, Term(None, 100 + mine, "e"), 7, me)


def _log(newest: int, boot_id: str) -> ClusterState:
    if newest == NONE:
        return ClusterState(settings={})
    return ClusterState(settings={f"claim/{100 + newest}": {"ensemble": "e", "epoch": 5, "boot_id": boot_id}})


def steps_of(rules: Rules):
    def steps(state: State) -> Iterator[tuple[str, State]]:
        for number in range(len(state.workers)):
            yield f"w{number} gets the lock", _locked(state, number)
        for number, worker in enumerate(state.workers):
            for what, after in _worker_steps(state, number, worker, rules):
                yield f"w{number} {what}", after

    return steps


def _locked(state: State, winner: int) -> State:
    """A new lock node, newer than all: who had one before is not told."""

    def older(node: int) -> int:
        return node if node == NONE else node - 1

    workers = tuple(
        w._replace(owner=number == winner, term=older(w.term), hint=older(w.hint))
        for number, w in enumerate(state.workers)
    )
    return _canonical(State(older(state.claim), older(state.last), workers), workers)


def _worker_steps(state: State, number: int, worker: Worker, rules: Rules) -> Iterator[tuple[str, State]]:
    def become(changed: Worker) -> State:
        return _canonical(state, (*state.workers[:number], changed, *state.workers[number + 1 :]))

    if worker.owner and worker.term != CURRENT:
        yield "hears that it has the lock", become(worker._replace(term=CURRENT))
    elif not worker.owner and worker.term != NONE:
        yield "hears that it lost the lock", become(worker._replace(term=NONE, role=FREE))
    if worker.term != NONE:
        yield from _claim_steps(state, number, worker, rules, become)
    if worker.write in (CLAIM, DECISION):
        yield "commits", _commit(state, number, worker, rules)
        yield "gets no answer to its commit", become(worker._replace(write=worker.write + 1, role=FREE))
    elif worker.write in (CLAIM_LATE, DECISION_LATE):
        yield "'s late commit arrives", _commit(state, number, worker, rules)


def _claim_steps(
    state: State, number: int, worker: Worker, rules: Rules, become: Become
) -> Iterator[tuple[str, State]]:
    sees_older = rules.looks_first and not may_claim(worker.term, state.claim)
    if worker.role == FREE and rules.reads == "before init":
        if not sees_older:
            yield "reads the log", become(worker._replace(role=SKIPS, whole=True, ahead=1))
    elif worker.role in (FREE, SKIPS):
        others = tuple(w._replace(newest=False) for w in state.workers)
        has_read = worker.role == SKIPS
        inited = worker._replace(
            role=READ if has_read else INITED,
            write=IDLE,
            newest=rules.transactional_id,
            whole=has_read and worker.whole,
        )
        yield "initialises its producer", _canonical(state, (*others[:number], inited, *others[number + 1 :]))
    elif worker.role == INITED:
        after = worker._replace(whole=True, ahead=1)
        if not rules.claim_per_init:
            yield "reads the log and goes on", become(after._replace(role=LEADS, hint=worker.term))
        elif sees_older:
            yield "reads a newer claim", become(worker._replace(role=FREE))
        else:
            yield "reads the log", become(after._replace(role=READ))
    if worker.write == IDLE and worker.role in (READ, LEADS):
        yield _begin(worker, rules, become)


def _begin(worker: Worker, rules: Rules, become: Become) -> tuple[str, State]:
    if rules.transactional_id and not worker.newest:
        return "is fenced", become(worker._replace(role=FREE))
    if worker.role == LEADS:
        return "begins a decision", become(worker._replace(write=DECISION))
    if rules.own_claim:
        return "begins its claim", become(worker._replace(write=CLAIM, hint=worker.term))
    return "begins a decision", become(worker._replace(write=DECISION, hint=worker.term))


def _commit(state: State, number: int, worker: Worker, rules: Rules) -> State:
    is_claim = worker.write in (CLAIM, CLAIM_LATE)
    if rules.transactional_id and not worker.newest:
        refused = worker._replace(write=IDLE, role=FREE)
        return _canonical(state, (*state.workers[:number], refused, *state.workers[number + 1 :]))
    if not is_claim:
        _check_decision(state, number, worker)
    rises = worker.ahead > 0
    workers = [w._replace(whole=w.whole and is_claim, ahead=max(-1, w.ahead - rises)) for w in state.workers]
    after = worker._replace(whole=True, ahead=0, write=IDLE)
    claim = max(state.claim, worker.hint)
    if is_claim:
        # What was read back ends with the own claim at the earliest: nothing after it needs to be known.
        leads = worker.role == READ and may_lead(worker.hint, claim)
        workers[number] = after._replace(role=LEADS if leads else FREE)
        return _canonical(state._replace(claim=claim), tuple(workers))
    workers[number] = after._replace(role=LEADS if worker.role == READ else worker.role)
    return _canonical(state._replace(claim=claim, last=worker.hint), tuple(workers))


def _check_decision(state: State, number: int, worker: Worker) -> None:
    if worker.hint < state.claim:
        raise Violation(f"w{number} decides although a newer lock node has claimed")
    if state.last != NONE and worker.hint < state.last:
        raise Violation(f"w{number} decides by an older lock node than the decision before it")
    if not worker.whole:
        raise Violation(f"w{number} decides from a view that lacks decisions of the log")
    if not counts("log", worker.ahead, f"b{number}", False):
        raise Violation(f"w{number} commits a record that does not count")


def _canonical(state: State, workers: tuple[Worker, ...]) -> State:
    workers = tuple(map(_plain, workers))
    old = {state.claim, state.last}
    for worker in workers:
        old.update((worker.term, worker.hint))
    old -= {NONE, CURRENT}
    claim, last = state.claim, state.last
    if old and min(old) != -len(old):
        rank = {node: -number for number, node in enumerate(sorted(old, reverse=True), 1)}
        claim, last = rank.get(claim, claim), rank.get(last, last)
        workers = tuple(w._replace(term=rank.get(w.term, w.term), hint=rank.get(w.hint, w.hint)) for w in workers)
    return State(claim, last, tuple(sorted(workers)))


def _plain(worker: Worker) -> Worker:
    if worker.role in (FREE, INITED) and worker.write == IDLE:
        return worker._replace(whole=False, ahead=0, hint=NONE)
    return worker
