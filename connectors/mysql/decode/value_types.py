"""Types of columns in Debezium's form: per type an Avro type with Connect's attributes, and what makes of a value one of it.

Values are those that the readers of row images return: numbers, texts, dates. A date that is none (`0000-00-00`, `2021-02-31`) is
null, and where the column must not be null the first day of 1970, as Debezium writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from typing import Any, Final

from cdcworker.connectors.capture.avro_types import POINT, connect, decimal_type, geometry_type
from cdcworker.connectors.capture.column_mapping import MappedType
from cdcworker.connectors.mysql.binlog.table_map import Column
from cdcworker.connectors.mysql.catalog.tables import CatalogColumn
from cdcworker.connectors.mysql.decode import value_forms as forms
from cdcworker.connectors.mysql.errors import UnknownTypeError
from cdcworker.connectors.mysql.types import charsets
from cdcworker.connectors.mysql.types.column import STRINGS, ColumnType, TypeCode
from cdcworker.connectors.mysql.types.modes import HandlingModes
from cdcworker.schemas.envelope import SOURCE_PARAMETERS

_CONNECT: Final = "org.apache.kafka.connect.data."
_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_INT16: Final = {"type": "int", "connect.type": "int16"}
_INTEGERS: Final[dict[TypeCode, tuple[Any, Any]]] = {
    TypeCode.TINY: (_INT16, _INT16),
    TypeCode.SHORT: (_INT16, "int"),
    TypeCode.INT24: ("int", "int"),
    TypeCode.LONG: ("int", "long"),
}
"""By code the types with a sign, and without one."""
_MILLISECOND_DIGITS: Final = 3
_POINT_KIND: Final = 1
"""A point, among the kinds of geometries in well-known binary."""
_DATES: Final = frozenset({TypeCode.DATE, TypeCode.NEWDATE})
_DATETIMES: Final = frozenset({TypeCode.DATETIME, TypeCode.DATETIME2})
_TIMESTAMPS: Final = frozenset({TypeCode.TIMESTAMP, TypeCode.TIMESTAMP2})
_SPANS: Final = frozenset({TypeCode.TIME, TypeCode.TIME2})
_DECLARED: Final = frozenset({"inet4", "inet6"})

_NAMES: Final = {
    TypeCode.TINY: "tinyint",
    TypeCode.SHORT: "smallint",
    TypeCode.INT24: "mediumint",
    TypeCode.LONG: "int",
    TypeCode.LONGLONG: "bigint",
    TypeCode.FLOAT: "float",
    TypeCode.DOUBLE: "double",
    TypeCode.DATE: "date",
    TypeCode.TIME2: "time",
    TypeCode.DATETIME2: "datetime",
    TypeCode.TIMESTAMP2: "timestamp",
    TypeCode.JSON: "json",
}
"""What the catalog calls types that need no more than their code."""


def map_type(column: Column, catalog: CatalogColumn | None, modes: HandlingModes) -> MappedType:
    """Returns the mapping of a column. `catalog` tells what the log does not, as far as it is known. Raises UnknownTypeError."""
    kind = column.type
    code = kind.code
    if code in _INTEGERS:
        return MappedType(_INTEGERS[code][bool(kind.is_unsigned)], int)
    if code is TypeCode.LONGLONG:
        return _bigint(kind, modes)
    if code in _DATES | _DATETIMES | _TIMESTAMPS | _SPANS or code is TypeCode.YEAR:
        return _time_type(kind, modes, required=not column.is_nullable)
    if code is TypeCode.NEWDECIMAL:
        return _decimal(kind, modes)
    if code in (TypeCode.FLOAT, TypeCode.DOUBLE):
        # FLOAT(M,D) is one of decimal digits, which a float cannot hold as they were written.
        is_wide = code is TypeCode.DOUBLE or (catalog is not None and "(" in catalog.source_type)
        return MappedType("double" if is_wide else "float", float)
    if code is TypeCode.BIT:
        return _bit(kind)
    return _other(column, catalog, modes)


def _other(column: Column, catalog: CatalogColumn | None, modes: HandlingModes) -> MappedType:
    kind = column.type
    if kind.code is TypeCode.ENUM:
        return _members("Enum", kind)
    if kind.code is TypeCode.SET:
        return _members("EnumSet", kind)
    if kind.code is TypeCode.JSON or (catalog is not None and catalog.is_json):
        return MappedType(connect("string", _DATA + "Json"), str)
    if kind.code is TypeCode.GEOMETRY:
        if _kind_of_geometry(column, catalog) == _POINT_KIND:
            return MappedType(POINT, forms.point)
        return MappedType(geometry_type("Geometry"), forms.geometry)
    if kind.code is TypeCode.VECTOR or kind.declared == "vector":
        items = {"type": "array", "items": "float", "connect.version": 1, "connect.name": _DATA + "FloatVector"}
        return MappedType(items, list)
    if kind.declared == "uuid":
        return MappedType(connect("string", _DATA + "Uuid", logicalType="uuid"), str)
    if kind.code not in STRINGS:
        raise UnknownTypeError(f"type {kind.code.name}")
    if kind.collation == charsets.BINARY and kind.declared not in _DECLARED:
        return (
            MappedType("bytes", bytes)
            if modes.binary == "bytes"
            else MappedType("string", forms.bytes_as(modes.binary))
        )
    return MappedType("string", str)


def _kind_of_geometry(column: Column, catalog: CatalogColumn | None) -> int | None:
    if column.geometry is not None or catalog is None:
        return column.geometry
    return _POINT_KIND if catalog.source_type.lower().startswith("point") else 0


def _members(name: str, kind: ColumnType) -> MappedType:
    members = kind.members or ()
    # As Debezium writes them: a member may hold a comma itself.
    allowed = ",".join(member.replace(",", "\\,") for member in members)
    avro = connect("string", _DATA + name, {"allowed": allowed})
    return MappedType(avro, str, zero=next(iter(members), "") if name == "Enum" else "")


def _bigint(kind: ColumnType, modes: HandlingModes) -> MappedType:
    if not kind.is_unsigned:
        return MappedType("long", int)
    if modes.bigint_unsigned == "precise":
        return MappedType(decimal_type(None, 0), forms.unscaled_of(0))
    return MappedType("long", forms.signed64)


def _decimal(kind: ColumnType, modes: HandlingModes) -> MappedType:
    if modes.decimal == "double":
        return MappedType("double", float)
    if modes.decimal == "string":
        return MappedType("string", forms.decimal_text)
    return MappedType(decimal_type(kind.length, kind.scale), forms.unscaled_of(kind.scale))


def _bit(kind: ColumnType) -> MappedType:
    if kind.length == 1:
        return MappedType("boolean", bool)
    size = (kind.length + 7) // 8
    avro = connect("bytes", _DATA + "Bits", {"length": str(kind.length)})
    return MappedType(avro, forms.little_endian(size), zero=bytes(size))


# -- dates and times --------------------------------------------------------------------------------------------------


def _time_type(kind: ColumnType, modes: HandlingModes, *, required: bool) -> MappedType:
    if kind.code is TypeCode.YEAR:
        return MappedType(connect("int", _TIME + "Year"), int)
    if kind.code in _TIMESTAMPS:
        text = forms.zoned_text(kind.length)
        return MappedType(connect("string", _TIME + "ZonedTimestamp"), _or_epoch(text, forms.EPOCH, required=required))
    if kind.code in _SPANS:
        return _span(modes)
    if kind.code in _DATES:
        return _date(modes, required=required)
    return _datetime(kind, modes, required=required)


def _or_epoch(form: Callable[[Any], Any], epoch: Any, *, required: bool) -> Callable[[Any], Any]:
    """Returns the form of a date or a time; of one that is none it is null, or where that may not be, the epoch's."""
    instead = form(epoch) if required else None
    kinds = (date, datetime)

    def parse(value: Any) -> Any:
        return form(value) if isinstance(value, kinds) else instead

    return parse


