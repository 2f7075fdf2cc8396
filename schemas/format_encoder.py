"""The encoder of records in other formats: other converters for keys or values, or flat rows instead of the envelope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.schemas.avro import TypedSchema, frame, murmur2
from cdcworker.schemas.change import Change, Column, JsonObject, OutRecord, Row, Table
from cdcworker.schemas.encode import (
    NEW_KEY_HEADER,
    OLD_KEY_HEADER,
    UNCHANGED_HEADER,
    Encoder,
    Register,
    TablePlan,
    plan_fields,
)
from cdcworker.schemas.envelope import NAME_CONFLICT, column_field, differing_columns, is_message
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import Registration, RegistrationMeta
from cdcworker.schemas.placeholders import bounds_headers, zero_value
from cdcworker.schemas.record_format import (
    AVRO,
    CLOCKS,
    NO_FORM,
    FlatFormat,
    Headers,
    RecordFormat,
    RecordWriter,
    WireFormat,
    WritesHeaders,
)
from cdcworker.schemas.topics import avro_name, subject, topic_name

TOPIC_TAKEN = declare(
    "schema.topic_taken",
    "config",
    "Two tables would be written to one topic",
    "Correct regex and replacement of the transform so that each table keeps a topic of its own. With skipped.operations=t tables of"
    " the same columns may share one: a truncate of one of them would empty it for all.",
)
COLUMNS_DIFFER = declare(
    "schema.columns_differ",
    "data",
    "A table that shares a topic with others has other columns or another key than they have",
    "Give all tables of the topic the same columns, and ask for a snapshot of this one; or route it to a topic of its own.",
)

DELETED_FIELD: Final = "__deleted"
"""The field that ExtractNewRecordState adds for rewritten deletes."""
_NAMED_MAX: Final = 10
"""Columns that an error names."""
_BOUND: Final = b"\0"
"""The `value_frame` of a plan that needs no schema id and is ready."""


def make_encoder(record_format: RecordFormat, prefix: str, register: Register, **options: Any) -> Encoder:
    """Returns the encoder for a record format; the default format has the fastest one."""
    if record_format == RecordFormat():
        return Encoder(prefix, register, **options)
    return FormatEncoder(record_format, prefix, register, **options)


@dataclass(slots=True)
class FormatPlan(TablePlan):
    """The plan of a table in a record format."""

    key: RecordWriter | None = None
    value: RecordWriter | None = None
    """The writer of values; None for the envelope in Avro."""
    said: Callable[[Any], Headers] | None = None
    """What the writer of values says in headers; None: nothing."""
    zeroes: tuple[Any, ...] = ()
    """By column, the value in `before` if the database did not send it; None for an optional column."""
    bounded: bool = False
    """A column stands in the row in another form than in the key."""


class FormatEncoder(Encoder):
    """Encodes changes in a record format; envelopes in Avro are written by the base class."""

    def __init__(self, record_format: RecordFormat, prefix: str, register: Register, **options: Any) -> None:
        super().__init__(prefix, register, **options)
        self._format = record_format
        self._now_ns = 0
        self._tables: dict[str, dict[tuple[str, ...], Table]] = {}
        """The tables of each topic, by their paths, as they were last."""

    @property
    def has_default_form(self) -> bool:
        record_format = self._format
        return record_format.flat is None and record_format.key == record_format.value == AVRO

    # Plans

    def _topic(self, table: Table) -> str:
        if table.plain is not None:
            return table.plain.topic
        topic = topic_name(self._prefix, table.path)
        for route in self._format.routes:
            topic = route.apply(topic)
        tables = self._tables.setdefault(topic, {})
        for path, other in tables.items():
            if path != table.path:
                self._require_alike(topic, table, other)
        tables[table.path] = table
        return topic

    def _require_alike(self, topic: str, table: Table, other: Table) -> None:
        """Raises a CdcError when the table may not be written to the topic of the other one."""
        where = {"topic": topic, "table": ".".join(table.path), "other": ".".join(other.path)}
        if not self._format.shared or is_message(table) or is_message(other):
            raise CdcError(TOPIC_TAKEN, "the topic is another table's", where=where)
        differing = differing_columns(table, other)
        if differing:
            where["columns"] = ", ".join(differing[:_NAMED_MAX])
            raise CdcError(COLUMNS_DIFFER, "the topic is that of tables with other columns", where=where)

    def _shapes_of(self, table: Table) -> list[TablePlan]:
        topic = self._topic(table)
        # Tables that share a topic take turns, and each keeps its plan in force.
        is_own = not self._format.shared or table.plain is not None
        return self._shapes.setdefault(topic if is_own else "/".join((topic, *table.path)), [])

    def path_of(self, topic: str) -> tuple[str, ...]:
        """Returns the path of the table whose records go to a topic; empty for a topic that tables share."""
        if not self._format.shared:
            return super().path_of(topic)
        tables = self._tables.get(topic, {})
        table = next(iter(tables.values()), None)
        return () if table is None or len(tables) > 1 or is_message(table) else table.path

    def _compile(self, table: Table) -> TablePlan:
        record_format = self._format
        plan = FormatPlan(**{**plan_fields(self._prefix, table), "topic": self._topic(table)})
        plan.zeroes = tuple(None if column.optional else zero_value(column) for column in table.columns)
        plan.bounded = any(column.bound for column in table.columns)
        if plan.key_schema is not None:
            plan.key = self._key_record(plan, plan.key_schema)
        if record_format.flat is not None and not is_message(table) and table.plain is None:
            plan.value = self._flat_record(plan, record_format.flat)
        elif record_format.value != AVRO:
            kind = plan.value_schema if table.plain else self._envelope_kind(plan.value_schema, table)
            plan.value = self._writer(record_format.value, kind, table)
            plan.said = plan.value.headers if isinstance(plan.value, WritesHeaders) else None
        return plan

    @staticmethod
    def _writer(wire: WireFormat, kind: JsonObject, table: Table, *, optional: bool = False) -> RecordWriter:
        """Returns the writer of a type. Raises CdcError `schema.no_form` with the table, which is then held."""
        try:
            return wire.writer(kind, optional=optional)
        except CdcError as error:
            if error.code != NO_FORM:
                raise
            where = {**error.where, "table": ".".join(table.path)}
            raise CdcError(NO_FORM, error.message, where=where, hint=error.hint) from None

    def _key_record(self, plan: FormatPlan, schema: JsonObject) -> RecordWriter:
        if self._format.key == AVRO:
            return AVRO.writer(schema)
        kind = {**schema, "fields": column_fields(plan.table.key_columns)}
        own_name = plan.table.plain is not None or is_message(plan.table)
        return self._writer(self._format.key, kind if own_name else self._with_own_name(plan.table, kind), plan.table)

    def _with_own_name(self, table: Table, kind: JsonObject) -> JsonObject:
        """Returns a record type with its unescaped name as `connect.name`."""
        return {**kind, "connect.name": ".".join((self._prefix, *table.path, kind["name"]))}

    def _envelope_kind(self, schema: JsonObject, table: Table) -> JsonObject:
        """Returns the envelope type with unescaped column names."""
        columns = column_fields(table.columns)
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        if is_message(table):
            kinds["message"] = {**kinds["message"], "fields": columns}
        else:
            row = self._with_own_name(table, {**row_record(schema), "fields": columns})
            kinds["before"] = kinds["after"] = ["null", row]
            schema = self._with_own_name(table, schema)
        return {**schema, "fields": [{**field, "type": kinds[field["name"]]} for field in schema["fields"]]}

    def _flat_record(self, plan: FormatPlan, flat: FlatFormat) -> RecordWriter:
        row, added = row_record(plan.value_schema), self._added_fields(plan, flat)
        if self._format.value == AVRO:
            fields = [*row["fields"], *({**field, "name": avro_name(field["name"])} for field in added)]
            return AVRO.writer({**row, "fields": distinct(fields, plan.table)})
        fields = distinct([*column_fields(plan.table.columns), *added], plan.table)
        kind = self._with_own_name(plan.table, {**row, "fields": fields})
        # Without added fields the flat row is the optional `after` of the envelope, with them a new required one.
        return self._writer(self._format.value, kind, plan.table, optional=not added)

    def _added_fields(self, plan: FormatPlan, flat: FlatFormat) -> list[JsonObject]:
        """Returns the fields behind the columns of a flat row. Raises CdcError `schema.unknown_field`."""
        added = [added_field(item.name, item.type_in(plan.table.source_schema)) for item in flat.fields]
        if flat.deletes == "rewrite":
            added.append(added_field(DELETED_FIELD, "string"))
        for header in flat.headers:
            header.type_in(plan.table.source_schema)
        return added

    def _bind(self, plan: TablePlan, meta: RegistrationMeta) -> None:
        assert isinstance(plan, FormatPlan)
        key = plan.key.schema if plan.key is not None else None
        value = plan.value.schema if plan.value is not None else plan.value_schema
        former = () if isinstance(key, TypedSchema) else plan.former_key_schemas
        registrations = [Registration(subject(plan.topic, "key"), key, meta, former)] if key else []
        if value:
            registrations.append(Registration(subject(plan.topic, "value"), value, meta))
        ids = self._register(registrations) if registrations else ()
        plan.value_frame = frame(ids[-1], b"") if value else _BOUND
        if key and plan.key is not None:
            plan.key.bind(ids[0])
            plan.key_id = ids[0]
        if value and plan.value is not None:
            plan.value.bind(ids[-1])

    def _tails(self, now_ns: int) -> dict[str, bytes]:
        self._now_ns = now_ns
        return super()._tails(now_ns)

    # Records

    def _encode(self, change: Change, plan: TablePlan, tails: dict[str, bytes], out: list[OutRecord]) -> None:
        assert isinstance(plan, FormatPlan)
        if change.op == "m":
            out.append(self._message_record(change, plan, tails))
        elif self._format.flat is None:
            value, said = self._envelope(change, plan, tails)
            self._append(change, plan, value, out)
            if said:
                out[-1] = out[-1]._replace(headers=[*(out[-1].headers or ()), *said])
            if change.op == "d" and self.tombstones and plan.key is not None:
                out.append(out[-1]._replace(value=None, headers=self._all_headers(change, plan, value) or None))
        else:
            self._encode_flat(change, plan, self._format.flat, out)

    def _encode_flat(self, change: Change, plan: FormatPlan, flat: FlatFormat, out: list[OutRecord]) -> None:
        """Writes flat rows. A truncate has no row, so it has no flat record."""
        if change.op == "d":
            if flat.deletes == "rewrite" and change.before is not None:
                before = in_row(plan, self._with_zeroes(plan, change.before))
                self._append(change, plan, self._flat_value(change, plan, flat, before), out)
            if plan.key is not None:
                for _ in range((flat.deletes == "tombstone") + flat.trailing):
                    self._append(change, plan, None, out)
        elif change.after is not None:
            after = in_row(plan, self._filled(plan, change.after, change.unchanged))
            self._append(change, plan, self._flat_value(change, plan, flat, after), out)

    def _flat_value(self, change: Change, plan: FormatPlan, flat: FlatFormat, row: Row) -> bytes:
        assert plan.value is not None
        return plan.value.wrap(plan.value.body((*row, *self._added_values(change, flat))))

    def _added_values(self, change: Change, flat: FlatFormat) -> list[Any]:
        """Returns the values of the fields behind the columns of a flat row."""
        added = [item.value_of(change, self._now_ns) for item in flat.fields]
        if flat.deletes == "rewrite":
            added.append("true" if change.op == "d" else "false")
        return added

    def _envelope(self, change: Change, plan: FormatPlan, tails: dict[str, bytes]) -> tuple[bytes, Headers]:
        """Returns the envelope of a change, and what is said of it in headers."""
        if plan.value is None:
            records: list[OutRecord] = []
            bare = replace(change, other_key=None) if change.other_key is not None else change
            super()._encode(bare, plan, tails, records)
            return records[0].value or b"", ()
        before = None if change.before is None else in_row(plan, self._with_zeroes(plan, change.before))
        after = None if change.after is None else in_row(plan, self._filled(plan, change.after, change.unchanged))
        clocks = [self._now_ns // unit for unit in CLOCKS.values()]
        values = (before, after, change.source, change.transaction, change.op, *clocks)
        return plan.value.wrap(plan.value.body(values)), plan.said(values) if plan.said else ()

    def _message_record(self, change: Change, plan: FormatPlan, tails: dict[str, bytes]) -> OutRecord:
        row, said = change.after or (), None
        if plan.value is None:
            value = self._message(change, plan, tails).value
        elif plan.table.plain is not None:
            value = plan.value.wrap(plan.value.body(tuple(row[i] for i in plan.table.value_indexes)))
        else:
            values: tuple[Any, ...] = (change.op, self._now_ns // 1_000_000, change.source, change.transaction, row)
            value = plan.value.wrap(plan.value.body(values))
            said = list(plan.said(values)) if plan.said else None
        key, hash = self._key_of(plan, plan.key_of(row))
        return OutRecord(plan.topic, key, value, said or None, hash)

    def _append(self, change: Change, plan: FormatPlan, value: bytes | None, out: list[OutRecord]) -> None:
        row = change.before if change.op == "d" else change.after
        key, hash = (None, None) if row is None else self._key_of(plan, plan.key_of(row))
        out.append(OutRecord(plan.topic, key, value, self._all_headers(change, plan, value) or None, hash))

    def _key_of(self, plan: FormatPlan, values: Row) -> tuple[bytes | None, int | None]:
        """Returns a key and its hash. The hash covers the body only: a new schema must not move a key to another
        partition."""
        if plan.key is None:
            return None, None
        body = plan.key.body(values)
        return plan.key.wrap(body), murmur2(body) & 0x7FFFFFFF

    def _all_headers(self, change: Change, plan: FormatPlan, value: bytes | None) -> list[tuple[str, bytes]]:
        headers: list[tuple[str, bytes]] = []
        if change.unchanged:
            headers.append((UNCHANGED_HEADER, ",".join(map(str, change.unchanged)).encode()))
        if change.other_key is not None and plan.key is not None:
            name = NEW_KEY_HEADER if change.op == "d" else OLD_KEY_HEADER
            headers.append((name, plan.key.in_header(change.other_key)))
        headers += bounds_headers(plan.arrays, change)
        for item in self._format.flat.headers if self._format.flat else ():
            field_value = item.value_of(change, self._now_ns)
            if field_value is not None and (value is not None or item.field == "op"):
                headers.append((item.name, str(field_value).encode()))
        return headers

    def _with_zeroes(self, plan: FormatPlan, row: Row) -> Row:
        if None not in row:
            return row
        return tuple([zero if value is None else value for value, zero in zip(row, plan.zeroes, strict=True)])


def in_row(plan: FormatPlan, row: Row) -> Row:
    """Returns the values as they stand in the row, which may differ from those of the key."""
    if not plan.bounded:
        return row
    return tuple([column.in_row(value) for column, value in zip(plan.table.columns, row, strict=True)])


# Schemas


def column_fields(columns: Sequence[Column]) -> list[JsonObject]:
    """Returns the columns' fields under their own names: JSON needs no escapes."""
    return [{**column_field(column, {}), "name": column.name} for column in columns]


def row_record(envelope: JsonObject) -> JsonObject:
    """Returns the record type of rows in an envelope."""
    for field in envelope["fields"]:
        if field["name"] == "before":
            return dict(field["type"][1])
    raise LookupError("the schema is no envelope")


def added_field(name: str, kind: Any) -> JsonObject:
    """Returns the field that a flat row has for a field of the envelope."""
    return {"name": name, "type": ["null", kind], "default": None}


def distinct(fields: list[JsonObject], table: Table) -> list[JsonObject]:
    """Returns the fields. Raises CdcError `schema.name_conflict` when two have one name."""
    names = [field["name"] for field in fields]
    for name in names:
        if names.count(name) > 1:
            where = {"table": ".".join(table.path), "name": name}
            raise CdcError(NAME_CONFLICT, "an added field has the name of another or of a column", where=where)
    return fields
