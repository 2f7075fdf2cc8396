"""Transforms of fields and schemas: ExtractField, HoistField, InsertField, ReplaceField, SetSchemaMetadata, ValueToKey."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple

from cdcworker.connectors.transforms.data import (
    ConnectRecord,
    ConnectSchema,
    DataError,
    Field,
    class_name,
    require_map,
    require_struct,
    struct,
    timestamp,
)
from cdcworker.connectors.transforms.field_path import FieldPath
from cdcworker.connectors.transforms.transform import Convert, SideTransform


def copier(schema: ConnectSchema, names: Sequence[tuple[str, str]], *, with_default: bool) -> Callable[[Any], Any]:
    """Returns what makes a struct of fields of another one; `names` are each the new name and the old one."""
    steps = tuple((new, old, schema.by_name[old].default if with_default else None) for new, old in names)
    if all(default is None for _, _, default in steps):
        pairs = tuple((new, old) for new, old, _ in steps)
        return lambda value: {new: value.get(old) for new, old in pairs}

    def copy(value: Any) -> Any:
        out = {}
        for new, old, default in steps:
            found = value.get(old)
            out[new] = default if found is None else found
        return out

    return copy


def changer(
    schema: ConnectSchema, changes: Mapping[str, Callable[[Any], Any]], *, with_default: bool
) -> Callable[[Any], Any]:
    """Returns what makes a struct of another one, in which some fields have other values. Of each it is given the value."""
    steps = tuple(changes.items())
    if not with_default or all(of.default is None for _, of in schema.fields):

        def change_some(value: Any) -> Any:
            out = dict(value)
            for name, change in steps:
                out[name] = change(value.get(name))
            return out

        return change_some
    copy = copier(schema, [(name, name) for name, _ in schema.fields], with_default=True)

    def change_all(value: Any) -> Any:
        out = copy(value)
        for name, change in steps:
            out[name] = change(out[name])
        return out

    return change_all


class ExtractField(SideTransform):
    """The value of one field in the place of the whole."""

    PURPOSE: ClassVar[str] = "field extraction"
    passes_null = False

    def __init__(self, path: FieldPath, *, replace_null: bool, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._path = path
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        if schema.type != "struct":
            # Kafka Connect lets a null pass this check, and fails at the field.
            raise DataError(f"Only Struct objects supported for [{self.PURPOSE}], found: {class_name(schema, schema)}")
        updated = self._path.schema_in(schema)
        if updated is None:
            raise DataError(f"Unknown field: {self._path.text}")
        path, with_default = self._path, self._replace_null

        def convert(value: Any, _: ConnectRecord) -> Any:
            return None if value is None else path.value_in(schema, value, with_default=with_default)

        return updated, convert

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        return None if value is None else self._path.value_in_map(require_map(value, self.PURPOSE))


class HoistField(SideTransform):
    """The whole as the only field of a struct."""

    passes_null = False

    def __init__(self, field: str, *, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._field = field

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        name = self._field

        def convert(value: Any, _: ConnectRecord) -> Any:
            if value is None and not schema.optional:
                raise missing(name, schema)
            return {name: value}

        return struct((name, schema)), convert

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        return {self._field: value}


def missing(name: str, schema: ConnectSchema) -> DataError:
    """Returns the error of a required field that would be null."""
    return DataError(f'Invalid value: null used for required field: "{name}", schema type: {schema.type.upper()}')


def require_distinct(names: Iterable[str]) -> None:
    """Raises DataError for the first name that comes twice: a struct has one field of a name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Cannot create field because of field name duplication {name}")
        seen.add(name)


class InsertedField(NamedTuple):
    """A field that is inserted: what it holds, and its name. It is required if the config says so with `!`."""

    what: str
    name: str
    optional: bool

    @classmethod
    def parse(cls, what: str, text: str) -> InsertedField:
        """Parses a name that ends in `?` or `!`."""
        bare = text[:-1] if text.endswith(("?", "!")) else text
        return cls(what, bare, not text.endswith("!"))


_STRING: Final = ConnectSchema("string")
_INSERTED: Final[Mapping[str, tuple[ConnectSchema, ConnectSchema]]] = {
    "topic": (_STRING, ConnectSchema("string", optional=True)),
    "partition": (ConnectSchema("int32"), ConnectSchema("int32", optional=True)),
    "offset": (ConnectSchema("int64"), ConnectSchema("int64", optional=True)),
    "timestamp": (timestamp(), timestamp(optional=True)),
    "static": (_STRING, ConnectSchema("string", optional=True)),
}
"""The schemas of what is inserted, as a required field and as an optional one."""


