"""The models of leader fencing and of task ownership: the design's rules hold in every state, each broken rule is
found.

Two workers (with all their zombies) in the short version, three in the long tier; the number of states is printed.
"""

from __future__ import annotations

import pytest

from . import model_leader, model_lock, model_tasks
from .model_search import Found, search, unreachable

GROUP, LOCK, TASKS = model_leader.Rules, model_lock.Rules, model_tasks.Rules


def show(what: str, found: Found) -> Found:
    print(f"{what}: {found}")
    return found


def holds(what: str, model, rules, workers: int) -> None:
    found = show(what, search(model.start(workers), model.steps_of(rules)))
    assert not found.violation, found


def breaks(what: str, model, rules, why: str) -> None:
    found = show(what, search(model.start(2), model.steps_of(rules), with_way=False))
    assert why in found.violation, f"the model does not see what is wrong with: {what}\n{found}"


# --- the leader, elected by a group whose generation the broker checks ------------------------------------------------


def test_a_leader_of_the_group_is_fenced_in_every_order_of_steps():
    holds("group", model_leader, GROUP(), 2)


@pytest.mark.parametrize(
    ("what", "rules", "why"),
    [
        ("the group alone", GROUP(transactional_id=False, proof="none"), "lacks records"),
        ("a fixed transactional id alone", GROUP(proof="none"), "older generation"),
        ("the proof alone", GROUP(transactional_id=False), "lacks records"),
        ("acting before the group has synced", GROUP(acts_after_sync=False), "older generation"),
        ("a proof fetched when writing", GROUP(proof="fresh"), "older generation"),
        ("the metadata of a consumer that never joined", GROUP(proof="nobody"), "older generation"),
        ("reading the log before the producer is initialised", GROUP(reads="before init"), "lacks records"),
        ("not reading the log again for the next claim", GROUP(reads="once"), "lacks records"),
    ],
)
def test_each_part_of_the_groups_fence_is_needed(what, rules, why):
    breaks(what, model_leader, rules, why)


# --- the leader, elected by a lock that no broker checks --------------------------------------------------------------


def test_a_leader_by_lock_is_fenced_in_every_order_of_steps():
    holds("lock", model_lock, LOCK(), 2)


@pytest.mark.parametrize(
    ("what", "rules", "why"),
    [
        ("no claim of its own, read before the producer", LOCK(own_claim=False, reads="before init"), "lacks"),
        ("neither a claim nor a look for newer ones", LOCK(own_claim=False, looks_first=False), "newer lock node"),
        ("no new claim after the producer", LOCK(claim_per_init=False), "newer lock node"),
        ("no transactional id", LOCK(transactional_id=False), "newer lock node"),
    ],
)
def test_each_part_of_the_locks_fence_is_needed(what, rules, why):
    breaks(what, model_lock, rules, why)


# --- a task -----------------------------------------------------------------------------------------------------------


def test_a_task_has_one_committing_owner_in_every_order_of_steps():
    holds("task", model_tasks, TASKS(), 2)


def test_a_task_that_is_handed_over_never_runs_twice():
    for workers in (2, 3):
        holds(f"task, nobody taken for dead, {workers} workers", model_tasks, TASKS(faults=False), workers)


@pytest.mark.parametrize(
    ("what", "rules", "why"),
    [
        ("no new producer at the start", TASKS(order=("check", "read")), "half written"),
        ("the check before the fence", TASKS(order=("check", "init", "read")), "older owner"),
        ("the position read before the fence", TASKS(order=("read", "init", "check")), "older position"),
        ("asking the parent process", TASKS(asks="parent"), "older owner"),
        ("asking nobody", TASKS(asks="nobody"), "older owner"),
        ("the old producer after a time-out", TASKS(new_producer_after_timeout=False), "half written"),
        ("the position in another transaction", TASKS(one_transaction=False), "older position"),
        ("reading to the last stable offset", TASKS(reads_to="stable"), "older position"),
        ("assigning before the stop was reported", TASKS(waits_for_report=False, faults=False), "while"),
    ],
)
def test_each_rule_of_task_ownership_is_needed(what, rules, why):
    breaks(what, model_tasks, rules, why)


# --- long -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("what", "model", "rules"), [("group", model_leader, GROUP()), ("task", model_tasks, TASKS())])
def test_once_nothing_fails_any_more_one_leads_and_the_task_runs_from_every_state(what, model, rules):
    calm = model.steps_of(rules, calm=True)
    found = show(f"{what}, liveness", unreachable(model.start(2), model.steps_of(rules), calm, model.is_settled))
    assert found.dead == 0, f"from {found.dead} states it never comes to that"


@pytest.mark.long
def test_the_claim_and_reading_after_the_producer_guard_each_other():
    """Either is enough alone; the design keeps both."""
    holds("lock, without a claim of its own", model_lock, LOCK(own_claim=False), 2)
    holds("lock, without looking before the claim", model_lock, LOCK(looks_first=False), 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("what", "model", "rules"),
    [("lock", model_lock, LOCK()), ("task", model_tasks, TASKS()), ("group", model_leader, GROUP())],
)
def test_the_models_hold_for_three_workers(what, model, rules):
    holds(f"{what}, 3 workers", model, rules, 3)
