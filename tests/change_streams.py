"""Makes change streams and Kafka records for the sink's tests, and keeps what a target should hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from cdcworker.connectors.api.table_batch import BASE, KEY, OP, POSITION, VALID_FROM, SinkBatch
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.schemas.change import Change, Column, Position, Table
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.log import SchemaLog
from cdcworker.schemas.topics import topic_name

PREFIX = "shop"
PARTITIONS = 3
SOURCE_SCHEMA = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "sequence", "type": ["null", "string"], "default": None},
        {"name": "commit_lsn", "type": "long"},
        {"name": "tx_index", "type": "int"},
        {"name": "tx_sub", "type": "int"},
    ],
    "connect.name": "io.debezium.connector.postgresql.Source",
}


def column(name: str, type_: Any, source_type: str, optional: bool = True, **more: Any) -> Column:
    return Column(name, type_, optional, source_type=source_type, **more)


def table(*columns: Column, key: tuple[int, ...] = (0,), name: str = "orders") -> Table:
    return Table(("public", name), 16384, columns, key, SOURCE_SCHEMA)


ID = column("id", "long", "bigint", False)
NARROW = table(ID, column("n", "int", "integer"), column("a", "string", "text"), column("big", "string", "text"))


class Schemas:
    """A schema log in memory: registers for the encoder, looks up for the sink."""

    def __init__(self) -> None:
        self.log = SchemaLog()
        self.records = []

    def register(self, registrations):
        ids = []
        for item in registrations:
            planned = self.log.plan_registration(item.subject, item.schema, item.meta)
            for record in planned.records:
                self.records.append(record)
                self.log.apply(record.key, record.value)
            ids.append(planned.id)
        return ids

    def by_id(self, id):
        found = self.log.by_id(id)
        return None if found is None else found.schema

    def latest(self, subject):
        versions = self.log.versions(subject)
        return self.log.by_fingerprint(versions[-1].fingerprint).id if versions else None

    def refresh(self):
        pass


class Stream:
    """Gives changes their positions and turns them into Kafka records with offsets."""

    def __init__(self, partitions: int = PARTITIONS, prefix: str = PREFIX) -> None:
        self.schemas = Schemas()
        self.encoder = Encoder(prefix, self.schemas.register)
        self.partitions = partitions
        self.lsn = 1000
        self.records: list[dict[str, Any]] = []
        self._next: dict[tuple[str, int], int] = defaultdict(int)

    def change(self, op: str, of: Table, sub: int = 0, **more: Any) -> Change:
        if sub == 0:
            self.lsn += 8
        position = Position(self.lsn, 1, sub)
        source = {
            "version": "1",
            "ts_ms": 1_700_000_000_000 + self.lsn,
            "schema": of.path[0],
            "table": of.path[1],
            "lsn": self.lsn,
            "sequence": None,
            "commit_lsn": self.lsn,
            "tx_index": 1,
            "tx_sub": sub,
        }
        return Change(op, of, position, source, **more)  # type: ignore[arg-type]

    def emit(self, *changes: Change) -> None:
        for record in self.encoder.encode(changes):
            partition = 0 if record.hash is None else (record.hash & 0x7FFFFFFF) % self.partitions
            place = (record.topic, partition)
            self.records.append(
                {
                    "topic": record.topic,
                    "partition": partition,
                    "offset": self._next[place],
                    "key": record.key,
                    "value": record.value,
                    "headers": [{"key": name, "value": value} for name, value in record.headers or []] or None,
                }
            )
            # Offsets have gaps: control records take some.
            self._next[place] += 1 + (self.lsn // 8) % 2

    # -- one line per kind of change ----------------------------------------------------------------------------------

    def insert(self, of: Table, row: tuple[Any, ...], op: str = "c") -> None:
        self.emit(self.change(op, of, after=row))

    def update(self, of: Table, row: tuple[Any, ...], unchanged: tuple[int, ...] = ()) -> None:
        self.emit(self.change("u", of, after=row, unchanged=unchanged))

    def delete(self, of: Table, key: tuple[Any, ...]) -> None:
        self.emit(self.change("d", of, before=self._before(of, key)))

    def move(self, of: Table, old: tuple[Any, ...], row: tuple[Any, ...], unchanged: tuple[int, ...] = ()) -> None:
        new = tuple(row[i] for i in of.key)
        gone = self.change("d", of, before=self._before(of, old), other_key=new)
        self.emit(gone, self.change("c", of, sub=1, after=row, other_key=old, unchanged=unchanged))

    def truncate(self, of: Table) -> None:
        self.emit(self.change("t", of))

    @staticmethod
    def _before(of: Table, key: tuple[Any, ...]) -> tuple[Any, ...]:
        values = dict(zip(of.key, key, strict=True))
        return tuple(values.get(i) for i in range(len(of.columns)))

    def assembler(self, log: bool = False, **more: bool) -> Assembler:
        return Assembler(EnvelopeSchemas(self.schemas, wait_s_max=0), log, **more)


def arrow(records: list[dict[str, Any]]) -> pa.Table:
    """As Spark hands it over."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [
            *(("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
            *(("key", pa.binary()), ("value", pa.binary()), ("headers", header)),
        ]
    )
    # Partition by partition, as the tasks of a Spark job come in.
    ordered = sorted(records, key=lambda record: (record["topic"], record["partition"], record["offset"]))
    return pa.Table.from_pylist(ordered, schema)