class InsertField(SideTransform):
    """Fields of the record's metadata, or of a fixed text, behind the other fields."""

    PURPOSE: ClassVar[str] = "field insertion"

    def __init__(
        self, inserted: Sequence[InsertedField], static_value: str | None, *, replace_null: bool, is_key: bool
    ) -> None:
        super().__init__(is_key=is_key)
        self._inserted = inserted
        self._static_value = static_value
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        require_struct(schema, {}, self.PURPOSE)
        added = tuple(Field(each.name, _INSERTED[each.what][each.optional]) for each in self._inserted)
        require_distinct(name for name, _ in (*schema.fields, *added))
        copy = copier(schema, [(name, name) for name, _ in schema.fields], with_default=self._replace_null)

        def convert(value: Any, record: ConnectRecord) -> Any:
            out = copy(value)
            for each, (name, of) in zip(self._inserted, added, strict=True):
                found = self._found(each, record)
                if found is None and not each.optional:
                    raise missing(name, of)
                out[name] = found
            return out

        return schema.basics((*schema.fields, *added)), convert

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        out = dict(require_map(value, self.PURPOSE))
        for each in self._inserted:
            found = self._found(each, record)
            if found is not None:
                out[each.name] = found
        return out

    def _found(self, inserted: InsertedField, record: ConnectRecord) -> Any:
        if inserted.what == "static":
            return self._static_value
        if inserted.what == "offset":
            if record.offset is None:
                raise DataError(
                    f"Only SinkRecord supported for [{self.PURPOSE}], found: org.apache.kafka.connect.source.SourceRecord"
                )
            return record.offset
        if inserted.what == "topic":
            return record.topic
        return record.partition if inserted.what == "partition" else record.timestamp


class ReplaceField(SideTransform):
    """Fields left out, or under other names."""

    PURPOSE: ClassVar[str] = "field replacement"

    def __init__(
        self,
        exclude: Collection[str],
        include: Collection[str],
        renames: Mapping[str, str],
        *,
        replace_null: bool,
        is_key: bool,
    ) -> None:
        super().__init__(is_key=is_key)
        self._exclude, self._include = frozenset(exclude), frozenset(include)
        self._renames = renames
        self._former = {new: old for old, new in renames.items()}
        self._replace_null = replace_null

    def _keeps(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        require_struct(schema, {}, self.PURPOSE)
        fields = [Field(self._renames.get(name, name), of) for name, of in schema.fields if self._keeps(name)]
        require_distinct(name for name, _ in fields)
        names = [(new, self._former.get(new, new)) for new, _ in fields]
        for _, old in names:
            if old not in schema.by_name:
                raise DataError(f"{old} is not a valid field name")
        copy = copier(schema, names, with_default=self._replace_null)
        return schema.basics(tuple(fields)), lambda value, _: copy(value)

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        fields = require_map(value, self.PURPOSE)
        return {self._renames.get(name, name): each for name, each in fields.items() if self._keeps(name)}


def parse_renames(mappings: Sequence[str]) -> dict[str, str]:
    """Returns new names by old ones. Raises ValueError with Kafka Connect's text."""
    renames: dict[str, str] = {}
    for mapping in mappings:
        parts = mapping.split(":")
        while parts and not parts[-1]:  # Java's split leaves empty parts at the end out
            parts.pop()
        if len(parts) != 2:
            raise ValueError(f"Invalid rename mapping: {mapping}")
        renames[parts[0]] = parts[1]
    return renames


class ValueToKey(SideTransform):
    """A key of fields of the value. What is compiled is the key, by the value's schema."""

    PURPOSE: ClassVar[str] = "copying fields from value to key"
    passes_null = False

    def __init__(self, fields: Sequence[str], *, replace_null: bool) -> None:
        super().__init__(is_key=False)
        self._fields = fields
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        require_struct(schema, {}, self.PURPOSE)
        for name in self._fields:
            if name not in schema.by_name:
                raise DataError(f"Field does not exist: {name}")
        require_distinct(self._fields)
        copy = copier(schema, [(name, name) for name in self._fields], with_default=self._replace_null)

        def convert(value: Any, _: ConnectRecord) -> Any:
            return copy(require_struct(schema, value, self.PURPOSE))

        return struct(*((name, schema.by_name[name]) for name in self._fields)), convert

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        fields = require_map(value, self.PURPOSE)
        return {name: fields.get(name) for name in self._fields}

    def replaced(self, record: ConnectRecord, schema: ConnectSchema | None, value: Any) -> ConnectRecord:
        return record.with_key(schema, value)


class SetSchemaMetadata(SideTransform):
    """Another name, another version of a schema."""

    passes_null = False

    def __init__(self, name: str | None, version: int | None, *, replace_null: bool, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._name = name
        self._version = version
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        name = schema.name if self._name is None else self._name
        version = schema.version if self._version is None else self._version
        is_same = (name, version) == (schema.name, schema.version)
        updated = replace(schema, name=name, version=version, avro=schema.avro if is_same else None)
        has_defaults = any(of.default is not None for _, of in schema.fields)
        if schema.type != "struct" or not self._replace_null or not has_defaults:
            return updated, lambda value, _: value
        copy = copier(schema, [(each.name, each.name) for each in schema.fields], with_default=True)
        return updated, lambda value, _: None if value is None else copy(value)

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        if value is None:
            return None
        raise DataError("Schema required for [updating schema metadata]")
