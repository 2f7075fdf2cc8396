"""The encoder of changes: Confluent-framed Avro in Debezium's envelope, by a plan compiled once per table structure."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from operator import itemgetter
from typing import Any, Final

from cdcworker.schemas.avro import frame, murmur2
from cdcworker.schemas.avro_binary import Write, compile_type, optional, write_long, write_string
from cdcworker.schemas.change import Change, Column, JsonObject, OutRecord, Position, Row, Table
from cdcworker.schemas.envelope import (
    TRANSACTION_BLOCK,
    former_key_schemas,
    is_message,
    key_schema,
    row_fields,
    value_schema,
)
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import Registration, RegistrationMeta
from cdcworker.schemas.placeholders import (
    UNAVAILABLE,
    array_columns,
    bounds_headers,
    has_own_bounds,
    unavailable_value,
    zero_value,
)
from cdcworker.schemas.topics import subject, topic_name

VALUE_REJECTED = declare(
    "schema.value_rejected",
    "data",
    "A value does not fit the Avro type of its column",
    "Look at the named column; if its type changed without a schema change, take a snapshot of the table.",
)

Register = Callable[[Sequence[Registration]], Sequence[int]]
"""Registers schemas and returns their ids once they are committed and readable (INV-4)."""

UNCHANGED_HEADER = "cdc.unchanged"
NEW_KEY_HEADER = "__debezium.newkey"
OLD_KEY_HEADER = "__debezium.oldkey"

_PER_EVENT: Final = frozenset(("sequence", "lsn", "tx_index", "tx_sub"))
"""Fields of the source block that differ between changes; runs of others are encoded once per transaction and table."""

_ABSENT = b"\0"
_PRESENT = b"\2"
_OPERATIONS: Final = tuple(map(write_string, "cudrtm"))
BAD_VALUE = (TypeError, ValueError, AttributeError, OverflowError, LookupError, struct.error)
"""What writers raise for a value that does not fit."""
TAILS: Final = {
    op: (operation + _PRESENT, _PRESENT, _PRESENT, b"") for op, operation in zip("cudrt", _OPERATIONS, strict=False)
}
"""By operation, what follows a record's transaction block: the pieces between the milliseconds, microseconds and nanoseconds
of the time at which it was made."""
_MESSAGE_TAIL: Final = _OPERATIONS[-1] + _PRESENT
_write_transaction = optional(compile_type(TRANSACTION_BLOCK), null_first=True)


# Plans


def _source_writer(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bytes]:
    """Returns a writer of the source block by runs of fields; a run is encoded again only when one of its values
    changes."""
    runs: list[tuple[tuple[str, ...], tuple[Write, ...]]] = []
    named: dict[str, Write] = {}
    volatile_before: bool | None = None
    for field in schema["fields"]:
        name, write = field["name"], compile_type(field["type"], named)
        volatile = name in _PER_EVENT
        if volatile == volatile_before:
            runs[-1] = ((*runs[-1][0], name), (*runs[-1][1], write))
        else:
            runs.append(((name,), (write,)))
        volatile_before = volatile
    defaults = {field["name"]: field.get("default") for field in schema["fields"]}
    parts = [_source_run(names, writes, defaults) for names, writes in runs]
    return lambda source: b"".join([part(source) for part in parts])


def _source_run(
    names: tuple[str, ...], writes: tuple[Write, ...], defaults: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], bytes]:
    if names[0] in _PER_EVENT:
        pairs = tuple(zip(names, writes, strict=True))
        if len(pairs) == 1:
            name, write = pairs[0]
            return lambda source: write(source.get(name))
        return lambda source: b"".join([write(source.get(name)) for name, write in pairs])
    get = itemgetter(*names)
    absent = {name: defaults.get(name) for name in names}
    last_values: Any = None
    last_bytes = b""

    def write_run(source: Mapping[str, Any]) -> bytes:
        nonlocal last_values, last_bytes
        try:
            values = get(source)
        except KeyError:
            values = get({**absent, **source})
        if values != last_values:
            row = values if len(names) > 1 else (values,)
            last_bytes = b"".join([write(value) for write, value in zip(writes, row, strict=True)])
            last_values = values
        return last_bytes

    return write_run


@dataclass(slots=True)
class TablePlan:
    """How records of one table structure are written. `key_id` and `value_frame` are set once its schemas have ids."""

    table: Table
    topic: str
    key_schema: JsonObject | None
    former_key_schemas: tuple[JsonObject, ...]
    value_schema: JsonObject
    key_writes: tuple[Write, ...]
    row_writes: tuple[Write, ...]
    """The writers of the columns in `after`."""
    image_writes: tuple[Write, ...]
    """The writers of the columns in `before`: a required column that the database did not send is written as zero."""
    write_source: Callable[[Mapping[str, Any]], bytes]
    key_of: Callable[[Row], Row]
    arrays: tuple[int, ...] = ()
    """The indexes of array columns, whose dimensions and bounds may have to be given in a header."""
    key_id: int = 0
    value_frame: bytes = b""
    peers: list[TablePlan] = dataclass_field(default_factory=list, repr=False, compare=False)
    """All plans of the same table, this one among them; the one in force is the last."""


def _field_writes(fields: Sequence[Mapping[str, Any]]) -> tuple[Write, ...]:
    named: dict[str, Write] = {}
    return tuple(compile_type(field["type"], named) for field in fields)


def encode_parts(fields: Sequence[Mapping[str, Any]]) -> Callable[[Row], bytes]:
    """Returns a writer of a record's fields in their order."""
    writes = _field_writes(fields)
    return lambda values: _join(writes, values)


