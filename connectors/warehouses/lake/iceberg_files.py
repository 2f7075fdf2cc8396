"""The live files of Iceberg tables as a writer knows them from batch to batch: data files, which of their rows are deleted, and
an index of their keys. With a snapshot of somebody else the files that it has not changed stay known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.warehouses.lake.iceberg_parquet import (
    IcebergColumn,
    UnfitFile,
    check_columns,
    read_deletes,
    read_rows,
)
from cdcworker.connectors.warehouses.lake.tables import FoundRows, LakeName
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_files.key_index import INDEX_BYTES_MAX, IndexMemory
from cdcworker.connectors.warehouses.table_files.live_files import GONE_SHARE_MAX, LiveFiles, WantedRows

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.table_files.key_index import Numbers

MERGED_FILES: Final = 8
"""So many files of like size become one."""
SMALLEST: Final = 64 * 1024
MERGED_BYTES_MAX: Final = 64 * 1024 * 1024
MERGED_ROWS_MAX: Final = 2_000_000
"""What is merged at once is held in memory. Larger files are left to the owner's own compaction."""


@dataclass(slots=True)
class LiveFile:
    """A data file. `entry` is what its manifest says of it, `deletes` the same of the delete files that are its alone."""

    entry: Mapping[str, Any]
    path: str
    """Where the process that writes has it."""
    deletes: list[Mapping[str, Any]] = field(default_factory=list)
    deleted_by: frozenset[str] | None = frozenset()
    """The delete files that its deleted rows were read from; None: they are known otherwise."""
    seen: float = float("-inf")
    """When it was last looked whether it is there, by the monotonic clock."""

    @property
    def name(self) -> str:
        """The path as the table has it."""
        return str(self.entry["file-path"])

    @property
    def rows(self) -> int:
        return int(self.entry["record-count"])

    @property
    def bytes(self) -> int:
        return int(self.entry["file-size-in-bytes"])


class TableFiles(LiveFiles[LiveFile]):
    """The files of one table in one snapshot."""

    def __init__(self, storage: Storage, uuid: str, version: Any, memory: IndexMemory) -> None:
        super().__init__(memory)
        self.storage = storage
        self.uuid = uuid
        self.version = version
        self.position = ""
        """The name of the column of positions; empty: there is none, and no index."""

    def numbers_of(self, names: Collection[str]) -> list[int] | None:
        """Returns the numbers of the files with these names; None: one is not there any more."""
        known = {file.name: number for number, file in self.files.items()}
        return [known[name] for name in names] if known.keys() >= set(names) else None

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
            left = self.live(number)
            if number not in crowded and file.rows - left <= GONE_SHARE_MAX * file.rows:
                continue
            rows, size = rows + left, size + sizes[number]
            if rows > MERGED_ROWS_MAX or size > MERGED_BYTES_MAX:
                break
            wanted.append(number)
        return wanted

    def live_rows(self, numbers: Iterable[int], columns: Sequence[IcebergColumn]) -> pa.Table:
        """Reads the rows of these files that are not deleted."""
        import pyarrow as pa

        parts = [_schema(columns).remove_metadata().empty_table()]
        for number in numbers:
            start, kept = 0, ~self.mask(number)
            for group in read_rows(self.storage, self.files[number].path, columns):
                parts.append(group.filter(pa.array(kept[start : start + group.num_rows])))
                start += group.num_rows
        return pa.concat_tables(parts, promote_options="permissive")


class FilesCache:
    """The files of all tables of a task, which its threads share: each table is used by one thread at a time."""

    def __init__(self, bytes_max: int = INDEX_BYTES_MAX) -> None:
        """`bytes_max`: of the indexes of all tables."""
        self.memory = IndexMemory(bytes_max)
        self._tables: dict[LakeName, TableFiles] = {}
        self._lock = threading.Lock()

    def get(self, place: LakeName, uuid: str) -> TableFiles | None:
        with self._lock:
            found = self._tables.get(place)
            return found if found is not None and found.uuid == uuid else None

    def put(self, place: LakeName, files: TableFiles) -> None:
        with self._lock:
            self._tables[place] = files

    def drop(self, place: LakeName) -> None:
        with self._lock:
            self._tables.pop(place, None)


def read_files(tasks: Iterable[Mapping[str, Any]], files: TableFiles, path_of: Callable[[str], str]) -> None:
    """Brings the files and their deleted rows to those of a scan, given as Iceberg's JSON. UnfitFile where a file has another
    form than the sink's: nothing is known of them then. `path_of` returns the path of a location in
    the table's storage."""
    planned = {task["data-file"]["file-path"]: (task, _deletes(task)) for task in tasks}
    for number in [number for number, file in files.files.items() if file.name not in planned]:
        files.remove(number)
    known = {file.name: number for number, file in files.files.items()}
    changed = {
        name: deletes
        for name, (_, deletes) in planned.items()
        if name not in known or files.files[known[name]].deleted_by != frozenset(deletes)
    }
    deleted = _deleted({path for deletes in changed.values() for path in deletes}, files.storage, path_of)
    for name, deletes in changed.items():
        entry = planned[name][0]["data-file"]
        own = [delete for delete in deletes.values() if delete.get("referenced-data-file") == name]
        gone = _gone(entry["record-count"], [deleted[path][name] for path in deletes if name in deleted[path]])
        file = LiveFile(entry, path_of(name), own, frozenset(deletes))
        if name in known:
            files.change(known[name], file, gone)
        else:
            check_columns(files.storage, file.path)
            files.add(file, gone)


def index_files(files: TableFiles, indexed: Sequence[IcebergColumn]) -> None:
    """Adds the files that the index has not yet; `indexed` are the columns of keys and of positions."""
    for number in files.index.missing():
        files.insert(number, read_rows(files.storage, files.files[number].path, indexed))


def _schema(columns: Sequence[IcebergColumn]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([column.field for column in columns])


def _deletes(task: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the delete files of a data file by their paths."""
    found = list(task.get("delete-files") or ())
    for entry in (task["data-file"], *found):
        if entry["file-format"].lower() != "parquet" or entry["content"].lower().startswith("equality"):
            raise UnfitFile("files of another kind")
    return {entry["file-path"]: entry for entry in found}


def _deleted(paths: Collection[str], storage: Storage, path_of: Callable[[str], str]) -> dict[str, dict[str, Numbers]]:
    """Returns the deleted rows of each data file, by delete file."""
    import pyarrow.compute as pc

    out: dict[str, dict[str, Numbers]] = {}
    for path in paths:
        found = read_deletes(storage, path_of(path))
        names = found["file_path"]
        out[path] = {
            name: found["pos"].filter(pc.equal(names, name)).to_numpy() for name in pc.unique(names).to_pylist()
        }
    return out


def _gone(rows: int, deleted: Sequence[Numbers]) -> Numbers | None:
    import numpy as np

    if not deleted:
        return None
    gone = np.zeros(rows, np.bool_)
    gone[np.concatenate(deleted)] = True
    return gone


def rows_under(files: TableFiles, columns: Sequence[IcebergColumn], schema: pa.Schema, wanted: WantedRows) -> FoundRows:
    """Returns the live rows that are wanted. Of columns that are not in its `names` only keys and positions are read."""
    there = {column.name: column for column in columns}

    def read(number: int, names: Sequence[str]) -> Iterator[pa.Table]:
        return read_rows(files.storage, files.files[number].path, [there[name] for name in names])

    return FoundRows(*files.rows_under(read, schema, wanted))
