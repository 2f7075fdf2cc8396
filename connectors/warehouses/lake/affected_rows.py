"""The rows of a lake's table that a batch concerns: brought here, merged in memory, and staged for the statement that puts
back those which changed."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import DELETED, KEY, TableBatch
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.scratch_folder import TemporaryFolder
from cdcworker.connectors.sink_errors import QUERY_FAILED
from cdcworker.connectors.warehouses import merge, staged_rows, target_columns
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.tables import RowChange
from cdcworker.connectors.warehouses.row_versions.merge import equal
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.lake.tables import LakeName, LakeTables, NeededRows, TableVersion, Work
    from pyspark.sql import SparkSession

SOURCE = "cdc_source"
KEYS = "cdc_keys"
_KEPT = 8


def guarded(work: Work) -> Work:
    """Returns `work` whose errors name their kind only: Spark logs the text of an error, which may hold a value, on every
    machine."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from work(batches)
        except ImportError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is
            raise RuntimeError(type(exc).__name__) from None

    return run


class StagedFiles:
    """Rows on their way into Spark, as files of this machine; each step replaces those of the one before. Executors of a
    cluster (`local` is false) see no file of ours: they get the rows with their tasks."""

    def __init__(self, local: bool = True) -> None:
        self._local = local
        self._folder: TemporaryFolder | None = None
        self._files: list[Any] = []
        self._lock = threading.Lock()
        self._closed = False

    def view(self, session: SparkSession, name: str, rows: pa.Table) -> str:
        columns = statements.definition(rows.schema)
        if self._local:
            frame = session.read.schema(columns).parquet(self._file(rows))
        else:
            frame = session.createDataFrame(rows, columns)
        frame.createOrReplaceTempView(name)
        return name

    def _file(self, rows: pa.Table) -> str:
        from pyarrow import parquet

        with self._lock:
            if self._closed:
                # A thread that was not waited for still uses it.
                raise CdcError(QUERY_FAILED, "a batch is staged although its writer was released")
            self._folder = self._folder or TemporaryFolder()
            path = self._folder.path / f"{uuid.uuid4().hex}.parquet"
            parquet.write_table(rows, path, compression="none")
            self._files.append(path)
            while len(self._files) > _KEPT:
                self._files.pop(0).unlink(missing_ok=True)
        return str(path.as_uri())

    def keys(self, session: SparkSession, keys: Iterable[bytes]) -> str:
        import pyarrow as pa

        return self.view(session, KEYS, pa.table({KEY: pa.array(sorted(keys), pa.binary())}))

    def another(self) -> StagedFiles:
        return StagedFiles(self._local)

    def close(self) -> None:
        """Removes the staged files; the object is not used again."""
        with self._lock:
            self._closed = True
            folder, self._folder = self._folder, None
            self._files.clear()
            if folder is not None:
                folder.close()


def read_arrow(session: SparkSession, query: str) -> pa.Table:
    return session.sql(query).toArrow()


def read_place(session: SparkSession, tables: LakeTables, place: LakeName, found: TableVersion) -> TargetRows | None:
    """A table as it was found."""
    if found.state is None or found.state.arrow is None:
        return None
    names = ", ".join(map(statements.quoted, found.columns))
    table = read_arrow(session, f"SELECT {names} FROM {tables.at(place, found)}")
    applied = {int(number): bytes.fromhex(at) for number, (at, _) in found.state.applied.items()}
    return TargetRows(".".join(place), found.state.key, applied, iter(table.to_batches()))


@dataclass(frozen=True, slots=True)
class AppliedRows:
    """The rows after a batch, with the tombstones that it brought."""

    before: pa.Table
    rows: pa.Table
    new_tombstones: pa.Table
    orphans: int
    written: int
    places: Any = None
    """Where the rows from before lie in the table's files; None: they are looked for by their keys."""


