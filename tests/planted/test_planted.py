"""Every planted bug is caught by the test that is noted for it; the long tier looks again for what catches some."""

from __future__ import annotations

import pytest

from tests.sampling import seed_of, share

from .run import BUGS, CAUGHT, cheapest, check, derive, load
from .tree import ROOT, Bug, mutate

DERIVED = ROOT / "tests" / "results" / "caught.json"
DEEP = tuple(bug for bug in BUGS if bug.deep)
SHALLOW = tuple(bug for bug in BUGS if not bug.deep)
KAFKA = tuple(bug for bug in DEEP if "postgres" not in bug.file)
POSTGRES = tuple(bug for bug in DEEP if "postgres" in bug.file)
SHARES = 24
"""Of which each commit tries one."""
DERIVED_SHARES = 16
"""Of which each run of the long tier looks for the catchers of one anew: a bug takes minutes in every layer."""


def all_caught(bugs: tuple[Bug, ...]) -> None:
    assert bugs
    verdicts = check(bugs)
    for verdict in verdicts:
        print(f"{verdict.bug.id}: {verdict.by} {verdict.seconds:.1f} s")
    survivors = [v for v in verdicts if not v.caught]
    assert not survivors, "\n\n".join(
        f"{v.bug.id} survives ({v.by}): {v.bug.why}\n{v.output[-600:]}" for v in survivors
    )


def test_each_planted_bug_changes_one_place_of_the_code_as_it_is():
    assert len({bug.id for bug in BUGS}) == len(BUGS) >= 24
    for bug in BUGS:
        file, changed = mutate(bug)
        compile(changed, file, "exec")


def test_what_catches_each_planted_bug_is_noted():
    noted = load()
    assert set(noted) == {bug.id for bug in BUGS}, f"make it right with: python -m tests.planted.run derive ({CAUGHT})"
    assert all(cheapest(catchers) for catchers in noted.values())


def test_each_test_that_is_noted_is_there():
    noted = {
        one for catchers in load().values() for found in catchers.values() for one in found if isinstance(one, str)
    }
    assert noted
    for one in noted:
        file, *_, name = one.split("[")[0].split("::")
        assert f"def {name}(" in (ROOT / file).read_text(), f"{one}: python -m tests.planted.run derive unit"


def shares(
    bugs: tuple[Bug, ...], config: pytest.Config, count: int = SHARES
) -> tuple[tuple[Bug, ...], tuple[Bug, ...]]:
    """The bugs that this commit tries, by its seed, and the others."""
    chosen = share((bug.id for bug in bugs), seed_of(config), min(count, len(bugs)))
    return tuple(bug for bug in bugs if bug.id in chosen), tuple(bug for bug in bugs if bug.id not in chosen)


@pytest.mark.timeout(900)
def test_a_share_of_the_planted_bugs_by_the_seed_of_the_commit_is_caught(request):
    all_caught(shares(SHALLOW, request.config)[0])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_other_shares_of_the_planted_bugs_are_caught(request):
    all_caught(shares(SHALLOW, request.config)[1])


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_a_share_of_the_planted_bugs_that_only_a_broker_shows_is_caught(request):
    all_caught(shares(KAFKA, request.config)[0])


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(1200)
def test_the_other_shares_of_the_planted_bugs_that_only_a_broker_shows_are_caught(request):
    all_caught(shares(KAFKA, request.config)[1])


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_planted_bugs_that_only_a_database_shows_are_caught():
    all_caught(POSTGRES)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.timeout(3600)
def test_the_whole_suite_catches_a_share_of_the_planted_bugs(request):
    DERIVED.unlink(missing_ok=True)
    survivors = derive(shares(BUGS, request.config, DERIVED_SHARES)[0], into=DERIVED)
    assert not survivors, "\n".join(f"{bug.id} survives: {bug.why}" for bug in survivors)
