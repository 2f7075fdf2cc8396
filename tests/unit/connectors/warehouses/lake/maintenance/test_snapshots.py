"""Which snapshots of an Iceberg table are expired: none that a reader within the kept age, or a consistent set, needs."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.lake.maintenance import snapshots
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import BY_PROPERTIES, ExpiryGoal, expiry_of, seconds_of
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_000_000_000


def metadata(*times, **properties):
    """Snapshots 1, 2, … of which each came after the one before, at these seconds before now."""
    found = [
        {"snapshot-id": number, "parent-snapshot-id": number - 1 or None, "timestamp-ms": NOW - ago * 1000}
        for number, ago in enumerate(times, 1)
    ]
    return {"properties": properties, "snapshots": found, "current-snapshot-id": len(found) or None}


def expired(told, goal, kept=()):
    wanted = expiry_of(told, goal, kept, NOW)
    left = {each["snapshot-id"] for each in told["snapshots"]}
    if wanted is None:
        return left, 0
    newest = sorted(left)[-wanted.kept_min :]
    kept_ids = {each["snapshot-id"] for each in told["snapshots"] if each["timestamp-ms"] >= wanted.before_ms}
    return kept_ids | set(newest), wanted.count


def test_a_snapshot_is_as_old_as_the_one_that_came_after_it():
    # The second one was the newest until 50 s ago, so it is needed for 60 s more than 50.
    assert expired(metadata(900, 800, 50, 10), ExpiryGoal(60)) == ({2, 3, 4}, 1)


def test_the_current_snapshot_stays_however_old_it_is():
    assert expired(metadata(900, 800), ExpiryGoal(60)) == ({2}, 1)
    assert expired(metadata(900), ExpiryGoal(60)) == ({1}, 0)
    assert expired(metadata(), ExpiryGoal(60)) == (set(), 0)


def test_what_a_consistent_set_names_stays_with_all_that_came_after_it():
    assert expired(metadata(900, 800, 700, 600), ExpiryGoal(60), {2}) == ({2, 3, 4}, 1)
    assert expired(metadata(900, 800, 700, 600), ExpiryGoal(60), {1}) == ({1, 2, 3, 4}, 0)


def expired_by_iceberg(told, goal, kept):
    """Iceberg goes from the newest snapshot to the ones before it, and ends at the first that is older."""
    wanted, left = expiry_of(told, goal, kept, NOW), []
    for each in reversed(told["snapshots"]):
        if wanted is not None and len(left) >= wanted.kept_min and each["timestamp-ms"] < wanted.before_ms:
            break
        left.append(each["snapshot-id"])
    return set(left)


def test_what_a_set_names_stays_where_a_later_snapshot_was_made_by_a_clock_that_is_behind():
    assert expired_by_iceberg(metadata(900, 800, 805, 300, 200), ExpiryGoal(60), {2}) == {2, 3, 4, 5}
    assert expired_by_iceberg(metadata(900, 800, 700, 300, 200), ExpiryGoal(60), {3}) == {3, 4, 5}


def test_what_a_set_names_stays_where_the_branch_keeps_less():
    told = {**metadata(900, 800, 700, 600), "refs": {"main": {"type": "branch", "max-snapshot-age-ms": 60_000}}}
    assert expired(told, ExpiryGoal(60), {2}) == ({1, 2, 3, 4}, 0)
    assert expired(told, ExpiryGoal(60)) == ({4}, 3)
    told["refs"]["main"]["max-snapshot-age-ms"] = 850_000
    assert expired(told, ExpiryGoal(60), {2}) == ({2, 3, 4}, 1)


def test_so_many_of_the_newest_stay():
    assert expired(metadata(900, 800, 700, 600), ExpiryGoal(60, 3)) == ({2, 3, 4}, 1)
    assert expired(metadata(900, 800), ExpiryGoal(60, 9)) == ({1, 2}, 0)


def test_the_table_says_what_the_sink_does_not():
    told = {"history.expire.max-snapshot-age-ms": "700000", "history.expire.min-snapshots-to-keep": "2"}
    assert expired(metadata(900, 800, 600, **told), BY_PROPERTIES) == ({2, 3}, 1)
    assert expired(metadata(900, 800, 750, **told), BY_PROPERTIES) == ({2, 3}, 1)
    assert expired(metadata(900, 800, 600), BY_PROPERTIES) == ({1, 2, 3}, 0)


def test_a_table_whose_files_may_not_be_deleted_keeps_its_snapshots():
    assert expired(metadata(900, 800, 1, **{"gc.enabled": "false"}), ExpiryGoal(60)) == ({1, 2, 3}, 0)


def test_a_run_expires_a_bounded_number(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOTS_MAX", 2)
    assert expired(metadata(900, 800, 700, 600, 500), ExpiryGoal(60)) == ({3, 4, 5}, 2)


@given(
    st.lists(st.integers(0, 1000), max_size=12).map(lambda found: sorted(found, reverse=True)),
    st.integers(0, 1000),
    st.sets(st.integers(1, 12), max_size=3),
    st.integers(1, 5),
)
def test_whatever_comes_readers_within_the_age_and_sets_keep_theirs(times, age, kept, kept_min):
    told = metadata(*times)
    left, _ = expired(told, ExpiryGoal(age, kept_min), kept)
    there = {each["snapshot-id"] for each in told["snapshots"]}
    assert kept & there <= left
    assert set(sorted(there)[-kept_min:]) <= left
    for number, until in enumerate(times[1:], 1):
        if until < age:
            assert number in left


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 7 days", 604_800),
        ("interval 1 week", 604_800),
        ("2 hours 30 minutes", 9000),
        ("INTERVAL 1 SECOND", 1),
        ("a week", None),
        ("interval 7", None),
        ("", None),
        ("interval 1 month", None),
        ("interval -1 days", None),
    ],
)
def test_intervals_of_delta_are_read_or_told_to_be_unknown(text, seconds):
    assert seconds_of(text) == seconds
