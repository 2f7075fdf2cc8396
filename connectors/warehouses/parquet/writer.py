"""The Parquet warehouse: per table a folder of files and numbered manifests that say which of them are the table.

A change log is appended to; current state is kept in buckets of keys, and a batch writes anew those that it touches.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdcworker.connectors.api.table_batch import DELETED, KEY, SinkBatch, TableBatch
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import FENCED, LEDGER_MOVED, from_os, gone
from cdcworker.connectors.warehouses import dropped_columns, merge, staged_rows, target_columns
from cdcworker.connectors.warehouses.parquet.buckets import batches, save, split, touched
from cdcworker.connectors.warehouses.parquet.dead_letter_files import DeadLetterFiles
from cdcworker.connectors.warehouses.recreated_topics import RecreatedTopics
from cdcworker.connectors.warehouses.row_versions import merge as version_merge
from cdcworker.connectors.warehouses.row_versions.staged_versions import staged_versions
from cdcworker.connectors.warehouses.row_versions.timeline import ALL, ends_of, ends_schema, with_ends
from cdcworker.connectors.warehouses.staged_rows import count, each_table, no_counts, parts_of
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_refusals import TableRefusals
from cdcworker.connectors.warehouses.table_state import (
    FOLDER,
    OWN,
    DataFile,
    Manifest,
    Manifests,
    advanced,
    begun,
    collision,
    folders,
    fresh,
    of_sink,
)
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa

Epoch = tuple[int, int]
SMALL_BYTES = 32 * 1024 * 1024
SMALL_FILES_MAX = 32
"""So many small files of an appended table become one."""
PRUNE_EVERY_S = 60.0
TRIES = 4
"""Of a table whose dead letters somebody applies meanwhile."""


@dataclass(slots=True)
class OpenTable:
    """A table while a batch is applied: its state as it stands, and rows in memory once they were needed."""

    manifests: Manifests
    state: Manifest
    schema: pa.Schema | None
    dropped: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    orphans: int = 0
    written: int = 0


class ParquetWriter(RecreatedTopics):
    """A TableWriter for files. Each table commits alone, rows with their offsets."""

    _prefix = ""

    def __init__(
        self,
        files: Storage,
        sink: str,
        task: int = 0,
        *,
        schema: str = "",
        output: target_columns.OutputForm | None = None,
        buckets: int = 8,
    ) -> None:
        self._storage = files
        self._sink = sink
        self._task = task
        self._schema = schema
        self._output = output or target_columns.OutputForm()
        self._buckets = buckets
        self._epoch: Epoch = (0, 0)
        self._states: dict[str, Manifest] = {}
        self._seen: set[str] = set()
        """Topics whose tables were there."""
        self._folders: dict[str, str] = {}
        """Of tables that are gone on with, wherever they lie."""
        self._pruned: dict[str, float] = {}
        self._letters = DeadLetterFiles(files, sink)
        self._ids: dict[str, str] = {}

    # -- the seam -----------------------------------------------------------------------------------------------------

    def expect(self, topics: Collection[str]) -> None:
        """Their tables were there: where they are not now they are away."""
        self._seen.update(topics)

    def fence(self, epoch: Epoch) -> None:
        with self._reached():
            self._fence(epoch)
        self._epoch = epoch
        self._states.clear()

    def _fence(self, epoch: Epoch) -> None:
        if self._seen and not self._storage.has_folder(OWN):
            raise gone(min(self._seen))
        self._storage.begin({"sink": self._sink})

        def raised(before: bytes | None) -> bytes:
            if before is not None and _epoch_in(before) > epoch:
                raise CdcError(FENCED, "the target's fence holds a newer epoch", where={"sink": self._sink})
            return json.dumps({"epoch": epoch}).encode()

        with self._storage.alone(f"{OWN}/lock", {"sink": self._sink}):
            self._storage.update(self._fence_path, raised)

    @property
    def _fence_path(self) -> str:
        return f"{OWN}/{quote(self._sink, safe='')}-{self._task}.json"

    def claim(self, topics: Sequence[str]) -> None:
        with self._reached():
            # A folder that is away looks like one without tables.
            self._still_ours()
            mine = [(manifests, found) for manifests, found in self._mine() if found.topic in topics]
            self._folders = folders(mine, self._folder)
            for topic in sorted(self._seen.intersection(topics) - self._folders.keys()):
                raise gone(topic)
            self._seen.update(self._folders)
            self._begin()
            for manifests, found in mine:
                self._claim(manifests, found)
            self._letters.forget(topics, self.ledger())

    def _begin(self) -> None:
        """Called before tables are claimed, once it is known that they exist."""

    def _claim(self, manifests: Manifests, found: Manifest) -> None:
        owned = self._owned(manifests, found)
        self._sweep(manifests, owned, owned is not found)

    def _owned(self, manifests: Manifests, found: Manifest) -> Manifest:
        """Returns the table's state with this task's epoch, after which no older task can commit."""
        for left in reversed(range(TRIES)):
            if found.epoch > self._epoch:
                raise CdcError(FENCED, "a newer task applies this topic", where={"topic": found.topic})
            if found.epoch == self._epoch:
                return found
            try:
                return manifests.commit(replace(found, epoch=self._epoch))
            except CdcError as exc:
                # What a task from before had sent before it ended may still arrive.
                newest = manifests.newest()
                if exc.code != LEDGER_MOVED or not left or newest is None:
                    raise
                found = newest
        return found

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise from_os(exc, {"sink": self._sink}) from exc

    def ledger(self) -> Mapping[tuple[str, int], int]:
        self._states.clear()
        return {(found.topic, int(number)): at for found in self._held() for number, at in found.offsets.items()}

    def _held(self) -> list[Manifest]:
        with self._reached():
            pairs = sorted(self._mine(), key=lambda pair: pair[1].begun)
        return [found for own, found in pairs if self._folders.get(found.topic, own.folder) == own.folder]

    def _mine(self) -> Iterator[tuple[Manifests, Manifest]]:
        return of_sink(self._storage, self._sink)

    def _of(self, topic: str) -> Iterator[tuple[Manifests, Manifest]]:
        return ((manifests, state) for manifests, state in self._mine() if state.topic == topic)

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]:
        counts, refusals = no_counts(), TableRefusals()
        topics = parts_of(batch)
        work = refusals.held(lambda topic: self._topic(topic, topics[topic], batch))
        with self._reached():
            self._still_ours()
            self._letters.add(batch.dead)
            tables = [table for table in each_table(batch, work, topics) if table is not None]
        for table in tables:
            counts["orphans"] += table.orphans
            count(counts, table.manifests.folder.replace("/", "."), topics[table.state.topic])
        counts["replayed"] = bool(topics) and not tables
        refusals.tell(counts)
        return counts

    def rows(self, topic: str) -> TargetRows | None:
        manifests = self._at(self._folder(topic))
        found = manifests.newest()
        if found is None or not found.begun:
            manifests, found = begun(self._of(topic)).get(topic, (manifests, found))
        return None if found is None else self._rows_of(manifests.folder, found)

    def _at(self, folder: str) -> Manifests:
        return Manifests(self._storage, folder)

    def _rows_of(self, folder: str, found: Manifest) -> TargetRows | None:
        if found.arrow is None:
            return None
        applied = {int(number): bytes.fromhex(at) for number, (at, _) in found.applied.items()}
        return TargetRows(self._storage.place(folder), found.key, applied, batches(self._storage, folder, found))

    def cancel(self) -> None:
        """A batch ends by itself soon, and its manifest alone makes it count."""

    def close(self) -> None:
        self._states.clear()

    # -- one table ----------------------------------------------------------------------------------------------------

    def _still_ours(self) -> None:
        if _epoch_in(self._storage.read(self._fence_path)) != self._epoch:
            raise CdcError(FENCED, "the target's fence changed", where={"sink": self._sink, "task": self._task})

    def _folder(self, topic: str, path: Sequence[str] = ()) -> str:
        schema, table = target_columns.place_of(topic, path, self._schema)
        return self._folders.get(topic) or f"{quote(schema, safe=' ')}/{quote(table, safe=' ')}"

    def _topic(self, topic: str, parts: Sequence[TableBatch], batch: SinkBatch) -> OpenTable | None:
        """None: all of it had been applied before."""
        manifests = self._at(self._folder(topic, parts[0].path if parts else ()))
        for left in reversed(range(TRIES)):
            state = self._state(topic, manifests)
            if (state.sink, state.topic) != (self._sink, topic):
                raise collision(state, topic)
            if state.epoch > self._epoch:
                raise CdcError(FENCED, "a newer task writes this table", where={"topic": topic})
            if not fresh(state, batch):
                return None
            table = OpenTable(manifests, replace(state, epoch=self._epoch), state.arrow)
            try:
                with manifests.writing(state):
                    self._parts(table, parts)
                    self._states[topic] = self._commit(table, batch)
                self._seen.add(topic)
                self._folders[topic] = manifests.folder
                return table
            except CdcError as exc:
                self._states.pop(topic, None)
                if exc.code != LEDGER_MOVED or not left:
                    raise
                newest = manifests.newest()
                if newest is None or not newest.is_beside(state):
                    raise
                self._states[topic] = newest
        return None

    def _state(self, topic: str, manifests: Manifests) -> Manifest:
        state = (self._states.get(topic) if manifests.there() else None) or manifests.newest()
        if state is None and topic in self._seen:
            raise gone(topic)
        if state is None:
            manifests.make()
        return state or Manifest(self._sink, topic, self._epoch)

    def _parts(self, table: OpenTable, parts: Sequence[TableBatch]) -> None:
        if table.schema is None:
            self._remember_truncates(table, parts)
        at = table.state.at
        for part in staged_rows.keyed(parts, table.state.key, table.schema):
            self._part(table, part, at)
            at = max(at, dropped_columns.position(part))
        table.state = replace(table.state, floor=staged_rows.floor_of(parts, table.state.floor))

    def _part(self, table: OpenTable, part: TableBatch, at: bytes) -> None:
        where = {"table": table.manifests.folder, "topic": part.table}
        part, how = dropped_columns.judged(part, table.schema, table.state.at, self._output, where)
        shape = staged_rows.evolve(table.schema, table.state.key, part, how, where, at)
        before, table.schema = table.schema, shape.schema
        if part.key and not table.state.key:
            table.state = replace(table.state, key=part.key, buckets=self._buckets)
        if part.key:
            # A column that goes leaves its values to nobody, also where another one comes in its place with its name.
            same = before is None or (
                target_columns.same_columns(before, shape.schema) and not target_columns.gone(before, shape.schema)
            )
            if target_columns.keeps_versions(shape.schema):
                self._merge_versions(table, shape, part, not same)
            else:
                self._merge(table, shape, part, not same)
        else:
            self._append(table, shape, part, before is not None and target_columns.under_others(before, shape.schema))
        table.state = replace(table.state, floor=staged_rows.floor_of([part], table.state.floor))

    def _append(self, table: OpenTable, shape: target_columns.FileColumns, part: TableBatch, renamed: bool) -> None:
        # Whoever reads a file by its names must not take one column for another.
        for file in self._files(table) if renamed else ():
            self._rewrite(table, [file], None)
        if part.floor is not None:
            self._rewrite(table, self._files(table), part.floor)
        table.written += part.upserts.num_rows
        if part.upserts.num_rows:
            self._write(table, staged_rows.appended(shape, part, self._output), 0)
        small = [file for file in self._files(table) if file.bytes < SMALL_BYTES]
        if len(small) > SMALL_FILES_MAX:
            self._rewrite(table, small, None)

    def _rewrite(self, table: OpenTable, files: Sequence[DataFile], floor: bytes | None) -> None:
        """Several files as one, without the rows below the floor."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self._read(table, files)
        if floor is not None:
            rows = rows.filter(
                pc.invert(pc.less(rows[target_columns.position_of(rows.schema)], pa.scalar(floor, pa.binary())))
            )
        self._drop(table, files)
        self._write(table, rows, 0)

    def _merge(self, table: OpenTable, shape: target_columns.FileColumns, part: TableBatch, moved: bool) -> None:
        staged = staged_rows.staged(shape, part, self._output, bytes.fromhex(table.state.floor))
        some = None if moved or staged.truncates else touched(staged_rows.keys_of(staged), table.state.buckets)
        files = [file for file in self._files(table) if some is None or file.bucket in some]
        tombstones = self._tombstones(table)
        found = merge.merge(self._read(table, files), tombstones, staged, DELETED if self._output.soft else "")
        self._drop(table, files)
        for bucket, rows in split(found.rows, table.state.buckets):
            self._write(table, rows, bucket)
        self._write_tombstones(table, self._needed(table.state, found.tombstones))
        table.orphans += found.orphans
        table.written += found.written

    def _merge_versions(
        self, table: OpenTable, shape: target_columns.FileColumns, part: TableBatch, moved: bool
    ) -> None:
        staged = staged_versions(shape, part, self._output)
        everything = moved or bool(staged.truncates.num_rows)
        some = None if everything else touched(staged.keys(), table.state.buckets)
        files = [file for file in self._files(table) if some is None or file.bucket in some]
        ends = self._ends(table)
        found = version_merge.merge(self._read(table, files), ends, staged)
        table.orphans += found.orphans
        table.written += found.written
        if found.written or everything:
            self._drop(table, files)
            for bucket, rows in split(found.rows, table.state.buckets):
                self._write(table, rows, bucket)
        self._write_tombstones(table, self._needed(table.state, with_ends(ends, found.remember)))

    def _remember_truncates(self, table: OpenTable, parts: Sequence[TableBatch]) -> None:
        """Of a table without columns yet: what a TRUNCATE ends may come still."""
        found = [ends_of(part.truncates, ALL) for part in parts if part.truncates is not None]
        if found:
            self._write_tombstones(table, with_ends(self._ends(table), *found))

    # -- files --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _files(table: OpenTable) -> Sequence[DataFile]:
        return [*(file for file in table.state.files if file not in table.dropped), *table.added]

    @staticmethod
    def _drop(table: OpenTable, files: Sequence[DataFile]) -> None:
        for file in files:
            if file in table.added:
                table.added.remove(file)
                table.manifests.files.remove([table.manifests.at(file.path)])
            else:
                table.dropped.append(file)

    @staticmethod
    def _read(table: OpenTable, files: Sequence[DataFile]) -> pa.Table:
        import pyarrow as pa
        from pyarrow import parquet

        assert table.schema is not None
        source, at = table.manifests.files.source, table.manifests.at
        parts = [parquet.read_table(source(at(file.path)), partitioning=None) for file in files]
        shaped = [target_columns.conform(part, table.schema) for part in parts]
        return pa.concat_tables([table.schema.empty_table(), *shaped])

    def _write(self, table: OpenTable, rows: pa.Table, bucket: int) -> None:
        if rows.num_rows:
            path = f"{self._prefix}{uuid.uuid4().hex}.parquet"
            written = save(self._storage, table.manifests.at(path), rows)
            table.added.append(DataFile(path, rows.num_rows, written, bucket))

    def _tombstones(self, table: OpenTable) -> pa.Table:
        assert table.schema is not None
        return self._kept_tombstones(table, merge.tombstones_of(table.schema.empty_table(), False).schema)

    def _ends(self, table: OpenTable) -> pa.Table:
        """Returns the tombstones of a table of versions: each delete, and each TRUNCATE."""
        return self._kept_tombstones(table, ends_schema())

    @staticmethod
    def _kept_tombstones(table: OpenTable, schema: pa.Schema) -> pa.Table:
        from pyarrow import parquet

        if not table.state.tombstones:
            return schema.empty_table()
        source = table.manifests.files.source(table.manifests.at(table.state.tombstones))
        return target_columns.conform(parquet.read_table(source, partitioning=None), schema, defaults=False)

    def _needed(self, state: Manifest, tombstones: pa.Table) -> pa.Table:
        """Returns the tombstones, from time to time without those that no row still to come can be older than."""
        import pyarrow as pa
        import pyarrow.compute as pc

        now = time.monotonic()
        if now - self._pruned.setdefault(state.topic, now) < PRUNE_EVERY_S or not state.applied:
            return tombstones
        if self._letters.has(state.topic):
            # One that is sent again may be older than all of them.
            return tombstones
        self._pruned[state.topic] = now
        least = bytes.fromhex(min(at for at, _ in state.applied.values()))
        at = tombstones[target_columns.position_of(tombstones.schema)]
        late = pc.greater_equal(at, pa.scalar(least, pa.binary()))
        # What a TRUNCATE ends may come again at any time, when offsets are reset.
        return tombstones.filter(pc.or_(late, pc.equal(tombstones[KEY], ALL)))

    def _write_tombstones(self, table: OpenTable, tombstones: pa.Table) -> None:
        if not tombstones.num_rows:
            table.state = replace(table.state, tombstones="")
            return
        path = f"{FOLDER}/{self._prefix}{uuid.uuid4().hex}.parquet"
        save(self._storage, table.manifests.at(path), tombstones)
        table.state = replace(table.state, tombstones=path)

    def _commit(self, table: OpenTable, batch: SinkBatch) -> Manifest:
        hit("sink.staged")
        hit("sink.before_commit")
        state = advanced(table.state, batch, table.schema, self._ids)
        made = table.manifests.commit(replace(state, files=tuple(self._files(table))))
        hit("sink.after_commit")
        self._tend(table.manifests, made)
        return made

    def _tend(self, manifests: Manifests, made: Manifest) -> None:
        """Called after a commit."""
        if made.version % self._storage.commits_per_sweep == 0:
            self._sweep(manifests, made)

    def _sweep(self, manifests: Manifests, newest: Manifest, everything: bool = False) -> None:
        manifests.sweep(newest, everything)


def _epoch_in(fence: bytes) -> Epoch:
    first, second = json.loads(fence)["epoch"]
    return first, second
