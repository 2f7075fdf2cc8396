"""The Parquet warehouse: per table a folder of files and numbered manifests that say which of them are the table.

A change log is appended to; current state is kept in buckets of keys, and a batch writes anew those that it touches.
"""

from __future__ import annotations

import fcntl
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdcworker.connectors.api import DELETED, KEY, POSITION, SinkBatch, TableBatch, TargetRows
from cdcworker.connectors.spark import merging, shaping, staging
from cdcworker.connectors.spark.buckets import bucket_of, fresh, save, touched
from cdcworker.connectors.spark.errors import FENCED
from cdcworker.connectors.spark.manifests import (
    FOLDER,
    File,
    Manifest,
    Manifests,
    advanced,
    collision,
    sync_folder,
    tables,
    write_synced,
)
from cdcworker.connectors.spark.staging import parts_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa

Epoch = tuple[int, int]
SMALL_BYTES = 32 * 1024 * 1024
SMALL_FILES_MAX = 32
"""So many small files of an appended table become one."""
PRUNE_EVERY_S = 60.0


@dataclass(slots=True)
class _Table:
    """A table while a batch is applied: its state as it stands, and rows in memory once they were needed."""

    manifests: Manifests
    state: Manifest
    schema: pa.Schema | None
    dropped: list[File]
    added: list[File]


