"""Which tables are read and written by their files: those of whose features each is known here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.warehouses.lake.delta_files.table_log import TableSnapshot

if TYPE_CHECKING:
    import pyarrow as pa

FEATURES: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"),
        "vacuumProtocolCheck",
    }
)
"""Those that do nothing until a property or a column uses them, and those that are followed."""
LEGACY_WRITER_MAX: Final = 5
"""Up to it a protocol's number stands for features in this list."""
_LEGACY_READER_MAX = 2
_REFUSED_PROPERTIES = (
    *("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableRowTracking", "delta.enableInCommitTimestamps"),
    *("delta.enableIcebergCompatV1", "delta.enableIcebergCompatV2", "delta.enableIcebergCompatV3"),
)
_KNOWN_NOTES = ("delta.columnMapping.id", "delta.columnMapping.physicalName", "delta.typeChanges", "comment")


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column under its name in the table, and as files have it."""

    name: str
    physical: str
    id: int | None
    type: str


@dataclass(frozen=True, slots=True)
class FileLayout:
    columns: tuple[FileColumn, ...]
    vectors: bool
    """Whether the table's files may get deletion vectors."""


def layout_of(snapshot: TableSnapshot) -> FileLayout | None:
    """Returns how the files of a table are laid out; None: it has something that only Delta itself knows."""
    protocol, settings = snapshot.protocol, snapshot.metadata.get("configuration", {})
    if not _known(protocol) or snapshot.metadata.get("partitionColumns"):
        return None
    on = [name for name in _REFUSED_PROPERTIES if str(settings.get(name, "false")).lower() != "false"]
    mapped = settings.get("delta.columnMapping.mode", "none")
    if on or mapped not in ("none", "name") or any(name.startswith("delta.constraints.") for name in settings):
        return None
    columns = []
    for field in json.loads(snapshot.metadata["schemaString"])["fields"]:
        column = _column(field, mapped == "name")
        if column is None:
            return None
        columns.append(column)
    features = set(protocol.get("writerFeatures", ()))
    on_vectors = str(settings.get("delta.enableDeletionVectors", "false")).lower() == "true"
    return FileLayout(tuple(columns), on_vectors and "deletionVectors" in features)


def _known(protocol: Mapping[str, Any]) -> bool:
    reader, writer = int(protocol["minReaderVersion"]), int(protocol["minWriterVersion"])
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    if not features <= FEATURES:
        return False
    return (reader <= _LEGACY_READER_MAX or reader == 3) and (writer <= LEGACY_WRITER_MAX or writer == 7)


def _column(field: Mapping[str, Any], mapped: bool) -> FileColumn | None:
    notes, kind = field.get("metadata", {}), field["type"]
    if not field["nullable"] or any(name not in _KNOWN_NOTES for name in notes):
        return None
    if isinstance(kind, Mapping):
        element = kind.get("elementType")
        if kind.get("type") != "array" or not isinstance(element, str):
            return None
        kind = f"array<{element}>"
    kind = {"integer": "int", "long": "bigint"}.get(kind, kind)
    kind = kind.replace("array<integer>", "array<int>").replace("array<long>", "array<bigint>")
    if not mapped:
        return FileColumn(field["name"], field["name"], None, kind)
    physical, id = notes.get("delta.columnMapping.physicalName"), notes.get("delta.columnMapping.id")
    return None if physical is None or id is None else FileColumn(field["name"], physical, int(id), kind)


def data_path(path: str) -> str:
    """Returns the path of a data file below the table's folder. ValueError unless the log says that it is there."""
    from urllib.parse import unquote

    parts = PurePosixPath(unquote(path)).parts
    if not parts or ":" in path or parts[0] == "/" or ".." in parts:
        raise ValueError("a data file in another place")
    return "/".join(parts)


def file_schema(layout: FileLayout, schema: pa.Schema) -> pa.Schema:
    """Returns the columns of `schema`, the table's, as a file has them."""
    import pyarrow as pa

    there = {column.name: column for column in layout.columns}
    fields = []
    for field in schema:
        column = there[field.name]
        notes = None if column.id is None else {b"PARQUET:field_id": str(column.id).encode()}
        fields.append(pa.field(column.physical, field.type, metadata=notes))
    return pa.schema(fields)
