"""Histories of a simulated cluster by the seed of the commit: no invariant breaks, and a seed always gives the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .batch import Summary, show
from .faults import KINDS
from .run import PROFILES, History, Profile, Result, run_seed
from .stage import stage
from .workers import NAMES, Node, Setting

ROOT = Path(__file__).resolve().parents[2]
CI_SEEDS = 8
LONG_SEEDS = {"ci": 1_500, "long": 300}
"""By profile: about half an hour on two cores, a sixth of what the long tier may take."""
SEEDS_PER_COMMIT = 100_000
LOSSES, LOSSES_LONG = 5, 200
SHARE_MAX = 0.4
"""The part of its session after which a dead leader is followed: 4 s of 10."""


def first_seed(config: pytest.Config) -> int:
    """The tiers give a seed by commit, so that each commit has a range of histories for itself."""
    given = getattr(config.option, "randomly_seed", None) or os.environ.get("CDC_TEST_SEED") or 1
    return int(given) % 1_000_000_007 * SEEDS_PER_COMMIT


def all_hold(first: int, count: int, profile: str) -> None:
    """In processes of their own, as the printed command does it."""
    argv = [sys.executable, "-m", "tests.simulation.batch", "--seed", str(first), "--count", str(count)]
    done = subprocess.run(
        [*argv, "--profile", profile], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert f"{2 * count} histories of {count} seeds" in done.stdout


@pytest.mark.timeout(2700)
def test_histories_keep_every_invariant_and_run_twice_they_are_the_same(request):
    all_hold(first_seed(request.config), CI_SEEDS, "ci")


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("profile", sorted(LONG_SEEDS))
def test_many_histories_keep_every_invariant_and_run_twice_they_are_the_same(request, profile):
    all_hold(first_seed(request.config) + CI_SEEDS, LONG_SEEDS[profile], profile)


@pytest.mark.sampled(2)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_strikes(kind):
    """Each alone, so that none hides behind the others, and none is never drawn."""
    result = run_seed(KINDS.index(kind), faults=(2, 3), ops=(1, 2), fault_s=6.0, only=(kind,))
    assert result.violations == []
    assert result.stats["faults"]


def test_a_calm_cluster_restarts_no_task():
    result = run_seed(7, "calm", ops=(0, 0))
    assert result.violations == []
    assert result.stats["faults"] == {}
    assert set(PROFILES) == {"ci", "long", "calm"}


def test_a_failing_seed_prints_one_command_that_replays_it(capsys):
    summary = Summary()
    for run in ("first", "second"):
        summary.take(Result(2, "same", []), "ci")
        summary.take(Result(3, "same", ["I12 leader: two of them"]), "ci")
        summary.take(Result(4, run, []), "long")
    show(summary, 1.0, sys.stdout)
    out = capsys.readouterr().out
    assert out.count("FAILED seed 3: I12 leader: two of them") == 1
    assert "replay: python -m tests.simulation.run --seed 3 --profile ci --trace" in out
    assert "FAILED seed 4: two runs differ" in out
    assert "FAILED seed 2:" not in out
    assert "6 histories of 3 seeds" in out


# --- the loss of the leader ----------------------------------------------------------------------------------------------


@contextmanager
def cluster(seed: int) -> Iterator[History]:
    """A calm cluster of three workers that has a leader."""
    with stage(seed, Setting()) as sim:
        history = History(sim, Profile(workers=(3, 3), faults=(0, 0)))
        history._start()
        history._until(lambda: history.faults.leader() is not None, 30.0, "nobody leads")
        sim.world.run(sim.world.now + 2.0)
        yield history


def follow_s(history: History, lose: Callable[[Node], object]) -> float:
    """Returns after how many seconds another worker leads, as a share of the session."""
    leader = history.faults.leader()
    assert leader is not None
    began, epoch = history.world.now, history.checks.leader_epoch
    lose(leader)
    history._until(lambda: history.checks.leader_epoch > epoch, 30.0, "nobody follows")
    return (history.world.now - began) / history.sim.setting.session_s


def replaced_early(seed: int) -> None:
    with cluster(seed) as history:
        share = follow_s(history, lambda node: node.kill())
        assert history.world.violations == []
        assert share <= SHARE_MAX
        assert history.sim.removals


def test_a_killed_leader_is_followed_within_four_tenths_of_its_session():
    for seed in range(LOSSES):
        replaced_early(seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_killed_leaders_are_followed_within_four_tenths_of_their_session():
    for seed in range(LOSSES, LOSSES + LOSSES_LONG):
        replaced_early(seed)


def test_a_killed_leader_that_is_started_again_at_once_is_followed_as_early():
    with cluster(3) as history:

        def restart(node: Node) -> None:
            node.kill()
            history.world.at(0.3, node.boot)

        assert follow_s(history, restart) <= SHARE_MAX
        assert history.world.violations == []


def test_a_stopped_leader_is_left_to_its_session():
    with cluster(1) as history:

        def stop(node: Node) -> None:
            assert node.proc is not None
            node.proc.pause()

        assert follow_s(history, stop) > SHARE_MAX
        assert history.sim.removals == []


def test_a_leader_that_is_refused_to_every_follower_and_renews_its_lease_goes_on():
    with cluster(2) as history:
        leader, epoch = history.faults.leader(), history.checks.leader_epoch
        assert leader is not None
        leader.refuses.update(history.sim.nodes)
        history.world.run(history.world.now + 5 * history.sim.setting.session_s)
        assert history.checks.leader_epoch == epoch
        assert history.sim.removals == []


def test_a_leader_that_was_taken_out_wrongly_again_and_again_moves_a_bounded_number_of_times():
    """Its lease does not arrive and its address refuses, for a moment in each of twenty sessions."""
    with cluster(4) as history:
        session_s, begun = history.sim.setting.session_s, history.world.now
        history.faults.random.seed(7)
        while history.world.now < begun + 20 * session_s:
            leader = history.faults.leader()
            if leader is not None:
                leader.refuses.update(history.sim.nodes)
                rule = history.faults.rules
                history.faults._cut("cut_status", f"p:{NAMES.status}/0", leader.worker_id)
                history.world.run(history.world.now + 0.4 * session_s)
                leader.refuses.clear()
                rule.clear()
            history.world.run(history.world.now + 0.6 * session_s)
        assert history.world.violations == []
        # A worker errs once, then after one session, two, four, eight of them; all three judge at the same moments.
        assert 0 < len({one.epoch for one in history.sim.removals}) <= 6
