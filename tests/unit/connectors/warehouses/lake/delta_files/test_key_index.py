"""Where rows are by the hashes of their keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from cdcworker.connectors.warehouses.lake.delta_files.key_index import KeyIndex, hashes
from hypothesis import given
from hypothesis import strategies as st


def all_alive(files, _):
    return np.ones(len(files), np.bool_)


@given(st.lists(st.binary(max_size=40), max_size=30, unique=True), st.integers(0, 5))
def test_a_key_has_one_hash_wherever_it_stands(keys, skipped):
    found = hashes(pa.array(keys, pa.binary()))
    assert len(set(found.tolist())) == len(keys)
    turned = hashes(pa.array([b"before", *reversed(keys)], pa.binary()).slice(1))
    assert turned[::-1].tolist() == found.tolist()
    assert hashes(pa.array(keys, pa.binary()).slice(skipped)).tolist() == found[skipped:].tolist()


@given(st.lists(st.lists(st.integers(0, 50), max_size=20, unique=True), max_size=12))
def test_all_places_of_a_key_are_found(files):
    index = KeyIndex()
    for number, keys in enumerate(files):
        index.add(number, np.array(keys, np.uint64), all_alive)
    found_in, rows, which = index.find(np.arange(51, dtype=np.uint64))
    there = sorted(zip(which.tolist(), found_in.tolist(), rows.tolist(), strict=True))
    assert there == sorted((key, number, at) for number, keys in enumerate(files) for at, key in enumerate(keys))


def test_rows_that_are_gone_leave_the_index_when_runs_are_joined():
    index, gone = KeyIndex(), {0}
    keys = np.arange(100, dtype=np.uint64)

    def alive(files, _):
        return ~np.isin(files, list(gone))

    index.add(0, keys, alive)
    index.add(1, keys, alive)
    assert index.size == 100
    assert set(index.find(keys)[0].tolist()) == {1}
