"""A Delta table by its files: the rows under some keys, and a change of rows as one commit."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY
from cdcworker.connectors.warehouses.lake.delta_files import data_files, deletion_vectors
from cdcworker.connectors.warehouses.lake.delta_files.table_features import (
    FileLayout,
    data_path,
    file_schema,
    layout_of,
)
from cdcworker.connectors.warehouses.lake.delta_files.table_log import Action, FileId, TableLog, TableSnapshot, file_id
from cdcworker.connectors.warehouses.lake.maintenance.plan import MEMORY_FACTOR, moved_rows
from cdcworker.connectors.warehouses.lake.maintenance.rewrite import DataFileView, live_rows
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_files.key_index import INDEX_BYTES_MAX, IndexMemory, by_file
from cdcworker.connectors.warehouses.table_files.live_files import GONE_SHARE_MAX, LiveFiles, WantedRows
from cdcworker.connectors.warehouses.target_columns import position_of
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, Any]

COLUMN_BYTES_MAX: Final = 192 << 20
"""Of columns that are kept for the next batches."""
FANOUT: Final = 8
"""So many files of about one size become one."""
SMALL_ROWS: Final = 4096
"""Files up to so many rows are of one size."""
KEPT_ROWS_MAX: Final = FANOUT * SMALL_ROWS
"""What was written into a file of so many rows is kept in memory: it is soon read again to be joined with others."""
FILE_ROWS_MAX: Final = 1 << 20
"""A file with more rows is not joined with others."""
THREADS_FROM: Final = 200_000
"""Rows of a file from which its columns are read by several threads: tables are written by several already."""
CHECKPOINT_EVERY: Final = 200
"""Whoever reads a table reads so many commits, and the checkpoint before them."""


class TableMemory:
    """What the tables of one sink may keep in memory: indexes, and columns of their files, of which those that were used
    longest ago go first."""

    def __init__(self, index_bytes: int = INDEX_BYTES_MAX, column_bytes: int = COLUMN_BYTES_MAX) -> None:
        self.indexes = IndexMemory(index_bytes)
        self._column_bytes = column_bytes
        self._columns: OrderedDict[tuple[str, str], pa.ChunkedArray] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def keep(self, file: str, name: str, column: pa.ChunkedArray) -> None:
        with self._lock:
            old = self._columns.pop((file, name), None)
            self._held += column.nbytes - (0 if old is None else old.nbytes)
            self._columns[file, name] = column
            while self._held > self._column_bytes:
                self._held -= self._columns.popitem(last=False)[1].nbytes

    def column(self, file: str, name: str) -> pa.ChunkedArray | None:
        with self._lock:
            found = self._columns.get((file, name))
            if found is not None:
                self._columns.move_to_end((file, name))
            return found

    def forget(self, file: str, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                old = self._columns.pop((file, name), None)
                self._held -= 0 if old is None else old.nbytes


@dataclass(slots=True)
class _Part:
    """A live data file."""

    id: FileId
    add: Action
    rows: int


@dataclass
class _Plan:
    """Of a commit: files that are written again, and those that get a deletion vector, with their rows that are gone then."""

    rewritten: dict[int, Numbers] = field(default_factory=dict)
    vectors: dict[int, Numbers] = field(default_factory=dict)


class FileTable:
    """One thread at a time uses it."""

    def __init__(self, files: Storage, memory: TableMemory, clock: Callable[[], float] = time.monotonic) -> None:
        """`files` are those below the table's folder."""
        self.files = files
        self.log = TableLog(files)
        self.lock = threading.RLock()
        self._memory = memory
        self._clock = clock
        self._physical: set[str] = set()
        self._layout: tuple[Action, Action, FileLayout | None] | None = None
        self._columns: tuple[str, dict[str, str]] = ("", {})
        self._left: frozenset[int] = frozenset()
        """Versions whose files are not read here."""
        self._reset()

    def _reset(self) -> None:
        self._files: LiveFiles[_Part] = LiveFiles(self._memory.indexes)
        self._numbers: dict[str, int] = {}
        """By the path of a file."""
        self._seen: dict[str, float] = {}
        """When each file was there."""
        self._table = ""

    # -- rows ---------------------------------------------------------------------------------------------------------

    def layout(self, snapshot: TableSnapshot) -> FileLayout | None:
        """Returns how its files are laid out; None: Delta alone knows."""
        if self._layout is None or self._layout[0] is not snapshot.metadata or self._layout[1] is not snapshot.protocol:
            self._layout = snapshot.metadata, snapshot.protocol, layout_of(snapshot)
        return self._layout[2]

    def takes(self, snapshot: TableSnapshot | None, types: Mapping[str, str]) -> bool:
        """Returns whether rows with exactly these columns, given with their types in Spark's words, can be written here."""
        if snapshot is None or not self.is_known(snapshot):
            return False
        layout = self.layout(snapshot)
        have = {} if layout is None else {column.name: column.type for column in layout.columns}
        return have == types

    def is_known(self, snapshot: TableSnapshot | None) -> bool:
        """Returns whether the table, as it is, can be committed to here."""
        return snapshot is not None and snapshot.version not in self._left and self.layout(snapshot) is not None

    def columns(self, snapshot: TableSnapshot, types_of: Callable[[Action], dict[str, str]]) -> dict[str, str]:
        """Returns the columns with their types in Spark's words."""
        text = snapshot.metadata["schemaString"]
        if self._columns[0] != text:
            self._columns = text, types_of(json.loads(text))
        return dict(self._columns[1])

    def leave(self) -> None:
        """Its files are not read here at this version: something is wrong with them."""
        snapshot = self.log.known
        self._left = frozenset() if snapshot is None else frozenset({snapshot.version})
        self._reset()
        self.log.forget()

    def find(
        self, snapshot: TableSnapshot, layout: FileLayout, schema: pa.Schema, rows: WantedRows
    ) -> tuple[pa.Table, Numbers]:
        """Returns the rows that are wanted, with the columns of `schema`: those not among its `names`, but for keys and
        positions, are null. Beside them their places."""
        import pyarrow as pa

        self._follow(snapshot, layout)
        self._check()

        def read(number: int, wanted: Sequence[str], keep: bool = True) -> Iterator[pa.Table]:
            columns = pa.schema([schema.field(name) for name in wanted])
            yield self._rows(self._files.files[number], layout, columns, keep)

        own = (KEY, position_of(schema))
        for number in self._files.index.missing():
            self._files.insert(number, read(number, own, False))
        return self._files.rows_under(read, schema, rows)

    def _check(self) -> None:
        """OSError or ValueError where a file is missing, or is not the one that was written: what is kept of it would hide
        that."""
        now = self._clock()
        for part in self._files.files.values():
            path = part.id[0]
            if now - self._seen.get(path, float("-inf")) < self.files.checks_every_s:
                continue
            if self.files.size(data_path(path)) != part.add["size"]:
                raise ValueError("a file has another size")
            self._seen[path] = now

    def _rows(self, part: _Part, layout: FileLayout, schema: pa.Schema, keep: bool = False) -> pa.Table:
        """Returns all rows of a file in their order, also those that are gone."""
        import pyarrow as pa

        read = self._read(part, layout, schema, keep)
        return pa.table([read[field.name].cast(field.type) for field in schema], schema=schema)

    def _groups(self, part: _Part, layout: FileLayout, schema: pa.Schema) -> Iterator[pa.Table]:
        """The same in groups, for whoever stops when they are too large together."""
        import pyarrow as pa

        if part.rows <= data_files.ROW_GROUP:
            yield self._rows(part, layout, schema)
            return
        physical = {column.name: column.physical for column in layout.columns}
        with self._open(part) as file:
            there = set(file.schema_arrow.names)
            wanted = [physical[name] for name in schema.names if physical[name] in there]
            for number in range(file.num_row_groups):
                read = file.read_row_group(number, columns=wanted, use_threads=False)
                columns = [
                    read[physical[field.name]].cast(field.type)
                    if physical[field.name] in there
                    else pa.nulls(read.num_rows, field.type)
                    for field in schema
                ]
                yield pa.table(columns, schema=schema)

    def _read(self, part: _Part, layout: FileLayout, schema: pa.Schema, keep: bool) -> dict[str, pa.ChunkedArray]:
        """Whole columns of a file; one that came later is null. `keep`: for later batches."""
        import pyarrow as pa

        physical = {column.name: column.physical for column in layout.columns}
        path = self._name(part.id[0])
        out = {name: self._memory.column(path, physical[name]) for name in schema.names}
        missing = [name for name, found in out.items() if found is None]
        if missing:
            with self._open(part) as file:
                there = set(file.schema_arrow.names)
                wanted = [physical[name] for name in missing if physical[name] in there]
                read = file.read(columns=wanted, use_threads=part.rows > THREADS_FROM)
            for name in missing:
                if physical[name] in there:
                    out[name] = read[physical[name]]
                    if keep:
                        self._memory.keep(path, physical[name], read[physical[name]])
                else:
                    out[name] = pa.chunked_array([pa.nulls(part.rows, schema.field(name).type)])
        return {name: found for name, found in out.items() if found is not None}

    def _open(self, part: _Part) -> Any:
        from pyarrow import parquet

        source = self.files.source(data_path(part.id[0]))
        return parquet.ParquetFile(source, coerce_int96_timestamp_unit="us", memory_map=True)

    def _name(self, path: str) -> str:
        """The name of a data file in the memory that tables share."""
        return self.files.place(data_path(path))

    # -- the index ----------------------------------------------------------------------------------------------------

    def _follow(self, snapshot: TableSnapshot, layout: FileLayout) -> None:
        """Brings what is known of files to a version."""
        self._physical.update(column.physical for column in layout.columns)
        identity = str(snapshot.metadata["id"])
        if identity != self._table:
            self._reset()
            self._table = identity
        paths = {path for path, _ in snapshot.files}
        for path in self._numbers.keys() - paths:
            self._files.remove(self._numbers.pop(path))
            self._memory.forget(self._name(path), self._physical)
            self._seen.pop(path, None)
        for id, add in snapshot.files.items():
            number = self._numbers.get(id[0])
            if number is None:
                rows = self._count(id[0], add)
                self._numbers[id[0]] = self._files.add(_Part(id, add, rows), self._gone(add, rows))
            elif (part := self._files.files[number]).id != id:
                changed = _Part(id, add, part.rows)
                self._numbers[id[0]] = self._files.change(number, changed, self._gone(add, part.rows))

    def _count(self, path: str, add: Action) -> int:
        from pyarrow import parquet

        told = json.loads(add.get("stats") or "{}").get("numRecords")
        return int(told) if told is not None else parquet.read_metadata(self.files.source(data_path(path))).num_rows

    def _gone(self, add: Action, rows: int) -> Numbers | None:
        import numpy as np

        vector = add.get("deletionVector")
        if not vector:
            return None
        out = np.zeros(rows, np.bool_)
        out[deletion_vectors.read(self.files, vector)] = True
        return out

    def wants_checkpoint(self, made: TableSnapshot) -> bool:
        return made.version % CHECKPOINT_EVERY == 0

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        before: TableSnapshot,
        layout: FileLayout,
        actions: Sequence[Action],
        put: pa.Table | None = None,
        gone: Numbers | None = None,
    ) -> TableSnapshot | None:
        """Rows to put, places of rows to take away and `actions` in the next version; None: somebody else has made it. Files
        that it had written stay then, as those of any writer that lost do."""
        import numpy as np

        self._follow(before, layout)
        plan = _Plan() if put is None else self._plan(layout, put.num_rows, gone)
        now = time.time_ns() // 1_000_000
        said: list[Action] = []
        marked: dict[int, Action] = {}
        vectors = deletion_vectors.VectorFile()
        for number in [*plan.rewritten, *plan.vectors]:
            part = self._files.files[number]
            said.append({"remove": _removed(part.add, now)})
            if number in plan.vectors:
                marked[number] = _marked(part.add, vectors.add(np.flatnonzero(plan.vectors[number])))
        if vectors.content:
            self.files.replace(vectors.name, vectors.content)
        made_files = [] if put is None else self._written(layout, put, plan)
        said += [{"add": add} for add in (*marked.values(), *(add for add, _ in made_files))]
        if made_files or vectors.content:
            self.files.settle("")
        hit("sink.files_written")
        made = self.log.commit(before, [*actions, *said])
        if made is None:
            return None
        for number, add in marked.items():
            # Its vector need not be read again.
            part = self._files.files[number]
            self._files.change(number, _Part(file_id(add), add, part.rows), plan.vectors[number])
        self._follow(made, layout)
        for add, rows in made_files:
            if KEY in rows.column_names:
                self._files.insert(self._numbers[add["path"]], [rows])
        return made

    # -- files as fewer ones ------------------------------------------------------------------------------------------

    def views(self, snapshot: TableSnapshot, layout: FileLayout) -> list[DataFileView]:
        """Returns the files of a version, with copies of what is known of their deleted rows."""
        self._follow(snapshot, layout)
        return [
            DataFileView(
                part.id[0],
                part,
                int(part.add["size"]),
                part.rows,
                MEMORY_FACTOR * int(part.add["size"]),
                self._files.mask_or_none(number),
            )
            for number, part in self._files.files.items()
        ]

    def rewrite(
        self, layout: FileLayout, schema: pa.Schema, files: Sequence[DataFileView]
    ) -> tuple[Sequence[DataFileView], tuple[Action, pa.Table] | None] | None:
        """Writes the rows of the first of these files as one, and returns which those are, and the action that adds it (None:
        no row is left) with keys and positions; None: they do not fit into memory. It may run beside everything else."""
        for view in files:
            # What is kept of a file that is missing would hide that.
            if self.files.size(data_path(view.name)) != view.bytes:
                raise OSError("a file has another size")
        found = live_rows(files, lambda view: self._groups(view.file, layout, schema))
        if found is None:
            return None
        taken, rows = found
        made = self._write(layout, rows) if rows.num_rows else None
        self.files.settle("")
        return taken, made

    def replace(
        self,
        before: TableSnapshot,
        layout: FileLayout,
        actions: Sequence[Action],
        files: Sequence[DataFileView],
        made: tuple[Action, pa.Table] | None,
    ) -> TableSnapshot | None:
        """Puts a file in the place of others, without their rows that were deleted since they were looked at; None: that is not
        possible, or somebody else has made the next version."""
        self._follow(before, layout)
        if any(view.name not in self._numbers for view in files):
            return None
        numbers = [self._numbers[view.name] for view in files]
        counts = [view.rows for view in files]
        gone = moved_rows([view.gone for view in files], [self._files.gone[number] for number in numbers], counts)
        if gone is None or (len(gone) and not layout.vectors):
            return None
        now = time.time_ns() // 1_000_000
        said = [{"remove": {**_removed(self._files.files[number].add, now), "dataChange": False}} for number in numbers]
        if made is not None:
            said.append({"add": {**self._without(made[0], gone), "dataChange": False}})
        hit("maintenance.before_commit")
        after = self.log.commit(before, [*actions, *said])
        if after is None:
            return None
        hit("maintenance.after_commit")
        self._follow(after, layout)
        if made is not None and KEY in made[1].column_names:
            self._files.insert(self._numbers[made[0]["path"]], [made[1]])
        return after

    def _without(self, add: Action, gone: Numbers) -> Action:
        """Returns the action that adds a new file without some of its rows."""
        if not len(gone):
            return add
        vectors = deletion_vectors.VectorFile()
        marked = _marked(add, vectors.add(gone))
        if vectors.content:
            self.files.replace(vectors.name, vectors.content)
            self.files.settle("")
        return marked

    def discard(self, made: tuple[Action, pa.Table] | None) -> None:
        """Deletes a file that no version names."""
        if made is not None:
            self.files.remove([data_path(made[0]["path"])])

    # -- how a commit is made -----------------------------------------------------------------------------------------

    def _plan(self, layout: FileLayout, put: int, gone: Numbers | None) -> _Plan:
        """`put`: how many rows are added."""
        plan = _Plan()
        for number, rows in by_file(gone).items() if gone is not None else ():
            part, dead = self._files.files[number], self._files.mask(number)
            dead[rows] = True
            left = part.rows - int(dead.sum())
            small = left <= min(put // 2, SMALL_ROWS)
            again = not layout.vectors or small or part.rows - left > GONE_SHARE_MAX * part.rows
            (plan.rewritten if again else plan.vectors)[number] = dead
        self._join(plan, put)
        return plan

    def _join(self, plan: _Plan, put: int) -> None:
        """Adds files to those that are written again where there are many of one size."""
        while True:
            rows = put + sum(len(dead) - int(dead.sum()) for dead in plan.rewritten.values())
            if not rows or rows > FILE_ROWS_MAX:
                return
            others = self._files.files.keys() - plan.rewritten.keys()
            peers = [number for number in sorted(others) if _tier(self._files.live(number)) <= _tier(rows)]
            if len(peers) + 1 < FANOUT:
                return
            for number in peers:
                plan.rewritten[number] = plan.vectors.pop(number, self._files.mask(number))

    def _written(self, layout: FileLayout, put: pa.Table, plan: _Plan) -> list[tuple[Action, pa.Table]]:
        """Writes the rows to put and what is left of files that are written again; no more of them are in memory at once
        than a large file has."""
        import pyarrow as pa

        made, held, count = [], [put], put.num_rows
        for number, dead in plan.rewritten.items():
            if count >= FILE_ROWS_MAX:
                made.append(self._write(layout, pa.concat_tables(held)))
                held, count = [], 0
            part = self._files.files[number]
            if not dead.all():
                held.append(self._rows(part, layout, put.schema).filter(pa.array(~dead)))
                count += held[-1].num_rows
        if count:
            made.append(self._write(layout, pa.concat_tables(held)))
        return made

    def _write(self, layout: FileLayout, rows: pa.Table) -> tuple[Action, pa.Table]:
        """Returns the action that adds the file, and the columns of keys and positions of its rows."""
        schema = file_schema(layout, rows.schema)
        own = (KEY, position_of(rows.schema))
        unlike = tuple(new for old, new in zip(rows.column_names, schema.names, strict=True) if old in own)
        table = rows.combine_chunks().rename_columns(schema.names).cast(schema)
        add = data_files.write(self.files, table, unlike)
        self._seen[add["path"]] = self._clock()
        for name in schema.names if rows.num_rows <= KEPT_ROWS_MAX else ():
            self._memory.keep(self._name(add["path"]), name, table[name])
        return add, rows.select([name for name in own if name in rows.column_names])


def _tier(rows: int) -> int:
    tier = 0
    while rows > SMALL_ROWS:
        rows //= FANOUT
        tier += 1
    return tier


def _removed(add: Action, now: int) -> dict[str, Any]:
    """The action that takes a file away as it is."""
    kept = {name: add[name] for name in ("path", "partitionValues", "size", "deletionVector") if name in add}
    return {**kept, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _marked(add: Action, vector: Action) -> dict[str, Any]:
    """The action that brings a file back without more of its rows."""
    told = json.loads(add.get("stats") or "{}")
    told["tightBounds"] = False
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return {**add, "dataChange": True, "stats": text, "deletionVector": vector}
