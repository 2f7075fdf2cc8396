"""Leader fencing as an explicit-state model: group, claims, proofs and late commits, with nothing in it bounded.

Only differences count (who has the newest generation, whose producer is the newest, who has read all of the
log), so generations, producer epochs and the log itself grow without a limit while the states stay few: the search
covers every run of so many workers, however long. Each worker also stands for its own zombie: nothing ever has to
happen soon. What counts in the log is asked of the production fold.

Invariants, at each commit: generations never go down in the log; whoever writes has read all that is before it; the
fold takes the record, and nobody else's of the same epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from typing import Literal, NamedTuple

from cdcworker.coordinator.kafka.leadership import proof_of
from cdcworker.coordinator.log.config_fold import fold_accepted, leader_record, tombstone
from cdcworker.coordinator.model import ClusterState, Leader

from .model_search import Violation

NONE = -100
"""The rank of no generation."""
PENDING, CURRENT = 1, 0
"""The rank of the generation that the group has agreed on; older ones have ranks below it."""

FREE, INITED, READ, LEADS, SKIPS = range(5)
"""The roles: no claim, producer initialised, log read since, claim in the log. SKIPS: with a broken rule, a worker that
has read the log before it initialises its producer."""
IDLE, CLAIM_PROVED, CLAIM_LATE, PROVED, LATE = range(5)
"""The states of a write: nothing, a transaction whose proof was taken, and the same after a time-out: it may still be
committed."""


@dataclass(frozen=True)
class Rules:
    """The rules of the workers; each default is the rule of the design, every other value breaks it."""

    transactional_id: bool = True
    proof: Literal["captured", "fresh", "nobody", "none"] = "captured"
    acts_after_sync: bool = True
    reads: Literal["after init", "before init", "once"] = "after init"


class Worker(NamedTuple):
    member: bool = False
    """Tells whether it is a member of the agreed generation."""
    owner: bool = False
    """Tells whether it owns the partition in that generation."""
    joins: bool = False
    """`member` and `owner` in the generation that is being agreed on."""
    wins: bool = False
    library: int = NONE
    """The generation that the client library knows of; only metadata fetched when writing depends on it."""
    term: int = NONE
    """The generation captured when the partition was assigned; NONE: not the leader-elect, as far as it knows."""
    role: int = FREE
    whole: bool = False
    """Tells whether it has read every record of the log."""
    ahead: int = 0
    """The comparison of its epoch with the log's: 1 newer, 0 the same, −1 older."""
    write: int = IDLE
    proven: int = NONE
    """The generation of the proof in the open transaction."""
    newest: bool = False
    """Tells whether its producer is the last one initialised."""
    is_leader: bool = False
    """The leader that the fold of the log names."""


class State(NamedTuple):
    changing: bool
    last: int
    """The generation of the last record."""
    workers: tuple[Worker, ...]


def start(workers: int) -> State:
    return State(False, NONE, (Worker(),) * workers)


@cache
def counts(is_leader: str, ahead: int, who: str, is_claim: bool) -> bool:
    """Tells whether the production fold accepts the record, in a log whose epoch is 10."""
    log = ClusterState(epoch=10, leader=Leader(10, is_leader, is_leader, "")) if is_leader else ClusterState()
    epoch = 10 + ahead
    record = leader_record(Leader(epoch, who, who, "")) if is_claim else tombstone("connector/c")
    return bool(fold_accepted(log, [replace(record, headers={"e": str(epoch)})])[1])


@lru_cache(maxsize=1)
def takes_nobody() -> bool:
    """Tells whether production would send metadata of a consumer that never joined, which a broker accepts
    unchecked."""
    try:
        proof_of(b"CGMDv2:\xff\xff\xff\xffg\0\0")
    except ValueError:
        return False
    return True


def steps_of(rules: Rules, *, calm: bool = False):
    """The step function. `calm`: the group changes no more, and every answer arrives."""

    def steps(state: State) -> Iterator[tuple[str, State]]:
        if not calm:
            yield from _group_changes(state, rules)
        if state.changing:
            yield "the group syncs", _synced(state)
        for number, worker in enumerate(state.workers):
            for what, after in _worker_steps(state, number, worker, rules, calm):
                yield f"w{number} {what}", after

    return steps


def is_settled(state: State) -> bool:
    """Tells whether exactly one worker leads and its next write will be accepted."""
    leading = [
        w for w in state.workers if w.role == LEADS and w.newest and w.term == CURRENT and w.owner and w.is_leader
    ]
    return len(leading) == 1 and sum(w.role == LEADS and w.term != NONE for w in state.workers) == 1


# --- the group ------------------------------------------------------------------------------------------------------


