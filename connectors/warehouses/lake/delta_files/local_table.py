"""A Delta table on a local file system: the rows under some keys, and a change of rows as one commit."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY
from cdcworker.connectors.warehouses.lake.delta_files import data_files, deletion_vectors
from cdcworker.connectors.warehouses.lake.delta_files.key_index import ENTRY_BYTES, KeyIndex, hashes
from cdcworker.connectors.warehouses.lake.delta_files.table_features import (
    FileLayout,
    data_path,
    file_schema,
    layout_of,
)
from cdcworker.connectors.warehouses.lake.delta_files.table_log import Action, FileId, TableLog, TableSnapshot
from cdcworker.connectors.warehouses.table_state import sync_folder, write_synced
from cdcworker.connectors.warehouses.target_columns import position_of
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, Any]

INDEX_BYTES_MAX: Final = 256 << 20
"""Of all tables of a sink; files past it are read through for each batch."""
COLUMN_BYTES_MAX: Final = 192 << 20
"""Of columns that are kept for the next batches."""
GONE_SHARE_MAX: Final = 0.3
"""A file of which a larger share is gone is written again."""
FANOUT: Final = 8
"""So many files of about one size become one."""
SMALL_ROWS: Final = 4096
"""Files up to so many rows are of one size."""
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
        self._index_bytes = index_bytes
        self._column_bytes = column_bytes
        self._indexes: dict[Path, int] = {}
        self._columns: OrderedDict[tuple[Path, str], pa.ChunkedArray] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def hold_index(self, table: Path, size: int) -> None:
        with self._lock:
            self._indexes[table] = size

    def takes(self, more: int) -> bool:
        """Returns whether an index may grow by so many bytes."""
        with self._lock:
            return sum(self._indexes.values()) + more <= self._index_bytes

    def keep(self, file: Path, name: str, column: pa.ChunkedArray) -> None:
        with self._lock:
            old = self._columns.pop((file, name), None)
            self._held += column.nbytes - (0 if old is None else old.nbytes)
            self._columns[file, name] = column
            while self._held > self._column_bytes:
                self._held -= self._columns.popitem(last=False)[1].nbytes

    def column(self, file: Path, name: str) -> pa.ChunkedArray | None:
        with self._lock:
            found = self._columns.get((file, name))
            if found is not None:
                self._columns.move_to_end((file, name))
            return found

    def forget(self, file: Path, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                old = self._columns.pop((file, name), None)
                self._held -= 0 if old is None else old.nbytes


@dataclass(slots=True)
class _Part:
    """A live data file. `dead`: its rows that are gone, None: none is."""

    number: int
    id: FileId
    add: Action
    rows: int
    dead: Numbers | None
    indexed: bool = False

    @property
    def live(self) -> int:
        return self.rows if self.dead is None else self.rows - int(self.dead.sum())

    def mask(self) -> Numbers:
        import numpy as np

        return np.zeros(self.rows, np.bool_) if self.dead is None else self.dead


@dataclass(frozen=True, slots=True)
class _NewFile:
    """A file of a commit, with the hashes of its keys; None: its rows have none."""

    add: dict[str, Any]
    hashes: Numbers | None


@dataclass
class _Plan:
    """Of a commit: files that are written again, and those that get a deletion vector, with their rows that are gone then."""

    rewritten: dict[int, Numbers] = field(default_factory=dict)
    vectors: dict[int, Numbers] = field(default_factory=dict)


class LocalTable:
    """One thread at a time uses it."""

    def __init__(self, folder: Path, memory: TableMemory) -> None:
        self.folder = folder
        self.log = TableLog(folder)
        self.lock = threading.RLock()
        self._memory = memory
        self._physical: set[str] = set()
        self._layout: tuple[Action, Action, FileLayout | None] | None = None
        self._columns: tuple[str, dict[str, str]] = ("", {})
        self._left: frozenset[int] = frozenset()
        """Versions whose files are not read here."""
        self._reset()

    def _reset(self) -> None:
        self._index = KeyIndex()
        self._parts: dict[str, _Part] = {}
        self._numbers: list[_Part | None] = []
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
        self, snapshot: TableSnapshot, layout: FileLayout, schema: pa.Schema, keys: pa.Array, names: Collection[str]
    ) -> tuple[pa.Table, Numbers]:
        """Returns the rows under distinct keys, with the columns of `schema`: those not among `names`, but for keys and
        positions, are null. Beside them their places: for each row the number of its file and its own in it."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        self._follow(snapshot, layout)
        self._check()
        hashed = hashes(keys)
        order = np.argsort(hashed)
        files, at, which = self._places(hashed[order], layout)
        there = self._alive(files, at)
        files, at, which = files[there], at[there], order[which[there]]
        turn = np.lexsort((at, files))
        files, at, which = files[turn], at[turn], which[turn]
        read = pa.schema([field for field in schema if field.name in {*names, KEY, position_of(schema)}])
        pieces = [read.empty_table()]
        for number in np.unique(files).tolist():
            part = self._numbers[number]
            assert part is not None
            pieces.append(self._rows(part, layout, read, at[files == number]))
        rows = pa.concat_tables(pieces).combine_chunks()
        same = pc.fill_null(pc.equal(rows[KEY], keys.take(pa.array(which))), False)
        if not pc.all(same, min_count=0).as_py():
            kept = np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)
            rows, files, at = rows.filter(pa.array(kept)), files[kept], at[kept]
        return _with_all(rows, schema), np.stack([files.astype(np.int64), at.astype(np.int64)], 1)

    def _places(self, wanted: Numbers, layout: FileLayout) -> tuple[Numbers, Numbers, Numbers]:
        import numpy as np

        read = {}
        for part in self._parts.values():
            if not part.indexed:
                hashed = self._hashes(part, layout)
                self._indexed(part, hashed)
                if not part.indexed:
                    read[part.number] = hashed
        found = [self._index.find(wanted)]
        for number, hashed in read.items():
            if len(wanted):
                low = np.searchsorted(wanted, hashed)
                hit = np.flatnonzero((low < len(wanted)) & (wanted[np.minimum(low, len(wanted) - 1)] == hashed))
                found.append((np.full(len(hit), number, np.int32), hit.astype(np.int32), low[hit]))
        files, at, which = (np.concatenate(each) for each in zip(*found, strict=True))
        return files, at, which

    def _check(self) -> None:
        """OSError or ValueError where a file is missing, or is not the one that was written: what is kept of it would hide
        that."""
        for part in self._parts.values():
            if data_path(self.folder, part.id[0]).stat().st_size != part.add["size"]:
                raise ValueError("a file has another size")

    def _alive(self, files: Numbers, at: Numbers) -> Numbers:
        import numpy as np

        there = np.zeros(len(files), np.bool_)
        for number in np.unique(files).tolist():
            part = self._numbers[number]
            if part is None:
                continue
            mine = np.flatnonzero(files == number)
            there[mine] = True if part.dead is None else ~part.dead[at[mine]]
        return there

    def _rows(self, part: _Part, layout: FileLayout, schema: pa.Schema, at: Numbers | None = None) -> pa.Table:
        """Some rows of a file in their order; without `at` all, also those that are gone."""
        import pyarrow as pa

        read = self._read(part, layout, schema, keep=at is not None)
        columns = []
        for wanted in schema:
            found = read[wanted.name]
            found = found if at is None else found.take(pa.array(at))
            columns.append(found if found.type == wanted.type else found.cast(wanted.type))
        return pa.table(columns, schema=schema)

    def _read(
        self, part: _Part, layout: FileLayout, schema: pa.Schema, keep: bool = True
    ) -> dict[str, pa.ChunkedArray]:
        """Whole columns of a file; one that came later is null."""
        import pyarrow as pa

        physical = {column.name: column.physical for column in layout.columns}
        path = data_path(self.folder, part.id[0])
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

        return parquet.ParquetFile(
            data_path(self.folder, part.id[0]), coerce_int96_timestamp_unit="us", memory_map=True
        )

    # -- the index ----------------------------------------------------------------------------------------------------

    def _follow(self, snapshot: TableSnapshot, layout: FileLayout) -> None:
        """Brings what is known of files to a version."""
        self._physical.update(column.physical for column in layout.columns)
        identity = str(snapshot.metadata["id"])
        if identity != self._table:
            self._reset()
            self._table = identity
        paths = {path for path, _ in snapshot.files}
        for path in self._parts.keys() - paths:
            self._numbers[self._parts.pop(path).number] = None
            self._memory.forget(data_path(self.folder, path), self._physical)
        for id, add in snapshot.files.items():
            known = self._parts.get(id[0])
            if known is None:
                self._add(id, add)
            elif known.id != id:
                known.id, known.add, known.dead = id, add, self._dead(add, known.rows)

    def _add(self, id: FileId, add: Action) -> _Part:
        from pyarrow import parquet

        said = json.loads(add.get("stats") or "{}").get("numRecords")
        rows = said if said is not None else parquet.read_metadata(data_path(self.folder, id[0])).num_rows
        part = _Part(len(self._numbers), id, add, rows, self._dead(add, rows))
        self._numbers.append(part)
        self._parts[id[0]] = part
        return part

    def _indexed(self, part: _Part, hashed: Numbers) -> None:
        if self._memory.takes(part.rows * ENTRY_BYTES):
            self._index.add(part.number, hashed, self._alive)
            self._memory.hold_index(self.folder, self._index.size * ENTRY_BYTES)
            part.indexed = True

    def _hashes(self, part: _Part, layout: FileLayout) -> Numbers:
        import pyarrow as pa

        return hashes(_whole(self._read(part, layout, pa.schema([(KEY, pa.binary())]))[KEY]).cast(pa.binary()))

    def _dead(self, add: Action, rows: int) -> Numbers | None:
        import numpy as np

        vector = add.get("deletionVector")
        if not vector:
            return None
        out = np.zeros(rows, np.bool_)
        out[deletion_vectors.read(self.folder, vector)] = True
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
        vectors = deletion_vectors.VectorFile()
        for number in [*plan.rewritten, *plan.vectors]:
            part = self._numbers[number]
            assert part is not None
            said.append({"remove": _removed(part.add, now)})
            if number in plan.vectors:
                said.append({"add": _marked(part.add, vectors.add(np.flatnonzero(plan.vectors[number])))})
        if vectors.content:
            write_synced(self.folder / vectors.name, vectors.content)
        made_files = [] if put is None else self._written(layout, put, plan)
        said += [{"add": file.add} for file in made_files]
        if made_files or vectors.content:
            sync_folder(self.folder)
        hit("sink.files_written")
        made = self.log.commit(before, [*actions, *said])
        if made is None:
            return None
        self._follow(made, layout)
        for file in made_files:
            if file.hashes is not None:
                self._indexed(self._parts[file.add["path"]], file.hashes)
        return made

    def _plan(self, layout: FileLayout, put: int, gone: Numbers | None) -> _Plan:
        """`put`: how many rows are added."""
        import numpy as np

        plan = _Plan()
        gone = np.empty((0, 2), np.int64) if gone is None else gone
        for number in np.unique(gone[:, 0]).tolist():
            part = self._numbers[number]
            assert part is not None
            dead = part.mask().copy()
            dead[gone[gone[:, 0] == number, 1]] = True
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
            others = [part for part in self._parts.values() if part.number not in plan.rewritten]
            peers = [part for part in others if _tier(part.live) <= _tier(rows)]
            if len(peers) + 1 < FANOUT:
                return
            for part in peers:
                plan.rewritten[part.number] = plan.vectors.pop(part.number, part.mask())

    def _written(self, layout: FileLayout, put: pa.Table, plan: _Plan) -> list[_NewFile]:
        """Writes the rows to put and what is left of files that are written again; no more of them are in memory at once
        than a large file has."""
        import pyarrow as pa

        made, held, count = [], [put], put.num_rows
        for number, dead in plan.rewritten.items():
            if count >= FILE_ROWS_MAX:
                made.append(self._write(layout, pa.concat_tables(held)))
                held, count = [], 0
            part = self._numbers[number]
            assert part is not None
            if not dead.all():
                held.append(self._rows(part, layout, put.schema).filter(pa.array(~dead)))
                count += held[-1].num_rows
        if count:
            made.append(self._write(layout, pa.concat_tables(held)))
        return made

    def _write(self, layout: FileLayout, rows: pa.Table) -> _NewFile:
        schema = file_schema(layout, rows.schema)
        own = (KEY, position_of(rows.schema))
        unlike = tuple(new for old, new in zip(rows.column_names, schema.names, strict=True) if old in own)
        table = rows.combine_chunks().rename_columns(schema.names).cast(schema)
        add = data_files.write(self.folder, table, unlike)
        for name in schema.names:
            self._memory.keep(data_path(self.folder, add["path"]), name, table[name])
        return _NewFile(add, hashes(_whole(rows[KEY])) if KEY in rows.column_names else None)


def _with_all(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns that were not read are null."""
    import pyarrow as pa

    there = set(rows.column_names)
    columns = [rows[field.name] if field.name in there else pa.nulls(rows.num_rows, field.type) for field in schema]
    return pa.table(columns, schema=schema)


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


def _whole(column: Any) -> pa.Array:
    import pyarrow as pa

    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
