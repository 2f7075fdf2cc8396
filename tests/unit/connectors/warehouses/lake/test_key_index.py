"""The index of a table's keys in memory."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses.lake import key_index
from cdcworker.connectors.warehouses.lake.key_index import (
    KeyIndex,
    by_file,
    entries_of,
    hashes,
    places_of,
    positions_of,
)


def binary(values):
    return pa.array(values, pa.binary())


def position(number):
    return number.to_bytes(16, "big")


def found_in(index, keys):
    numbers, entries = index.find(binary(keys))
    return sorted(
        zip([keys[n] for n in numbers], entries.places.tolist(), positions_of(entries).to_pylist(), strict=True)
    )


@pytest.mark.parametrize("size", [1, 7, 300])
def test_it_finds_what_a_dict_finds_whatever_comes_and_goes(size):
    chance, gone, rows = random.Random(size), {}, {}
    index = KeyIndex(gone)
    names = [bytes(chance.randrange(256) for _ in range(chance.randrange(size))) for _ in range(400)]
    names = sorted(set(names))
    for file in range(30):
        chosen = chance.sample(names, min(len(names), chance.randrange(1, 60)))
        for name in chosen:
            for place in rows.pop(name, {}):
                for number, dead in by_file(np.array([place], np.uint64)).items():
                    gone[number][dead] = True
        gone[file] = np.zeros(len(chosen), np.bool_)
        places = places_of(file, np.arange(len(chosen)))
        at = [chance.randrange(2**128) for _ in chosen]
        index.add(entries_of(binary(chosen), binary(map(position, at)), places))
        for name, place, number in zip(chosen, places.tolist(), at, strict=True):
            rows[name] = {place: position(number)}
        asked = chance.sample(names, min(len(names), 50))
        wanted = sorted((name, place, at) for name in asked for place, at in rows.get(name, {}).items())
        assert found_in(index, asked) == wanted


def test_a_key_may_have_several_rows_and_all_of_them_are_found():
    gone = {0: np.zeros(3, np.bool_)}
    index = KeyIndex(gone)
    index.add(entries_of(binary([b"a", b"b", b"a"]), binary(map(position, (3, 2, 1))), places_of(0, np.arange(3))))
    assert found_in(index, [b"a", b"c"]) == [(b"a", 0, position(3)), (b"a", 2, position(1))]
    gone[0][0] = True
    assert found_in(index, [b"a"]) == [(b"a", 2, position(1))]
    # The rows of a file that is no more are gone with it.
    del gone[0]
    assert found_in(index, [b"a", b"b"]) == []


def test_the_entries_of_rows_that_are_gone_are_left_out_in_time():
    gone, index = {}, None
    index = KeyIndex(gone)
    for file in range(50):
        gone[file] = np.zeros(100, np.bool_)
        keys = [number.to_bytes(4, "big") for number in range(100)]
        index.add(entries_of(binary(keys), binary([position(file)] * 100), places_of(file, np.arange(100))))
        gone[file][:] = True
    assert index.nbytes < 50 * 100 * 40 / 2


@pytest.mark.parametrize("positions", [[position(1), None], [position(1), b"short"], [b"", b"x" * 32]])
def test_rows_that_an_index_cannot_hold_are_told(positions):
    assert entries_of(binary([b"a", b"b"]), binary(positions), places_of(0, np.arange(2))) is None


def test_a_key_that_is_null_is_in_no_index():
    assert entries_of(binary([None]), binary([position(1)]), places_of(0, np.arange(1))) is None


def test_keys_that_are_alike_have_different_hashes(monkeypatch):
    monkeypatch.setattr(key_index, "HASHED_BYTES", 64)
    keys = [b"\0" * size for size in range(40)] + [number.to_bytes(9, "little") for number in range(5000)]
    keys += [b"\0" * size + b"\1" for size in range(40)]
    distinct = sorted(set(keys))
    for lane in hashes(binary(distinct)):
        assert len(set(lane.tolist())) == len(distinct)
    # A slice of an array is hashed as what it is.
    for whole, part in zip(hashes(binary(distinct)), hashes(binary([b"x", *distinct])[1:]), strict=True):
        assert whole.tolist() == part.tolist()


def test_places_tell_files_and_rows():
    rows = np.array([0, 5, 2**32 - 1])
    both = np.concatenate([places_of(7, rows), places_of(2**20, rows[:1])])
    assert {file: found.tolist() for file, found in by_file(both).items()} == {7: rows.tolist(), 2**20: [0]}
