"""EventRouter: rows of an outbox table as the events that they hold, in the topics of their aggregates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Header
from cdcworker.connectors.transforms.data import Field as SchemaField
from cdcworker.connectors.transforms.debezium.envelope import PerSchema, envelope_of
from cdcworker.connectors.transforms.debezium.json_shape import JsonShapes, NoShapeError, ShapeOptions
from cdcworker.connectors.transforms.transform import SCHEMAS_MAX
from cdcworker.schemas.record_format import RegexRoute

log = logging.getLogger(__name__)

Placement = Literal["header", "envelope", "partition"]
Unexpected = Literal["warn", "error", "fatal"]
PAYLOAD: Final = "payload"
"""The field of the event's struct that holds the payload, where other columns stand beside it."""
ID_HEADER: Final = "id"
_KEY: Final = ConnectSchema("string")


class AdditionalField(NamedTuple):
    """A column of the outbox table that goes with the event."""

    column: str
    placement: Placement
    alias: str

    @classmethod
    def parse(cls, text: str) -> AdditionalField:
        """Parses `column:placement` or `column:placement:alias`. Raises ValueError for another form."""
        parts = [part.strip() for part in text.split(":")]
        if len(parts) not in (2, 3) or not all(parts):
            raise ValueError("expects column:placement or column:placement:alias")
        placement = parts[1].lower()
        for known in ("header", "envelope", "partition"):
            if placement == known:
                return cls(parts[0], known, parts[-1] if len(parts) == 3 else parts[0])
        raise ValueError("expects header, envelope or partition behind the column")


@dataclass(frozen=True, slots=True)
class OutboxColumns:
    """The names of the columns of the outbox table; `key` and `version` may be none."""

    id: str
    key: str | None
    payload: str
    route: str
    version: str | None = None
    additional: Sequence[AdditionalField] = ()
    may_lack_additional: bool = False


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What becomes of events. `expand` is how JSON in the payload becomes a struct; None: it stays text."""

    route: RegexRoute
    unexpected: Unexpected = "warn"
    tombstones: bool = False
    expand: ShapeOptions | None = None


@dataclass(slots=True)
class _Outbox:
    """What is known of the rows of one table, for one structure of it."""

    row: ConnectSchema
    payload: ConnectSchema
    id: ConnectSchema
    key: ConnectSchema
    additional: Sequence[tuple[AdditionalField, ConnectSchema]]
    structs: BoundedCache[tuple[int, str, Any], tuple[ConnectSchema, ConnectSchema]] = field(
        default_factory=lambda: BoundedCache(SCHEMAS_MAX)
    )
    """The structs of events with the payload's schema: by its identity, the routed value and the version."""


