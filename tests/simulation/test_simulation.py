"""Histories of a simulated cluster by the seed of the commit: no invariant breaks, and a seed always gives the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .batch import Summary, show
from .faults import KINDS
from .run import PROFILES, Result, run_seed

ROOT = Path(__file__).resolve().parents[2]
CI_SEEDS = 15
LONG_SEEDS = {"ci": 1_500, "long": 300}
"""By profile: about half an hour on two cores, a sixth of what the long tier may take."""
SEEDS_PER_COMMIT = 100_000


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


@pytest.mark.timeout(3600)
def test_every_kind_of_fault_strikes():
    """Each alone, so that none hides behind the others, and none is never drawn."""
    for number, kind in enumerate(KINDS):
        result = run_seed(number, faults=(2, 3), ops=(1, 2), fault_s=6.0, only=(kind,))
        assert result.violations == [], kind
        assert result.stats["faults"], kind


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