class AffectedRows:
    """The parts of one table's batch, and what they do to its rows. `have` are the columns from before, None: there
    was no table."""

    def __init__(
        self,
        parts: Sequence[TableBatch],
        shapes: Sequence[target_columns.FileColumns],
        schema: pa.Schema,
        have: pa.Schema | None,
        output: target_columns.OutputForm,
        floor: bytes,
    ) -> None:
        self.schema = schema
        self._have = have
        self._parts = list(zip(parts, shapes, strict=True))
        self._output = output
        self._floor = floor
        self._position = target_columns.position_of(schema)
        floors = (part.floor for part in parts if part.floor is not None)
        self._below = statements.below(self._position, max(floors, default=None))
        self._fill = statements.added(have, schema)
        self._staged: list[merge.StagedBatch] = []
        if any(part.key for part in parts):
            self._stage()

    def _stage(self) -> None:
        self._staged = [self._conformed(part, shape) for part, shape in self._parts]

    def _conformed(self, part: TableBatch, shape: target_columns.FileColumns) -> merge.StagedBatch:
        """Returns the part with the last columns of the batch, whichever its own are."""
        made = staged_rows.staged(shape, part, self._output, self._floor)
        return replace(
            made,
            upserts=target_columns.conform(made.upserts, self.schema),
            moved=None if made.moved is None else target_columns.conform(made.moved, self.schema),
            kept=self._flags(shape, made.kept),
            moved_kept=self._flags(shape, made.moved_kept or {}),
        )

    def _flags(self, shape: target_columns.FileColumns, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Returns flags of columns by the last names of the batch, without columns that are gone by then."""
        names = target_columns.renamed(shape.schema, self.schema)
        gone = target_columns.gone(shape.schema, self.schema)
        return {names[name]: found for name, found in flags.items() if name not in gone}

    @property
    def by_key(self) -> bool:
        """Returns whether no row changes but those under the keys of the batch."""
        return not self._below and not self._fill

    def read_columns(self) -> set[str]:
        """Returns the columns whose values before the batch go into rows after it."""
        if self._output.soft and any(staged.deletes.num_rows for staged in self._staged):
            return set(self.schema.names)
        kept = [flags for staged in self._staged for flags in (staged.kept, staged.moved_kept or {})]
        marks = {DELETED} if self._output.soft else set()
        return marks | {name for flags in kept for name, found in flags.items() if found.any()}

    def keys(self) -> set[bytes]:
        return set().union(*(staged_rows.keys_of(staged) for staged in self._staged))

    def needed(self) -> NeededRows | None:
        """Returns which of the rows under the keys have to be known; None: all."""
        return None

    def current(self, session: SparkSession, table: str, keys: str) -> pa.Table:
        """Rows of the table under the keys of a view; no `table`: it has none."""
        if not table or self._have is None:
            return self.schema.empty_table()
        names = [
            name for name in self.schema.names if name in set(target_columns.renamed(self._have, self.schema).values())
        ]
        listed = ", ".join(f"t.{statements.quoted(name)}" for name in names)
        same = f"t.{statements.quoted(KEY)} = k.{statements.quoted(KEY)}"
        return target_columns.conform(
            read_arrow(session, f"SELECT {listed} FROM {table} t LEFT SEMI JOIN {keys} k ON {same}"), self.schema
        )

    def merge(self, rows: pa.Table, tombstones: pa.Table, places: Any = None) -> AppliedRows:
        before, known, orphans, written = rows, set(_marks(tombstones)), 0, 0
        soft = DELETED if self._output.soft else ""
        for staged in self._staged:
            found = merge.merge(rows, tombstones, staged, soft)
            rows, tombstones, orphans = found.rows, found.tombstones, orphans + found.orphans
            written += found.written
        fresh = [mark not in known for mark in _marks(tombstones)]
        import pyarrow as pa

        return AppliedRows(before, rows, tombstones.filter(pa.array(fresh, pa.bool_())), orphans, written, places)

    def change(self, done: AppliedRows) -> RowChange:
        """Returns the rows that are other than before, and the places of those that they replace and of those that go."""
        import pyarrow as pa

        rows, gone = self._differing(done)
        changed = pa.concat_arrays([self._identities(rows), self._identities(gone)])
        left = merge.truths(merge.place(self._identities(done.before), changed).is_valid())
        return RowChange(rows, done.places[left])

    def statement(self, session: SparkSession, stage: StagedFiles, table: str, done: AppliedRows) -> str:
        """Empty where nothing changes."""
        changed = self._changed(done)
        if not changed.num_rows and self.by_key:
            return ""
        source = stage.view(session, SOURCE, changed)
        known = merge.place(self._identities(changed), self._identities(done.before))
        if not merge.truths(known.is_valid()).any() and self.by_key:
            # No row of the table is looked for.
            return statements.append(table, source, self.schema.names, {}, "")
        return statements.merge(table, source, self.schema.names, self._told_apart, self._of_others())

    def appended(self) -> pa.Table:
        """Returns the rows of a table without a key, or of a change log."""
        import pyarrow as pa

        rows = [
            target_columns.conform(staged_rows.appended(shape, part, self._output), self.schema)
            for part, shape in self._parts
            if part.upserts.num_rows
        ]
        return pa.concat_tables([self.schema.empty_table(), *rows])

    def append(self, session: SparkSession, stage: StagedFiles, table: str) -> str:
        found = self.appended()
        if not found.num_rows and not self._below and not self._fill:
            return ""
        return statements.append(table, stage.view(session, SOURCE, found), self.schema.names, self._fill, self._below)

    def _changed(self, done: AppliedRows) -> pa.Table:
        """Rows to put, and keys whose rows go."""
        import numpy as np
        import pyarrow as pa

        rows, gone = self._differing(done)
        marks = np.concatenate([np.zeros(rows.num_rows, np.bool_), np.ones(gone.num_rows, np.bool_)])
        return pa.concat_tables([rows, gone]).append_column(statements.GONE, pa.array(marks))

    def _differing(self, done: AppliedRows) -> tuple[pa.Table, pa.Table]:
        """Returns the rows to put, and the rows from before that go."""
        import pyarrow as pa

        before, after = self._identities(done.before), self._identities(done.rows)
        found = merge.place(after, before)
        same = merge.truths(found.is_valid())
        for name in self._written_columns:
            was = merge.one(done.before[name]).take(found)
            same &= equal(was, merge.one(done.rows[name]))
        rows = done.rows.filter(pa.array(~same))
        left = merge.place(before, after)
        return rows, done.before.filter(pa.array(~merge.truths(left.is_valid())))

    # -- what tells rows apart ----------------------------------------------------------------------------------------

    @property
    def _told_apart(self) -> tuple[str, ...]:
        """The columns whose values one row alone has."""
        return (KEY,)

    @property
    def _written_columns(self) -> tuple[str, ...]:
        """Those of which one differs in a row that was changed."""
        return (self._position, DELETED) if self._output.soft else (self._position,)

    def _identities(self, rows: pa.Table) -> pa.Array:
        return merge.one(rows[KEY])

    def _of_others(self) -> list[str]:
        return statements.of_others(self._fill, self._below, DELETED if self._output.soft else "")


def _marks(tombstones: pa.Table) -> list[tuple[Any, ...]]:
    names = (KEY, target_columns.position_of(tombstones.schema), merge.ROW)
    return list(zip(*(tombstones[name].to_pylist() for name in names), strict=True))