class EventRouter:
    """Routes what is inserted into an outbox table. Deletes and tombstones are left out: tables are emptied behind the events.

    An update is left out too, or is an error. Records of another form pass as they are.
    """

    def __init__(self, columns: OutboxColumns, options: EventOptions) -> None:
        self._columns = columns
        self._options = options
        self._has_struct = any(each.placement == "envelope" for each in columns.additional)
        self._shapes = JsonShapes(options.expand) if options.expand is not None else None
        self._outbox = PerSchema(self._outbox_of)
        self._warned: set[str] = set()

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if record.value is None:
            return None
        schema = envelope_of(record)
        if schema is None:
            return record
        operation = record.value.get("op")
        if operation is None:
            raise DataError("op is not a valid field name")
        if operation == "u":
            self._unexpected()
            return None
        row = record.value.get("after")
        if operation == "d" or row is None:
            return None
        return self._event(record, row, self._outbox(schema))

    def _unexpected(self) -> None:
        level = {"warn": logging.WARNING, "error": logging.ERROR}.get(self._options.unexpected)
        if level is None:
            raise DataError("Unexpected update message received: rows of an outbox table are inserted and deleted only")
        self._say(level, "an update of the outbox table is left out: its rows are inserted and deleted only")

    def _say(self, level: int, text: str) -> None:
        """Logs what is wrong with events once: there may be as many as there are records."""
        if text not in self._warned:
            self._warned.add(text)
            log.log(level, "%s", text)

    def _event(self, record: ConnectRecord, row: Mapping[str, Any], outbox: _Outbox) -> ConnectRecord:
        columns = self._columns
        route = row.get(columns.route)
        if not isinstance(route, str):
            raise DataError(f"The field {columns.route}, by which events are routed, is no text")
        payload_schema, payload = self._payload(outbox, row.get(columns.payload))
        headers = [*record.headers, Header(ID_HEADER, outbox.id, row.get(columns.id))]
        beside: dict[str, Any] = {}
        partition = None
        for (column, placement, alias), of in outbox.additional:
            if placement == "header":
                headers.append(Header(alias, of, row.get(column)))
            elif placement == "envelope":
                beside[alias] = row.get(column)
            else:
                partition = _partition(row.get(column), column)
        schema: ConnectSchema | None
        schema, value = payload_schema, payload
        if self._options.tombstones and _is_empty(payload):
            schema, value = None, None
        elif self._has_struct:
            version = row.get(columns.version) if columns.version is not None else None
            schema, value = self._struct(outbox, payload_schema, route, version), {PAYLOAD: payload, **beside}
        key = row.get(columns.key) if columns.key is not None else None
        topic = self._options.route.apply(route)
        return ConnectRecord(
            topic, outbox.key, key, schema, value, tuple(headers), record.timestamp, partition, record.offset
        )

    def _payload(self, outbox: _Outbox, payload: Any) -> tuple[ConnectSchema, Any]:
        if self._shapes is None or payload is None or outbox.payload.type == "struct":
            return outbox.payload, payload
        if not isinstance(payload, str):
            self._say(logging.WARNING, "the payload of an event is not expanded: its column is no text")
            return outbox.payload, payload
        try:
            return self._shapes.read(payload, self._columns.payload)
        except NoShapeError as error:
            self._say(logging.WARNING, f"the payload of an event is not expanded: {error}")
            return outbox.payload, payload

    def _struct(self, outbox: _Outbox, payload: ConnectSchema, route: str, version: Any) -> ConnectSchema:
        place = (id(payload), route, version)
        found = outbox.structs.get(place)
        if found is None:
            fields = [SchemaField(PAYLOAD, payload)]
            fields += [SchemaField(each.alias, of) for each, of in outbox.additional if each.placement == "envelope"]
            space, dot, name = (outbox.row.name or "").rpartition(".")
            full = f"{space}{dot}{route}.{name}" if name else route
            made = ConnectSchema("struct", name=full, version=version, fields=tuple(fields))
            found = outbox.structs[place] = (payload, made)
        return found[1]

    def _outbox_of(self, schema: ConnectSchema) -> _Outbox:
        """Returns what is known of a table by the schema of its envelope. Raises DataError for a column that is not there."""
        columns = self._columns
        row = schema.by_name.get("after")
        if row is None or row.type != "struct":
            raise DataError("Only Struct objects supported for [Read Outbox Event]")

        def of(name: str, what: str) -> ConnectSchema:
            found = row.by_name.get(name)
            if found is None:
                raise DataError(f"Unable to find {what} {name} in event")
            return found

        payload, id = of(columns.payload, "payload field"), of(columns.id, "event-id field")
        of(columns.route, "field")
        if columns.version is not None:
            _require_number(of(columns.version, "field"), columns.version)
        key = of(columns.key, "field") if columns.key is not None else _KEY
        kept = [each for each in columns.additional if not columns.may_lack_additional or each.column in row.by_name]
        return _Outbox(row, payload, id, key, [(each, of(each.column, "field")) for each in kept])


def _require_number(schema: ConnectSchema, column: str) -> None:
    if schema.type not in ("int8", "int16", "int32", "int64"):
        raise DataError(f"The field {column}, which is to be the version of schemas, is no number")


def _is_empty(payload: Any) -> bool:
    return payload is None or (isinstance(payload, str) and not payload.strip())


def _partition(value: Any, column: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise DataError(f"The field {column} is no number of a partition")
    return value
