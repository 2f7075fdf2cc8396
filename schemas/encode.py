"""Changes to Kafka records: Confluent-framed Avro in Debezium's envelope, by a plan compiled once per table shape."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from cdcworker.schemas.absent import UNAVAILABLE, array_columns, bounds_headers, shaped, unavailable_value, zero_value
from cdcworker.schemas.avro import frame, murmur2
from cdcworker.schemas.binary import Write, compile_type, optional, write_long, write_string
from cdcworker.schemas.change import Change, Column, JsonObject, OutRecord, Position, Row, Table
from cdcworker.schemas.envelope import TRANSACTION_BLOCK, key_schema, row_fields, value_schema
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import Meta, Registration
from cdcworker.schemas.topics import subject, topic_name

VALUE_REJECTED = declare(
    "schema.value_rejected",
    "data",
    "A value does not fit the Avro type of its column",
    "Look at the named column; resync the table if its type changed without a schema change.",
)

Register = Callable[[Sequence[Registration]], Sequence[int]]

UNCHANGED_HEADER = "cdc.unchanged"
NEW_KEY_HEADER = "__debezium.newkey"
OLD_KEY_HEADER = "__debezium.oldkey"

_PER_EVENT: Final = frozenset(("sequence", "lsn", "tx_index", "tx_sub"))
"""Source fields that differ from event to event; runs of the others are encoded once per transaction and table."""

_ABSENT = b"\0"
_PRESENT = b"\2"
_BAD_VALUE = (TypeError, ValueError, AttributeError, OverflowError, LookupError, struct.error)
_write_transaction = optional(compile_type(TRANSACTION_BLOCK), null_first=True)


# Plans


def _source_writer(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bytes]:
    """Writes the source block from runs of fields; a run is encoded again only when one of its values differs."""
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
class Plan:
    """All that a table's shape decides. Filled in with frames once its schemas have ids."""

    table: Table
    topic: str
    key_schema: JsonObject | None
    value_schema: JsonObject
    key_writes: tuple[Write, ...]
    row_writes: tuple[Write, ...]
    image_writes: tuple[Write, ...]
    """For `before`: a required column that the source did not send is written as zero."""
    write_source: Callable[[Mapping[str, Any]], bytes]
    key_of: Callable[[Row], Row]
    arrays: tuple[int, ...] = ()
    """Columns whose values may have a shape that has to be told in a header."""
    key_id: int = 0
    value_frame: bytes = b""


def _field_writes(fields: Sequence[Mapping[str, Any]]) -> tuple[Write, ...]:
    named: dict[str, Write] = {}
    return tuple(compile_type(field["type"], named) for field in fields)


def encode_parts(fields: Sequence[Mapping[str, Any]]) -> Callable[[Row], bytes]:
    """Writes the fields of a record in their order."""
    writes = _field_writes(fields)
    return lambda values: _join(writes, values)


def _zero_for_none(column: Column, write: Write) -> Write:
    if column.optional:
        return write
    zero = write(zero_value(column))
    return lambda value: zero if value is None else write(value)


def _key_getter(table: Table) -> Callable[[Row], Row]:
    if not table.key:
        return lambda row: ()
    get = itemgetter(*table.key)
    if len(table.key) == 1:
        return lambda row: (get(row),)
    return get


def compiled(prefix: str, table: Table) -> dict[str, Any]:
    """The fields of a table's plan."""
    key, value = key_schema(prefix, table), value_schema(prefix, table)
    writes = _field_writes(row_fields(value))
    return {
        "table": table,
        "topic": table.plain.topic if table.plain else topic_name(prefix, table.path),
        "key_schema": key,
        "value_schema": value,
        "key_writes": _field_writes(key["fields"]) if key else (),
        "row_writes": writes,
        "image_writes": tuple(map(_zero_for_none, (table.columns[i] for i in table.value_indexes), writes)),
        "write_source": _source_writer(table.source_schema),
        "key_of": _key_getter(table),
        "arrays": array_columns(table),
    }


