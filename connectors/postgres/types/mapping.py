"""PostgreSQL types in Debezium's form: per type an Avro type with Connect's attributes, a parser and stand-ins.

Types without an entry are text with the server's own text form, unless `unknown.type.handling.mode` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdcworker.connectors.capture.avro_types import POINT, connect, decimal_type, geometry_type
from cdcworker.connectors.capture.column_mapping import MappedType, Parser
from cdcworker.connectors.postgres.types import bounded_values, nested_values, text_values
from cdcworker.connectors.postgres.types.extension_records import sparse_vector_type
from cdcworker.schemas.change import Avro
from cdcworker.schemas.placeholders import beyond_precision, unscaled
from cdcworker.schemas.topics import avro_name


@dataclass(frozen=True, slots=True)
class PgType:
    """One row of pg_type, its domain resolved by `base` and `base_typmod`."""

    oid: int
    name: str
    kind: str = "b"
    """typtype: `b` base, `c` composite, `d` domain, `e` enum, `p` pseudo, `r` range, `m` multirange."""
    element: int = 0
    """The element's OID when this is a true array type."""
    base: int = 0
    base_typmod: int = -1
    labels: tuple[str, ...] = ()
    delimiter: str = ","
    dims: int = 0
    """Dimensions that a domain over an array declares."""
    schema: str = "pg_catalog"
    attributes: tuple[tuple[str, int, int], ...] = ()
    """Of a composite: name, type OID, typmod."""
    dropped: bool = False
    """Of a composite: it has had other attributes."""


_KEY: Final = "key"
"""`out_of_range` of columns of the key where others are bounded: exact, and such that readers take it."""


@dataclass(frozen=True, slots=True)
class HandlingModes:
    """How values are represented: the `*.handling.mode` keys and their kin."""

    decimal: str = "precise"
    time: str = "adaptive"
    binary: str = "bytes"
    hstore: str = "json"
    interval: str = "numeric"
    money_digits: int = 2
    composite: str = "text"
    varbit: str = "bits"
    unknown: str = "text"
    out_of_range: str = "clamp"
    timestamptz: str = "padded"
    key_nan: str = "number"
    """What is `NaN` of a numeric(p,s) in columns of the key: the first number beyond the type, or `empty` bytes."""

    @property
    def exact(self) -> bool:
        """Tells whether values out of their type's range keep a form of their own."""
        return self.out_of_range in ("exact", _KEY)

    def of_key(self) -> HandlingModes:
        """Returns the modes of columns of the key, which are exact whatever others are."""
        return self if self.exact else replace(self, out_of_range=_KEY)


@dataclass(frozen=True, slots=True)
class TypeRegistry:
    """What types refer to, by OID; `stale` is called by parsers that meet a value which their type did not have, `misfit`
    where it is of no use unless the type is another one by now."""

    known: dict[int, PgType] = field(default_factory=dict)
    stale: Callable[[], None] = lambda: None
    misfit: Callable[[], None] = lambda: None


Entry = Callable[[int, HandlingModes], MappedType]
"""typmod and modes to the mapping."""


def _text(name: str | None = None, parse: Parser = text_values.text, **more: Any) -> MappedType:
    avro: Avro = connect("string", name, **more) if name else "string"
    return MappedType(avro, parse)


def _named(name: str, **more: Any) -> Entry:
    return lambda _, modes: _text(name, **more)


def _plain(avro: Avro, parse: Parser) -> Entry:
    mapped = MappedType(avro, parse)
    return lambda _typmod, _modes: mapped


# -- numbers ----------------------------------------------------------------------------------------------------------

VARIABLE_SCALE_DECIMAL: dict[str, Any] = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.doc": "Variable scaled decimal",
    "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}


