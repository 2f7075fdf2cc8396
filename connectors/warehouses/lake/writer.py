"""The writer of a lake: rows, offsets and epoch of a batch in one commit per table. What kind of lake it is, `LakeTables` knows."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.sink import SinkOffsets
from cdcworker.connectors.api.table_batch import DELETED, IS_CURRENT, SinkBatch, TableBatch
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import FENCED, LEDGER_MOVED, TARGET_COLLISION, gone
from cdcworker.connectors.warehouses import staged_rows, target_columns
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.affected_rows import (
    AffectedRows,
    AppliedRows,
    StagedFiles,
    guarded,
    read_place,
)
from cdcworker.connectors.warehouses.lake.affected_versions import affected, truncate_ends
from cdcworker.connectors.warehouses.lake.claimed_tables import ClaimedTables
from cdcworker.connectors.warehouses.lake.columns import noted, shaped
from cdcworker.connectors.warehouses.lake.file_faults import FileFaults, translated
from cdcworker.connectors.warehouses.lake.parallel_tables import ParallelTables, TableLocks, TablesInProgress
from cdcworker.connectors.warehouses.lake.side_tables import OWN, SideTables
from cdcworker.connectors.warehouses.lake.tables import (
    CommitsToStore,
    IdentifiesRows,
    LakeName,
    LakeTables,
    RowChange,
    TableVersion,
    Work,
    WritesRowFiles,
)
from cdcworker.connectors.warehouses.recreated_topics import RecreatedTopics
from cdcworker.connectors.warehouses.table_refusals import TableRefusals
from cdcworker.connectors.warehouses.table_state import Manifest, advanced, collision, fresh
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.column_changes import Where
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Epoch = tuple[int, int]
TRIES = 4
"""A table that somebody else compacts meanwhile is merged into again."""
SESSION = {
    "spark.sql.caseSensitive": "true",
    # Staged files count days as the tables do.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}


class LakeWriter(RecreatedTopics, ClaimedTables):
    """A TableWriter. It needs a Spark session, which comes with `attach`."""

    def __init__(
        self,
        tables: LakeTables,
        sink: str,
        task: int = 0,
        *,
        schema: str = "",
        output: target_columns.OutputForm | None = None,
        stage: StagedFiles | None = None,
        parallel_tables: int = 1,
    ) -> None:
        """`parallel_tables`: so many tables of a batch are written at once."""
        self._tables = tables
        self._sink = sink
        self._task = task
        self._schema = schema
        self._output = output or target_columns.OutputForm()
        self._epoch: Epoch = (0, 0)
        self._places: dict[str, LakeName] = {}
        self._states: dict[str, Manifest] = {}
        self._versions: dict[str, Any] = {}
        self._seen: set[str] = set()
        """Topics whose tables were there."""
        self._claimed = False
        self._identified: set[str] = set()
        self._nameless: set[str] = set()
        """Topics of which a row had no value in a column of its key."""
        self._locks = TableLocks()
        self._new_session: Callable[[], SparkSession] | None = None
        self._session: SparkSession | None = None
        self._stage = stage or StagedFiles()
        self._side = SideTables(tables, sink)
        self._parallel = ParallelTables[LakeWriter](parallel_tables)
        self._faults = FileFaults()
        self._under_way = TablesInProgress()
        self._ids: dict[str, str] = {}

    def attach(self, session: Callable[[], SparkSession], step: Callable[[str], None] = lambda _doing: None) -> None:
        """`session` waits for Spark; after the end of its process another one comes. `step` is told, before and after each
        table, which ones are under way."""
        self._new_session, self._session, self._under_way = session, None, TablesInProgress(step)
        self._parallel.drop()
        self._states.clear()
        self._claimed = False

    # -- the seam -----------------------------------------------------------------------------------------------------

    def expect(self, topics: Collection[str]) -> None:
        """Their tables were there: where they are not now they are away."""
        self._seen.update(topics)

    def fence(self, epoch: Epoch) -> None:
        """Each table holds the epoch of whoever may write to it: `claim` raises it there."""
        self._epoch = epoch
        self._parallel.drop()
        self._states.clear()
        self._claimed = False

    def thread_copy(self) -> LakeWriter:
        """Another one over a session of its own, where Spark keeps a statement's settings and views. What they know of
        tables they share."""
        made = copy.copy(self)
        made._tables, made._stage, made._session = self._tables.another(), self._stage.another(), None
        made._side = SideTables(made._tables, self._sink)
        made._spark()
        return made

    def claim(self, topics: Sequence[str]) -> None:
        with self._translated():
            if isinstance(self._tables, CommitsToStore):
                self._tables.begin()
            self._states.clear()
            self._faults.begin()
            older = []
            for place, found in self._mine(topics):
                assert found.state is not None
                state, self._versions[found.state.topic] = found.state, found.version
                if state.topic not in topics:
                    continue
                if state.epoch > self._epoch:
                    raise CdcError(FENCED, "a newer task applies this topic", where={"topic": state.topic})
                self._places[state.topic], self._states[state.topic] = place, state
                older += [(state.topic, place)] if state.epoch < self._epoch else []
            self._faults.missing(self._seen.intersection(topics) - self._states.keys())
            raised = self._parallel.run_all(self, lambda writer, item: writer._raise(*item), older)
            self._states.update({state.topic: state for state in raised})
            self._seen.update(self._states)
            self._claimed = True
            self._side.forget_letters(self._spark(), topics, self.ledger())

    def ledger(self) -> Mapping[tuple[str, int], int]:
        states: Iterable[Manifest] = self._states.values()
        if not self._claimed:
            with self._translated():
                states = [found.state for _, found in self._mine() if found.state is not None]
        return {(state.topic, int(number)): offset for state in states for number, offset in state.offsets.items()}

    def _held(self) -> Iterable[Manifest]:
        return self._states.values()

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]:
        counts, refusals = staged_rows.no_counts(), TableRefusals()
        topics = staged_rows.parts_of(batch)
        work = refusals.held(lambda writer, topic: writer._topic(topic, topics[topic], batch))
        with self._translated():
            self._side.add_dead_letters(self._spark(), batch.dead, self._stage)
            found = self._parallel.run_all(self, work, list(topics))
            orphans = dict(zip(topics, found, strict=True))
        done = {topic: count for topic, count in orphans.items() if count is not None}
        for topic, count in done.items():
            counts["orphans"] += count
            staged_rows.count(counts, ".".join(map(statements.plain_name, self._places[topic])), topics[topic])
        counts["replayed"] = bool(topics) and not done
        refusals.tell(counts)
        return counts

    def rows(self, topic: str) -> TargetRows | None:
        with self._translated():
            session, place = self._spark(), self._place(topic, ())
            found = self._tables.load(place)
            return None if found is None else read_place(session, self._tables, place, found)

    def place(self, schema: str, table: str) -> LakeName:
        return LakeName(statements.stored_name(schema), statements.stored_name(table))

    def found(self) -> list[tuple[LakeName, TableVersion]]:
        """The sink's tables as they are now."""
        with self._translated():
            return list(self._mine())

    def read(self, place: LakeName, found: TableVersion, names: Sequence[str], work: Work, columns: str) -> pa.Table:
        """Returns what `work` makes, in Spark's processes, of a table's rows as they were found; those marked as
        deleted are none, nor are versions that have ended."""
        listed = ", ".join(map(statements.quoted, names))
        where = f" WHERE {statements.quoted(DELETED)} IS NOT TRUE" if DELETED in found.columns else ""
        where = f" WHERE {statements.quoted(IS_CURRENT)}" if IS_CURRENT in found.columns else where
        with self._translated():
            frame = self._spark().sql(f"SELECT {listed} FROM {self._tables.at(place, found)}{where}")
            return frame.mapInArrow(guarded(work), columns).toArrow()

    def alter(self, epoch: Epoch, changes: SinkOffsets | None) -> None:
        """Every table of the sink gets the new offsets and the epoch; a newer one found: nothing is changed."""
        with self._translated():
            mine = [(place, found) for place, found in self._mine() if found.state is not None]
            for _, found in mine:
                if found.state is not None and found.state.epoch > epoch:
                    raise CdcError(FENCED, "a newer task has started meanwhile", where={"sink": self._sink})
            for place, found in mine:
                assert found.state is not None
                self._tables.commit(place, found, "", found.state.altered(changes).next(epoch))

    def cancel(self) -> None:
        """Spark's jobs end; a statement whose last step has begun still commits, whole."""
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.sparkContext.cancelAllJobs()

    def close(self) -> None:
        self._states.clear()
        self._parallel.close()
        self.release()

    def release(self) -> None:
        self._session = None
        self._stage.close()

    # -- where things are ---------------------------------------------------------------------------------------------

    def _spark(self) -> SparkSession:
        if self._session is None:
            assert self._new_session is not None
            self._session = self._new_session().newSession()
            for name, value in SESSION.items():
                self._session.conf.set(name, value)
            self._tables.open(self._session)
        return self._session

    def _mine(self, topics: Sequence[str] | None = None) -> Iterator[tuple[LakeName, TableVersion]]:
        """Without `topics` one whose files are broken is an error whosesoever it is."""
        self._spark()
        places = [place for place in self._tables.places() if place.schema != OWN]
        wanted = None if topics is None else {self._place(topic, (), keep=False): topic for topic in topics}
        loaded = self._parallel.run_all(self, lambda writer, place: writer._load(place, wanted), places)
        for place, found in zip(places, loaded, strict=True):
            if found is not None and found.state is not None and found.state.sink == self._sink:
                yield place, found

    def _load(self, place: LakeName, wanted: Mapping[LakeName, str] | None = None) -> TableVersion | None:
        with self._at(place):
            try:
                with self._faults.of(wanted[place], place) if wanted and place in wanted else contextlib.nullcontext():
                    return self._tables.load(place)
            except CdcError:
                raise
            except Exception as exc:
                if wanted is None:
                    raise
                self._faults.aside(place, exc)
                return None

    def _place(self, topic: str, path: Sequence[str], keep: bool = True) -> LakeName:
        found = self._places.get(topic) or self.place(*target_columns.place_of(topic, path, self._schema))
        return self._places.setdefault(topic, found) if keep else found

    def _raise(self, topic: str, place: LakeName) -> Manifest:
        with self._at(place):
            return self._raised(topic, place)

    def _raised(self, topic: str, place: LakeName) -> Manifest:
        """Raises the table's epoch: from now on no writer with an older one commits."""
        for left in reversed(range(TRIES)):
            try:
                with self._faults.of(topic, place):
                    found = self._tables.load(place)
                    if found is None:
                        raise gone(topic)
                    if found.state is None or found.state.epoch > self._epoch:
                        break
                    state = found.state.next(self._epoch)
                    self._versions[topic] = self._tables.commit(place, found, "", state)
                return state
            except CdcError as exc:
                if exc.code != LEDGER_MOVED or not left:
                    raise
        raise CdcError(FENCED, "a newer task applies this topic", where={"table": ".".join(place)})

    @contextlib.contextmanager
    def _at(self, place: LakeName) -> Iterator[None]:
        """One table of several: who waits for them hears of it, and what fails says which it was."""
        name = ".".join(place)
        with self._under_way.writing(name), self._translated(table=name):
            yield

    def _translated(self, **where: str) -> contextlib.AbstractContextManager[None]:
        return translated({"sink": self._sink, **where})

    # -- one table ----------------------------------------------------------------------------------------------------

    def _topic(self, topic: str, parts: Sequence[TableBatch], batch: SinkBatch) -> int | None:
        """Returns how many parts of rows found none; None: all of it had been applied before."""
        place = self._place(topic, parts[0].path if parts else ())
        with self._at(place), self.alone(place):
            return self._tried(topic, place, parts, batch)

    def _tried(self, topic: str, place: LakeName, parts: Sequence[TableBatch], batch: SinkBatch) -> int | None:
        for left in reversed(range(TRIES)):
            with self._faults.of(topic, place):
                found = self._found(topic, place)
            state = found.state
            assert state is not None
            if not fresh(state, batch):
                return None
            try:
                state, orphans = self._write(self._spark(), place, found, parts, batch)
            except CdcError as exc:
                again = self._tables.load(place) if exc.code == LEDGER_MOVED else None
                if again is None and exc.code == LEDGER_MOVED:
                    raise gone(topic) from exc
                beside = again and again.state and (again.note == found.note or again.state.is_beside(state))
                if not left or not beside:
                    raise
                log.info("table was committed to concurrently and is written again table=%s", ".".join(place))
                continue
            except Exception as exc:
                # To a statement a table of Delta's that is away is one without columns.
                with self._faults.of(topic, place):
                    if self._tables.load(place) is None:
                        raise gone(topic) from exc
                    raise
            self._states[topic] = state
            self._seen.add(topic)
            self._faults.over(topic)
            return orphans
        return None

    def _found(self, topic: str, place: LakeName) -> TableVersion:
        """The table, ours and as we left it; made when there is none."""
        found = self._tables.load(place)
        if found is None and topic in self._seen:
            raise gone(topic)
        if found is None:
            self._tables.create(place, statements.first(self._output), Manifest(self._sink, topic, self._epoch))
            found = self._tables.load(place)
        if found is None:
            # What is left of its folder lets none be made.
            raise gone(topic)
        if found.state is None:
            if not found.empty:
                where = {"topic": topic, "table": ".".join(place)}
                raise CdcError(TARGET_COLLISION, "a table with rows is there that no sink has made", where=where)
            self._tables.take_over(place)
            found.state = Manifest(self._sink, topic, self._epoch)
        state, known = found.state, self._states.get(topic)
        if (state.sink, state.topic) != (self._sink, topic):
            raise collision(state, topic)
        if state.epoch > self._epoch:
            raise CdcError(FENCED, "a newer task writes this table", where={"topic": topic})
        if known is not None and known != state and not state.is_beside(known):
            late = self._tables.late(place, found) if isinstance(self._tables, CommitsToStore) else None
            if late is not None:
                raise late
            raise CdcError(LEDGER_MOVED, "another task has written this table meanwhile", where={"topic": topic})
        return found

    def _write(
        self,
        session: SparkSession,
        place: LakeName,
        found: TableVersion,
        parts: Sequence[TableBatch],
        batch: SinkBatch,
    ) -> tuple[Manifest, int]:
        state = found.state = noted(found)
        where = {"table": ".".join(place), "topic": parts[0].table if parts else ""}
        have, tombstones = state.arrow, state.tombstones
        floor, after = bytes.fromhex(state.floor), staged_rows.floor_of(parts, state.floor)
        bare = parts
        parts, shapes = staged_rows.evolve_all(state, staged_rows.keyed(parts, state.key, have), self._output, where)
        schema = shapes[-1].schema if shapes else have
        key = state.key or next((part.key for part in parts if part.key), ())
        step: str | RowChange = ""
        orphans = 0
        if schema is None:
            self._ready()
            if self._side.add_tombstones(session, place, truncate_ends(bare), self._stage):
                tombstones = "yes"
        else:
            found = self._shaped(session, place, found, schema, where)
            state = found.state or state
            make = affected(target_columns.keeps_versions(schema))
            work = make(parts, shapes, schema, state.arrow, self._output, floor)
            if key:
                self._identify(place, found, state.topic, key, parts)
                done = self._merged(session, place, found, work)
                self._ready()
                if self._side.add_tombstones(session, place, done.new_tombstones, self._stage):
                    tombstones = "yes"
                step, orphans = self._step(session, place, work, done), done.orphans
            else:
                self._ready()
                step = self._appended(session, place, found, work)
        hit("sink.staged")
        made = advanced(replace(state, key=key, floor=after, tombstones=tombstones), batch, schema, self._ids).next(
            self._epoch
        )
        self._versions[made.topic] = self._committed(place, found, step, made)
        hit("sink.after_commit")
        return made, orphans

    def _identify(
        self, place: LakeName, found: TableVersion, topic: str, key: tuple[str, ...], parts: Sequence[TableBatch]
    ) -> None:
        """Tells a table its key once, and again where a row without a value in it comes: `message.key.columns` may name a
        column that takes NULL."""
        if not isinstance(self._tables, IdentifiesRows):
            return
        nulls = any(part.upserts[name].null_count for part in parts if part.upserts.num_rows for name in key)
        if nulls:
            self._nameless.add(topic)
        elif topic in self._identified:
            return
        # Of a key there are several versions.
        more = (self._output.position,) if self._output.versions else ()
        self._tables.identify(place, found, () if topic in self._nameless else (*key, *more))
        self._identified.add(topic)

    def _ready(self) -> None:
        """Called before the first step that others can see."""

    def _shaped(
        self, session: SparkSession, place: LakeName, found: TableVersion, schema: pa.Schema, where: Where
    ) -> TableVersion:
        return shaped(session, self._tables, place, found, schema, where)

    def _merged(self, session: SparkSession, place: LakeName, found: TableVersion, work: AffectedRows) -> AppliedRows:
        """Rows under the keys of the batch come here and are merged."""
        state = found.state
        assert state is not None
        keys = sorted(work.keys())
        done = self._merged_in_files(place, found, work, keys)
        if done is not None:
            return done
        view = self._stage.keys(session, keys)
        rows = work.current(session, "" if found.empty else self._tables.name(place), view)
        return work.merge(rows, self._side.tombstones(session, place, view, work.schema, bool(state.tombstones)))

    def _files(self, place: LakeName, found: TableVersion, work: AffectedRows) -> WritesRowFiles | None:
        """The tables, where they take the rows of this batch as files; None: Spark writes them."""
        tables = self._tables
        if not isinstance(tables, WritesRowFiles) or not work.by_key:
            return None
        return tables if tables.writes_rows(place, found, work.schema) else None

    def _merged_in_files(
        self, place: LakeName, found: TableVersion, work: AffectedRows, keys: Sequence[bytes]
    ) -> AppliedRows | None:
        """Rows under the keys are looked up and merged without a job of Spark's; None: that cannot be done here."""
        import pyarrow as pa

        files, state = self._files(place, found, work), found.state
        assert state is not None
        if files is None:
            return None
        wanted = pa.array(keys, pa.binary())
        tombstones = self._side.find_tombstones(place, wanted, work.schema, bool(state.tombstones))
        if tombstones is None:
            return None
        rows = files.current(place, found, work.schema, wanted, work.read_columns(), work.needed())
        return work.merge(rows.rows, tombstones, rows.places)

    def _step(self, session: SparkSession, place: LakeName, work: AffectedRows, done: AppliedRows) -> str | RowChange:
        """What the commit does to the rows: a statement, or files."""
        if done.places is not None:
            return work.change(done)
        return work.statement(session, self._stage, self._tables.name(place), done)

    def _appended(
        self, session: SparkSession, place: LakeName, found: TableVersion, work: AffectedRows
    ) -> str | RowChange:
        """The same for a table without a key, or a change log."""
        if self._files(place, found, work) is not None:
            return RowChange(work.appended())
        return work.append(session, self._stage, self._tables.name(place))

    def _committed(self, place: LakeName, found: TableVersion, step: str | RowChange, state: Manifest) -> Any:
        if isinstance(step, str):
            return self._tables.commit(place, found, step, state)
        assert isinstance(self._tables, WritesRowFiles)
        return self._tables.commit_rows(place, found, step, state)