def _zero_for_none(column: Column, write: Write) -> Write:
    if column.optional:
        return write
    zero = write(zero_value(column))
    return lambda value: zero if value is None else write(value)


def _bounded(column: Column, write: Write) -> Write:
    bound = column.bound
    if bound is None:
        return write
    return lambda value: write(value if value is None else bound(value))


def _key_getter(table: Table) -> Callable[[Row], Row]:
    if not table.key:
        return lambda row: ()
    get = itemgetter(*table.key)
    if len(table.key) == 1:
        return lambda row: (get(row),)
    return get


def plan_fields(prefix: str, table: Table) -> dict[str, Any]:
    """Compiles the fields of a table's plan."""
    key, value = key_schema(prefix, table), value_schema(prefix, table)
    columns = [table.columns[i] for i in table.value_indexes]
    writes = tuple(map(_bounded, columns, _field_writes(row_fields(value))))
    return {
        "table": table,
        "topic": table.plain.topic if table.plain else topic_name(prefix, table.path),
        "key_schema": key,
        "former_key_schemas": former_key_schemas(prefix, table),
        "value_schema": value,
        "key_writes": _field_writes(key["fields"]) if key else (),
        "row_writes": writes,
        "image_writes": tuple(map(_zero_for_none, columns, writes)),
        "write_source": _source_writer(table.source_schema),
        "key_of": _key_getter(table),
        "arrays": array_columns(table),
    }


