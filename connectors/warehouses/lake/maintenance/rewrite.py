"""Reads the rows of files that become one, as many as memory takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.warehouses.lake.maintenance.plan import MEMORY_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DataFileView:
    """A data file of a table as it was at one moment: `file` is the tables' own, `gone` says which of its rows are deleted, None:
    none is."""

    name: str
    file: Any
    bytes: int
    rows: int
    memory: int
    """About how many bytes its rows take in memory."""
    gone: Any = None


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """Files of a table that one new one, so large, is to replace; `made` is the tables' own."""

    files: Sequence[DataFileView]
    bytes: int
    made: Any


def live_rows(
    files: Sequence[DataFileView],
    read: Callable[[DataFileView], Iterable[pa.Table]],
    bytes_max: int = MEMORY_BYTES_MAX,
) -> tuple[Sequence[DataFileView], pa.Table] | None:
    """Returns the first of the files, as many as memory takes, and their rows that are not deleted. None where too few do to
    make one of them. OSError where a file is not the one that was written. `read` yields all rows of a file in their order."""
    import pyarrow as pa

    taken: list[DataFileView] = []
    parts: list[pa.Table] = []
    size = 0
    for file in files:
        mine = []
        for rows in _live(file, read(file)):
            mine.append(rows)
            size += rows.nbytes
            if size > bytes_max:
                break
        if size > bytes_max:
            break
        taken.append(file)
        parts += mine
    if len(taken) < min(2, len(files)):
        return None
    return taken, pa.concat_tables(parts, promote_options="permissive")


def _live(file: DataFileView, groups: Iterable[pa.Table]) -> Iterable[pa.Table]:
    import pyarrow as pa

    start = 0
    for group in groups:
        end = start + group.num_rows
        if end <= file.rows:
            yield group if file.gone is None else group.filter(pa.array(~file.gone[start:end]))
        start = end
    if start != file.rows:
        raise OSError("a file has another number of rows than the table says")
