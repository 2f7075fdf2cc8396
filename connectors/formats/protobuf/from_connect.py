"""Makes message types of Kafka Connect's schemas, as Confluent's ProtobufConverter does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus

from cdcworker.connectors.formats.protobuf.message_type import (
    IMPORTS,
    LOGICAL_TYPES,
    META,
    SCALARS,
    WRAPPER_OF,
    FieldType,
    MessageType,
    ProtoFile,
)
from cdcworker.connectors.transforms.data import DECIMAL, ConnectSchema, Field
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM

DEFAULT_NAME: Final = "ConnectDefault"
TAG: Final = "io.confluent.connect.protobuf.Tag"
_TYPES: Final[Mapping[str, str]] = {
    "int8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float32": "float",
    "float64": "double",
    "boolean": "bool",
    "string": "string",
    "bytes": "bytes",
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LETTER: Final = re.compile(r"[A-Za-z]", re.ASCII)
_OTHER: Final = re.compile(r"[^A-Za-z0-9_]", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProtobufOptions:
    """How nulls and names are written. Without either way of writing nulls, a null reads as zero, as with Confluent's own."""

    optional_for_nullables: bool = False
    wrapper_for_nullables: bool = False
    scrub_invalid_names: bool = False


@dataclass(frozen=True, slots=True)
class MadeField:
    """A field of a message and the schema that it is written by."""

    name: str
    """As the schema has it."""
    field: FieldType
    schema: ConnectSchema
    """Of an item where the field is repeated."""
    message: MadeMessage | None = None
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class MadeMessage:
    """A message type with what is written in each field."""

    name: str
    fields: tuple[MadeField, ...]


@dataclass(frozen=True, slots=True)
class MadeFile:
    """The file of a schema, and its first message."""

    file: ProtoFile
    root: MadeMessage

    @property
    def name(self) -> str:
        """The whole name of the message."""
        return f"{self.file.package}.{self.root.name}" if self.file.package else self.root.name


def made_of(schema: ConnectSchema, options: ProtobufOptions) -> MadeFile:
    """Returns the file of a struct. Raises CdcError `schema.no_form`."""
    if schema.type != "struct":
        raise CdcError(NO_FORM, f"the ProtobufConverter writes records with fields, and not {schema.type}")
    maker = _Maker(options)
    package, _, name = maker.full_name(schema).rpartition(".")
    root, described = maker.message(schema, maker.legal(name), ())
    legal = ".".join(map(maker.legal, package.split("."))) if package else ""
    imports = (*((META,) if maker.has_params else ()), *maker.imports)
    return MadeFile(ProtoFile(legal, (described,), imports), root)


class _Maker:
    """Makes one file. `imports` are in the order in which they are needed, behind the one for `has_params`."""

    def __init__(self, options: ProtobufOptions) -> None:
        self._options = options
        self._unnamed = 0
        self.imports: dict[str, None] = {}
        self.has_params = False

    def full_name(self, schema: ConnectSchema) -> str:
        if schema.name:
            return schema.name
        self._unnamed += 1
        return f"{DEFAULT_NAME}{self._unnamed}"

    def legal(self, name: str) -> str:
        if self._options.scrub_invalid_names:
            return _scrubbed(name)
        if not _NAME.fullmatch(name):
            raise CdcError(
                NO_FORM, "a name has characters that Protocol Buffers do not allow", where={"name": name},
                hint="Set scrub.invalid.names=true of the converter: such characters become `_`.",
            )  # fmt: skip
        return name

    def message(
        self, schema: ConnectSchema, name: str, scope: tuple[dict[str, MadeMessage], ...]
    ) -> tuple[MadeMessage, MessageType]:
        """Returns a message, and how the file describes it. `scope` are the messages that are described around it, by the
        names of their schemas: those are not described again."""
        own: dict[str, MadeMessage] = {}
        described: list[MessageType] = []
        made: list[MadeField] = []
        number = 1
        for field in schema.fields:
            given = (field.schema.parameters or {}).get(TAG)
            made.append(self._field(field, int(given) if given else number, (*scope, own), described))
            number += given is None
        numbers = [one.field.number for one in made]
        names = [one.field.name for one in made]
        if len(set(numbers)) < len(numbers) or len(set(names)) < len(names):
            raise CdcError(NO_FORM, "two fields of a record have one name or one number in Protocol Buffers")
        return MadeMessage(name, tuple(made)), MessageType(name, tuple(one.field for one in made), tuple(described))

    def _field(
        self, field: Field, number: int, scope: tuple[dict[str, MadeMessage], ...], described: list[MessageType]
    ) -> MadeField:
        name, schema = self.legal(field.name), field.schema
        if schema.type == "map":
            return MadeField(field.name, self._map(name, number, schema), schema)
        label = ""
        if schema.type == "array" and schema.value_schema is not None:
            label, schema = "repeated", schema.value_schema
        elif schema.optional and self._options.optional_for_nullables:
            label = "optional"
        message = None
        if schema.type == "struct":
            kind, message = self._struct(schema, name, scope, described)
        else:
            kind = self._type(schema)
        wrapped = self._options.wrapper_for_nullables and schema.optional and kind in SCALARS
        if wrapped:
            kind = WRAPPER_OF[kind]
        params = _params(schema)
        if params:
            self.has_params = True
        if kind in IMPORTS:
            self.imports.setdefault(IMPORTS[kind])
        return MadeField(field.name, FieldType(name, number, kind, label, params), schema, message, wrapped)

    def _struct(
        self, schema: ConnectSchema, field: str, scope: tuple[dict[str, MadeMessage], ...], described: list[MessageType]
    ) -> tuple[str, MadeMessage]:
        for known in reversed(scope):
            if schema.name and schema.name in known:
                found = known[schema.name]
                return found.name, found
        name = self.legal(self.full_name(schema).rpartition(".")[2])
        if name == field:
            name += "Message"
        if any(one.name == name for one in described):
            raise CdcError(NO_FORM, "two records have one name in Protocol Buffers", where={"name": name})
        message, text = self.message(schema, name, scope)
        described.append(text)
        if schema.name:
            scope[-1][schema.name] = message
        return name, message

    def _map(self, name: str, number: int, schema: ConnectSchema) -> FieldType:
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        types = (self._type(schema.key_schema), self._type(schema.value_schema))
        params = _params(schema.value_schema)
        if params:
            self.has_params = True
        for kind in types:
            if kind in IMPORTS:
                self.imports.setdefault(IMPORTS[kind])
        return FieldType(name, number, "", params=params, map_types=types)

    def _type(self, schema: ConnectSchema) -> str:
        logical = LOGICAL_TYPES.get(schema.name or "")
        if logical:
            return logical
        kind = _TYPES.get(schema.type)
        if kind is None:
            raise CdcError(NO_FORM, f"in Protocol Buffers {schema.type} has no form inside of an array or a map")
        return kind


def _params(schema: ConnectSchema) -> Mapping[str, str]:
    """Returns what is said of a field in the option of Confluent's."""
    if schema.name == DECIMAL:
        given = schema.parameters or {}
        found = (("precision", given.get("connect.decimal.precision")), ("scale", given.get("scale")))
        return {key: value for key, value in found if value is not None}
    if schema.name in LOGICAL_TYPES or schema.type not in ("int8", "int16"):
        return {}
    return {"connect.type": schema.type}


def _scrubbed(name: str) -> str:
    encoded = quote_plus(name, safe="*-._")
    if not _LETTER.match(encoded):
        encoded = f"x{encoded}"
    return _OTHER.sub("_", encoded)
