"""Raw Avro values for display: decimals and times as text, bytes in hex, values without a JSON form as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from cdcworker.schemas.change import Avro
from cdcworker.schemas.placeholders import DIGITS_MAX
from cdcworker.schemas.topics import unescape

Read = Callable[[Any], Any]
BYTES_MAX: Final = 4_096
"""The most bytes of a value that are shown."""
TEXT_MAX: Final = 10_000
"""The most characters of a value that are shown."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = {"MicroTimestamp": 1, "Timestamp": 1_000, "MicroTime": 1, "Time": 1_000}
"""The microseconds per unit, by the last part of the type's name in Connect or Debezium."""
_NANOS: Final = {"NanoTimestamp": "MicroTimestamp", "NanoTime": "MicroTime"}
_NAN: Final = "NaN"
_NO_NUMBERS: Final = {1: "Infinity", -1: "-Infinity"}
_NAMED: Final = ("io.debezium.time.", "org.apache.kafka.connect.data.")


def compile_display(kind: Avro) -> Read:
    """Returns a function that makes values of this Avro type readable; None stays None."""
    return _DisplayCompiler().type(kind)


class _DisplayCompiler:
    """Compiles a type and remembers its named types, which are defined once and referred to afterwards."""

    def __init__(self) -> None:
        self._named: dict[str, Read] = {}

    def type(self, kind: Avro) -> Read:
        if isinstance(kind, list):
            branches = [branch for branch in kind if branch != "null"]
            return self.type(branches[0]) if len(branches) == 1 else _scalar
        node: Mapping[str, Any] = kind if isinstance(kind, dict) else {"type": kind}
        name = str(node.get("connect.name", ""))
        short = name.rpartition(".")[2] if name.startswith(_NAMED) else ""
        if short == "Decimal" or (not name and node.get("logicalType") == "decimal"):
            scale, precision = _parameters(node).get("scale", node.get("scale", 0)), node.get("precision", 0)
            return _optional(_decimal(int(scale), precision if isinstance(precision, int) else 0))
        if short == "Date":
            return _optional(_date)
        if short in _TIMES or short in _NANOS:
            return _optional(_time(short))
        return self._structure(node, name)

    def _structure(self, node: Mapping[str, Any], name: str) -> Read:
        kind = node["type"]
        if kind == "record":
            return self._record(node, name)
        if kind == "array":
            item = self.type(node["items"])
            return _optional(lambda value: [item(one) for one in value])
        if kind == "map":
            item = self.type(node["values"])
            return _optional(lambda value: {key: item(one) for key, one in value.items()})
        if isinstance(kind, dict | list):
            return self.type(kind)
        return self._named.get(kind.rpartition(".")[2], _scalar)

    def _record(self, node: Mapping[str, Any], name: str) -> Read:
        fields = {field["name"]: self.type(field["type"]) for field in node["fields"]}
        read = _optional(lambda value: {unescape(key): one(value.get(key)) for key, one in fields.items()})
        if name.endswith(".VariableScaleDecimal"):
            read = _optional(_variable)
        self._named[str(node["name"]).rpartition(".")[2]] = read
        return read


def _parameters(node: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = node.get("connect.parameters")
    return parameters if isinstance(parameters, dict) else {}


def _optional(read: Read) -> Read:
    """Wraps a reader: None stays None, and a value that does not fit its type is shown raw."""

    def optional(value: Any) -> Any:
        if value is None:
            return None
        try:
            return read(value)
        except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
            return _scalar(value)

    return optional


def _scalar(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        hexed = bytes(value[:BYTES_MAX]).hex()
        return f"\\x{hexed}" + (f"… ({len(value)} bytes)" if len(value) > BYTES_MAX else "")
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return f"{value[:TEXT_MAX]}… ({len(value)} characters)"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _scalar(one) for key, one in value.items()}
    return [_scalar(one) for one in value] if isinstance(value, list | tuple) else value


def _variable(value: Any) -> Any:
    """A decimal with its scale; without digits the scale says what it is instead of a number."""
    if not value["value"]:
        return _NO_NUMBERS.get(value["scale"], _NAN)
    return _decimal(value["scale"])(value["value"])


def _decimal(scale: int, precision: int = 0) -> Read:
    """`precision`: of what has so many digits at most; NaN is the number behind them all, or empty."""
    beyond = 10**precision if 0 < precision <= DIGITS_MAX else None

    def read(value: Any) -> str:
        number = int.from_bytes(value, "big", signed=True)
        if not value or number == beyond:
            return _NAN
        digits = str(abs(number)).rjust(scale + 1, "0") if scale > 0 else str(abs(number) * 10 ** min(-scale, 20_000))
        text = f"{digits[:-scale]}.{digits[-scale:]}" if scale > 0 else digits
        return f"-{text}" if number < 0 else text

    return read


def _date(value: int) -> str:
    return str(date(1970, 1, 1) + timedelta(days=value))


def _time(short: str) -> Read:
    is_nano = short in _NANOS
    name = _NANOS.get(short, short)
    is_moment = name.endswith("Timestamp")

    def read(value: int) -> str:
        micros = value // 1_000 if is_nano else value * _TIMES[name]
        tail = f"{value % 1_000:03d}".rstrip("0") if is_nano else ""
        moment = _EPOCH + timedelta(microseconds=micros)
        text = moment.strftime("%H:%M:%S")
        fraction = f"{moment.microsecond:06d}{tail}".rstrip("0")
        shown = f"{text}.{fraction}" if fraction else text
        if not is_moment and micros == 86_400_000_000:
            return "24:00:00"
        return f"{moment.date()} {shown}" if is_moment else shown

    return read
