"""Avro types of Connect's and Debezium's semantic types, as Confluent's converter writes them."""

from __future__ import annotations

from typing import Any, Final

DECIMAL_PRECISION_DEFAULT: Final = 64
"""What Confluent's converter writes where Connect's Decimal names no precision."""


def connect(kind: str, name: str, parameters: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """An Avro type with the attributes that Confluent's converter writes for a Connect semantic type."""
    out: dict[str, Any] = {"type": kind, "connect.version": 1}
    if parameters:
        out["connect.parameters"] = parameters
    out["connect.name"] = name
    out.update(more)
    return out


def decimal_type(precision: int | None, scale: int) -> dict[str, Any]:
    """Returns Connect's Decimal."""
    parameters = {"scale": str(scale)}
    if precision:
        parameters["connect.decimal.precision"] = str(precision)
    return {
        "type": "bytes",
        "scale": scale,
        "precision": precision or DECIMAL_PRECISION_DEFAULT,
        "connect.version": 1,
        "connect.parameters": parameters,
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "logicalType": "decimal",
    }


def geometry_type(name: str) -> dict[str, Any]:
    """Returns Debezium's record of a geometry; `name` is `Geometry` or `Geography`."""
    return {
        "type": "record",
        "name": name,
        "namespace": "io.debezium.data.geometry",
        "fields": [{"name": "wkb", "type": "bytes"}, {"name": "srid", "type": ["null", "int"], "default": None}],
        "connect.doc": name,
        "connect.version": 1,
        "connect.name": f"io.debezium.data.geometry.{name}",
    }


POINT: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Point",
    "namespace": "io.debezium.data.geometry",
    "fields": [
        {"name": "x", "type": "double"},
        {"name": "y", "type": "double"},
        {"name": "wkb", "type": ["null", "bytes"], "default": None},
        {"name": "srid", "type": ["null", "int"], "default": None},
    ],
    "connect.doc": "Geometry (POINT)",
    "connect.version": 1,
    "connect.name": "io.debezium.data.geometry.Point",
}
