"""A leak is seen although processes are started anew, and what only goes up and down is none."""

from __future__ import annotations

import random

from tests.soak.growth import Allowed, Point, judge

ALLOWED = Allowed(0.2, 10)
HOUR = 3600


def run(value, hours: float = 3, life_s: float = 1200, every_s: float = 20) -> list[Point]:
    """Samples of processes that live so long, one after the other; `value` takes the time and the age."""
    return [
        Point(at, value(at, at % life_s), f"p{int(at // life_s)}", at % life_s)
        for at in (number * every_s for number in range(int(hours * HOUR / every_s)))
    ]


def test_noise_is_flat() -> None:
    rnd = random.Random(1)
    verdict = judge(run(lambda at, age: rnd.gauss(100, 8)), ALLOWED)
    assert verdict.word == "flat"
    assert abs(verdict.per_hour) < 10


def test_a_rise_across_processes_is_seen() -> None:
    assert judge(run(lambda at, age: 100 + 20 * at / HOUR), ALLOWED).word == "grows"


def test_a_leak_within_processes_is_seen_although_each_begins_anew() -> None:
    leaking = run(lambda at, age: 100 + 60 * age / HOUR)
    verdict = judge(leaking, ALLOWED)
    assert verdict.word == "grows"
    assert 50 < verdict.per_hour < 70
    assert abs(verdict.last - verdict.first) < 2


def test_what_a_start_takes_is_no_growth() -> None:
    verdict = judge(run(lambda at, age: min(age, 100)), ALLOWED)
    assert (verdict.word, verdict.first) == ("flat", 100)


def test_short_lives_say_nothing_by_themselves_and_levels_count() -> None:
    rnd = random.Random(2)
    lives = run(lambda at, age: 100 + age / 10 + rnd.random(), life_s=300)
    assert judge(lives, ALLOWED) == judge(lives, ALLOWED)
    assert (judge(lives, ALLOWED).word, judge(lives, ALLOWED).per_hour) == ("flat", None)


def test_single_peaks_and_a_lower_end_are_no_growth() -> None:
    peaks = run(lambda at, age: 5_000 if at in (10_000, 10_020) else 100)
    assert judge(peaks, ALLOWED).word == "flat"
    assert judge(run(lambda at, age: 500 if at < 2 * HOUR else 90), ALLOWED).word == "flat"


def test_a_short_run_is_not_judged() -> None:
    assert judge(run(lambda at, age: at, hours=0.4), ALLOWED).word == "too short"
    assert judge([], ALLOWED).word == "too short"
