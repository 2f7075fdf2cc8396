"""The index of a table's keys in memory."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses.table_files import key_index
from cdcworker.connectors.warehouses.table_files.key_index import (
    ENTRY_BYTES,
    IDLE_S,
    IndexMemory,
    KeyIndex,
    by_file,
    entries_of,
    fingerprints,
    places_of,
)
from hypothesis import given
from hypothesis import strategies as st


def binary(values):
    return pa.array(values, pa.binary())


def position(number):
    return number.to_bytes(16, "big")


def numbered(count):
    return [number.to_bytes(4, "big") for number in range(count)]


def add(index, file, keys, positions=None):
    index.gone.setdefault(file, None)
    index.add(file, len(keys), [(binary(keys), binary(positions or [position(file)] * len(keys)))])


def found_in(index, keys):
    found = index.find(binary(keys))
    rows = zip(found.numbers, found.entries.places.tolist(), found.entries.positions.to_pylist(), strict=True)
    return sorted((keys[number], place, at) for number, place, at in rows)


# -- fingerprints -------------------------------------------------------------------------------------------------------

SHORT = [bytes(letters) for size in range(4) for letters in itertools.product((0, 1, 8, 255), repeat=size)]
SHORT += [b"\0" * size + end for size in range(4, 15) for end in (b"", b"\0", b"\1")]
LONG = [bytes(size) + end for size in range(15, 70) for end in (b"\0", b"\1")]


def pairs(keys):
    return set(map(tuple, fingerprints(binary(keys)).T.tolist()))


def test_keys_that_are_alike_have_different_fingerprints():
    keys = sorted({*SHORT, *LONG, *numbered(5000)})
    assert len(pairs(keys)) == len(keys)
    for lane in fingerprints(binary(keys)):
        assert len(set(lane.tolist())) == len(keys)


def test_short_keys_never_share_a_fingerprint_however_badly_they_are_mixed(monkeypatch):
    keys = sorted(set(SHORT))
    for factors in ((0, 0), (1, 1), (2**63, 3)):
        monkeypatch.setattr(key_index, "_FACTORS", factors)
        assert len(pairs(keys)) == len(keys)


@given(st.lists(st.binary(max_size=40), max_size=30, unique=True), st.integers(0, 5), st.integers(1, 50))
def test_a_key_has_one_fingerprint_wherever_it_stands(keys, skipped, at_once):
    whole = fingerprints(binary(keys))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_index, "BYTES_AT_ONCE", at_once)
        turned = fingerprints(binary([b"before", *reversed(keys)]).slice(1))
        assert turned[:, ::-1].tolist() == whole.tolist()
        assert fingerprints(binary(keys).slice(skipped)).tolist() == whole[:, skipped:].tolist()


# -- rows ---------------------------------------------------------------------------------------------------------------


def test_a_key_may_have_several_rows_and_all_of_them_are_found():
    index = KeyIndex({}, IndexMemory())
    add(index, 0, [b"a", b"b", b"a"], [position(3), position(2), position(1)])
    assert found_in(index, [b"a", b"c"]) == [(b"a", 0, position(3)), (b"a", 2, position(1))]
    index.gone[0] = np.array([True, False, False])
    assert found_in(index, [b"a"]) == [(b"a", 2, position(1))]
    # The rows of a file that is no more are gone with it.
    del index.gone[0]
    assert found_in(index, [b"a", b"b"]) == []


def test_the_entries_of_rows_that_are_gone_are_left_out_in_time():
    index = KeyIndex({}, IndexMemory())
    for file in range(50):
        add(index, file, numbered(100))
        index.gone[file] = np.ones(100, np.bool_)
    masks = 50 * 100
    assert index.nbytes - masks < 50 * 100 * ENTRY_BYTES / 2


@pytest.mark.parametrize("positions", [[position(1), None], [position(1), b"short"], [b"", b"x" * 32]])
def test_rows_that_an_index_cannot_hold_are_told(positions):
    assert entries_of(binary([b"a", b"b"]), binary(positions), places_of(0, np.arange(2))) is None


def test_a_file_with_a_key_of_null_is_in_no_index_and_is_not_tried_again():
    index = KeyIndex({}, IndexMemory())
    add(index, 0, [b"a"])
    add(index, 1, [b"b", None])
    assert index.missing() == []
    assert index.find(binary([b"a", b"b"])).files == {0}


def test_places_tell_files_and_rows():
    rows = np.array([0, 5, 2**32 - 1])
    both = np.concatenate([places_of(2**20, rows[:1]), places_of(7, rows)])
    assert {file: found.tolist() for file, found in by_file(both).items()} == {7: rows.tolist(), 2**20: [0]}


# -- memory -------------------------------------------------------------------------------------------------------------


class Unread:
    def __iter__(self):
        raise AssertionError("a file was read that has no room")


def test_a_file_for_which_there_is_no_room_is_not_read():
    index = KeyIndex({0: None, 1: None}, IndexMemory(100 * ENTRY_BYTES))
    add(index, 0, numbered(60))
    index.add(1, 60, Unread())
    assert index.find(binary(numbered(1))).files == {0}
    assert index.missing() == [1]
    # The file that was there has become a smaller one.
    del index.gone[0]
    add(index, 1, numbered(40))
    assert index.find(binary(numbered(1))).files == {1}


def test_an_index_that_nobody_has_used_for_long_makes_room_and_one_in_use_does_not():
    now = 0.0
    memory = IndexMemory(100 * ENTRY_BYTES, lambda: now)
    one, other = KeyIndex({}, memory), KeyIndex({}, memory)
    add(one, 0, numbered(80))
    now += IDLE_S - 1
    add(other, 0, numbered(80))
    assert (one.missing(), other.missing()) == ([], [0])
    now += 1
    add(other, 0, numbered(80))
    assert (one.missing(), other.missing()) == ([0], [])
    assert one.nbytes == 0
    assert found_in(one, [numbered(1)[0]]) == []
    # Used again it finds no room, until the other one is idle.
    add(one, 0, numbered(80))
    assert one.missing() == [0]
    now += IDLE_S
    add(one, 0, numbered(80))
    assert one.missing() == []


def test_the_memory_of_an_index_that_is_forgotten_is_free():
    memory = IndexMemory(100 * ENTRY_BYTES)
    one, other = KeyIndex({}, memory), KeyIndex({}, memory)
    add(one, 0, numbered(80))
    del one
    gc.collect()
    add(other, 0, numbered(80))
    assert other.missing() == []