def _date(modes: HandlingModes, *, required: bool) -> MappedType:
    bounded = partial(_or_epoch, epoch=forms.EPOCH.date(), required=required)
    if modes.time == "isostring":
        return MappedType(connect("string", _TIME + "IsoDate"), bounded(forms.iso_date))
    if modes.time == "connect":
        return MappedType(connect("int", _CONNECT + "Date", logicalType="date"), bounded(forms.days))
    return MappedType(connect("int", _TIME + "Date"), bounded(forms.days))


def _span(modes: HandlingModes) -> MappedType:
    if modes.time == "isostring":
        return MappedType(connect("string", _TIME + "IsoTime"), forms.span_text)
    if modes.time == "connect":
        # Readers hold a time of the day: one beyond it is the nearest that is one.
        return MappedType(connect("int", _CONNECT + "Time", logicalType="time-millis"), forms.milliseconds_of_the_day)
    if modes.time == "nanoseconds":
        return MappedType(connect("long", _TIME + "NanoTime"), forms.span_ns)
    # A TIME is a span of up to 838 hours, which Avro's time of the day does not hold.
    return MappedType(connect("long", _TIME + "MicroTime"), forms.span_us)


def _datetime(kind: ColumnType, modes: HandlingModes, *, required: bool) -> MappedType:
    bounded = partial(_or_epoch, epoch=forms.EPOCH.replace(tzinfo=None), required=required)
    if modes.time == "isostring":
        return MappedType(connect("string", _TIME + "IsoTimestamp"), bounded(forms.iso_timestamp))
    if modes.time == "connect":
        avro = connect("long", _CONNECT + "Timestamp", logicalType="timestamp-millis")
        return MappedType(avro, bounded(forms.epoch_ms))
    if modes.time == "nanoseconds":
        return MappedType(connect("long", _TIME + "NanoTimestamp"), bounded(forms.epoch_ns))
    if modes.time != "microseconds" and kind.length <= _MILLISECOND_DIGITS:
        return MappedType(connect("long", _TIME + "Timestamp"), bounded(forms.epoch_ms))
    avro = connect("long", _TIME + "MicroTimestamp", logicalType="local-timestamp-micros")
    return MappedType(avro, bounded(forms.epoch_us))


