"""Kafka Connect's converters of numbers and booleans: their bytes as Kafka's own serializers write them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.formats.format import NOTHING, Format, Headers, Typed, unreadable
from cdcworker.connectors.formats.single_values import LOGICAL, UnframedWriter, connect_schema_of
from cdcworker.connectors.transforms.data import ConnectSchema, Type
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, RecordWriter

_PACKAGE: Final = "org.apache.kafka.connect.converters"


@dataclass(frozen=True, slots=True)
class PrimitiveFormat:
    """One type of numbers, or booleans; `code` is the form of the bytes."""

    type: Type
    code: str

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        if kind is not None:
            schema = connect_schema_of(kind)
            if schema.type != self.type or schema.name in LOGICAL:
                raise CdcError(NO_FORM, f"the converter writes {self.type} only, and not {schema.name or schema.type}")
        pack = struct.Struct(self.code).pack
        if self.type == "boolean":
            return UnframedWriter(kind, lambda value: pack(_boolean(value)))
        return UnframedWriter(kind, pack)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("no boolean")
    return value


class PrimitiveReader:
    """Reads values of one type."""

    def __init__(self, of: PrimitiveFormat) -> None:
        self._struct = struct.Struct(of.code)
        self._schema = ConnectSchema(of.type, optional=True)

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        if len(data) != self._struct.size or (self._schema.type == "boolean" and data > b"\1"):
            raise unreadable(f"the bytes are no {self._schema.type}")
        return Typed(self._schema, self._struct.unpack(data)[0])


def _format(name: str, of: PrimitiveFormat) -> Format:
    return Format(
        (f"{_PACKAGE}.{name}Converter", f"{name}Converter"),
        lambda _: of,
        lambda _settings, _schemas: PrimitiveReader(of),
        f"A single value of type {of.type}.",
        single=f"a single value of type {of.type}",
        is_strict=lambda _: True,
    )


FORMATS: Final = (
    _format("Short", PrimitiveFormat("int16", ">h")),
    _format("Integer", PrimitiveFormat("int32", ">i")),
    _format("Long", PrimitiveFormat("int64", ">q")),
    _format("Float", PrimitiveFormat("float32", ">f")),
    _format("Double", PrimitiveFormat("float64", ">d")),
    _format("Boolean", PrimitiveFormat("boolean", "?")),
)
