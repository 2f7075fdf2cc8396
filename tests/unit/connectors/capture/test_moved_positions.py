"""What is said of another place: times with their zones, and sums of transactions."""

from __future__ import annotations

import pytest
from cdcworker.connectors.capture.moved_positions import TransactionSum, time_of


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00.000001+01:00", 1),
        ("1969-12-31T23:59:59.5Z", -500_000),
        ("2026-01-31", None),
        ("0-1-100", None),
        ("0/16B3748", None),
        ("log.000001:4", None),
        ("T:", None),
        ("earliest", None),
    ],
)
def test_a_time_is_told_from_other_places(text: str, us: int | None) -> None:
    assert time_of(text) == us


def test_a_time_without_its_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        time_of("2026-01-31T12:00:00")


def test_a_sum_tells_the_first_and_the_last() -> None:
    found = TransactionSum("missed")
    assert found.text() == ""
    found.add("a", 1)
    assert found.text() == "1 transaction with 1 change is missed: commits from a to a"
    found.add("b", 2)
    assert found.text() == "2 transactions with 3 changes are missed: commits from a to b"
