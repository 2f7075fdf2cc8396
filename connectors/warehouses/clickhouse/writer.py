"""The ClickHouse warehouse: rows first, then the states of the tables, which hold the offsets. A batch that is written twice is the same
versions of the same rows, so it does not matter where somebody dies, or who writes late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import POSITION, SinkBatch, TableBatch
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import FENCED, SCHEMA_REFUSED, TARGET_RESERVED, gone
from cdcworker.connectors.warehouses import dropped_columns, staged_rows, target_columns
from cdcworker.connectors.warehouses.clickhouse.affected_rows import numbers_of, together, written
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.ledger import BOOKKEEPING, ClickHouseLedger, Epoch
from cdcworker.connectors.warehouses.clickhouse.tables import ClickHouseTables, TablePlace
from cdcworker.connectors.warehouses.recreated_topics import RecreatedTopics
from cdcworker.connectors.warehouses.sql.catalog import optional_key
from cdcworker.connectors.warehouses.table_refusals import TableRefusals
from cdcworker.connectors.warehouses.table_state import Manifest, advanced, fresh
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import pyarrow as pa

RESERVED = (BOOKKEEPING, "system", "information_schema", "INFORMATION_SCHEMA")


@dataclass(slots=True)
class OpenTable:
    """A table on its way from a state to the next."""

    place: TablePlace
    state: Manifest
    schema: pa.Schema | None
    orphans: int = 0
    written: int = 0


class ClickHouseWriter(RecreatedTopics):
    """The TableWriter of a ClickHouse warehouse. Each table commits alone."""

    _looks = False
    """Whether every row is compared with the one that is there."""

    def __init__(
        self,
        client: Client,
        sink: str,
        task: int = 0,
        *,
        schema: str = "",
        output: target_columns.OutputForm | None = None,
    ) -> None:
        self._client = client
        self._sink = sink
        self._task = task
        self._schema = schema
        self._output = output or target_columns.OutputForm()
        self._tables = ClickHouseTables(client)
        self._ledger = ClickHouseLedger(client, sink, task)
        self._epoch: Epoch = (0, 0)
        self._shaped: dict[str, pa.Schema] = {}
        """By topic, the columns that its table is known to have."""
        self._ids: dict[str, str] = {}

    # -- the seam -----------------------------------------------------------------------------------------------------

    def fence(self, epoch: Epoch) -> None:
        self._ledger.create()
        self._ledger.raise_fence(epoch)
        self._epoch = epoch
        self._shaped.clear()

    def claim(self, topics: Sequence[str]) -> None:
        self._still_ours()
        mine = self._ledger.states(topics)
        newer = [topic for topic, (_, state) in mine.items() if state.epoch > self._epoch]
        if newer:
            raise CdcError(FENCED, "a newer task applies this topic", where={"sink": self._sink, "topic": newer[0]})
        older = [(place, state) for place, state in mine.values() if state.epoch < self._epoch]
        self._ledger.commit(older, self._epoch)
        self._ledger.forget_letters(topics, self.ledger())

    def ledger(self) -> Mapping[tuple[str, int], int]:
        self._shaped.clear()
        return {(found.topic, int(number)): at for found in self._held() for number, at in found.offsets.items()}

    def _held(self) -> list[Manifest]:
        return [state for _, state in self._ledger.states().values()] if self._ledger.is_there() else []

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]:
        counts, refusals = staged_rows.no_counts(), TableRefusals()
        topics = staged_rows.parts_of(batch)
        self._still_ours()
        states = self._ledger.states(topics)
        self._ledger.add_letters(batch.dead)
        work = refusals.held(lambda topic: self._topic(topic, topics[topic], batch, states.get(topic)))
        tables = [table for table in staged_rows.each_table(batch, work, topics) if table is not None]
        self._commit(tables, batch)
        for table in tables:
            counts["orphans"] += table.orphans
            counts["written"] = counts.get("written", 0) + table.written
            staged_rows.count(counts, table.place.plain, topics[table.state.topic])
        counts["replayed"] = bool(topics) and not tables and not refusals
        refusals.tell(counts)
        return counts

    def rows(self, topic: str) -> TargetRows | None:
        found = self._ledger.states([topic]).get(topic)
        if found is None or found[1].arrow is None:
            return None
        place, state = found
        assert state.arrow is not None
        applied = {int(number): bytes.fromhex(at) for number, (at, _) in state.applied.items()}
        return TargetRows(place.plain, state.key, applied, self._tables.read(place, state.arrow))

    def cancel(self) -> None:
        """A batch ends by itself soon, and the states of its tables alone make it count."""

    def close(self) -> None:
        self._client.close()

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _still_ours(self) -> None:
        if self._ledger.epoch() != self._epoch:
            raise CdcError(FENCED, "the target's fence changed", where={"sink": self._sink, "task": self._task})

    def _commit(self, tables: Sequence[OpenTable], batch: SinkBatch) -> None:
        hit("sink.staged")
        hit("sink.before_commit")
        made = [(table.place, advanced(table.state, batch, table.schema, self._ids)) for table in tables]
        if made:
            self._ledger.commit(made, self._epoch)
        hit("sink.after_commit")

    def _topic(
        self, topic: str, parts: Sequence[TableBatch], batch: SinkBatch, found: tuple[TablePlace, Manifest] | None
    ) -> OpenTable | None:
        """None: all of it had been applied before."""
        place, state = found or self._begun(topic, parts)
        if state.epoch > self._epoch:
            raise CdcError(FENCED, "a newer task writes this table", where={"topic": topic})
        if not fresh(state, batch):
            return None
        table = OpenTable(place, state, state.arrow)
        try:
            self._parts(table, parts)
        except BaseException:
            self._shaped.pop(topic, None)
            raise
        hit("sink.table_done")
        return table

    def _begun(self, topic: str, parts: Sequence[TableBatch]) -> tuple[TablePlace, Manifest]:
        """Stores that a table is the sink's before it is made: another one of that name stays whose it is."""
        place = TablePlace(*target_columns.place_of(topic, parts[0].path if parts else (), self._schema))
        if place.database in RESERVED:
            where = {"topic": topic, "schema": place.database}
            raise CdcError(TARGET_RESERVED, "the database is the sink's or the server's own", where=where)
        self._ledger.check_owner(place, topic)
        if self._tables.columns(place):
            text = "a table of that name is there that the sink has not made"
            raise CdcError(SCHEMA_REFUSED, text, where={"topic": topic, "table": place.plain})
        made = self._ledger.commit([(place, Manifest(self._sink, topic, self._epoch))], self._epoch)
        return place, made[0]

    # -- one table ----------------------------------------------------------------------------------------------------

    def _parts(self, table: OpenTable, parts: Sequence[TableBatch]) -> None:
        at = table.state.at
        for part in staged_rows.keyed(parts, table.state.key, table.schema):
            self._part(table, part, at)
            at = max(at, dropped_columns.position(part))
        table.state = replace(table.state, floor=staged_rows.floor_of(parts, table.state.floor))

    def _part(self, table: OpenTable, part: TableBatch, at: bytes) -> None:
        where = {"table": table.place.plain, "topic": part.table}
        self._look(table, where)
        if table.schema is not None and bool(part.key) != bool(table.state.key):
            raise CdcError(SCHEMA_REFUSED, "the key of the table came or went", where=where)
        part, how = dropped_columns.judged(part, table.schema, table.state.at, self._output, where)
        shape = staged_rows.evolve(table.schema, table.state.key, part, how, where, at)
        self._shape(table, shape.schema, part, where)
        if part.floor is not None:
            self._truncate(table, part.floor)
        if part.key:
            self._merge(table, shape, part)
        else:
            self._append(table, shape, part)
        table.state = replace(table.state, floor=staged_rows.floor_of([part], table.state.floor))

    def _look(self, table: OpenTable, where: Mapping[str, str | int]) -> None:
        """Looks at a table that has not been looked at: somebody may have changed it."""
        topic = table.state.topic
        if table.schema is None or topic in self._shaped:
            return
        columns = self._tables.columns(table.place)
        if not columns:
            raise gone(topic)
        table.schema = self._tables.known(columns, table.schema, where)
        self._shaped[topic] = table.schema

    def _shape(self, table: OpenTable, schema: pa.Schema, part: TableBatch, where: Mapping[str, str | int]) -> None:
        """Brings the table into a shape."""
        topic = table.state.topic
        if table.schema is None:
            optional = optional_key(part) if part.key else ()
            self._tables.create(table.place, schema, _names(part), optional)
            self._tables.alter(table.place, None, schema, where)
        elif not (self._shaped.get(topic) or table.schema).equals(schema, check_metadata=True):
            # Rows that are written late do no harm. Columns might.
            self._still_ours()
            self._tables.alter(table.place, table.schema, schema, where)
        if part.key and not table.state.key:
            table.state = replace(table.state, key=part.key)
        table.schema = self._shaped[topic] = schema

    def _truncate(self, table: OpenTable, floor: bytes) -> None:
        soft = self._output.soft and bool(table.state.key)
        stamps = {self._output.synced: "now64(6)"} if self._output.synced else {}
        self._tables.truncate(table.place, floor, soft, stamps)

    def _append(self, table: OpenTable, shape: target_columns.FileColumns, part: TableBatch) -> None:
        rows = staged_rows.appended(shape, part, self._output)
        if rows.num_rows:
            self._insert(table.place, rows, numbers_of(part.upserts, POSITION, None))
        table.written += rows.num_rows

    def _merge(self, table: OpenTable, shape: target_columns.FileColumns, part: TableBatch) -> None:
        floor, position = bytes.fromhex(staged_rows.floor_of([part], table.state.floor)), self._output.position
        done = written(shape, part, self._output, floor, partial(self._tables.newest, table.place), looks=self._looks)
        table.orphans += done.orphans
        table.written += done.written
        rows, gone = together(done)
        self._write(table, rows, numbers_of(rows, position, gone))

    def _write(self, table: OpenTable, rows: pa.Table, numbers: Mapping[str, Any]) -> None:
        if rows.num_rows:
            self._insert(table.place, rows, numbers)

    def _insert(self, place: TablePlace, rows: pa.Table, numbers: Mapping[str, Any]) -> None:
        self._tables.insert(place, rows, numbers)
        hit("sink.rows_written")


def _names(part: TableBatch) -> tuple[str, ...]:
    """Returns the names of the columns of the key as they are in the table."""
    return tuple(unescape(name) for name in part.key)
