"""Which files become one: groups within their bounds, and rows that are not written again for every small file."""

from __future__ import annotations

import numpy as np
import pytest
from cdcworker.connectors.warehouses.lake.maintenance.plan import (
    GROWTH_MIN,
    MEMORY_BYTES_MAX,
    ROWS_MAX,
    CompactionBudget,
    FileSize,
    groups_of,
    moved_rows,
)
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20
PLENTY = 1 << 60


def file(number, size, rows=100, live=None, memory=None):
    return FileSize(number, size, rows, rows if live is None else live, 4 * size if memory is None else memory)


def numbers(groups):
    return [[each.number for each in group] for group in groups]


def planned(files, file_bytes=32 * MIB, budget=None):
    return groups_of(files, file_bytes, budget or CompactionBudget(PLENTY, PLENTY))


def test_small_files_become_one_and_large_ones_stay():
    files = [file(0, MIB), file(1, 2 * MIB), file(2, 30 * MIB), file(3, MIB)]
    assert numbers(planned(files)) == [[0, 3, 1]]


def test_a_file_is_not_written_again_for_each_small_one_that_comes():
    assert planned([file(0, 20 * MIB), file(1, MIB)]) == []
    assert numbers(planned([file(0, 20 * MIB), file(1, MIB), file(2, MIB)])) == [[1, 2]]
    assert numbers(planned([file(0, 2 * MIB), file(1, MIB), file(2, MIB)])) == [[1, 2, 0]]


def test_a_file_with_many_deleted_rows_is_written_again_alone():
    assert numbers(planned([file(0, 100 * MIB, live=80, memory=MIB)], 90 * MIB)) == [[0]]
    assert planned([file(0, 100 * MIB, live=95, memory=MIB)], 90 * MIB) == []


def test_a_file_without_live_rows_goes():
    assert numbers(planned([file(0, MIB, live=0), file(1, 31 * MIB)])) == [[0]]


def test_a_file_that_memory_does_not_take_stays():
    assert planned([file(0, MIB, memory=MEMORY_BYTES_MAX + 1, live=1)]) == []
    assert planned([file(0, MIB, rows=2 * ROWS_MAX, live=ROWS_MAX + 1)]) == []


def test_the_bounds_of_a_run_leave_the_rest_to_the_next_one():
    files = [file(number, 10 * MIB) for number in range(9)]
    budget = CompactionBudget(45 * MIB, 100)
    assert [len(group) for group in planned(files, budget=budget)] == [3]
    assert budget.bytes == 15 * MIB
    assert [len(group) for group in planned(files, budget=CompactionBudget(PLENTY, 7))] == [3, 3]


def test_more_small_files_than_a_run_takes_are_taken_run_by_run():
    files = [file(number, 1000) for number in range(25)]
    for budget in (CompactionBudget(PLENTY, 10), CompactionBudget(10_000, PLENTY)):
        assert [len(group) for group in planned(files, budget=budget)] == [10]
        assert budget.is_short
    assert not (budget := CompactionBudget(PLENTY, 25)).is_short
    assert [len(group) for group in planned(files, budget=budget)] == [25]
    assert not budget.is_short


sizes = st.builds(
    lambda size, rows, share: (size, rows, int(rows * share)),
    st.integers(1, 64 * MIB),
    st.integers(1, 3 * ROWS_MAX),
    st.floats(0, 1),
)


@given(st.lists(sizes, max_size=30))
def test_groups_keep_their_bounds_and_no_file_is_in_two(found):
    files = [file(number, *each) for number, each in enumerate(found)]
    groups = planned(files)
    taken = [each.number for group in groups for each in group]
    assert len(taken) == len(set(taken))
    for group in groups:
        assert sum(each.memory for each in group) <= MEMORY_BYTES_MAX
        assert sum(each.live for each in group) <= ROWS_MAX
        total, largest = sum(each.live_bytes for each in group), max(each.live_bytes for each in group)
        assert total <= 32 * MIB or len(group) == 1
        assert any(each.rows - each.live > 0.1 * each.rows for each in group) or (
            len(group) > 1 and total >= GROWTH_MIN * largest
        )


masks = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20)


@given(st.lists(masks, min_size=1, max_size=4))
def test_rows_that_were_deleted_meanwhile_are_found_in_the_new_file(files):
    before = [np.array([old for old, _ in rows], np.bool_) for rows in files]
    now = [np.array([old or new for old, new in rows], np.bool_) for rows in files]
    rows = [(number, at) for number, mask in enumerate(before) for at in np.flatnonzero(~mask)]
    found = moved_rows(before, now, [len(each) for each in files])
    assert [rows[at] for at in found] == [(number, at) for number, at in rows if now[number][at]]


@pytest.mark.parametrize("now", [None, np.array([False, True])])
def test_a_row_that_came_back_is_not_in_the_new_file(now):
    assert moved_rows([np.array([True, True])], [now], [2]) is None
