"""Formats of functions: what a plugin declares as a converter, as a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.formats.format import NOTHING, Format, Headers, Settings, Typed, unreadable
from cdcworker.connectors.formats.single_values import UnframedWriter, connect_schema_of
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError, raised_at
from cdcworker.schemas.record_format import NO_FORM, RecordWriter

WriteFunction = Callable[[Any, ConnectSchema | None, Mapping[str, Any]], bytes]
"""Returns the bytes of a value, with its schema and the config. A struct is a mapping by the names of its fields."""
ReadFunction = Callable[[bytes, Mapping[str, Any]], Any]
"""Returns the value of bytes: as JSON would have it, or a pair of a schema and a value."""


@dataclass(frozen=True, slots=True)
class ConverterPlugin:
    """A converter as a plugin. A config names it by the name of its entry point, and its keys behind `key.converter.` and
    `value.converter.`. Nulls are none of its concern: a tombstone stays one."""

    write: WriteFunction
    read: ReadFunction
    keys: tuple[ConfigKey, ...] = ()
    title: str = ""
    api: int = 1
    """The version of the interface that the plugin was written for."""

    def format(self, name: str) -> Format:
        """Returns it as a format that a config may name."""
        return Format(
            (name,),
            lambda settings: _FunctionFormat(name, self.write, settings),
            lambda settings, _: _FunctionReader(self.read, settings),
            self.title or f"The converter {name} of a plugin.",
            tuple(replace(key, connects=bool(key.connects)) for key in self.keys),
        )


@dataclass(frozen=True, slots=True)
class _FunctionFormat:
    name: str
    function: WriteFunction
    settings: Settings = field(hash=False)

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        schema = None if kind is None else replace(connect_schema_of(kind), optional=optional)
        convert = None if schema is None else mapping_of(schema)
        function, settings = self.function, self.settings

        def write(value: Any) -> bytes:
            """What the function raises is an error of the record, without its text, which may hold values."""
            try:
                data = function(value if convert is None else convert(value), schema, settings)
            except CdcError:
                raise
            except Exception as error:  # noqa: BLE001 - somebody else's code
                text = f"the converter failed with {type(error).__name__} at {raised_at(error)}"
                raise CdcError(NO_FORM, text) from None
            if not isinstance(data, bytes):
                raise CdcError(NO_FORM, f"the converter returned {type(data).__name__} in place of bytes")
            return data

        return UnframedWriter(kind, write)


class _FunctionReader:
    """Calls the function; what it raises makes the record unreadable."""

    def __init__(self, function: ReadFunction, settings: Settings) -> None:
        self._function = function
        self._settings = settings

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        try:
            found = self._function(data, self._settings)
        except Exception as error:  # noqa: BLE001 - somebody else's code; its text may hold values
            raise unreadable(f"the converter failed at {raised_at(error)}", error) from None
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], ConnectSchema | None):
            return Typed(*found)
        return Typed(None, found)


def mapping_of(schema: ConnectSchema) -> Callable[[Any], Any] | None:
    """Returns what makes mappings of rows, which are tuples in the order of their fields; None where no row can be."""
    if schema.type in ("array", "map") and schema.value_schema is not None:
        inner = mapping_of(schema.value_schema)
        if inner is None:
            return None
        if schema.type == "array":
            return lambda items: None if items is None else [inner(item) for item in items]
        return lambda items: None if items is None else {key: inner(item) for key, item in items.items()}
    if schema.type != "struct":
        return None
    steps = [(name, mapping_of(of)) for name, of in schema.fields]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        row = value if isinstance(value, tuple) else [value.get(name) for name, _ in steps]
        return {name: item if step is None else step(item) for (name, step), item in zip(steps, row, strict=True)}

    return convert
