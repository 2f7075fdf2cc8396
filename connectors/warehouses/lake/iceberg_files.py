"""The live files of Iceberg tables as a writer knows them from batch to batch: data files, which of their rows are deleted, and
an index of their keys. They are those of one snapshot: with another one they are read again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.lake.iceberg_parquet import IcebergColumn, UnfitFile, read_deletes, read_rows
from cdcworker.connectors.warehouses.lake.key_index import (
    Entries,
    KeyIndex,
    by_file,
    entries_of,
    places_of,
    positions_of,
)
from cdcworker.connectors.warehouses.lake.tables import FoundRows, TableName
from cdcworker.connectors.warehouses.merge import one

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.lake.key_index import Numbers

INDEX_BYTES_MAX: Final = 192 * 1024 * 1024
"""Of all tables of a task: nearly five million rows. The keys of further ones are read from their files for each batch."""
INDEX_ROW_BYTES: Final = 41
MERGED_FILES: Final = 8
"""So many files of like size become one."""
SMALLEST: Final = 64 * 1024
MERGED_BYTES_MAX: Final = 64 * 1024 * 1024
MERGED_ROWS_MAX: Final = 2_000_000
"""What is merged at once is held in memory. Larger files are left to the owner's own compaction."""
GONE_MAX: Final = 0.3
"""A file of which more rows than this share are deleted is written again without them."""


@dataclass(slots=True)
class LiveFile:
    """A data file. `entry` is what its manifest says of it, `deletes` the same of the delete files that are its alone."""

    entry: Mapping[str, Any]
    path: str
    """Its local path."""
    gone: Numbers
    deletes: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The path as the table has it."""
        return str(self.entry["file-path"])

    @property
    def rows(self) -> int:
        return len(self.gone)


@dataclass(slots=True)
class TableFiles:
    """The files of one table in one snapshot. `files` have numbers that no other file of the table had before."""

    uuid: str
    version: Any
    files: dict[int, LiveFile] = field(default_factory=dict)
    gone: dict[int, Numbers] = field(default_factory=dict)
    index: KeyIndex | None = None
    next: int = 0
    position: str = ""
    """The name of the column of positions."""

    def __post_init__(self) -> None:
        self.index = KeyIndex(self.gone)

    @property
    def nbytes(self) -> int:
        return (self.index.nbytes if self.index else 0) + sum(gone.nbytes for gone in self.gone.values())

    def add(self, file: LiveFile) -> int:
        number, self.next = self.next, self.next + 1
        self.files[number], self.gone[number] = file, file.gone
        return number

    def remove(self, number: int) -> None:
        del self.files[number], self.gone[number]

    def mergeable(self) -> list[int]:
        """Returns the numbers of files that are better one new file, without their deleted rows; none: the files are as they
        should be. Files of like size are merged, so that a row is seldom written again."""
        sizes = {number: file.entry["file-size-in-bytes"] for number, file in self.files.items()}
        tiers: dict[int, list[int]] = {}
        for number, size in sizes.items():
            tiers.setdefault(max(0, (size // SMALLEST).bit_length() // 3), []).append(number)
        crowded = {number for found in tiers.values() if len(found) >= MERGED_FILES for number in found}
        wanted, rows, size = [], 0, 0
        for number in sorted(sizes, key=lambda number: sizes[number]):
            file = self.files[number]
            if number not in crowded and file.gone.sum() <= GONE_MAX * file.rows:
                continue
            rows, size = rows + file.rows - int(file.gone.sum()), size + sizes[number]
            if rows > MERGED_ROWS_MAX or size > MERGED_BYTES_MAX:
                break
            wanted.append(number)
        return wanted

    def live_rows(self, numbers: Iterable[int], columns: Sequence[IcebergColumn]) -> pa.Table:
        """Reads the rows of these files that are not deleted."""
        import pyarrow as pa

        parts = [_schema(columns).remove_metadata().empty_table()]
        for number in numbers:
            file, start = self.files[number], 0
            for group in read_rows(file.path, columns):
                parts.append(group.filter(pa.array(~file.gone[start : start + group.num_rows])))
                start += group.num_rows
        return pa.concat_tables(parts, promote_options="permissive")

    def insert(self, number: int, keys: pa.Array, positions: pa.Array) -> None:
        """Adds the rows of a file to the index, in their order there."""
        import numpy as np

        if self.index is None:
            return
        entries = entries_of(keys, positions, places_of(number, np.arange(len(keys))))
        if entries is None:
            self.index = None
            return
        gone = self.files[number].gone
        self.index.add(entries.take(np.flatnonzero(~gone)) if gone.any() else entries)


class FilesCache:
    """The files of all tables of a task, which its threads share: each table is used by one thread at a time."""

    def __init__(self, bytes_max: int = INDEX_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._tables: dict[TableName, TableFiles] = {}
        self._lock = threading.Lock()

    def get(self, place: TableName, uuid: str, version: Any) -> TableFiles | None:
        with self._lock:
            found = self._tables.get(place)
            return found if found is not None and (found.uuid, found.version) == (uuid, version) else None

    def put(self, place: TableName, files: TableFiles) -> None:
        """Keeps the files of a table that was just used. Where there is too much, tables that were not used for long are
        forgotten; in the end the index of this one."""
        with self._lock:
            self._tables.pop(place, None)
            self._tables[place] = files
            size = sum(held.nbytes for held in self._tables.values())
            while size > self._bytes_max and len(self._tables) > 1:
                oldest = next(iter(self._tables))
                size -= self._tables.pop(oldest).nbytes
            if size > self._bytes_max:
                files.index = None

    def drop(self, place: TableName) -> None:
        with self._lock:
            self._tables.pop(place, None)

    @property
    def rows_max(self) -> int:
        return self._bytes_max // INDEX_ROW_BYTES


def read_files(
    tasks: Iterable[Mapping[str, Any]],
    indexed: Sequence[IcebergColumn],
    files: TableFiles,
    local: Callable[[str], str],
    rows_max: int,
) -> TableFiles:
    """Fills in the files of a scan, given as Iceberg's JSON, with their deleted rows and keys; `indexed` are the columns of keys
    and of positions. UnfitFile where a file has another form than the sink's. `local` returns the local path of a file."""
    planned = list(tasks)
    deleted = _deleted({task_file["file-path"] for task in planned for task_file in _deletes(task)}, local)
    if sum(task["data-file"]["record-count"] for task in planned) > rows_max:
        files.index = None
    for task in planned:
        number = files.add(_live(task, deleted, local))
        if files.index is not None:
            _index(files, number, indexed)
    return files


