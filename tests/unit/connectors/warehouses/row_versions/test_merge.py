"""Versions of rows beside a model that replays each change, one after the other: whatever the batches, and however often they come."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import KEY, OP, POSITION, VALID_FROM
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.row_versions import merge, packed_ends
from cdcworker.connectors.warehouses.row_versions.positions import VersionsNeeded
from cdcworker.connectors.warehouses.row_versions.staged_versions import staged_versions
from cdcworker.connectors.warehouses.row_versions.timeline import (
    ALL,
    KnownVersions,
    empty_ends,
    ends_schema,
    timeline,
    with_ends,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import change_streams
from tests.change_streams import NARROW
from tests.contract.versions import unevenly
from tests.version_model import OWN, RandomChanges, VersionedStream, assert_equal

OUTPUT = target_columns.OutputForm(versions=True)


class Rows:
    """A table of versions in memory. `few`: a batch is given those alone that it says it needs."""

    def __init__(self, few=False):
        self.few, self.rows, self.ends, self.orphans = few, None, empty_ends(), 0

    def apply(self, batch):
        for part in batch.tables:
            if part.bare and self.rows is None:
                continue
            shape = target_columns.shape_of(part, OUTPUT)
            self.rows = shape.schema.empty_table() if self.rows is None else self.rows
            staged = staged_versions(shape, part, OUTPUT)
            some = np.ones(self.rows.num_rows, np.bool_)
            if self.few and not staged.truncates.num_rows:
                some = staged.needed()(self.rows[KEY].combine_chunks(), self.rows[POSITION].combine_chunks())
            found = merge.merge(self.rows.filter(pa.array(some)), self.ends, staged)
            self.rows = pa.concat_tables([self.rows.filter(pa.array(~some)), found.rows])
            self.ends = with_ends(self.ends, found.remember)
            self.orphans += found.orphans

    def versions(self, of=NARROW):
        names = [*(column.name for column in of.columns), *OWN]
        return sorted((tuple(row[name] for name in names) for row in self.rows.to_pylist()), key=repr)


def built(stream, records):
    return stream.assembler(keeps_versions=True).build(change_streams.arrow(records), {}, 1)


@pytest.mark.parametrize("few", [False, True], ids=["all rows", "needed rows"])
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 80), max_size=6), st.booleans())
def test_a_history_is_the_models_whatever_the_batches(few, seed, cuts, again):
    stream, table = VersionedStream(), Rows(few)
    RandomChanges(stream, seed).run(30)
    edges = [0, *sorted(min(cut, len(stream.records)) for cut in cuts), len(stream.records)]
    for start, end in itertools.pairwise(edges):
        for _ in range((1 + again) * (start < end)):
            table.apply(built(stream, stream.records[start:end]))
    assert_equal(table.versions(), stream.wanted())
    assert table.orphans == 0


@pytest.mark.parametrize("few", [False, True], ids=["all rows", "needed rows"])
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_it_is_so_when_partitions_come_unevenly_and_again(few, seed):
    stream, table, chance = VersionedStream(), Rows(few), random.Random(seed)
    RandomChanges(stream, seed, keeps=False).run(30)
    for _ in range(2):
        for batch in unevenly(stream, chance):
            table.apply(built(stream, batch))
    assert_equal(table.versions(), stream.wanted())


def at(number):
    return number.to_bytes(16, "big")


def changes(*rows):
    keys, positions, moments = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table([keys, map_of(positions), pa.array(moments, pa.timestamp("us", "UTC"))], schema=ends_schema())


def map_of(positions):
    return pa.array([None if position is None else at(position) for position in positions], pa.binary())


def of(rows, ends=()):
    """Known versions, given as key, position, time, and when and where they ended."""
    keys, positions, began, ended, end = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    moment = pa.timestamp("us", "UTC")
    columns = {
        KEY: pa.array(keys, pa.binary()),
        POSITION: map_of(positions),
        VALID_FROM: pa.array(began, moment),
        "_cdc_valid_to": pa.array(ended, moment),
        "_cdc_valid_to_position": map_of(end),
    }
    return KnownVersions(pa.table(columns), changes(*ends))


def ends_of(found):
    positions, _ = found.ends()
    return [None if end is None else int.from_bytes(end, "big") for end in positions.to_pylist()]


def test_a_version_that_comes_late_ends_with_what_has_ended_the_one_before():
    found = timeline(of([(b"k", 1, 1, 9, 9)]), changes((b"k", 5, 5)), changes(), 0)
    assert (ends_of(found), found.changed.tolist(), found.made.tolist()) == ([5, 9], [True], [True])
    assert found.remember.num_rows == 0


def test_what_ended_a_version_is_remembered_once_something_comes_between_that_none_ends_with():
    found = timeline(of([(b"k", 1, 1, 9, 9)]), changes(), changes((b"k", 5, 5)), 0)
    assert ends_of(found) == [5]
    assert [int.from_bytes(each, "big") for each in found.remember[POSITION].to_pylist()] == [5, 9]


def test_a_truncate_ends_versions_of_all_keys_that_come_behind_it():
    found = timeline(of([], [(ALL, 5, 50)]), changes((b"a", 3, 3), (b"b", 7, 7)), changes(), 0)
    assert ends_of(found) == [5, None]
    assert [each and each.value for each in found.ends()[1]] == [50, None]


def test_a_lone_tombstone_ends_what_is_current_at_the_time_of_reading():
    found = timeline(
        of([(b"k", 1, 1, None, None), (b"x", 2, 2, None, None)]), changes(), changes((b"k", None, None)), 77
    )
    assert ends_of(found) == [1, None]
    assert found.ends()[1][0].value == 77


@pytest.mark.parametrize(("put", "wanted"), [((b"k", 5, 5), [5, None]), ((b"k", 1, 1), [None])])
def test_one_that_a_lone_tombstone_ended_goes_on_when_it_comes_again_or_ends_with_the_next(put, wanted):
    found = timeline(of([(b"k", 1, 1, 77, 1)]), changes(put), changes(), 0)
    assert ends_of(found)[: len(wanted)] == wanted


def test_rows_of_a_snapshot_that_repeat_each_other_leave_one_version_to_the_end_of_the_last():
    found = timeline(of([(b"k", 1, 1, None, None)]), changes((b"k", 3, 3), (b"k", 5, 5)), changes((b"k", 9, 9)), 0)
    left = found.without(np.array([False, True, True]))
    assert (ends_of(left)[0], left.made.tolist(), left.changed.tolist()) == (9, [False, False], [True])


def test_nothing_stays_nothing():
    found = timeline(of([]), changes(), changes(), 0)
    assert (ends_of(found), found.remember.num_rows) == ([], 0)


def test_a_batch_needs_the_last_version_before_its_first_change_and_those_behind_it():
    needed = VersionsNeeded(pa.array([b"a", b"a", b"b"], pa.binary()), map_of([5, 7, None]))
    rows = [(b"a", 1), (b"a", 4), (b"a", 5), (b"a", 9), (b"b", 3), (b"b", 8), (b"c", 6)]
    keys, positions = zip(*rows, strict=True)
    found = needed(pa.array(keys, pa.binary()), map_of(positions))
    assert [row for row, is_needed in zip(rows, found, strict=True) if is_needed] == [
        (b"a", 4),
        (b"a", 5),
        (b"a", 9),
        (b"b", 8),
    ]


def test_ends_are_packed_and_unpacked_each_once_times_before_1970_included():
    ends = changes((b"k", 1, -5), (ALL, 2, 7))
    packed = packed_ends.packed(ends, "row")
    assert packed.schema.names == [KEY, POSITION, "row"]
    assert packed_ends.unpacked(pa.concat_tables([packed, packed]), "row").equals(ends)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (pa.array([1.5, None, float("nan")]), pa.array([1.5, None, float("nan")]), [True, True, True]),
        (pa.array([1.5, None]), pa.array([None, 2.0]), [False, False]),
        (pa.array([[1], None]), pa.array([[1], [2]]), [True, False]),
    ],
)
def test_values_are_compared_with_nulls_and_numbers_that_are_none(one, other, same):
    assert merge.equal(one, other).tolist() == same


def test_operations_are_those_of_the_changes():
    stream, table = VersionedStream(partitions=1), Rows()
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.update(NARROW, (1, 2, "a", "b"))
    table.apply(built(stream, stream.records))
    assert sorted(table.rows[OP].to_pylist()) == ["c", "u"]