class Encoder:
    """Turns changes into records. One per task, used from one thread.

    `register` is called before the first record with a schema is returned (INV-4), with key and value together, and
    again when a table goes back to a shape it had before.
    """

    SHAPES_PER_TOPIC_MAX = 8
    TABLES_SEEN_MAX = 16384

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
        self._clock_ns = clock_ns
        self._seen: dict[int, Plan] = {}
        self._pinned: list[Table] = []
        self._shapes: dict[str, list[Plan]] = {}
        """By topic, the shape in force last."""
        self.tombstones = tombstones
        self.unavailable = unavailable
        self.turns = 0
        """Grows whenever a topic gets another shape."""

    def encode(self, changes: Sequence[Change]) -> list[OutRecord]:
        """Records in the order of the changes. Raises before anything is returned when a value cannot be encoded."""
        out: list[OutRecord] = []
        tails = self.tails()
        table: Table | None = None
        plan: Plan | None = None
        for change in changes:
            if change.table is not table or plan is None:
                table = change.table
                plan = self.plan(table, change.position)
            try:
                self._encode(change, plan, tails, out)
            except _BAD_VALUE as exc:
                raise _explain(change, plan, exc) from exc
        return out

    def _encode(self, change: Change, plan: Plan, tails: dict[str, bytes], out: list[OutRecord]) -> None:
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
        if change.unchanged or change.other_key is not None or (plan.arrays and shaped(plan.arrays, before, after)):
            headers = self._headers(change, plan)
        out.append(OutRecord(plan.topic, key, value, headers, hash))
        if op == "d" and key is not None and self.tombstones:
            out.append(OutRecord(plan.topic, key, None, headers, hash))

    def _key(self, plan: Plan, values: Row) -> tuple[bytes, int]:
        body = _join(plan.key_writes, values)
        return frame(plan.key_id, body), murmur2(body) & 0x7FFFFFFF

    def _headers(self, change: Change, plan: Plan) -> list[tuple[str, bytes]]:
        headers: list[tuple[str, bytes]] = []
        if change.unchanged:
            headers.append((UNCHANGED_HEADER, ",".join(map(str, change.unchanged)).encode()))
        if change.other_key is not None:
            name = NEW_KEY_HEADER if change.op == "d" else OLD_KEY_HEADER
            headers.append((name, self._key(plan, change.other_key)[0]))
        return headers + bounds_headers(plan.arrays, change)

    def _filled(self, plan: Plan, row: Row, unchanged: Sequence[int]) -> Row:
        values = list(row)
        for index in unchanged:
            values[index] = unavailable_value(plan.table.columns[index], self.unavailable)
        return tuple(values)

    def _message(self, change: Change, plan: Plan, tails: dict[str, bytes]) -> OutRecord:
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

    def _message_key(self, plan: Plan, row: Row, value: bytes) -> tuple[Any, ...]:
        if not plan.key_writes:
            return None, value, None, None
        key, hash = self._key(plan, plan.key_of(row))
        return key, value, None, hash

    # Plans

    def plan(self, table: Table, position: Position) -> Plan:
        """How rows of this shape are written from `position` on: in force, and with its ids (INV-4)."""
        plan = self._seen.get(id(table))
        if plan is None:
            plan = self._remember(table)
        shapes = self._shapes[plan.topic]
        if shapes[-1] is not plan or not plan.value_frame:
            self._put_in_force(plan, position)
        return plan

    def _remember(self, table: Table) -> Plan:
        """The plan of an equal table, or a new one. The table is kept, so that its id() stays its own."""
        if len(self._seen) >= self.TABLES_SEEN_MAX:
            self._seen.clear()
            self._pinned.clear()
        shapes = self._shapes.setdefault(self._topic(table), [])
        plan = next((known for known in reversed(shapes) if known.table == table), None)
        if plan is None:
            plan = self._compile(table)
            shapes.insert(0, plan)
        self._seen[id(table)] = plan
        self._pinned.append(table)
        return plan

    def _put_in_force(self, plan: Plan, position: Position) -> None:
        table = plan.table
        self._bind(plan, Meta(table.table_id, table.path, position))
        self.turns += 1
        shapes = self._shapes[plan.topic]
        shapes.remove(plan)
        shapes.append(plan)
        if len(shapes) > self.SHAPES_PER_TOPIC_MAX:
            dropped = shapes.pop(0)
            self._seen = {key: known for key, known in self._seen.items() if known is not dropped}

    def _bind(self, plan: Plan, meta: Meta) -> None:
        wanted = [Registration(subject(plan.topic, "value"), plan.value_schema, meta)]
        if plan.key_schema is not None:
            wanted.insert(0, Registration(subject(plan.topic, "key"), plan.key_schema, meta))
        ids = self._register(wanted)  # INV-4: returns when the schemas are committed and readable
        plan.value_frame = frame(ids[-1], b"")
        plan.key_id = ids[0]

    # What another form of record does in another way

    def _topic(self, table: Table) -> str:
        return table.plain.topic if table.plain else topic_name(self._prefix, table.path)

    def _compile(self, table: Table) -> Plan:
        return Plan(**compiled(self._prefix, table))

    def tails(self) -> dict[str, bytes]:
        """What follows the transaction block, by operation: it is the same for every event of a batch."""
        return self._tails(self._clock_ns())

    def _tails(self, now_ns: int) -> dict[str, bytes]:
        return _tails(now_ns)


def _join(writes: tuple[Write, ...], row: Row) -> bytes:
    return b"".join([write(value) for write, value in zip(writes, row, strict=True)])


def _tails(now_ns: int) -> dict[str, bytes]:
    clocks = [_PRESENT + write_long(now_ns // unit) for unit in (1_000_000, 1000, 1)]
    tails = {op: write_string(op) + b"".join(clocks) for op in "cudrt"}
    tails["m"] = write_string("m") + clocks[0]
    return tails


def _explain(change: Change, plan: Plan, error: Exception) -> CdcError:
    """Name the column at fault; never its value."""
    where: dict[str, str | int] = {"table": ".".join(plan.table.path), "commit_lsn": change.position.commit_lsn}
    images = ((plan.image_writes, change.before), (plan.row_writes, change.after))
    for writes, row in images:
        if row is not None and len(row) != len(writes):
            return CdcError(VALUE_REJECTED, f"a row has {len(row)} values for {len(writes)} columns", where=where)
        for column, write, value in zip(plan.table.columns, writes, row or (), strict=False):
            try:
                write(value)
            except _BAD_VALUE as exc:
                where["column"] = column.name
                message = f"a value does not fit its type: {type(exc).__name__}"
                return CdcError(VALUE_REJECTED, message, where=where)
    return CdcError(VALUE_REJECTED, f"the key or the source block does not fit: {type(error).__name__}", where=where)
