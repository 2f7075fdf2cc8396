"""Records that wait: in memory as long as they are few, then in files of the task's own folder. What is lost with them is
read from Kafka again."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from cdcworker.connectors.scratch_folder import open_private, private_folder

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_MAX = 64 * 1024 * 1024


class SpooledRecords:
    """A table of records, to be read as often as needed and taken once."""

    def __init__(self, spool: RecordSpool, table: pa.Table | None, path: Path | None, rows: int, size: int) -> None:
        self._spool = spool
        self._table = table
        self._path = path
        self.rows = rows
        self.size = size

    def read(self) -> pa.Table:
        import pyarrow as pa

        if self._table is not None:
            return self._table
        with pa.OSFile(str(self._path)) as file:
            return pa.ipc.open_file(file).read_all()

    def take(self) -> pa.Table:
        """The table, which is let go of."""
        table = self.read()
        self.drop()
        return table

    def drop(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        elif self._table is not None:
            self._spool.free(self.size)
        self._table = None


class RecordSpool:
    def __init__(self, folder: Path, memory_max: int = MEMORY_MAX) -> None:
        self._folder = folder
        self._memory_max = memory_max
        self._lock = threading.Lock()
        self._used = 0

    def put(self, table: pa.Table) -> SpooledRecords:
        import pyarrow as pa

        size = table.nbytes
        if self._fits(size):
            return SpooledRecords(self, table, None, table.num_rows, size)
        private_folder(self._folder)
        path = self._folder / uuid.uuid4().hex
        os.close(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return SpooledRecords(self, None, path, table.num_rows, size)

    def free(self, size: int) -> None:
        with self._lock:
            self._used -= size

    def _fits(self, size: int) -> bool:
        with self._lock:
            fits = self._used + size <= self._memory_max
            self._used += size if fits else 0
            return fits
