"""Places where a process may be made to fail: which hit counts, and what happens there."""

from __future__ import annotations

import pytest
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import INTERNAL, CdcError


@pytest.fixture
def arm():
    yield failpoints.arm
    failpoints.arm("")


def fired(*places: str) -> list[tuple]:
    """Number, code and message of each error that was raised."""
    found = []
    for number, place in enumerate(places):
        try:
            failpoints.hit(place)
        except CdcError as error:
            found.append((number, error.code, error.message))
    return found


@pytest.mark.parametrize(
    ("text", "places", "at"),
    [
        ("", "xxx", []),
        ("x=error:internal.unexpected", "yxx", [1]),
        ("x=error:internal.unexpected@2", "xyxx", [2]),
        ("x=error:internal.unexpected, y=error:internal.unexpected@2", "xyy", [0, 2]),
        ("y>x=error:internal.unexpected", "xxyxx", [3]),
        ("y>x=error:internal.unexpected@2", "yxxyyx", [5]),
        ("x>x=error:internal.unexpected", "xx", [1]),
    ],
)
def test_the_hit_that_counts(arm, text, places, at):
    arm(text)
    assert fired(*places) == [(number, INTERNAL, f"failpoint {places[number]}") for number in at]


def test_a_place_that_sleeps_says_so(arm, caplog):
    arm("x=sleep:0")
    failpoints.hit("x")
    failpoints.hit("x")
    assert caplog.text.count("failpoint x sleeps") == 1
