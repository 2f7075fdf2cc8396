"""The live data files of a table as a writer knows them from batch to batch: which of their rows are deleted, and an index of their
keys. Rows under some keys are found without reading a file, and more of their columns in the files that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from cdcworker.connectors.api.table_batch import KEY
from cdcworker.connectors.warehouses.merge import one, shaped
from cdcworker.connectors.warehouses.table_files.key_index import IndexMemory, KeyIndex, by_file, places_of
from cdcworker.connectors.warehouses.target_columns import position_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, Any]


GONE_SHARE_MAX: Final = 0.3
"""A file of which a larger share of rows is deleted is written again without them."""


class FileOfRows(Protocol):
    @property
    def rows(self) -> int:
        """How many rows it has, with those that are deleted."""


File = TypeVar("File", bound=FileOfRows)


@dataclass(frozen=True, slots=True)
class WantedRows:
    """The rows under distinct keys, with the columns `names`. `needed` says, by their keys and positions, which of them have to be
    found; None: all."""

    keys: pa.Array
    names: Collection[str]
    needed: Callable[[pa.Array, pa.Array], Numbers] | None = None


class LiveFiles(Generic[File]):
    """`files` have numbers that no other file of the table had before; `gone` says which of their rows are deleted, None: none
    is. One thread at a time uses them."""

    def __init__(self, memory: IndexMemory) -> None:
        self.files: dict[int, File] = {}
        self.gone: dict[int, Numbers | None] = {}
        self.index = KeyIndex(self.gone, memory)
        self._next = 0

    def add(self, file: File, gone: Numbers | None = None) -> int:
        number, self._next = self._next, self._next + 1
        self.files[number], self.gone[number] = file, gone
        return number

    def change(self, number: int, file: File, gone: Numbers | None) -> int:
        """Takes over what is known now of a file, and returns its number. Where a row that was deleted has come back the file
        gets another one: the index may have left that row out."""
        before = self.gone[number]
        if before is not None and (before if gone is None else before & ~gone).any():
            self.remove(number)
            return self.add(file, gone)
        self.files[number], self.gone[number] = file, gone
        return number

    def remove(self, number: int) -> None:
        del self.files[number], self.gone[number]

    def mask(self, number: int) -> Numbers:
        """Returns which rows of a file are deleted, as an array of the caller's own."""
        import numpy as np

        gone = self.gone[number]
        return np.zeros(self.files[number].rows, np.bool_) if gone is None else gone.copy()

    def mask_or_none(self, number: int) -> Numbers | None:
        """Returns the same; None: no row is deleted."""
        gone = self.gone[number]
        return None if gone is None or not gone.any() else gone.copy()

    def live(self, number: int) -> int:
        """Returns how many rows of a file are not deleted."""
        gone = self.gone[number]
        return self.files[number].rows - (0 if gone is None else int(gone.sum()))

    def insert(self, number: int, rows: Iterable[pa.Table]) -> None:
        """Adds a file to the index; `rows` are all of its rows in their order, as a column of keys and one of positions."""
        self.index.add(number, self.files[number].rows, ((one(group[0]), one(group[1])) for group in rows))

    def rows_under(
        self,
        read: Callable[[int, Sequence[str]], Iterable[pa.Table]],
        schema: pa.Schema,
        rows: WantedRows,
    ) -> tuple[pa.Table, Numbers]:
        """Returns the live rows that are wanted with the columns of `schema`, and their places. Columns that are not in its `names`
        are null, but for keys and positions. `read` yields columns of a file, groups of rows in their order, also of those that
        are deleted. Files that the index does not have are read through."""
        import numpy as np
        import pyarrow as pa

        own = (KEY, position_of(schema))
        more = [name for name in schema.names if name in rows.names and name not in own]
        found = self.index.find(rows.keys)
        entries, keys = found.entries, rows.keys.take(pa.array(found.numbers))
        if rows.needed is not None:
            some = rows.needed(keys, entries.positions)
            entries, keys = entries.take(np.flatnonzero(some)), keys.filter(pa.array(some))
        places, parts = entries.places, [pa.table({})]
        if more and len(places):
            parts = [part for file, at in by_file(places).items() for part in _taken(read(file, more), at)]
        values = dict(zip(own, (keys, entries.positions), strict=True))
        values.update(zip(more, pa.concat_tables(parts).combine_chunks().columns, strict=False))
        tables, at = [shaped(pa.table(values), schema)], [places]
        for file in sorted(self.files.keys() - found.files):
            for group, numbers in _scanned(read(file, (*own, *more)), self.gone[file], rows.keys):
                tables.append(shaped(group, schema))
                at.append(places_of(file, numbers))
        return pa.concat_tables(tables), np.concatenate(at)


def _taken(groups: Iterable[pa.Table], rows: Numbers) -> Iterator[pa.Table]:
    """Takes rows of a file, whose numbers rise."""
    import numpy as np
    import pyarrow as pa

    start = 0
    for group in groups:
        begin, end = np.searchsorted(rows, [start, start + group.num_rows])
        yield group.take(pa.array(rows[begin:end] - start))
        start += group.num_rows


def _scanned(groups: Iterable[pa.Table], gone: Numbers | None, keys: pa.Array) -> Iterator[tuple[pa.Table, Numbers]]:
    """Looks for keys among all rows of a file."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    start = 0
    for group in groups:
        known = np.asarray(pc.is_in(group[KEY], value_set=keys).to_numpy(), np.bool_)
        at = np.flatnonzero(known if gone is None else known & ~gone[start : start + group.num_rows])
        if len(at):
            yield group.take(pa.array(at)), at + start
        start += group.num_rows
