"""TimestampConverter: a moment as text, as a number, or as Kafka Connect's Date, Time or Timestamp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from cdcworker.connectors.transforms.data import (
    DATE,
    DAY_MS,
    TIME,
    TIMESTAMP,
    ConnectRecord,
    ConnectSchema,
    DataError,
    Field,
    class_name,
    require_map,
    require_struct,
)
from cdcworker.connectors.transforms.dates import SimpleDateFormat, to_millis, to_moment
from cdcworker.connectors.transforms.fields import changer
from cdcworker.connectors.transforms.transform import Convert, SideTransform

TARGETS: Final = ("string", "unix", "Date", "Time", "Timestamp")
PRECISIONS: Final = ("nanoseconds", "microseconds", "milliseconds", "seconds")
_LONG: Final = (1 << 63) - 1
_SCHEMAS: Final = {
    "string": ConnectSchema("string"),
    "unix": ConnectSchema("int64"),
    "Date": ConnectSchema("int32", name=DATE, version=1),
    "Time": ConnectSchema("int32", name=TIME, version=1),
    "Timestamp": ConnectSchema("int64", name=TIMESTAMP, version=1),
}
_LOGICAL: Final = {DATE: "Date", TIME: "Time", TIMESTAMP: "Timestamp"}


class TimestampSettings(NamedTuple):
    """What moments are made of. `field`: empty for the whole; `pattern`: None without a format."""

    field: str
    target: str
    pattern: SimpleDateFormat | None
    precision: str


class TimestampConverter(SideTransform):
    PURPOSE: ClassVar[str] = "converting timestamp formats"
    passes_null = False

    def __init__(self, settings: TimestampSettings, *, replace_null: bool, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._settings = settings
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        name = self._settings.field
        if not name:
            whole = self._converter(schema)
            target = replace(_SCHEMAS[self._settings.target], optional=schema.optional)
            return target, lambda value, _: whole(value)
        require_struct(schema, {}, self.PURPOSE)
        of = schema.by_name.get(name)
        convert_field = None if of is None else self._converter(of)
        target = _SCHEMAS[self._settings.target]
        fields = tuple(
            Field(
                each, replace(target, optional=inner.optional, attributes=inner.attributes) if each == name else inner
            )
            for each, inner in schema.fields
        )
        changes = {} if convert_field is None else {name: convert_field}
        convert = changer(schema, changes, with_default=self._replace_null)
        default = None if schema.default is None else convert(schema.default)
        return replace(
            schema, fields=fields, default=default
        ), lambda value, _: None if value is None else convert(value)

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        name = self._settings.field
        if value is None or not name:
            return self._without_schema(value)
        fields = require_map(value, self.PURPOSE)
        return {**fields, name: self._without_schema(fields.get(name))}

    def _without_schema(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, datetime):
            millis = to_millis(value)
        elif isinstance(value, str):
            millis = self._parsed(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            millis = self._from_unix(value)
        else:
            raise DataError(f"TimestampConverter does not support class {class_name(value)} objects as timestamps")
        target = self._settings.target
        made = self._target()(millis)
        if target not in _LOGICAL.values():
            return made
        return to_moment(made * DAY_MS if target == "Date" else made)

    def _converter(self, schema: ConnectSchema) -> Callable[[Any], Any]:
        """Returns what converts values of a schema, null included. Raises DataError for a schema of no moment."""
        source, target = self._source(schema), self._target()
        return lambda value: None if value is None else target(source(value))

    def _source(self, schema: ConnectSchema) -> Callable[[Any], int]:
        kind = _LOGICAL.get(schema.name or "")
        if kind is not None:
            return (lambda value: value * DAY_MS) if kind == "Date" else (lambda value: value)
        if schema.type == "string":
            return self._parsed
        if schema.type == "int64":
            return self._from_unix
        shown = f"{schema.name}:{schema.type.upper()}" if schema.name else schema.type.upper()
        raise DataError(f"Schema Schema{{{shown}}} does not correspond to a known timestamp type format")

    def _parsed(self, text: str) -> int:
        pattern = self._settings.pattern
        if pattern is None:
            raise DataError("Could not parse timestamp: the transform has no format")
        try:
            return pattern.parse(text)
        except ValueError:
            shown = f"Could not parse timestamp: value does not match pattern ({pattern.pattern})"
            raise DataError(shown) from None

    def _from_unix(self, number: int) -> int:
        precision = self._settings.precision
        if precision == "seconds":
            return max(-_LONG - 1, min(_LONG, number * 1000))
        return _truncated(number, {"microseconds": 1000, "nanoseconds": 1_000_000}.get(precision, 1))

    def _target(self) -> Callable[[int], Any]:
        """Returns what makes of milliseconds a value of the target's type."""
        kind, pattern, precision = self._settings.target, self._settings.pattern, self._settings.precision
        if kind == "string":
            assert pattern is not None
            return pattern.format
        if kind == "Date":
            return lambda millis: millis // DAY_MS
        if kind == "Time":
            return lambda millis: millis % DAY_MS
        if kind == "Timestamp" or precision == "milliseconds":
            return lambda millis: millis
        if precision == "seconds":
            return lambda millis: _truncated(millis, 1000)
        factor = 1000 if precision == "microseconds" else 1_000_000
        return lambda millis: max(-_LONG - 1, min(_LONG, millis * factor))


def _truncated(number: int, by: int) -> int:
    """Returns a quotient without its fraction, as Java divides."""
    return -(-number // by) if number < 0 else number // by
