"""The columns of a lake's table: from a batch's schema, evolved from what stands there, and tables brought into that shape."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import (
    DELETED,
    IS_CURRENT,
    KEY,
    OP,
    POSITION,
    RESERVED,
    UNCHANGED,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
    TableBatch,
)
from cdcworker.connectors.arrow.decode import DecodePlan, arrow_type
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses import schema_policy
from cdcworker.connectors.warehouses.arrow_types import arrow_of, to_arrow, wider
from cdcworker.connectors.warehouses.column_changes import TargetTableColumn, Where, plan
from cdcworker.connectors.warehouses.source_types import TargetColumn, target_column
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

COLID = b"cdc.colid"
DEFAULT = b"cdc.default"
POSITION_ID = b"0"
"""Identity of the column of positions, whatever it is called: the source counts its columns from 1."""
VERSION_COLUMNS = (VALID_FROM, VALID_TO, VALID_TO_POSITION, IS_CURRENT)
_PLAIN = DecodePlan({"type": "record", "name": "r", "fields": []})


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How rows come out: every change as a row of its own (`log`), every version of a row with when it was current (`versions`), deleted rows marked (`soft`), a column of times, the name of
    the column of positions (empty: none, of a log alone), whether columns that the source drops are deleted
    (`drop`), and the classes of changes of columns that are followed."""

    log: bool = False
    versions: bool = False
    soft: bool = False
    synced: str = ""
    position: str = POSITION
    drop: bool = False
    follows: tuple[str, ...] = schema_policy.EVERYTHING

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the sink's columns, of which a table may have some."""
        return (self.position, self.synced, KEY, OP, UNCHANGED, DELETED, *VERSION_COLUMNS)

    def deletes(self, key: Collection[str]) -> bool:
        """Returns whether a table with this key loses the columns that the source drops. A table without a key is a history
        and keeps them, and so does one of versions."""
        return self.drop and not self.log and not self.versions and bool(key)


@dataclass(frozen=True, slots=True)
class FileColumns:
    """A batch's columns with the types they have in files. `is_older`: the table has got further columns since; rows that stood
    then have the default of those."""

    columns: tuple[TargetColumn, ...]
    schema: pa.Schema
    is_older: bool = False

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


def shape_of(batch: TableBatch, output: OutputForm) -> FileColumns:
    """Returns the columns that a batch needs in its table."""
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
    place = [pa.field(output.position, pa.binary(), metadata={COLID: POSITION_ID})] if output.position else []
    own: list[tuple[str, pa.DataType]] = [(KEY, pa.binary()) if batch.key else (OP, pa.string())]
    own += _version_columns() if output.versions and batch.key else []
    own += [(UNCHANGED, pa.string())] if output.log else []
    own += [(DELETED, pa.bool_())] if output.soft and batch.key else []
    own += [(output.synced, pa.timestamp("us", "UTC"))] if output.synced else []
    place += [pa.field(*pair) for pair in own]
    distinct([field.name for field in fields], [field.name for field in place], batch)
    shape = pa.schema([*fields, *place])
    return FileColumns(tuple(columns), shape)


def _version_columns() -> list[tuple[str, pa.DataType]]:
    import pyarrow as pa

    moment = pa.timestamp("us", "UTC")
    return [
        (OP, pa.string()),
        *((VALID_FROM, moment), (VALID_TO, moment)),
        (VALID_TO_POSITION, pa.binary()),
        (IS_CURRENT, pa.bool_()),
    ]


def keeps_versions(schema: pa.Schema | None) -> bool:
    """Returns whether a table with these columns has versions of rows."""
    return schema is not None and IS_CURRENT in schema.names


def distinct(columns: Sequence[str], own: Sequence[str], batch: TableBatch) -> None:
    """CdcError SCHEMA_REFUSED where a column of the source has the name of one of the sink's `own`, or one that the sink's
    columns alone have, in tables or on the way there."""
    for name in columns:
        ours = name.startswith(RESERVED)
        if ours or name in own or columns.count(name) > 1:
            text = "a column of the source has the name of one of the sink's own"
            text += ": column.exclude.list leaves it out" if ours else ": position.column, synced.column"
            raise CdcError(SCHEMA_REFUSED, text, where={"topic": batch.table, "column": name})


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


