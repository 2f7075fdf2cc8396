"""Batches of versions, applied to a warehouse in memory, beside a model that takes one change after the other."""

from __future__ import annotations

import itertools
import random

import pytest
from cdcworker.connectors.api.table_batch import OP, POSITION, VALID_FROM, VALID_TO
from cdcworker.schemas.errors import CdcError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import change_streams
from tests.change_streams import NARROW, MemoryVersions
from tests.contract.versions import unevenly
from tests.version_model import RandomChanges, VersionedStream, assert_equal


def built(stream, records, **more):
    return stream.assembler(keeps_versions=True, **more).build(change_streams.arrow(records), {}, 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 80), max_size=6), st.booleans())
def test_a_history_is_the_models_whatever_the_batches(seed, cuts, again):
    stream, warehouse = VersionedStream(), MemoryVersions()
    RandomChanges(stream, seed).run(30)
    edges = [0, *sorted(min(cut, len(stream.records)) for cut in cuts), len(stream.records)]
    for start, end in itertools.pairwise(edges):
        if start < end:
            warehouse.apply(built(stream, stream.records[start:end]))
            if again:
                warehouse.apply(built(stream, stream.records[start:end]))
    assert_equal(warehouse.versions(NARROW), stream.wanted())
    assert warehouse.orphans == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_it_is_so_when_partitions_come_unevenly_and_again(seed):
    stream, warehouse = VersionedStream(), MemoryVersions()
    RandomChanges(stream, seed, keeps=False).run(30)
    chance = random.Random(seed)
    for _ in range(2):
        for batch in unevenly(stream, chance):
            warehouse.apply(built(stream, batch))
    assert_equal(warehouse.versions(NARROW), stream.wanted())


def test_the_time_of_a_version_is_as_exact_as_the_source_says():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    (table,) = built(stream, stream.records).tables
    assert table.upserts[VALID_FROM][0].value == (1_700_000_000_000 + stream.lsn) * 1000


def test_a_source_that_tells_no_time_is_refused():
    fields = [field for field in change_streams.SOURCE_SCHEMA["fields"] if field["name"] != "ts_ms"]
    plain = change_streams.table(change_streams.ID)
    plain = type(plain)(
        plain.path, plain.table_id, plain.columns, plain.key, {**change_streams.SOURCE_SCHEMA, "fields": fields}
    )
    stream = change_streams.Stream(1)
    stream.insert(plain, (1,))
    with pytest.raises(CdcError) as caught:
        built(stream, stream.records)
    assert caught.value.code == "spark.undecodable"


def test_a_record_that_stands_there_twice_makes_one_version():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.update(NARROW, (1, 2, "a", "b"))
    again = [{**record, "offset": record["offset"] + 100} for record in stream.records]
    (table,) = built(stream, [*stream.records, *again]).tables
    assert table.upserts[OP].to_pylist() == ["c", "u"]
    assert table.upserts[VALID_TO][0].as_py() == table.upserts[VALID_FROM][1].as_py()
    assert len(set(table.upserts[POSITION].to_pylist())) == 2


def test_a_changed_key_whose_old_row_was_deleted_before_it_came_is_left_out():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.delete(NARROW, (1,))
    stream.update(NARROW, (1, 2, "a", None), (3,))
    (table,) = built(stream, stream.records).tables
    assert table.upserts["n"].to_pylist() == [1]
