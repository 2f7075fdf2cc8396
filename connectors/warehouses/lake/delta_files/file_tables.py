"""The Delta tables of a lake by their files, for all who look at that lake in one process."""

from __future__ import annotations

import threading

from cdcworker.connectors.warehouses.lake.delta_files.file_table import FileTable, TableMemory
from cdcworker.connectors.warehouses.lake.delta_files.orphan_files import RemovedFiles
from cdcworker.connectors.warehouses.storage.files import Storage


class FileTables:
    """`seen` has by a table's identity up to which commit its log has been read for which state."""

    def __init__(self, files: Storage | None) -> None:
        """`files` are those below the lake's folder; None: this process cannot reach them."""
        self.files = files
        self._memory = TableMemory()
        self._tables: dict[tuple[str, str], FileTable] = {}
        self._removed: dict[tuple[str, str], RemovedFiles] = {}
        self._lock = threading.Lock()
        self.seen: dict[str, tuple[int, str]] = {}

    def removed(self, place: tuple[str, str]) -> RemovedFiles:
        """Returns what is known of the files that commits to the table have removed."""
        with self._lock:
            return self._removed.setdefault(place, RemovedFiles())

    def table(self, place: tuple[str, str]) -> FileTable | None:
        """Returns the table of this schema and name; None: this process cannot reach its files."""
        if self.files is None:
            return None
        with self._lock:
            found = self._tables.get(place)
            if found is None:
                found = self._tables[place] = FileTable(self.files.below("/".join(place)), self._memory)
            return found
