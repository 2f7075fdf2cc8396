"""Error budgets: seconds by day, of which those of the last thirty days count."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cdcworker.worker.alerts.budgets import DAYS, Budget, Seconds, expired, from_json, spent, to_json

DAY_MS = 86_400_000
NOON_MS = round(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)


def test_days_that_are_too_old_do_not_count():
    budget = Budget("fresh", "shop")
    for day in range(40):
        budget = spent(budget, NOON_MS + day * DAY_MS, 100.0, is_late=day % 2 == 0)
    assert len(budget.days) == DAYS
    assert budget.total() == Seconds(100.0 * DAYS, 50.0 * DAYS)


def test_the_budget_is_a_share_of_thirty_days():
    budget = spent(Budget("fresh", "shop"), NOON_MS, 43.2 * 60, is_late=True)
    assert budget.left(0.999) == pytest.approx(0.0)
    assert budget.left(0.99) == pytest.approx(0.9)
    assert Budget("fresh", "shop").left(0.999) == 1.0


def test_a_record_reads_back_as_it_was_written():
    budget = spent(Budget("fresh", "a/b"), NOON_MS, 2.5, is_late=True)
    assert from_json(to_json(budget)) == budget


def test_what_has_no_day_left_is_forgotten():
    kept, old = (
        spent(Budget("fresh", "a"), NOON_MS, 1.0, is_late=False),
        Budget("fresh", "b", {"2026-01-30": Seconds(1, 1)}),
    )
    assert expired({one.key: one for one in (kept, old)}, NOON_MS) == [("fresh", "b")]
