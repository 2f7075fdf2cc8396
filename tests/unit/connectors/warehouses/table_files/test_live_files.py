"""The rows of a table's files by their keys, beside a plain dict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import KEY, POSITION
from cdcworker.connectors.warehouses.table_files import key_index
from cdcworker.connectors.warehouses.table_files.key_index import ENTRY_BYTES, IndexMemory, by_file, places_of
from cdcworker.connectors.warehouses.table_files.live_files import LiveFiles, WantedRows
from hypothesis import given, settings
from hypothesis import strategies as st

SCHEMA = pa.schema([(KEY, pa.binary()), ("n", pa.int64()), (POSITION, pa.binary()), ("s", pa.string())])
NAMES = [b"", b"\0", b"\0\0", b"a", b"a" * 15, b"a" * 16, b"a" * 17, b"b" * 40, *(b"%d" % n for n in range(6))]
ROWS_PER_GROUP = 3


@dataclass
class File:
    table: pa.Table

    @property
    def rows(self):
        return self.table.num_rows


class Model:
    """Files of a table, and its rows as a dict of keys to numbers of files and rows."""

    def __init__(self, memory):
        self.files, self.rows, self.next, self.reads = LiveFiles(memory), {}, 0, 0

    def read(self, number, names):
        self.reads += 1
        for batch in self.files.files[number].table.select(list(names)).to_batches(ROWS_PER_GROUP):
            yield pa.Table.from_batches([batch])

    def add(self, keys):
        """As a commit does: rows under the same keys are gone then."""
        keys = list(dict.fromkeys(keys))
        _, places = self.found(keys, ())
        for number, rows in by_file(places).items():
            gone = self.files.mask(number)
            gone[rows] = True
            self.files.change(number, self.files.files[number], gone)
        values = [(key, self.next + at, (self.next + at).to_bytes(16, "big"), f"{key}") for at, key in enumerate(keys)]
        self.next += len(keys)
        columns = [pa.array(list(column), f.type) for column, f in zip(zip(*values, strict=True), SCHEMA, strict=True)]
        table = pa.table(columns, SCHEMA)
        number = self.files.add(File(table))
        self.files.insert(number, self.read(number, (KEY, POSITION)))
        self.rows |= dict(zip(keys, values, strict=True))

    def found(self, keys, names):
        for number in self.files.index.missing():
            self.files.insert(number, self.read(number, (KEY, POSITION)))
        return self.files.rows_under(self.read, SCHEMA, WantedRows(pa.array(keys, pa.binary()), names))

    def remove(self, chosen):
        if self.files.files:
            number = sorted(self.files.files)[chosen % len(self.files.files)]
            for key in self.keys(number, ~self.files.mask(number)):
                del self.rows[key]
            self.files.remove(number)

    def change(self, chosen, dice):
        """Somebody else deletes rows of a file, or brings back rows of it that were deleted."""
        if self.files.files:
            number = sorted(self.files.files)[chosen % len(self.files.files)]
            before = self.files.mask(number)
            gone = np.array([dice >> at & 1 for at in range(len(before))], np.bool_)
            # A key that has another row by now does not come back.
            back = [key in self.rows for key in self.keys(number, np.ones(len(before), np.bool_))]
            gone |= before & np.array(back, np.bool_)
            table = self.files.files[number].table
            self.files.change(number, File(table), gone if gone.any() else None)
            for key in self.keys_of(table, ~before & gone):
                del self.rows[key]
            for row in table.filter(pa.array(before & ~gone)).to_pylist():
                self.rows[row[KEY]] = tuple(row.values())

    def keys(self, number, chosen):
        return self.keys_of(self.files.files[number].table, chosen)

    def keys_of(self, table, chosen):
        return table.filter(pa.array(chosen))[KEY].to_pylist()


some = st.lists(st.sampled_from(NAMES), min_size=1, max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), some),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("change"), st.integers(0, 9), st.integers(0, 2**12 - 1)),
        st.tuples(st.just("clear")),
    ),
    max_size=20,
)


@pytest.mark.parametrize("alike", [False, True], ids=["hashed", "alike"])
@settings(max_examples=50, deadline=None)
@given(steps=STEPS, asked=some, rows=st.sampled_from([0, 8, 1000]), names=st.sampled_from([(), ("s",), ("n", "s")]))
def test_rows_are_those_of_a_dict_whatever_comes_and_goes(alike, steps, asked, rows, names):
    """Also where the index has no room for some files or for any, and where the first halves of all fingerprints are one."""
    made = key_index.fingerprints

    def of_alike(keys):
        first, second = made(keys)
        return np.stack([first & np.uint64(1), second])

    model = Model(IndexMemory(rows * ENTRY_BYTES))
    with pytest.MonkeyPatch.context() as patched:
        if alike:
            patched.setattr(key_index, "fingerprints", of_alike)
        for name, *values in steps:
            model.files.index.clear() if name == "clear" else getattr(model, name)(*values)
        asked = list(dict.fromkeys(asked))
        found, places = model.found(asked, names)
    wanted = [model.rows[key] for key in asked if key in model.rows]
    shown = {KEY, POSITION, *names}
    assert found.schema == SCHEMA
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == sorted(
        tuple(value if f.name in shown else None for f, value in zip(SCHEMA, row, strict=True)) for row in wanted
    )
    # A place leads back to its row.
    by_place = [(file, row) for file, rows in by_file(places).items() for row in rows.tolist()]
    assert {model.files.files[file].table[KEY][row].as_py() for file, row in by_place} == {row[0] for row in wanted}


def test_keys_and_positions_are_read_from_no_file_that_the_index_has():
    model = Model(IndexMemory())
    model.add(NAMES[:7])
    model.add(NAMES[7:])
    reads = model.reads
    assert model.found(NAMES, ())[0].num_rows == len(NAMES)
    assert model.reads == reads
    # Other columns are read from those files alone that have the rows.
    assert model.found(NAMES[:2], ("n",))[0]["n"].to_pylist() == [0, 1]
    assert model.reads == reads + 1


def test_a_row_that_comes_back_is_found_though_the_index_has_left_it_out():
    model = Model(IndexMemory())
    model.add([b"a", b"b"])
    model.files.change(0, model.files.files[0], np.array([True, True]))
    # Runs of like size are merged without entries of rows that are gone.
    model.rows.clear()
    model.add([b"c", b"d"])
    model.files.change(0, model.files.files[0], None)
    found, places = model.found([b"a", b"b", b"c"], ("n",))
    assert found["n"].to_pylist() == [2, 0, 1]
    assert places.tolist() == [*places_of(1, np.arange(1)), *places_of(2, np.arange(2))]
