"""The encoder of a source whose records pass a chain of transforms before they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, Final

from cdcworker.connectors.transform_chain.chain import FAILED, TransformChain
from cdcworker.connectors.transform_chain.record_writer import (
    NO_VALUE,
    ValueWriter,
    WritesValues,
    fields_of,
    header_bytes,
)
from cdcworker.connectors.transforms.avro_form import schema_of
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Header
from cdcworker.schemas.avro import TypedSchema, murmur2
from cdcworker.schemas.change import Change, JsonObject, OutRecord, Row, Table
from cdcworker.schemas.encode import (
    BAD_VALUE,
    NEW_KEY_HEADER,
    OLD_KEY_HEADER,
    VALUE_REJECTED,
    Encoder,
    Register,
    TablePlan,
    plan_fields,
)
from cdcworker.schemas.envelope import MESSAGE_PATH, is_message
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.format_encoder import (
    TOPIC_TAKEN,
    FormatEncoder,
    FormatPlan,
    column_fields,
    distinct,
    in_row,
    make_encoder,
    row_record,
)
from cdcworker.schemas.log import Registration, RegistrationMeta
from cdcworker.schemas.placeholders import zero_value
from cdcworker.schemas.record_format import AVRO, CLOCKS, FlatFormat, RecordFormat
from cdcworker.schemas.topics import TOPIC_CHARS_MAX, subject

_TOPIC: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_CHARS_MAX}}}")
WRITERS_MAX: Final = 256
"""The most topics and schemas for which a table's plan keeps writers (INV-10): those of the last topics, where their names have
the time in them."""


def encoder_of(
    chain: TransformChain, record_format: RecordFormat, prefix: str, register: Register, **options: Any
) -> Encoder:
    """Returns the encoder of records in a format that pass a chain; without a chain the one of the format."""
    if not chain:
        return make_encoder(record_format, prefix, register, **options)
    return TransformEncoder(chain, record_format, prefix, register, **options)


Written = tuple[str, bool, int]
"""A topic, whether it is the key, and the identity of a schema."""


@dataclass(slots=True)
class TransformPlan(FormatPlan):
    """The plan of a table whose records are transformed. `shapes` are the schemas of key and value before that."""

    key_shape: ConnectSchema | None = None
    value_shape: ConnectSchema | None = None
    names: tuple[str, ...] = ()
    key_names: tuple[str, ...] = ()
    source_defaults: JsonObject = dataclass_field(default_factory=dict)
    meta: RegistrationMeta | None = None
    writers: dict[Written, ValueWriter] = dataclass_field(default_factory=dict, repr=False)


class TransformEncoder(FormatEncoder):
    """Makes records of changes, applies the chain to each, and writes what comes out with the schema that it has then.

    What is made is registered before its first record (INV-4), and again when a table returns to an earlier structure.
    Heartbeats and transaction metadata are not transformed: readers of the product follow them.
    """

    def __init__(
        self, chain: TransformChain, record_format: RecordFormat, prefix: str, register: Register, **options: Any
    ) -> None:
        super().__init__(record_format, prefix, register, **options)
        self._chain = chain
        self._owners: dict[str, tuple[str, ...]] = {}
        """The path of the table whose records go to a topic; empty where several tables share it."""

    @property
    def has_default_form(self) -> bool:
        return False

    # Plans

    def _compile(self, table: Table) -> TablePlan:
        if table.plain is not None:
            return super()._compile(table)
        plan = TransformPlan(**{**plan_fields(self._prefix, table), "topic": self._topic(table)})
        plan.zeroes = tuple(None if column.optional else zero_value(column) for column in table.columns)
        plan.bounded = any(column.bound for column in table.columns)
        plan.names = tuple(column.name for column in table.columns)
        plan.key_names = tuple(column.name for column in table.key_columns)
        plan.source_defaults = {field["name"]: field.get("default") for field in table.source_schema["fields"]}
        try:
            if plan.key_schema is not None:
                plan.key_shape = schema_of(self._key_kind(plan, plan.key_schema))
            plan.value_shape = schema_of(self._value_kind(plan))
            if self._format.flat is not None and self._format.value != AVRO and not is_message(table):
                # As in the flat record of JSON without a chain, where it is the optional `after` of the envelope.
                is_bare = not self._added_fields(plan, self._format.flat)
                plan.value_shape = replace(plan.value_shape, optional=is_bare)
        except DataError as error:
            raise CdcError(FAILED, str(error), where={"table": ".".join(table.path)}) from None
        return plan

    def _key_kind(self, plan: TransformPlan, schema: JsonObject) -> JsonObject:
        """Returns the Avro type of keys, with the columns' own names."""
        if self._format.key != AVRO:
            kind = {**schema, "fields": column_fields(plan.table.key_columns)}
            return kind if is_message(plan.table) else self._with_own_name(plan.table, kind)
        pairs = zip(schema["fields"], plan.key_names, strict=True)
        return {**schema, "fields": [{**field, "name": name} for field, name in pairs]}

    def _value_kind(self, plan: TransformPlan) -> JsonObject:
        """Returns the Avro type of values, with the columns' own names."""
        table, flat, has_own_names = plan.table, self._format.flat, self._format.value != AVRO
        if has_own_names and (flat is None or is_message(table)):
            return self._envelope_kind(plan.value_schema, table)
        columns = column_fields(table.columns)
        if flat is not None and not is_message(table):
            row = {
                **row_record(plan.value_schema),
                "fields": distinct([*columns, *self._added_fields(plan, flat)], table),
            }
            return self._with_own_name(table, row) if has_own_names else row
        kinds = {field["name"]: field["type"] for field in plan.value_schema["fields"]}
        if is_message(table):
            kinds["message"] = {**kinds["message"], "fields": columns}
        else:
            kinds["before"] = kinds["after"] = ["null", {**row_record(plan.value_schema), "fields": columns}]
        fields = [{**field, "type": kinds[field["name"]]} for field in plan.value_schema["fields"]]
        return {**plan.value_schema, "fields": fields}

    def _bind(self, plan: TablePlan, meta: RegistrationMeta) -> None:
        if not isinstance(plan, TransformPlan):
            super()._bind(plan, meta)
            return
        plan.meta = meta
        plan.writers.clear()
        plan.value_frame = b"\0"  # says that the plan is ready

    def take_filtered(self) -> dict[str, int]:
        """Returns how many records each transform has left out since the last call, by its name in the config."""
        return self._chain.take_filtered()

    def path_of(self, topic: str) -> tuple[str, ...]:
        """Returns the path of the table whose records go to a topic; empty for one that tables share."""
        return self._owners[topic] if topic in self._owners else super().path_of(topic)

    # Records

    def _encode(self, change: Change, plan: TablePlan, tails: dict[str, bytes], out: list[OutRecord]) -> None:
        if not isinstance(plan, TransformPlan):
            super()._encode(change, plan, tails, out)
            return
        row = change.before if change.op == "d" else change.after
        has_key = row is not None and plan.key_shape is not None
        key = fields_of(plan.key_names, plan.key_of(row)) if has_key and row is not None else None
        for value in self._values(change, plan):
            record = ConnectRecord(
                plan.topic,
                plan.key_shape if has_key else None,
                key,
                None if value is None else plan.value_shape,
                value,
                self._record_headers(change, plan, value),
                self._now_ns // 1_000_000,
            )
            try:
                changed = self._chain.apply(record)
                if changed is not None:
                    out.append(self._written(changed, plan))
            except (CdcError, DataError) as error:
                raise _of_table(error, change) from None

    def _values(self, change: Change, plan: TransformPlan) -> Iterator[Any]:
        """Yields the values of the records that a change becomes; None for a tombstone."""
        flat, keyed = self._format.flat, plan.key_shape is not None
        if change.op == "m":
            message = fields_of(plan.names, change.after or ())
            clock = {"ts_ms": self._now_ns // 1_000_000}
            yield self._with_source(change, plan, {"op": change.op, "message": message, **clock})
        elif flat is None:
            yield self._envelope_struct(change, plan)
            if change.op == "d" and self.tombstones and keyed:
                yield None
        elif change.op == "d":
            if flat.deletes == "rewrite" and change.before is not None:
                before = in_row(plan, self._with_zeroes(plan, change.before))
                yield self._flat_struct(change, plan, flat, before)
            for _ in range((flat.deletes == "tombstone") + flat.trailing if keyed else 0):
                yield None
        elif change.after is not None:
            after = in_row(plan, self._filled(plan, change.after, change.unchanged))
            yield self._flat_struct(change, plan, flat, after)

    def _flat_struct(self, change: Change, plan: TransformPlan, flat: FlatFormat, row: Row) -> JsonObject:
        out = dict(zip(plan.names, row, strict=True))
        names = [field.name for field in (plan.value_shape.fields if plan.value_shape else ())][len(plan.names) :]
        out.update(zip(names, self._added_values(change, flat), strict=True))
        return out

    def _envelope_struct(self, change: Change, plan: TransformPlan) -> JsonObject:
        before, after = change.before, change.after
        if before is not None:
            before = in_row(plan, self._with_zeroes(plan, before))
        if after is not None:
            after = in_row(plan, self._filled(plan, after, change.unchanged))
        clocks = {name: self._now_ns // unit for name, unit in CLOCKS.items()}
        images = {
            "before": None if before is None else fields_of(plan.names, before),
            "after": None if after is None else fields_of(plan.names, after),
        }
        return self._with_source(change, plan, {**images, "op": change.op, **clocks})

    def _with_source(self, change: Change, plan: TransformPlan, fields: JsonObject) -> JsonObject:
        # In Avro a field that the source leaves out is its default, elsewhere it is null; so it is without a chain.
        source = change.source if self._format.value != AVRO else {**plan.source_defaults, **change.source}
        return {**fields, "source": source, "transaction": change.transaction}

    def _record_headers(self, change: Change, plan: TransformPlan, value: Any) -> tuple[Header, ...]:
        if change.op == "m":
            return ()
        bare = replace(change, other_key=None) if change.other_key is not None else change
        found = b"" if value is not None else None
        headers = [Header(name, None, data) for name, data in self._all_headers(bare, plan, found)]
        if change.other_key is not None and plan.key_shape is not None:
            name = NEW_KEY_HEADER if change.op == "d" else OLD_KEY_HEADER
            other = Header(name, plan.key_shape, fields_of(plan.key_names, change.other_key))
            headers.insert(1 if change.unchanged else 0, other)
        return tuple(headers)

    def _written(self, record: ConnectRecord, plan: TransformPlan) -> OutRecord:
        writers = self._writers(record, plan) or self._prepare(record, plan)
        try:
            body, key = writers[0].write(record.key)
            value = writers[1].write(record.value)[1]
        except BAD_VALUE as exc:
            text = f"a value does not fit the schema that the transforms made: {type(exc).__name__}"
            raise CdcError(VALUE_REJECTED, text) from None
        headers: list[Any] = [(each.key, self._header(each, record, plan)) for each in record.headers]
        if writers[1].says:
            headers += writers[1].headers(record.value)
        hash = record.partition  # Divided by the number of partitions a partition is itself.
        if hash is None and body is not None and key is not None:
            hash = murmur2(body) & 0x7FFFFFFF
        return OutRecord(record.topic, key, value, headers or None, hash)

    def _writers(self, record: ConnectRecord, plan: TransformPlan) -> tuple[WritesValues, WritesValues] | None:
        """Returns what writes the record's key and its value; None: the plan does not have both yet."""
        topic, made = record.topic, plan.writers
        key: WritesValues | None = NO_VALUE
        value: WritesValues | None = NO_VALUE
        if record.key_schema is not None or record.key is not None:
            key = made.get((topic, True, id(record.key_schema)))
        if record.value_schema is not None or record.value is not None:
            value = made.get((topic, False, id(record.value_schema)))
        return None if key is None or value is None else (key, value)

    def _header(self, header: Header, record: ConnectRecord, plan: TransformPlan) -> bytes | None:
        """Returns the bytes of a header. The other key of a row is written as the record's key is, if that is as it was."""
        if header.schema is not None and header.schema is plan.key_shape is record.key_schema:
            return plan.writers[record.topic, True, id(header.schema)].in_header(header.value)
        return header_bytes(header)

    def _prepare(self, record: ConnectRecord, plan: TransformPlan) -> tuple[WritesValues, WritesValues]:
        """Returns the writers that a record needs, which are made and whose schemas are registered (INV-4)."""
        self._take_topic(record.topic, plan.table)
        if len(plan.writers) >= WRITERS_MAX:
            plan.writers.clear()
        assert plan.meta is not None
        fresh: dict[Written, ValueWriter] = {}
        made: list[tuple[ValueWriter, Registration]] = []
        for schema, value, is_key in (
            (record.key_schema, record.key, True),
            (record.value_schema, record.value, False),
        ):
            place = (record.topic, is_key, id(schema))
            if (schema is None and value is None) or place in plan.writers:
                continue
            alike = (each for (_, *of), each in plan.writers.items() if of == [is_key, id(schema)])
            known = next(alike, None)  # To compile takes longest, and an outbox may have many topics.
            writer = copy(known) if known else ValueWriter(schema, self._format.key if is_key else self._format.value)
            fresh[place] = writer
            if writer.registered is not None:
                is_former = schema is plan.key_shape and not isinstance(writer.registered, TypedSchema)
                former = plan.former_key_schemas if is_former else ()
                name = subject(record.topic, "key" if is_key else "value")
                made.append((writer, Registration(name, writer.registered, plan.meta, former)))
        if made:
            ids = self._register([registration for _, registration in made])
            for (writer, _), number in zip(made, ids, strict=True):
                writer.bind(number)
        plan.writers.update(fresh)
        found = self._writers(record, plan)
        assert found is not None
        return found

    def _take_topic(self, topic: str, table: Table) -> None:
        """Raises a CdcError for a topic that Kafka does not allow, or that is another table's."""
        if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
            raise DataError("The transforms made a topic name that Kafka does not allow")
        owner = self._owners.setdefault(topic, table.path)
        if owner == table.path:
            return
        if not self._format.shared or MESSAGE_PATH in (owner, table.path):
            where = {"topic": topic, "table": ".".join(table.path), "other": ".".join(owner)}
            raise CdcError(TOPIC_TAKEN, "the topic is another table's", where=where)
        self._owners[topic] = ()


def _of_table(error: CdcError | DataError, change: Change) -> CdcError:
    """Returns an error with the table and the change that it is of."""
    if isinstance(error, CdcError) and error.kind != "data":
        return error
    code = error.code if isinstance(error, CdcError) else FAILED
    where = dict(error.where) if isinstance(error, CdcError) else {}
    if change.table.plain is None and not is_message(change.table):
        where.setdefault("table", ".".join(change.table.path))
    where |= {"commit_lsn": change.position.commit, "tx_index": change.position.event}
    message, hint = (error.message, error.hint) if isinstance(error, CdcError) else (str(error), None)
    return CdcError(code, message, where=where, hint=hint)