@dataclass
class Model:
    """Applies one change after the other: what the target must hold in the end."""

    rows: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)

    def insert(self, key: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        self.rows[key] = list(row)

    def update(self, key: tuple[Any, ...], row: tuple[Any, ...], unchanged: tuple[int, ...] = ()) -> None:
        if key in self.rows:
            self.rows[key] = [self.rows[key][i] if i in unchanged else value for i, value in enumerate(row)]
        elif not unchanged:
            self.rows[key] = list(row)

    def move(
        self, old: tuple[Any, ...], key: tuple[Any, ...], row: tuple[Any, ...], unchanged: tuple[int, ...]
    ) -> None:
        base = self.rows.pop(old)
        self.rows[key] = [base[i] if i in unchanged else value for i, value in enumerate(row)]


class MemoryWarehouse:
    """A TableWriter over dicts, one row at a time: the meaning of a TableBatch without SQL."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, dict[str, Any]]] = defaultdict(dict)
        self.graves: dict[str, dict[bytes, tuple[bytes, dict[str, Any] | None]]] = defaultdict(dict)
        self.floors: dict[str, bytes] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.orphans = 0

    def apply(self, batch: SinkBatch) -> None:
        for part in batch.tables:
            rows, graves = self.tables[part.table], self.graves[part.table]
            if part.floor is not None:
                self.floors[part.table] = max(part.floor, self.floors.get(part.table, b""))
                for key in [key for key, row in rows.items() if row[POSITION] < part.floor]:
                    del rows[key]
            staged = self._staged(part)
            if part.moved is not None:
                for i, row in enumerate(part.moved.to_pylist()):
                    kept = {name for name, flags in part.moved_unchanged.items() if flags[i]}
                    origin = part.moved_origins[KEY][i].as_py() if part.moved_origins is not None else None
                    base = self._origin(part.table, origin, row) if origin is not None else rows.get(row[KEY])
                    if not kept or base is not None:
                        graves[row[KEY]] = (row[POSITION], _merged(row, base, kept))
            for row in part.deletes.to_pylist():
                held = rows.get(row[KEY])
                if held is not None and (row[POSITION] is None or held[POSITION] < row[POSITION]):
                    del rows[row[KEY]]
                if row[POSITION] is not None and graves.get(row[KEY], (b"",))[0] < row[POSITION]:
                    graves[row[KEY]] = (row[POSITION], None)
            self._upsert(part.table, staged)
        for place, (_, end) in batch.offsets.items():
            self.offsets[place] = end

    def _staged(self, part):
        out = []
        for i, row in enumerate(part.upserts.to_pylist()):
            kept = {name for name, flags in part.unchanged.items() if flags[i]}
            origin = part.origins[KEY][i].as_py() if part.origins is not None else None
            if kept and origin is not None:
                base = self._origin(part.table, origin, row)
                if base is not None:
                    row, kept = _merged(row, base, kept), set()
            out.append((row, kept))
        return out

    def _origin(self, table, origin, row):
        """The row under the key that this one came from, deleted or not."""
        grave, held = self.graves[table].get(origin), self.tables[table].get(origin)
        if held is not None and held[POSITION] < row[POSITION]:
            return held
        return grave[1] if grave is not None and grave[0] < row[POSITION] else None

    def _upsert(self, table, staged):
        rows = self.tables[table]
        for row, kept in staged:
            held, grave = rows.get(row[KEY]), self.graves[table].get(row[KEY])
            if row[POSITION] <= self.floors.get(table, b"") or (grave and grave[0] >= row[POSITION]):
                continue
            if held is None and kept:
                self.orphans += 1
            elif held is None or held[POSITION] < row[POSITION]:
                rows[row[KEY]] = _merged(row, held, kept)

    def rows(self, of: Table) -> dict[tuple[Any, ...], list[Any]]:
        names = [item.name for item in of.columns]
        found = [[row[name] for name in names] for row in self.tables[topic_name(PREFIX, of.path)].values()]
        return {tuple(row[i] for i in of.key): row for row in found}


def _merged(row, base, kept):
    return {name: base[name] if name in kept and base is not None else value for name, value in row.items()}


class MemoryVersions:
    """A warehouse of versions over dicts, one change at a time: the meaning of a TableBatch that has versions, without SQL."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, dict[bytes, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
        self.ends: dict[str, dict[bytes, dict[bytes, Any]]] = defaultdict(lambda: defaultdict(dict))
        self.truncates: dict[str, dict[bytes, Any]] = defaultdict(dict)
        self.orphans = 0

    def apply(self, batch: SinkBatch) -> None:
        for part in batch.tables:
            assert part.versions
            made = self._made(part)
            for row in part.deletes.to_pylist():
                # A tombstone without its delete tells no position.
                if row[POSITION] is None:
                    continue
                self.ends[part.table][row[KEY]].setdefault(row[POSITION], row[VALID_FROM])
            for row in made:
                self.tables[part.table][row[KEY]].setdefault(row[POSITION], row)
            for row in part.truncates.to_pylist() if part.truncates is not None else ():
                self.truncates[part.table][row[POSITION]] = row[VALID_FROM]
            self._merge_read(part, made)

    def _made(self, part):
        rows = part.upserts.to_pylist()
        for i, row in enumerate(rows):
            kept = {name for name, flags in part.unchanged.items() if flags[i]}
            if kept:
                base = self._base(part.table, part.origins[KEY][i].as_py(), row[BASE])
                self.orphans += base is None
                rows[i] = None if base is None else _merged(row, base, kept)
        return [row for row in rows if row is not None]

    def _base(self, table, key, before):
        older = [position for position in self.tables[table].get(key, ()) if position < before]
        if not older:
            return None
        end = self.end(table, key, max(older))
        # A changed key is a delete and an insert of one change.
        stands = end is None or end[0][:12] >= before[:12]
        return self.tables[table][key][max(older)] if stands else None

    def end(self, table: str, key: bytes, position: bytes) -> tuple[bytes, Any] | None:
        """The position and the time of the next change of the key."""
        later = {at: row[VALID_FROM] for at, row in self.tables[table][key].items() if at > position}
        for ends in (self.ends[table][key], self.truncates[table]):
            later.update({at: time for at, time in ends.items() if at > position and at not in later})
        return min(later.items(), default=None)

    def _merge_read(self, part, made):
        names = [str(member["name"]) for member in part.schema["fields"]]
        for row in sorted((row for row in made if row[OP] == "r"), key=lambda row: row[POSITION]):
            there = self.tables[part.table][row[KEY]]
            before = max((at for at in there if at < row[POSITION]), default=None)
            if (
                row[POSITION] not in there
                or before is None
                or self.end(part.table, row[KEY], before)[0] != row[POSITION]
            ):
                continue
            if all(there[before][name] == there[row[POSITION]][name] for name in names):
                del there[row[POSITION]]

    def versions(self, of: Table) -> list[tuple[Any, ...]]:
        table, out = topic_name(PREFIX, of.path), []
        for key, rows in self.tables[table].items():
            for position, row in rows.items():
                end, at = self.end(table, key, position) or (None, None)
                values = (row[column.name] for column in of.columns)
                out.append((*values, position, row[OP], row[VALID_FROM], at, end, end is None))
        return sorted(out, key=repr)