def _numeric(typmod: int, modes: HandlingModes) -> MappedType:
    if modes.decimal == "double":
        return MappedType("double", float)
    if modes.decimal == "string":
        return MappedType("string", text_values.decimal_text)
    if typmod >= 4:
        precision = ((typmod - 4) >> 16) & 0xFFFF
        scale = (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400
        # Avro's decimal allows neither a negative scale nor one above the precision.
        if 0 <= scale <= precision:
            return MappedType(decimal_type(precision, scale), *_decimal_parsers(precision, scale, modes))
    if modes.exact:
        return MappedType(VARIABLE_SCALE_DECIMAL, text_values.variable_decimal)
    return MappedType(VARIABLE_SCALE_DECIMAL, bounded_values.variable_decimal, bounded_values.required_variable_decimal)


def _decimal_parsers(precision: int, scale: int, modes: HandlingModes) -> tuple[Parser, ...]:
    if modes.exact:
        is_number = modes.out_of_range == _KEY and modes.key_nan == "number"
        return (text_values.decimal_bytes(scale, beyond_precision(precision) if is_number else b""),)
    return tuple(bounded_values.decimal_bytes(precision, scale, required=required) for required in (False, True))


def _money(_: int, modes: HandlingModes) -> MappedType:
    digits = modes.money_digits
    if modes.decimal == "double":
        return MappedType("double", lambda value: text_values.money_cents(value) / 10**digits)
    if modes.decimal == "string":
        return MappedType("string", text_values.money_text(digits))
    return MappedType(decimal_type(None, digits), lambda value: unscaled(text_values.money_cents(value)))


def _bit(typmod: int, modes: HandlingModes) -> MappedType:
    if typmod == 1:
        return MappedType("boolean", text_values.bit_boolean)
    if typmod < 0:
        # As `create table … as` makes it: of any length.
        return _varbit(typmod, modes)
    avro = connect("bytes", "io.debezium.data.Bits", {"length": str(typmod)})
    parse = text_values.bits(typmod)
    return MappedType(avro, parse, zero=parse(b""))


def _varbit(typmod: int, modes: HandlingModes) -> MappedType:
    if modes.varbit == "text":
        # Of any length: an empty one is not 0.
        return MappedType("string", text_values.text)
    if typmod == 1:
        return _bit(typmod, modes)
    length = typmod if typmod > 0 else 2**31 - 1
    return MappedType(connect("bytes", "io.debezium.data.Bits", {"length": str(length)}), text_values.bits(0))


def _bytea(_: int, modes: HandlingModes) -> MappedType:
    if modes.binary == "bytes":
        return MappedType("bytes", text_values.hex_bytes)
    return MappedType("string", text_values.hex_as(modes.binary))


# -- dates and times --------------------------------------------------------------------------------------------------

_MICRO_TIME = connect("long", "io.debezium.time.MicroTime", logicalType="time-micros")
_MICRO_TIMESTAMP = connect("long", "io.debezium.time.MicroTimestamp", logicalType="local-timestamp-micros")
_CONNECT = "org.apache.kafka.connect.data."


def _date(_: int, modes: HandlingModes) -> MappedType:
    if modes.time == "isostring":
        return _text("io.debezium.time.IsoDate", text_values.date_text)
    if modes.time == "connect":
        parse = text_values.days if modes.exact else bounded_values.days
        return MappedType(connect("int", _CONNECT + "Date", logicalType="date"), parse)
    return MappedType(
        connect("int", "io.debezium.time.Date"), text_values.days if modes.exact else bounded_values.finite_days
    )


def _time(typmod: int, modes: HandlingModes) -> MappedType:
    times: Any = text_values if modes.exact else bounded_values
    if modes.time == "isostring":
        return _text("io.debezium.time.IsoTime", times.time_text)
    if modes.time == "connect":
        return MappedType(connect("int", _CONNECT + "Time", logicalType="time-millis"), times.time_ms)
    if modes.time == "nanoseconds":
        return MappedType(connect("long", "io.debezium.time.NanoTime"), times.time_ns)
    if modes.time == "adaptive" and 0 <= typmod <= 3:
        return MappedType(connect("int", "io.debezium.time.Time"), times.time_ms)
    return MappedType(_MICRO_TIME, times.time_us)


def _timestamp(typmod: int, modes: HandlingModes) -> MappedType:
    times: Any = text_values if modes.exact else bounded_values
    if modes.time == "isostring":
        return _text("io.debezium.time.IsoTimestamp", text_values.timestamp_text)
    if modes.time == "connect":
        return MappedType(connect("long", _CONNECT + "Timestamp", logicalType="timestamp-millis"), times.timestamp_ms)
    if modes.time == "nanoseconds":
        return MappedType(connect("long", "io.debezium.time.NanoTimestamp"), times.timestamp_ns)
    if modes.time != "microseconds" and 0 <= typmod <= 3:
        # A plain number to readers, which holds whatever the server has but for infinity.
        parse = text_values.timestamp_ms if modes.exact else bounded_values.finite_timestamp_ms
        return MappedType(connect("long", "io.debezium.time.Timestamp"), parse)
    return MappedType(_MICRO_TIMESTAMP, times.timestamp_us)


_MICROSECOND_DIGITS = 6
"""The precision of a timestamp whose type names none."""


def _timestamptz(typmod: int, modes: HandlingModes) -> MappedType:
    digits = typmod if typmod >= 0 else _MICROSECOND_DIGITS
    parse = text_values.timestamptz_text if modes.timestamptz == "shortest" else text_values.padded_timestamptz(digits)
    return MappedType(connect("string", "io.debezium.time.ZonedTimestamp"), parse)


def _timetz(_: int, modes: HandlingModes) -> MappedType:
    parse = text_values.timetz_text if modes.exact else bounded_values.timetz_text
    return MappedType(connect("string", "io.debezium.time.ZonedTime"), parse)


def _interval(_: int, modes: HandlingModes) -> MappedType:
    if modes.interval == "string":
        return MappedType(connect("string", "io.debezium.time.Interval"), text_values.interval_text)
    return MappedType(connect("long", "io.debezium.time.MicroDuration"), text_values.interval_us)


# -- others -----------------------------------------------------------------------------------------------------------


def _hstore(_: int, modes: HandlingModes) -> MappedType:
    if modes.hstore == "map":
        parse: Parser = nested_values.hstore_map
        return MappedType({"type": "map", "values": ["null", "string"]}, parse)
    return _text("io.debezium.data.Json", nested_values.hstore_json)


def _vector(item: str, name: str) -> Entry:
    avro = {"type": "array", "items": item, "connect.version": 1, "connect.name": name}
    return _plain(avro, nested_values.number_list)


def _string(_: int, modes: HandlingModes) -> MappedType:
    return _text()


ENTRIES: dict[str, Entry] = {
    "bool": _plain("boolean", text_values.boolean),
    "int2": _plain({"type": "int", "connect.type": "int16"}, int),
    "int4": _plain("int", int),
    "int8": _plain("long", int),
    "oid": _plain("long", int),
    "float4": _plain("float", float),
    "float8": _plain("double", float),
    "numeric": _numeric,
    "money": _money,
    "bit": _bit,
    "varbit": _varbit,
    "bytea": _bytea,
    "json": _named("io.debezium.data.Json"),
    "jsonb": _named("io.debezium.data.Json"),
    "xml": _named("io.debezium.data.Xml"),
    "uuid": _named("io.debezium.data.Uuid", logicalType="uuid"),
    "ltree": _named("io.debezium.data.Ltree"),
    "tsvector": _named("io.debezium.data.Tsvector"),
    "date": _date,
    "time": _time,
    "timetz": _timetz,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
    "point": _plain(POINT, nested_values.point),
    "geometry": _plain(geometry_type("Geometry"), nested_values.geometry),
    "geography": _plain(geometry_type("Geography"), nested_values.geometry),
    "hstore": _hstore,
    "vector": _vector("double", "io.debezium.data.DoubleVector"),
    "halfvec": _vector("float", "io.debezium.data.FloatVector"),
    "sparsevec": lambda typmod, _: MappedType(sparse_vector_type(typmod), nested_values.sparse_vector),
    **dict.fromkeys(
        (
            *("text", "varchar", "bpchar", "char", "name", "citext", "inet", "cidr", "macaddr", "macaddr8"),
            *("box", "lseg", "path", "polygon", "circle", "line", "tsquery", "jsonpath", "pg_lsn", "pg_snapshot"),
            *("xid", "xid8", "cid", "tid", "txid_snapshot", "int2vector", "oidvector", "aclitem", "refcursor"),
            *("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator"),
            *("regproc", "regprocedure", "regrole", "regtype"),
        ),
        _string,
    ),
}
"""By pg_type.typname. A new type is one line here and a parser in `text_values`."""


def map_type(pg: PgType, typmod: int, modes: HandlingModes, types: TypeRegistry, depth: int = 1) -> MappedType:
    """The mapping of a column's type; `depth` is the number of dimensions that an array's column declares."""
    if pg.kind == "d":
        base = types.known.get(pg.base)
        if base is None:
            return _unknown(modes)
        return map_type(base, pg.base_typmod if typmod < 0 else typmod, modes, types, max(depth, pg.dims))
    if pg.kind == "e":
        avro = connect("string", "io.debezium.data.Enum", {"allowed": ",".join(pg.labels)})
        return MappedType(avro, nested_values.EnumLabels(pg.labels, types.stale), zero=next(iter(pg.labels), ""))
    if pg.kind == "c":
        return _composite(pg, modes, types)
    if pg.kind in ("r", "m"):
        return _text()
    if pg.element:
        return _array(pg, typmod, modes, types, depth)
    entry = ENTRIES.get(pg.name)
    return entry(typmod, modes) if entry else _unknown(modes)


def _unknown(modes: HandlingModes) -> MappedType:
    """Debezium's form of an unknown type is its text as opaque bytes."""
    if modes.unknown != "bytes":
        return _text()
    if modes.binary == "bytes":
        return MappedType("bytes", bytes)
    return MappedType("string", text_values.bytes_as(modes.binary))


def is_known(pg: PgType, types: TypeRegistry) -> bool:
    """False for a type that is text only for want of an entry."""
    if pg.kind == "d" or (pg.element and pg.kind == "b"):
        inner = types.known.get(pg.base or pg.element)
        return inner is not None and is_known(inner, types)
    return pg.kind in ("e", "c", "r", "m") or pg.name in ENTRIES


def _array(pg: PgType, typmod: int, modes: HandlingModes, types: TypeRegistry, depth: int) -> MappedType:
    element = types.known.get(pg.element)
    if element is None:
        return _unknown(modes)
    inner = map_type(element, typmod, modes, types)
    avro: Avro = inner.avro
    for _ in range(max(1, depth)):
        avro = {"type": "array", "items": ["null", avro]}
    return MappedType(avro, nested_values.array(inner.parse, element.delimiter.encode(), max(1, depth)))


def _composite(pg: PgType, modes: HandlingModes, types: TypeRegistry) -> MappedType:
    """Text, which is exact whatever becomes of the type; as a record when that is asked for."""
    if modes.composite != "record":
        return _text()
    fields, parsers = [], []
    for name, oid, typmod in pg.attributes:
        inner = map_type(types.known.get(oid) or PgType(oid, ""), typmod, modes, types)
        fields.append({"name": avro_name(name), "type": ["null", inner.avro], "default": None})
        parsers.append((avro_name(name), inner.parse))
    record = {
        "type": "record",
        "name": avro_name(pg.name),
        "namespace": f"composite.{avro_name(pg.schema)}",
        "fields": fields,
    }
    return MappedType(
        record, nested_values.composite(parsers, types.misfit if pg.dropped else types.stale, types.misfit)
    )