def _schema(columns: Sequence[IcebergColumn]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([column.field for column in columns])


def _deletes(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = list(task.get("delete-files") or ())
    for entry in (task["data-file"], *found):
        if entry["file-format"].lower() != "parquet" or entry["content"].lower().startswith("equality"):
            raise UnfitFile("files of another kind")
    return found


def _deleted(paths: Collection[str], local: Callable[[str], str]) -> dict[str, dict[str, Numbers]]:
    """Returns the deleted rows of each data file, by delete file."""
    import pyarrow.compute as pc

    out: dict[str, dict[str, Numbers]] = {}
    for path in paths:
        found = read_deletes(local(path))
        names = found["file_path"]
        out[path] = {
            name: found["pos"].filter(pc.equal(names, name)).to_numpy() for name in pc.unique(names).to_pylist()
        }
    return out


def _live(
    task: Mapping[str, Any], deleted: Mapping[str, Mapping[str, Numbers]], local: Callable[[str], str]
) -> LiveFile:
    import numpy as np

    entry = task["data-file"]
    name, gone = entry["file-path"], np.zeros(entry["record-count"], np.bool_)
    own = []
    for delete in task.get("delete-files") or ():
        rows = deleted[delete["file-path"]].get(name)
        if rows is not None:
            gone[rows] = True
        if delete.get("referenced-data-file") == name:
            own.append(delete)
    return LiveFile(entry, local(name), gone, own)


def _index(files: TableFiles, number: int, indexed: Sequence[IcebergColumn]) -> None:
    import pyarrow as pa

    keys, positions = indexed
    found = list(read_rows(files.files[number].path, indexed))
    if found:
        rows = pa.concat_tables(found)
        files.insert(number, one(rows[keys.name]), one(rows[positions.name]))


# -- rows ---------------------------------------------------------------------------------------------------------------


def rows_under(
    files: TableFiles, columns: Sequence[IcebergColumn], schema: pa.Schema, keys: pa.Array, names: Collection[str]
) -> FoundRows:
    """Returns the live rows under these keys. Of columns that are not in `names` only keys and positions are read."""
    import numpy as np
    import pyarrow as pa

    position = target_columns.position_of(schema)
    more = [column for column in columns if column.name in names and column.name not in (KEY, position)]
    if files.index is None:
        own = [column for column in columns if column.name in (KEY, position)]
        return _scanned(files, [*own, *more], schema, keys)
    numbers, entries = files.index.find(keys)
    if not len(entries):
        return FoundRows(schema.empty_table(), np.empty(0, np.uint64))
    values = {KEY: keys.take(pa.array(numbers)), position: positions_of(entries)}
    values.update(_values(files, more, entries))
    return FoundRows(_filled(values, schema, len(entries)), entries.places)


def _filled(values: Mapping[str, Any], schema: pa.Schema, rows: int) -> pa.Table:
    import pyarrow as pa

    columns = [values[f.name].cast(f.type) if f.name in values else pa.nulls(rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


def _values(files: TableFiles, columns: Sequence[IcebergColumn], entries: Entries) -> dict[str, Any]:
    """Reads columns of these rows, in their order."""
    import numpy as np
    import pyarrow as pa

    if not columns:
        return {}
    order, parts = [], []
    for number, rows in by_file(entries.places).items():
        mine = np.flatnonzero(entries.places >> np.uint64(32) == np.uint64(number))
        sort = np.argsort(rows)
        start, rows = 0, rows[sort]
        for group in read_rows(files.files[number].path, columns):
            here = rows[(rows >= start) & (rows < start + group.num_rows)] - start
            parts.append(group.take(pa.array(here)))
            start += group.num_rows
        order.append(mine[sort])
    found, at = pa.concat_tables(parts), np.argsort(np.concatenate(order))
    return {column.name: found[column.name].take(pa.array(at)) for column in columns}


def _scanned(files: TableFiles, columns: Sequence[IcebergColumn], schema: pa.Schema, keys: pa.Array) -> FoundRows:
    """Reads the keys of all rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    places, parts = [np.empty(0, np.uint64)], []
    for number, file in files.files.items():
        start = 0
        for group in read_rows(file.path, columns):
            known = pc.is_in(group[KEY], value_set=keys).to_numpy(zero_copy_only=False)
            here = np.flatnonzero(known & ~file.gone[start : start + group.num_rows])
            places.append(places_of(number, here + start))
            parts.append(group.take(pa.array(here)))
            start += group.num_rows
    at = np.concatenate(places)
    if not len(at):
        return FoundRows(schema.empty_table(), at)
    found = pa.concat_tables(parts)
    return FoundRows(_filled({name: found[name] for name in found.column_names}, schema, len(at)), at)