class ParquetWriter:
    """A TableWriter for a folder. Each table commits alone, rows with their offsets."""

    def __init__(
        self,
        root: str,
        sink: str,
        task: int = 0,
        *,
        schema: str = "",
        output: shaping.Output | None = None,
        buckets: int = 8,
    ) -> None:
        self._root = Path(root)
        self._sink = sink
        self._task = task
        self._schema = schema
        self._output = output or shaping.Output()
        self._buckets = buckets
        self._epoch: Epoch = (0, 0)
        self._states: dict[str, Manifest] = {}
        self._pruned: dict[str, float] = {}

    # -- the seam -----------------------------------------------------------------------------------------------------

    def fence(self, epoch: Epoch) -> None:
        home = self._root / "_cdcworker"
        home.mkdir(parents=True, exist_ok=True)
        path = home / f"{quote(self._sink, safe='')}-{self._task}.json"
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists() and tuple(json.loads(path.read_text())["epoch"]) > epoch:
                raise CdcError(FENCED, "the target's fence holds a newer epoch", where={"sink": self._sink})
            scratch = path.with_suffix(f".{uuid.uuid4().hex}")
            write_synced(scratch, json.dumps({"epoch": epoch}).encode())
            scratch.replace(path)
            sync_folder(home)
        self._epoch = epoch
        self._states.clear()

    def claim(self, topics: Sequence[str]) -> None:
        for folder in tables(self._root):
            manifests = Manifests(folder)
            found = manifests.newest()
            if found is None or found.sink != self._sink or found.topic not in topics:
                continue
            if found.epoch > self._epoch:
                raise CdcError(FENCED, "a newer task applies this topic", where={"topic": found.topic})
            if found.epoch < self._epoch:
                found = manifests.commit(replace(found, epoch=self._epoch, version=found.version))
            manifests.sweep(found, everything=True)

    def ledger(self) -> Mapping[tuple[str, int], int]:
        self._states.clear()
        out = {}
        for folder in tables(self._root):
            found = Manifests(folder).newest()
            if found is not None and found.sink == self._sink:
                out.update({(found.topic, int(number)): offset for number, offset in found.offsets.items()})
        return out

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]:
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}, "replayed": False}
        topics = parts_of(batch)
        self._still_ours()
        self._bury_letters(batch)
        replayed = 0
        for topic, parts in topics.items():
            replayed += not self._topic(topic, parts, batch, counts)
        counts["replayed"] = bool(topics) and replayed == len(topics)
        return counts

    def _bury_letters(self, batch: SinkBatch) -> None:
        """A file each, before the offsets pass them; the same name again when the batch comes again."""
        for letter in batch.dead:
            home = self._root / "_cdcworker" / "dead" / quote(self._sink, safe="") / letter.topic
            home.mkdir(parents=True, exist_ok=True)
            said: dict[str, Any] = {"code": letter.code, "cause": letter.cause}
            for name, content in (("key", letter.key), ("value", letter.value)):
                said[name] = None if content is None else content.hex()
            write_synced(home / f"{letter.partition}-{letter.offset}.json", json.dumps(said).encode())

    def rows(self, topic: str) -> TargetRows | None:
        manifests = Manifests(self._folder(topic, ()))
        found = manifests.newest()
        if found is None or found.arrow is None:
            return None
        applied = {int(number): bytes.fromhex(at) for number, (at, _) in found.applied.items()}
        return TargetRows(str(manifests.folder), found.key, applied, self._batches(manifests.folder, found))

    def cancel(self) -> None:
        """A batch ends by itself soon, and its manifest alone makes it count."""

    def close(self) -> None:
        self._states.clear()

    # -- one table ----------------------------------------------------------------------------------------------------

    def _still_ours(self) -> None:
        path = self._root / "_cdcworker" / f"{quote(self._sink, safe='')}-{self._task}.json"
        if tuple(json.loads(path.read_text())["epoch"]) != self._epoch:
            raise CdcError(FENCED, "the target's fence changed", where={"sink": self._sink, "task": self._task})

    def _folder(self, topic: str, path: Sequence[str]) -> Path:
        schema, table = shaping.place_of(topic, path, self._schema)
        return self._root / quote(schema, safe=" ") / quote(table, safe=" ")

    def _topic(self, topic: str, parts: Sequence[TableBatch], batch: SinkBatch, counts: dict[str, Any]) -> bool:
        """False: all of it had been applied before."""
        manifests = Manifests(self._folder(topic, parts[0].path if parts else ()))
        state = self._states.get(topic) or manifests.newest() or Manifest(self._sink, topic, self._epoch)
        if (state.sink, state.topic) != (self._sink, topic):
            raise collision(state, topic)
        if state.epoch > self._epoch:
            raise CdcError(FENCED, "a newer task writes this table", where={"topic": topic})
        if not fresh(state, batch):
            return False
        table = _Table(manifests, replace(state, epoch=self._epoch), state.arrow, [], [])
        for part in parts:
            self._part(table, part, counts)
        self._states[topic] = self._commit(table, batch)
        return True

    def _part(self, table: _Table, part: TableBatch, counts: dict[str, Any]) -> None:
        where = {"table": "/".join(table.manifests.folder.parts[-2:]), "topic": part.table}
        shape = staging.evolve(table.schema, table.state.key, part, self._output, where)
        moved = table.schema is not None and not shaping.same_columns(table.schema, shape.schema)
        table.schema = shape.schema
        if part.key and not table.state.key:
            table.state = replace(table.state, key=part.key, buckets=self._buckets)
        if part.key:
            counts["orphans"] += self._merge(table, shape, part, moved)
        else:
            self._append(table, shape, part)
        counts["rows"] += part.upserts.num_rows + part.deletes.num_rows
        counts["changes"] += part.changes
        name = ".".join(table.manifests.folder.parts[-2:])
        counts["tables"][name] = counts["tables"].get(name, 0) + part.changes

    def _append(self, table: _Table, shape: shaping.Shape, part: TableBatch) -> None:
        if part.floor is not None:
            self._rewrite(table, self._files(table), part.floor)
        if part.upserts.num_rows:
            self._write(table, staging.appended(shape, part, self._output), 0)
        small = [file for file in self._files(table) if file.bytes < SMALL_BYTES]
        if len(small) > SMALL_FILES_MAX:
            self._rewrite(table, small, None)

    def _rewrite(self, table: _Table, files: Sequence[File], floor: bytes | None) -> None:
        """Several files as one, without the rows below the floor."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self._read(table, files)
        if floor is not None:
            rows = rows.filter(pc.invert(pc.less(rows[POSITION], pa.scalar(floor, pa.binary()))))
        self._drop(table, files)
        self._write(table, rows, 0)

    def _merge(self, table: _Table, shape: shaping.Shape, part: TableBatch, moved: bool) -> int:
        staged = staging.staged(shape, part, self._output, bytes.fromhex(table.state.floor))
        some = None if moved or staged.truncates else touched(staged, table.state.buckets)
        files = [file for file in self._files(table) if some is None or file.bucket in some]
        graves = self._graves(table)
        found = merging.merge(self._read(table, files), graves, staged, DELETED if self._output.soft else "")
        self._drop(table, files)
        for bucket, rows in self._split(table, found.rows):
            self._write(table, rows, bucket)
        self._write_graves(table, self._needed(table.state, found.graves))
        if part.floor is not None:
            table.state = replace(table.state, floor=(staged.floor or b"").hex())
        return found.orphans

    # -- files --------------------------------------------------------------------------------------------------------

    def _split(self, table: _Table, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        import numpy as np

        count = table.state.buckets
        buckets = np.array([bucket_of(key, count) for key in rows[KEY].to_pylist()], np.int64)
        for bucket in np.unique(buckets).tolist():
            yield bucket, rows.take(np.flatnonzero(buckets == bucket))

    @staticmethod
    def _files(table: _Table) -> Sequence[File]:
        return [*(file for file in table.state.files if file not in table.dropped), *table.added]

    @staticmethod
    def _drop(table: _Table, files: Sequence[File]) -> None:
        for file in files:
            if file in table.added:
                table.added.remove(file)
                (table.manifests.folder / file.path).unlink(missing_ok=True)
            else:
                table.dropped.append(file)

    @staticmethod
    def _read(table: _Table, files: Sequence[File]) -> pa.Table:
        import pyarrow as pa
        from pyarrow import parquet

        assert table.schema is not None
        parts = [parquet.read_table(table.manifests.folder / file.path, partitioning=None) for file in files]
        shaped = [shaping.conform(part, table.schema) for part in parts]
        return pa.concat_tables([table.schema.empty_table(), *shaped])

    def _write(self, table: _Table, rows: pa.Table, bucket: int) -> None:
        if rows.num_rows:
            path = f"{uuid.uuid4().hex}.parquet"
            table.added.append(File(path, rows.num_rows, save(table.manifests.folder / path, rows), bucket))

    def _graves(self, table: _Table) -> pa.Table:
        from pyarrow import parquet

        assert table.schema is not None
        empty = merging.graves_of(table.schema.empty_table(), False)
        if not table.state.graves:
            return empty
        found = parquet.read_table(table.manifests.folder / table.state.graves, partitioning=None)
        return shaping.conform(found, empty.schema, defaults=False)

    def _needed(self, state: Manifest, graves: pa.Table) -> pa.Table:
        """Without those, now and then, that no row still to come can be older than."""
        import pyarrow as pa
        import pyarrow.compute as pc

        now = time.monotonic()
        if now - self._pruned.setdefault(state.topic, now) < PRUNE_EVERY_S or not state.applied:
            return graves
        self._pruned[state.topic] = now
        least = bytes.fromhex(min(at for at, _ in state.applied.values()))
        return graves.filter(pc.greater_equal(graves[POSITION], pa.scalar(least, pa.binary())))

    def _write_graves(self, table: _Table, graves: pa.Table) -> None:
        if not graves.num_rows:
            table.state = replace(table.state, graves="")
            return
        path = f"{FOLDER}/{uuid.uuid4().hex}.parquet"
        save(table.manifests.folder / path, graves)
        table.state = replace(table.state, graves=path)

    def _commit(self, table: _Table, batch: SinkBatch) -> Manifest:
        hit("sink.staged")
        hit("sink.before_commit")
        state = advanced(table.state, batch, table.schema)
        made = table.manifests.commit(replace(state, files=tuple(self._files(table))))
        hit("sink.after_commit")
        table.manifests.sweep(made)
        return made

    @staticmethod
    def _batches(folder: Path, manifest: Manifest) -> Iterator[pa.RecordBatch]:
        from pyarrow import parquet

        schema = manifest.arrow
        assert schema is not None
        for file in manifest.files:
            with parquet.ParquetFile(folder / file.path) as source:
                for group in range(source.num_row_groups):
                    yield from shaping.conform(source.read_row_group(group), schema).to_batches()
