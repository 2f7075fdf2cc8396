"""The columns of a lake's table: from a batch's schema, evolved from what stands there, and tables brought into that shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api import DELETED, KEY, OP, POSITION, UNCHANGED, TableBatch
from cdcworker.connectors.spark.arrowtypes import arrow_of, to_arrow, wider
from cdcworker.connectors.spark.decode import Plan, arrow_type
from cdcworker.connectors.spark.errors import SCHEMA_REFUSED
from cdcworker.connectors.spark.pgtypes import TargetColumn, target_column
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import pyarrow as pa

COLID = b"cdc.colid"
DEFAULT = b"cdc.default"
_PLAIN = Plan({"type": "record", "name": "r", "fields": []})


@dataclass(frozen=True, slots=True)
class Output:
    """How rows come out: every change as a row of its own (`log`), deleted rows marked (`soft`), a column of times."""

    log: bool = False
    soft: bool = False
    synced: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch's columns with the types they have in files."""

    columns: tuple[TargetColumn, ...]
    schema: pa.Schema

    def typed(self, table: pa.Table, fixed: Mapping[str, Any]) -> pa.Table:
        """The decoded columns that the table has, converted; and the fixed ones as they are."""
        out: dict[str, Any] = {}
        for column in self.columns:
            if column.field in table.column_names:
                found = table[column.field].combine_chunks()
                wanted = self.schema.field(column.name).type
                out[column.name] = to_arrow(_single(found), column, wanted)
        return _table({**out, **fixed})


def _single(found: Any) -> Any:
    import pyarrow as pa

    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _table(columns: Mapping[str, Any]) -> pa.Table:
    import pyarrow as pa

    return pa.table(dict(columns))


def shape_of(batch: TableBatch, output: Output) -> Shape:
    """What a batch wants of its table."""
    import pyarrow as pa

    columns = [named(member) for member in batch.schema["fields"]]
    columns += [missing_key(name, batch) for name in batch.key if name not in {c.field for c in columns}]
    ids = {str(member["name"]): member.get("cdc.colid") for member in batch.schema["fields"]}
    fields = []
    for column in columns:
        notes = {}
        if ids.get(column.field):
            notes[COLID] = str(ids[column.field]).encode()
        plain = arrow_type(column.avro, _PLAIN)
        kind = arrow_of(column, plain)
        if column.default is not None:
            notes[DEFAULT] = _default_text(column, plain, kind).encode()
        fields.append(pa.field(column.name, kind, metadata=notes or None))
    own = [(POSITION, pa.binary())]
    own += [(KEY, pa.binary())] if batch.key else [(OP, pa.string())]
    own += [(UNCHANGED, pa.string())] if output.log else []
    own += [(DELETED, pa.bool_())] if output.soft and batch.key else []
    own += [(output.synced, pa.timestamp("us", "UTC"))] if output.synced else []
    return Shape(tuple(columns), pa.schema([*fields, *(pa.field(*pair) for pair in own)]))


def named(member: Mapping[str, Any]) -> TargetColumn:
    """The column of a member of the row's record."""
    return target_column(unescape(str(member["name"])), member)


def missing_key(name: str, batch: TableBatch) -> TargetColumn:
    """A key column that the row leaves out: its type is all that is known."""
    import pyarrow as pa

    rows = batch.upserts if name in batch.upserts.column_names else batch.deletes
    kind = rows[name].type if name in rows.column_names else pa.string()
    avro = {pa.int32(): "int", pa.int64(): "long", pa.bool_(): "boolean", pa.binary(): "bytes"}.get(kind, "string")
    return target_column(unescape(name), {"name": name, "type": avro})


def evolved(have: pa.Schema | None, want: pa.Schema, where: Mapping[str, str | int]) -> pa.Schema:
    """The table's columns so that they hold both: renamed by the source's identity, widened, added; none is dropped."""
    import pyarrow as pa

    if have is None:
        return want
    fields, left = [], {field.name: field for field in want}
    taken = {field.name for field in want}
    for field in have:
        same = _same(field, want, taken)
        if same is None:
            fields.append(field)
            continue
        left.pop(same.name, None)
        kind = wider(field.type, same.type)
        if kind is None:
            message = f"a column of type {field.type} cannot hold {same.type}"
            raise CdcError(SCHEMA_REFUSED, message, where={**where, "column": same.name})
        fields.append(pa.field(same.name, kind, metadata=same.metadata))
    return pa.schema([*fields, *left.values()])


def _same(field: pa.Field, want: pa.Schema, taken: set[str]) -> pa.Field | None:
    """The wanted column that this one is: by the source's identity, else by name."""
    id = (field.metadata or {}).get(COLID)
    if id is not None:
        for other in want:
            if (other.metadata or {}).get(COLID) == id:
                return other
    return want.field(field.name) if field.name in taken else None


def conform(table: pa.Table, schema: pa.Schema, defaults: bool = True) -> pa.Table:
    """Rows of an older shape in a newer one."""
    import pyarrow as pa

    by_id = {(field.metadata or {}).get(COLID): field.name for field in table.schema}
    columns = []
    for field in schema:
        id = (field.metadata or {}).get(COLID)
        name = by_id[id] if id is not None and id in by_id else field.name
        if name in table.column_names:
            columns.append(table[name].cast(field.type))
        else:
            columns.append(_added(field, table.num_rows) if defaults else pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)


def _default_text(column: TargetColumn, plain: pa.DataType, kind: pa.DataType) -> str:
    import pyarrow as pa

    raw = column.default.encode("latin-1") if column.kind in ("decimal", "bytes", "bits") else column.default
    return str(to_arrow(pa.array([raw], plain), column, kind).cast(pa.string())[0].as_py())


def _added(field: pa.Field, rows: int) -> Any:
    """Rows that stand already got the source's default without an event."""
    import pyarrow as pa

    raw = (field.metadata or {}).get(DEFAULT)
    return pa.nulls(rows, field.type) if raw is None else pa.array([raw.decode()] * rows).cast(field.type)


def same_columns(one: pa.Schema | None, other: pa.Schema) -> bool:
    """Whether files of the one are files of the other."""
    return one is not None and one.equals(other, check_metadata=False)


def place_of(topic: str, path: Sequence[str], schema: str) -> tuple[str, str]:
    """Schema and table of a topic."""
    parts = tuple(path) or tuple(unescape(part) for part in topic.split(".")[-2:])
    return schema or (parts[-2] if len(parts) > 1 else "public"), parts[-1]