def length_of(kind: ColumnType) -> int:
    """Returns the characters that a column of text holds at most; 0 where it is none. A mask's hash is cut to it."""
    if kind.code not in (TypeCode.STRING, TypeCode.VARCHAR) or kind.collation in (None, charsets.BINARY):
        return 0
    return kind.length // charsets.bytes_per_character(kind.collation)


def source_type_of(kind: ColumnType) -> str:
    """Returns a type in the catalog's words, by what the log says of it; empty where that does not tell it apart from others."""
    name = _NAMES.get(kind.code, "")
    if kind.code is TypeCode.NEWDECIMAL:
        name = f"decimal({kind.length},{kind.scale})"
    elif kind.code in (TypeCode.VARCHAR, TypeCode.STRING) and not kind.declared:
        size = length_of(kind)
        fixed = kind.code is TypeCode.STRING
        texts, octets = ("char", "binary") if fixed else ("varchar", "varbinary")
        name = f"{texts}({size})" if size else f"{octets}({kind.length})" if kind.collation == charsets.BINARY else ""
    elif kind.length and kind.code in (TypeCode.TIME2, TypeCode.DATETIME2, TypeCode.TIMESTAMP2):
        name = f"{name}({kind.length})"
    return f"{name} unsigned" if kind.is_unsigned and kind.code is not TypeCode.YEAR else name


def type_parameters(column: Column, catalog: CatalogColumn | None) -> dict[str, str]:
    """Returns the name, length and scale of a column's type, as Debezium's `__debezium.source.column.*` parameters."""
    kind = column.type
    text = catalog.source_type if catalog else kind.code.name
    name, _, rest = text.partition("(")
    name = f"{name}{rest.partition(')')[2]}" if rest else name
    found = {f"{SOURCE_PARAMETERS}type": name.upper()}
    if kind.code is TypeCode.NEWDECIMAL:
        return {**found, f"{SOURCE_PARAMETERS}length": str(kind.length), f"{SOURCE_PARAMETERS}scale": str(kind.scale)}
    length = length_of(kind) or (kind.length if kind.code in (TypeCode.BIT, TypeCode.TIME2, TypeCode.DATETIME2) else 0)
    return {**found, f"{SOURCE_PARAMETERS}length": str(length)} if length else found
