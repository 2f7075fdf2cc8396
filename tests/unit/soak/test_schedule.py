"""The same seed makes the same faults, in whichever parts a soak is run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soak.schedule import CALM_EVERY, HOLD_S, KINDS, WAIT_S, Fault, fault


def test_a_seed_makes_the_same_faults_again_from_any_number_on() -> None:
    first = [fault(7, number) for number in range(200)]
    assert [fault(7, number) for number in reversed(range(200))] == first[::-1]
    assert [fault(8, number) for number in range(200)] != first
    assert len({one.draw for one in first}) == 200


def test_each_kind_comes_once_in_a_round_and_rounds_have_orders_of_their_own() -> None:
    rounds = [[fault(7, turn * len(KINDS) + place).kind for place in range(len(KINDS))] for turn in range(3)]
    assert all(Counter(kinds) == Counter(KINDS) for kinds in rounds)
    assert rounds[0] != rounds[1] != rounds[2]


def test_waits_are_short_enough_for_the_wanted_rate() -> None:
    found = [fault(3, number) for number in range(500)]
    assert all(WAIT_S[0] <= one.wait_s <= WAIT_S[1] and HOLD_S[0] <= one.hold_s <= HOLD_S[1] for one in found)
    assert sum(one.ends_in_calm for one in found) == 500 // CALM_EVERY
    # Half of the time at 120 faults an hour is left for the faults themselves and the comparisons.
    assert sum(one.wait_s for one in found) / 500 < 15


def test_a_draw_chooses_every_choice_and_no_choice_is_an_error() -> None:
    assert {Fault(0, "x", 0, 0, draw / 10).one_of("abc") for draw in range(10)} == set("abc")
    with pytest.raises(ValueError, match="nobody to hit: x"):
        Fault(0, "x", 0, 0, 0.5).one_of([])
