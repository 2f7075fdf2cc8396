"""A lake of Delta tables without Spark: what a sink's writer asks of Spark for tables that are written as files."""

from __future__ import annotations

import json
import re
import time
import uuid
from pathlib import Path

import pyarrow as pa
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.warehouses.lake import delta, statements
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.delta_files.file_tables import FileTables
from cdcworker.connectors.warehouses.lake.tables import STATE, LakeName
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk

PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}
FEATURES = ["columnMapping", "deletionVectors", "timestampNtz", "typeWidening"]
FULL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": FEATURES,
    "writerFeatures": [*FEATURES, "appendOnly", "invariants"],
}
TYPES = {"int": "integer", "bigint": "long"}


class FileDelta(DeltaTables):
    """Tables whose first commit, and those that add columns, are made here."""

    def __init__(self, files, plain=False, tables=None):
        super().__init__(files.place("").rstrip("/"), plain=plain, files=tables or FileTables(files))
        self.files = files

    def open(self, session):
        self.session = session

    def places(self):
        yield from delta._places(self.files)

    def create(self, place, columns, state):
        if self.load(place) is not None:
            return
        folder = f"{place.schema}/{place.table}/_delta_log"
        self.files.make_folder(folder)
        settings = {} if self._plain else {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
        if state is not None:
            settings[STATE] = state.text()
        fields = [self.field(*named(text), at + 1) for at, text in listed(columns)]
        made = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": settings,
            "createdTime": 0,
        }
        log = [{"commitInfo": {"timestamp": 0}}, {"protocol": PLAIN if self._plain else FULL}, {"metaData": made}]
        self.files.create(f"{folder}/{0:020d}.json", "\n".join(map(json.dumps, log)).encode())

    def field(self, name, kind, number):
        notes = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{uuid.uuid4()}"}
        kind = TYPES.get(kind, kind)
        if kind.startswith("array<"):
            kind = {"type": "array", "elementType": TYPES.get(kind[6:-1], kind[6:-1]), "containsNull": True}
        return {"name": name, "type": kind, "nullable": True, "metadata": {} if self._plain else notes}

    def add_columns(self, place, columns):
        log = self.log(place)
        before = log.snapshot()
        made = json.loads(before.metadata["schemaString"])
        count = len(made["fields"]) + 1
        made["fields"] += [self.field(*named(text), count + at) for at, text in listed(columns)]
        metadata = {**before.metadata, "schemaString": json.dumps(made)}
        assert log.commit(before, [{"commitInfo": {"timestamp": time.time_ns()}}, {"metaData": metadata}])

    def log(self, place):
        return self._file_tables.table(place).log

    def rows(self, place):
        """All rows that the newest version has."""
        table = self._file_tables.table(place)
        snapshot = table.log.snapshot()
        layout = table.layout(snapshot)
        types = {column.name: statements.arrow_of(column.type) for column in layout.columns}
        return everything(table, snapshot, layout, pa.schema(list(types.items())))

    def another(self):
        return FileDelta(self.files, self._plain, self._file_tables)


def listed(columns):
    """Definitions of columns, apart at the commas that stand in no parentheses."""
    return enumerate(re.split(r", (?=`)", columns))


def named(text):
    return re.fullmatch(r"`(.+?)` (.+)", text).groups()


def everything(table, snapshot, layout, schema):
    """Rows of the live files, read by nothing that was kept of them."""
    from cdcworker.connectors.warehouses.lake.delta_files.file_table import FileTable, TableMemory

    fresh = FileTable(table.files, TableMemory())
    fresh._follow(snapshot, layout)
    parts = [schema.empty_table()]
    for number, part in fresh._files.files.items():
        parts.append(fresh._rows(part, layout, schema).filter(pa.array(~fresh._files.mask(number))))
    return pa.concat_tables(parts)


class Session:
    """Statements that add a column are done. Deletes of tombstones are told, others are none that a table which is written as files
    needs."""

    def __init__(self, tables):
        self.conf, self.tables, self.said = self, tables, []

    def newSession(self):
        return self

    def set(self, *_):
        pass

    @property
    def read(self):
        raise AssertionError("a statement for Spark")

    def sql(self, statement):
        self.said.append(statement)
        if statement.startswith("DELETE FROM delta."):
            return
        found = re.fullmatch(r"ALTER TABLE delta\.`(.+?)` ADD COLUMNS \((.+)\)", statement)
        assert found, f"a statement for Spark: {statement[:60]}"
        self.tables.add_columns(LakeName(*found[1].rsplit("/", 2)[1:]), found[2])


class FileLakeWriter(LakeWriter):
    def rows(self, topic):
        place = self._place(topic, ())
        found = self._tables.load(place)
        if found is None or found.state is None or found.state.arrow is None:
            return None
        return TargetRows(".".join(place), found.state.key, {}, iter(self._tables.rows(place).to_batches()))


def opened(root, epoch=(1, 0), plain=False, sink="sink", **more):
    tables = FileDelta(LocalDisk(root) if isinstance(root, Path) else root, plain)
    writer = FileLakeWriter(tables, sink, **more)
    session = Session(tables)
    writer.attach(lambda: session)
    writer.fence(epoch)
    return writer
