"""Several herds, workers that come and go: who runs what, and that nothing else moves."""

from __future__ import annotations

from collections import Counter

import pytest
from cdcworker.coordinator.core import events

from .several_herds import FAILOVER_S, view_of


def test_a_cluster_starts_and_every_task_runs_on_exactly_one_worker(world):
    assert world.loads() == [4, 4, 4]
    assert len(world.running()) == 12


def test_tasks_that_a_joining_worker_does_not_take_are_not_restarted(world):
    before = world.running()
    starts = Counter(world.starts)
    world.boot("w3")
    world.until(lambda: world.has_no_overlap() and world.loads() == [3, 3, 3, 3] and world.is_settled(), FAILOVER_S)
    moved = {task for task, entry in world.running().items() if before[task] != entry}
    assert len(moved) == 3
    assert {entry.id for entry in (world.starts - starts)} == moved


def test_a_killed_follower_is_replaced_within_the_session_and_two_seconds(world):
    victim = next(n for n in world.nodes.values() if n is not world.leader())
    lost = {p.entry.id for p in victim.live_processes()}
    before = world.running()
    victim.kill()
    world.until(lambda: set(world.running()) != world.wanted(), 1.0)
    took = world.settle()
    assert took <= FAILOVER_S
    assert not world.fenced_ids, "the new owners' starts fence"
    after = world.running()
    assert {task for task in after if after[task] != before[task]} == lost
    assert world.loads() == [0, 6, 6][1:] or world.loads() == [6, 6]


def test_a_killed_leader_is_replaced_and_its_tasks_move(world):
    victim = world.leader()
    before = world.running()
    lost = {p.entry.id for p in victim.live_processes()}
    victim.kill()
    world.until(lambda: world.leader_or_none() is not None, FAILOVER_S)
    world.settle(3.0)
    after = world.running()
    assert {task for task in after if after[task] != before[task]} == lost


def test_a_worker_that_restarts_at_once_gets_its_tasks_back_without_waiting_for_the_lease(world):
    victim = next(n for n in world.nodes.values() if n is not world.leader())
    victim.kill()
    world.boot(victim.worker_id)
    assert world.settle(5.0) <= 5.0
    assert world.loads() == [4, 4, 4]


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_draining_worker_hands_over_and_leaves(world, who):
    node = world.leader() if who == "leader" else next(n for n in world.nodes.values() if n is not world.leader())
    before = world.running()
    own = {p.entry.id for p in node.live_processes()}
    node.tell(events.DrainRequested())
    took = world.until(lambda: world.has_no_overlap() and node.left, 5.0)
    assert node.left == "drained"
    assert took < 5.0
    world.until(lambda: world.leader_or_none() is not None, 5.0)
    world.settle(5.0)
    after = world.running()
    assert {task for task in after if after[task] != before[task]} == own
    assert not own & set(world.fenced_ids)


def test_the_view_shows_lost_tasks_as_unassigned(world):
    victim = next(n for n in world.nodes.values() if n is not world.leader())
    lost = {p.entry.id for p in victim.live_processes()}
    victim.kill()
    other = world.leader()
    world.until(lambda: victim.worker_id not in view_of(other).workers, FAILOVER_S)
    shown = view_of(other).statuses
    assert {shown[task].state for task in lost} == {"UNASSIGNED"}
    world.settle()
    assert {status.state for status in view_of(other).statuses.values()} == {"RUNNING"}