class Encoder:
    """Encodes the changes of one task as records; used from one thread.

    `register` is called with the key and value schema before the first record with them is returned (INV-4), and again
    when a table returns to an earlier structure.
    """

    SHAPES_PER_TOPIC_MAX = 8
    """The most plans that are kept for a topic (INV-10)."""
    TABLES_SEEN_MAX = 16384
    """The most `Table` objects whose plan is found by identity (INV-10)."""

    def __init__(
        self,
        prefix: str,
        register: Register,
        *,
        tombstones: bool = True,
        unavailable: str = UNAVAILABLE,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._prefix = prefix
        self._register = register
        self.clock_ns = clock_ns
        self._seen: dict[int, TablePlan] = {}
        self._pinned: list[Table] = []
        self._shapes: dict[str, list[TablePlan]] = {}
        """The plans of each table by its topic, or of a topic that tables share by topic and path; the one in force is
        the last."""
        self.tombstones = tombstones
        self.unavailable = unavailable
        self.version = 0
        """A number that grows whenever another plan comes into force for a topic."""

    @property
    def has_default_form(self) -> bool:
        """Whether records have the default form, whatever their topics, so that a source may write them itself."""
        return True

    def encode(self, changes: Sequence[Change]) -> list[OutRecord]:
        """Returns the records of these changes, in their order.

        Raises CdcError `schema.value_rejected` when a value does not fit its type; then no record is returned.
        """
        out: list[OutRecord] = []
        tails = self.tails()
        table: Table | None = None
        plan: TablePlan | None = None
        for change in changes:
            if change.table is not table or plan is None:
                table = change.table
                plan = self.plan(table, change.position)
            try:
                self._encode(change, plan, tails, out)
            except BAD_VALUE as exc:
                raise _explain(change, plan, exc) from exc
        return out

    def _encode(self, change: Change, plan: TablePlan, tails: dict[str, bytes], out: list[OutRecord]) -> None:
        op = change.op
        if op == "m":
            out.append(self._message(change, plan, tails))
            return
        before, after = change.before, change.after
        if change.unchanged and after is not None:
            after = self._filled(plan, after, change.unchanged)
        value = b"".join(
            (
                plan.value_frame,
                _ABSENT if before is None else _PRESENT + _join(plan.image_writes, before),
                _ABSENT if after is None else _PRESENT + _join(plan.row_writes, after),
                plan.write_source(change.source),
                _ABSENT if change.transaction is None else _write_transaction(change.transaction),
                tails[op],
            )
        )
        key, hash = None, None
        row = before if op == "d" else after
        if plan.key_writes and row is not None:
            key, hash = self._key(plan, plan.key_of(row))
        headers = None
        if (
            change.unchanged
            or change.other_key is not None
            or (plan.arrays and has_own_bounds(plan.arrays, before, after))
        ):
            headers = self._headers(change, plan)
        out.append(OutRecord(plan.topic, key, value, headers, hash))
        if op == "d" and key is not None and self.tombstones:
            out.append(OutRecord(plan.topic, key, None, headers, hash))

    def _key(self, plan: TablePlan, values: Row) -> tuple[bytes, int]:
        body = _join(plan.key_writes, values)
        return frame(plan.key_id, body), murmur2(body) & 0x7FFFFFFF

    def _headers(self, change: Change, plan: TablePlan) -> list[tuple[str, bytes]]:
        headers: list[tuple[str, bytes]] = []
        if change.unchanged:
            headers.append((UNCHANGED_HEADER, ",".join(map(str, change.unchanged)).encode()))
        if change.other_key is not None:
            name = NEW_KEY_HEADER if change.op == "d" else OLD_KEY_HEADER
            headers.append((name, self._key(plan, change.other_key)[0]))
        return headers + bounds_headers(plan.arrays, change)

    def _filled(self, plan: TablePlan, row: Row, unchanged: Sequence[int]) -> Row:
        values = list(row)
        for index in unchanged:
            values[index] = unavailable_value(plan.table.columns[index], self.unavailable)
        return tuple(values)

    def _message(self, change: Change, plan: TablePlan, tails: dict[str, bytes]) -> OutRecord:
        row = change.after or ()
        if plan.table.plain is not None:
            value = plan.value_frame + _join(plan.row_writes, tuple(row[i] for i in plan.table.value_indexes))
            return OutRecord(plan.topic, *self._message_key(plan, row, value))
        value = b"".join(
            (
                plan.value_frame,
                tails["m"],
                plan.write_source(change.source),
                _write_transaction(change.transaction),
                _join(plan.row_writes, row),
            )
        )
        return OutRecord(plan.topic, *self._message_key(plan, row, value))

    def _message_key(self, plan: TablePlan, row: Row, value: bytes) -> tuple[Any, ...]:
        if not plan.key_writes:
            return None, value, None, None
        key, hash = self._key(plan, plan.key_of(row))
        return key, value, None, hash

    # Plans

    def path_of(self, topic: str) -> tuple[str, ...]:
        """Returns the path of the table whose records go to a topic; empty for records that are no table's."""
        shapes = self._shapes.get(topic)
        table = shapes[-1].table if shapes else None
        return () if table is None or table.plain is not None or is_message(table) else table.path

    def plan(self, table: Table, position: Position) -> TablePlan:
        """Returns the plan of a table, with registered schemas (INV-4); from `position` on it is in force for its
        topic."""
        plan = self._seen.get(id(table))
        if plan is None:
            plan = self._remember(table)
        if plan.peers[-1] is not plan or not plan.value_frame:
            self._put_in_force(plan, position)
        return plan

    def _remember(self, table: Table) -> TablePlan:
        """Returns the plan of an equal table, or a new one. The table is kept alive, so that its id() is not reused."""
        if len(self._seen) >= self.TABLES_SEEN_MAX:
            self._seen.clear()
            self._pinned.clear()
        shapes = self._shapes_of(table)
        plan = next((known for known in reversed(shapes) if known.table == table), None)
        if plan is None:
            plan = self._compile(table)
            plan.peers = shapes
            shapes.insert(0, plan)
        self._seen[id(table)] = plan
        self._pinned.append(table)
        return plan

    def _put_in_force(self, plan: TablePlan, position: Position) -> None:
        table = plan.table
        self._bind(plan, RegistrationMeta(table.table_id, table.path, position))
        self.version += 1
        shapes = plan.peers
        shapes.remove(plan)
        shapes.append(plan)
        if len(shapes) > self.SHAPES_PER_TOPIC_MAX:
            dropped = shapes.pop(0)
            self._seen = {key: known for key, known in self._seen.items() if known is not dropped}

    def _bind(self, plan: TablePlan, meta: RegistrationMeta) -> None:
        registrations = [Registration(subject(plan.topic, "value"), plan.value_schema, meta)]
        if plan.key_schema is not None:
            key = Registration(subject(plan.topic, "key"), plan.key_schema, meta, plan.former_key_schemas)
            registrations.insert(0, key)
        ids = self._register(registrations)  # INV-4: returns when the schemas are committed and readable
        plan.value_frame = frame(ids[-1], b"")
        plan.key_id = ids[0]

    # Steps that FormatEncoder overrides

    def _topic(self, table: Table) -> str:
        return table.plain.topic if table.plain else topic_name(self._prefix, table.path)

    def _shapes_of(self, table: Table) -> list[TablePlan]:
        return self._shapes.setdefault(self._topic(table), [])

    def _compile(self, table: Table) -> TablePlan:
        return TablePlan(**plan_fields(self._prefix, table))

    def tails(self) -> dict[str, bytes]:
        """Returns the bytes after the transaction block, by operation; they are the same for all changes of a batch."""
        return self._tails(self.clock_ns())

    def _tails(self, now_ns: int) -> dict[str, bytes]:
        ms, us, ns = map(write_long, (now_ns // 1_000_000, now_ns // 1000, now_ns))
        tails = {
            op: b"".join((head, ms, before_us, us, before_ns, ns, rest))
            for op, (head, before_us, before_ns, rest) in TAILS.items()
        }
        return {**tails, "m": _MESSAGE_TAIL + ms}


def _join(writes: tuple[Write, ...], row: Row) -> bytes:
    return b"".join([write(value) for write, value in zip(writes, row, strict=True)])


def _explain(change: Change, plan: TablePlan, error: Exception) -> CdcError:
    """Returns the error that names the column at fault, never its value."""
    where: dict[str, str | int] = {"table": ".".join(plan.table.path), "commit_lsn": change.position.commit}
    images = ((plan.image_writes, change.before), (plan.row_writes, change.after))
    for writes, row in images:
        if row is not None and len(row) != len(writes):
            return CdcError(VALUE_REJECTED, f"a row has {len(row)} values for {len(writes)} columns", where=where)
        for column, write, value in zip(plan.table.columns, writes, row or (), strict=False):
            try:
                write(value)
            except BAD_VALUE as exc:
                where["column"] = column.name
                message = f"a value does not fit its type: {type(exc).__name__}"
                return CdcError(VALUE_REJECTED, message, where=where)
    return CdcError(VALUE_REJECTED, f"the key or the source block does not fit: {type(error).__name__}", where=where)
