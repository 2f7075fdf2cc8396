"""The Delta tables of a lake on a local file system, for all who look at that lake in one process."""

from __future__ import annotations

import threading
from pathlib import Path

from cdcworker.connectors.warehouses.lake.delta_files.local_table import LocalTable, TableMemory


class LocalTables:
    """`seen` has by a table's identity up to which commit its log has been read for which state."""

    def __init__(self, root: str) -> None:
        self._root = Path(root) if root.startswith("/") and "://" not in root else None
        self._memory = TableMemory()
        self._tables: dict[tuple[str, str], LocalTable] = {}
        self._lock = threading.Lock()
        self.seen: dict[str, tuple[int, str]] = {}

    def table(self, place: tuple[str, str]) -> LocalTable | None:
        """Returns the table of this schema and name; None: its files are not on a local file system."""
        if self._root is None:
            return None
        with self._lock:
            found = self._tables.get(place)
            if found is None:
                found = self._tables[place] = LocalTable(self._root.joinpath(*place), self._memory)
            return found