def _group_changes(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    workers = state.workers
    if state.changing:
        lost = tuple(w._replace(joins=False, wins=False) for w in workers)
        yield "the group coordinator fails over before the sync", _canonical(state._replace(changing=False), lost)
        return
    for members in product((False, True), repeat=len(workers)):
        for winner in range(len(workers)):
            if not members[winner]:
                continue
            joined = [
                w._replace(joins=joins, wins=number == winner)
                for number, (w, joins) in enumerate(zip(workers, members, strict=True))
            ]
            if not rules.acts_after_sync:
                joined[winner] = _heard(joined[winner], PENDING, True, rules)
            names = "".join(str(number) for number, joins in enumerate(members) if joins)
            yield f"members {names} join, w{winner} wins", _canonical(state._replace(changing=True), tuple(joined))


def _synced(state: State) -> State:
    """The generation that was being agreed on is the current one: all others are one older."""

    def older(generation: int) -> int:
        return generation if generation == NONE else generation - 1

    workers = tuple(
        w._replace(
            member=w.joins,
            owner=w.wins,
            joins=False,
            wins=False,
            library=older(w.library),
            term=older(w.term),
            proven=older(w.proven),
        )
        for w in state.workers
    )
    return _canonical(State(False, older(state.last), workers), workers)


def _heard(worker: Worker, generation: int, owns: bool, rules: Rules) -> Worker:
    """The client tells: a refreshed proof leaves the role as it is, a lost term ends it. A write under way goes on."""
    library = generation if rules.proof == "fresh" else NONE
    if owns:
        return worker._replace(term=generation, library=library)
    return worker._replace(term=NONE, role=FREE, library=library)


# --- a worker -------------------------------------------------------------------------------------------------------


def _worker_steps(state: State, number: int, worker: Worker, rules: Rules, calm: bool) -> Iterator[tuple[str, State]]:
    def become(changed: Worker) -> State:
        return _canonical(state, (*state.workers[:number], changed, *state.workers[number + 1 :]))

    generation = CURRENT if worker.member else NONE
    heard = _heard(worker, generation, worker.member and worker.owner, rules)
    if heard != worker:
        yield "hears of the group", become(heard)
    if rules.proof == "fresh" and worker.library != generation:
        yield "'s client library joins", become(worker._replace(library=generation))
    if worker.term != NONE:
        yield from _claim_steps(state, number, worker, rules, become)
    if worker.term != NONE and worker.write == IDLE and worker.role in (READ, LEADS):
        yield _prove(state, worker, rules, become)
    if worker.write in (CLAIM_PROVED, PROVED):
        yield "commits", _commit(state, number, worker, rules)
        if not calm:
            yield "gets no answer to its commit", become(worker._replace(write=worker.write + 1, role=FREE))
    elif worker.write in (CLAIM_LATE, LATE):
        yield "'s late commit arrives", _commit(state, number, worker, rules)


def _claim_steps(state: State, number: int, worker: Worker, rules: Rules, become) -> Iterator[tuple[str, State]]:
    if rules.reads == "before init" and worker.role == FREE:
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
    if worker.role == INITED:
        yield "reads the log", become(worker._replace(role=READ, whole=True, ahead=1))


def _prove(state: State, worker: Worker, rules: Rules, become) -> tuple[str, State]:
    """Begins, produces and sends the proof: the producer's epoch and the group's generation are checked, in this
    order."""
    if rules.transactional_id and not worker.newest:
        return "is fenced", become(_fenced(worker, rules))
    generation = PENDING if state.changing else CURRENT
    is_member = worker.joins if state.changing else worker.member
    shown = worker.library if rules.proof == "fresh" else worker.term
    is_taken = shown == generation and is_member
    if rules.proof in ("none", "nobody") or takes_nobody():
        is_taken = True
    if not is_taken:
        return "'s proof is refused", become(worker._replace(role=FREE))
    write = PROVED if worker.role == LEADS else CLAIM_PROVED
    return "begins to write, its proof is taken", become(worker._replace(write=write, proven=worker.term))


def _fenced(worker: Worker, rules: Rules) -> Worker:
    return worker._replace(role=SKIPS if rules.reads == "once" else FREE, write=IDLE)


def _commit(state: State, number: int, worker: Worker, rules: Rules) -> State:
    if rules.transactional_id and not worker.newest:
        refused = _fenced(worker, rules) if worker.write in (CLAIM_PROVED, PROVED) else worker._replace(write=IDLE)
        return _canonical(state, (*state.workers[:number], refused, *state.workers[number + 1 :]))
    is_claim = worker.write in (CLAIM_PROVED, CLAIM_LATE)
    if state.last != NONE and worker.proven < state.last:
        raise Violation(f"w{number} commits with an older generation than the record before it has")
    if not worker.whole:
        raise Violation(f"w{number} commits from a view that lacks records of the log")
    is_leader = next((f"b{n}" for n, w in enumerate(state.workers) if w.is_leader), "")
    if not counts(is_leader, worker.ahead, f"b{number}", is_claim):
        raise Violation(f"w{number} commits a record that does not count")
    rises = worker.ahead > 0
    workers = [
        w._replace(whole=False, ahead=max(-1, w.ahead - rises), is_leader=w.is_leader and not is_claim)
        for w in state.workers
    ]
    role = LEADS if worker.role == READ and is_claim else worker.role
    workers[number] = worker._replace(
        whole=True, ahead=0, is_leader=is_claim or worker.is_leader, write=IDLE, role=role, proven=NONE
    )
    return _canonical(state._replace(last=worker.proven), tuple(workers))


# --- one form for states that differ in nothing that matters ----------------------------------------------------------


def _canonical(state: State, workers: tuple[Worker, ...]) -> State:
    """Returns the state in canonical form: workers are interchangeable, and only the order of old generations
    counts."""
    workers = tuple(map(_plain, workers))
    last = state.last
    old = {last}
    for worker in workers:
        old.update((worker.term, worker.proven, worker.library))
    old -= {NONE, CURRENT, PENDING}
    if old and min(old) != -len(old):
        rank = {generation: -number for number, generation in enumerate(sorted(old, reverse=True), 1)}
        last = rank.get(last, last)
        workers = tuple(
            w._replace(
                library=rank.get(w.library, w.library),
                term=rank.get(w.term, w.term),
                proven=rank.get(w.proven, w.proven),
            )
            for w in workers
        )
    return State(state.changing, last, tuple(sorted(workers)))


def _plain(worker: Worker) -> Worker:
    """Returns the worker without fields that cannot matter any more."""
    if worker.write == IDLE and worker.proven != NONE:
        worker = worker._replace(proven=NONE)
    if worker.role in (FREE, INITED) and worker.write == IDLE:
        worker = worker._replace(whole=False, ahead=0)
    return worker