def evolved(
    have: pa.Schema | None, want: pa.Schema, key: Collection[str], where: Where, output: OutputForm
) -> pa.Schema:
    """The table's columns so that they hold both: renamed by the source's identity, widened, added. One that the source
    dropped goes where it is to, else it stays, and makes room for another of its name. CdcError where one cannot hold
    both, or a change is none that is followed."""
    import pyarrow as pa

    if have is None:
        return want
    planned = plan(identities(have), identities(want), key, where)
    if output.drop and planned.gone:
        log.info(
            "columns that the source dropped are removed table=%s columns=%s",
            where.get("table"),
            ",".join(planned.gone),
        )
        have = less(have, planned.gone)
        planned = plan(identities(have), identities(want), key, where)
    schema_policy.judge(output.follows, planned, output.own, where)
    for name in planned.dropped:
        log.info(
            "a dropped column is renamed to free its name table=%s column=%s now=%s",
            where.get("table"),
            name,
            planned.names[name],
        )
    fields, wanted = [], {field.name: field for field in want}
    for field in have:
        name = planned.names[field.name]
        same = wanted.get(name)
        kind = field.type if same is None else wider(field.type, same.type)
        if kind is None:
            message = f"a column of type {field.type} cannot hold {same and same.type}"
            raise CdcError(SCHEMA_REFUSED, message, where={**where, "column": name})
        if kind != field.type:
            schema_policy.refuse(output.follows, "widen", name, where)
        fields.append(pa.field(name, kind, metadata=_notes(field, same)))
    return pa.schema([*fields, *(wanted[name] for name in planned.added)])


def identities(schema: pa.Schema) -> list[TargetTableColumn]:
    ids = ((field.name, id_of(field)) for field in schema)
    return [TargetTableColumn(name, None if id is None else int(id)) for name, id in ids]


def _notes(field: pa.Field, same: pa.Field | None) -> dict[bytes, bytes] | None:
    """Rows from before a column keep the default that it came with, whichever it has later."""
    id, default = (same and id_of(same)) or id_of(field), (field.metadata or {}).get(DEFAULT)
    notes = ({} if id is None else {COLID: id}) | ({} if default is None else {DEFAULT: default})
    return notes or None


def id_of(field: pa.Field) -> bytes | None:
    """The source's identity of a column, where it is known."""
    found: bytes | None = (field.metadata or {}).get(COLID)
    # Tables from before the column had an identity call it by its usual name.
    return POSITION_ID if found is None and field.name == POSITION else found


def position_of(schema: pa.Schema) -> str:
    """The name of the column of positions; empty: there is none."""
    return next((field.name for field in schema if id_of(field) == POSITION_ID), "")


def renamed(have: pa.Schema, want: pa.Schema) -> dict[str, str]:
    """Names of columns to those that they have now: by the source's identity. `want` has all of them."""
    by_id = {id_of(field): field.name for field in want if id_of(field) is not None}
    return {field.name: by_id.get(id_of(field), field.name) for field in have}


def gone(have: pa.Schema | None, want: pa.Schema) -> tuple[str, ...]:
    """Columns of the source that `want`, made of them by `evolved`, has no more."""
    ids = {id_of(field) for field in want} | {None}
    return () if have is None else tuple(field.name for field in have if id_of(field) not in ids)


def less(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Returns the shape without these columns."""
    return schema_of([field for field in schema if field.name not in names])


def schema_of(fields: Sequence[pa.Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(list(fields))


def under_others(have: pa.Schema, want: pa.Schema) -> bool:
    """Returns whether a column has another name in the wanted shape."""
    return any(old != new for old, new in renamed(have, want).items())


def under(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """Under other names."""
    import pyarrow as pa

    return pa.schema([field.with_name(names.get(field.name, field.name)) for field in schema])


def conform(table: pa.Table, schema: pa.Schema, defaults: bool = True) -> pa.Table:
    """Rows of an older shape in a newer one."""
    import pyarrow as pa

    by_id = {id_of(field): field.name for field in table.schema if id_of(field) is not None}
    columns = []
    for field in schema:
        name = by_id.get(id_of(field)) or _namesake(field, table.schema)
        if name is not None:
            columns.append(table[name].cast(field.type))
        else:
            columns.append(_added(field, table.num_rows) if defaults else pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)


def _namesake(field: pa.Field, there: pa.Schema) -> str | None:
    """Columns of one name are one, but where the source says that they are two."""
    if field.name not in there.names:
        return None
    ids = {id_of(field), id_of(there.field(field.name))}
    return field.name if len(ids) == 1 or None in ids else None


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
    """Returns whether files of one schema can be read with the other."""
    return one is not None and one.equals(other, check_metadata=False)


def place_of(topic: str, path: Sequence[str], schema: str) -> tuple[str, str]:
    """Schema and table of a topic."""
    parts = tuple(path) or tuple(unescape(part) for part in topic.split(".")[-2:])
    return schema or (parts[-2] if len(parts) > 1 else "public"), parts[-1]
