"""What a row looks like: the columns that records of one schema have, and how their values are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.targets.jdbc.naming import TableName
from cdcworker.connectors.targets.jdbc.rules import WriteRules
from cdcworker.connectors.transforms.avro_form import WRITTEN, avro_of
from cdcworker.connectors.transforms.data import ConnectSchema, DataError
from cdcworker.connectors.warehouses.source_types import TargetColumn, target_column
from cdcworker.schemas.errors import CdcError

Row = tuple[Any, ...]
ENVELOPE: Final = frozenset(("before", "after", "op"))
DELETED: Final = "__deleted"
_LONG: Final = ConnectSchema("int64")
_STRING: Final = ConnectSchema("string")
_BYTES: Final = ConnectSchema("bytes", optional=True)


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of a table as records of one schema have them."""

    table: TableName
    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    """Names of columns."""
    fields: tuple[str, ...] = ()
    """Of the columns that are fields of the row, the fields' names; they come first."""
    numbers: Mapping[int, int] | None = None
    """Where a column stands here, by its place in the row of the source."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key_places(self) -> tuple[int, ...]:
        return tuple(self.names.index(name) for name in self.key)


def is_envelope(schema: ConnectSchema | None) -> bool:
    """Returns whether values of a schema are Debezium's envelopes."""
    if schema is None or schema.type != "struct" or not schema.by_name.keys() >= ENVELOPE:
        return False
    # A table may have columns of these names too.
    return schema.by_name["after"].type == "struct"


def row_schema(record: TargetRecord) -> ConnectSchema | None:
    """Returns the schema of the row that a record holds; None for a tombstone."""
    schema = record.value_schema
    return schema.by_name["after"] if schema is not None and is_envelope(schema) else schema


def column_of(name: str, schema: ConnectSchema) -> TargetColumn:
    """Returns the column for a field. CdcError of kind `data` for a schema without a type."""
    try:
        kind = avro_of(schema, WRITTEN)
    except DataError as error:
        raise CdcError(RECORD_REFUSED, f"a field has no type in a table: {error}", where={"field": name}) from None
    return target_column(name, {"type": kind, **schema.attributes, "name": name, "default": None})


class ShapeMaker:
    """Makes shapes by a config's rules."""

    def __init__(self, rules: WriteRules) -> None:
        self._rules = rules

    def shape(self, table: TableName, record: TargetRecord) -> RowShape:
        """Returns the shape of a record's row. CdcError of kind `data` where it has no columns, or not those of its key."""
        rules, schema = self._rules, row_schema(record)
        keys = self.keys(record)
        if schema is None or schema.type != "struct":
            if record.value is not None:
                text = "the record has no schema of columns: use a converter with schemas, and records of fields"
                raise CdcError(RECORD_REFUSED, text)
            return RowShape(table, tuple(self._column(name, of) for name, of in keys.items()), tuple(keys))
        taken = [
            (number, field) for number, field in enumerate(schema.fields)
            if field.name in keys or (rules.takes(record.topic, field.name) and field.name != DELETED)
        ]  # fmt: skip
        columns = [self._column(field.name, field.schema) for _, field in taken]
        fields = tuple(field.name for _, field in taken)
        columns += [self._column(name, of) for name, of in keys.items() if name not in fields]
        if rules.position:
            columns.append(column_of(rules.position, _BYTES))
        self._distinct(columns)
        numbers = {source: at for at, (source, _) in enumerate(taken)}
        return RowShape(table, tuple(columns), tuple(map(self._name, keys)), fields, numbers)

    def keys(self, record: TargetRecord) -> dict[str, ConnectSchema]:
        """Returns the fields of a record's key with their schemas, in their order."""
        rules = self._rules
        if rules.key_mode == "none":
            return {}
        if rules.key_mode == "kafka":
            return dict(zip(rules.key_fields, (_STRING, _LONG, _LONG), strict=True))
        if rules.key_mode == "record_value":
            schema = row_schema(record)
            found = schema.by_name if schema is not None and schema.type == "struct" else {}
            return {name: self._known(found, name) for name in rules.key_fields}
        schema = record.key_schema
        if schema is None:
            raise CdcError(
                RECORD_REFUSED, "the record has no key with a schema, which primary.key.mode=record_key needs"
            )
        if schema.type != "struct":
            if len(rules.key_fields) != 1:
                text = "the key is no struct: name its column in primary.key.fields"
                raise CdcError(RECORD_REFUSED, text)
            return {rules.key_fields[0]: schema}
        return {name: self._known(schema.by_name, name) for name in rules.key_fields or schema.by_name}

    def key_values(self, record: TargetRecord) -> Callable[[TargetRecord], Row]:
        """Returns what finds the values of the key of records like this one."""
        names = tuple(self.keys(record))
        if self._rules.key_mode == "kafka":
            return lambda found: (found.topic, found.partition, found.offset)
        if self._rules.key_mode == "record_value":
            return lambda found: tuple(_row_of(found)[name] for name in names)
        if record.key_schema is not None and record.key_schema.type != "struct":
            return lambda found: (found.key,)
        return lambda found: tuple([found.key[name] for name in names])

    def _column(self, name: str, schema: ConnectSchema) -> TargetColumn:
        return replace(column_of(name, schema), name=self._name(name))

    def _name(self, name: str) -> str:
        return name.lower() if self._rules.folds else name

    @staticmethod
    def _known(found: Mapping[str, ConnectSchema], name: str) -> ConnectSchema:
        if name not in found:
            text = "the record does not have a field that primary.key.fields names"
            raise CdcError(RECORD_REFUSED, text, where={"field": name})
        return found[name]

    @staticmethod
    def _distinct(columns: Sequence[TargetColumn]) -> None:
        names = [column.name for column in columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise CdcError(RECORD_REFUSED, "two fields would be one column", where={"column": twice})


def _row_of(record: TargetRecord) -> Mapping[str, Any]:
    value = record.value
    found = value["after"] if is_envelope(record.value_schema) else value
    return found if isinstance(found, Mapping) else {}
