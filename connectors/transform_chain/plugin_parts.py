"""Converters, transforms and predicates as plugins: what there is beside the connectors, and the keys of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cdcworker.connectors.config.converters import NOT_AVAILABLE
from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.converters.config import BY_NAME, FORMATS
from cdcworker.connectors.formats.format import Format
from cdcworker.connectors.transform_chain.config import KNOWN, TRANSFORM_CLASSES, Plural, own_keys
from cdcworker.connectors.transforms.definitions import PREDICATES, short_name

SIMPLE_HEADERS: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
_IMPLICIT: Final = ("predicate", "negate")
"""Keys that a config may give to any transform: Kafka Connect does not show them as its own."""


_DOCS: Final[Mapping[str, str]] = {
    "ExtractNewRecordState": "The row in the place of the envelope that it stands in.",
    "RegexRouter": "Another name for a topic that an expression matches as a whole. Other topics keep theirs.",
    "Cast": "Fields, or the whole, as another type: numbers, booleans and text. A null stays null.",
    "ExtractField": "The value of one field in the place of the whole. A field that is not there is an error.",
    "Flatten": "The fields of structs inside of a struct as its own fields, with names like `source.table`. Avro has no dots in names "
    "(they are written as `_u002e`), so `_` is a better delimiter there.",
    "HoistField": "The whole as the only field of a new struct. A tombstone becomes a record.",
    "MaskField": "Another value in the place of a field's: an empty one, or the replacement. Nulls stay null. A name that no field has is "
    "passed over. Bytes and structs cannot be masked.",
    "InsertField": "Fields of the record's metadata, or of a fixed text, behind the other fields. A field that is there already is an error.",
    "ReplaceField": "Fields left out, or under other names. A name that no field has is passed over.",
    "ValueToKey": "A key of fields of the value. A tombstone, and a field that is not there, are errors.",
    "DropHeaders": "Headers left out by their names.",
    "HeaderFrom": "Fields copied into headers as text, or moved there. A tombstone, and a field that is not there, are errors.",
    "InsertHeader": "A header with a fixed value on each record.",
    "SetSchemaMetadata": "Another name or version of the schema.",
    "TimestampConverter": "A moment in another form. It is read from 64-bit numbers, from text, and from Kafka Connect's Date, Time and "
    "Timestamp; other types are an error.",
    "Filter": "Leaves out every record that it is applied to: give it a predicate.",
    "TimestampRouter": "A topic whose name has the record's time in it.",
    "EventRouter": "The events of an outbox table: each inserted row becomes a record with its payload, in the topic that a column names. "
    "Deletes of rows are left out.",
    "ToLogicalTopicRouter": "Several tables in one topic, with the table's name in the keys.",
    "ByLogicalTableRouter": "The former name of ToLogicalTopicRouter.",
    "ExtractChangedRecordState": "Headers with the names of the columns that an update has changed, and of those that it has not. It needs "
    "the whole row before the change (REPLICA IDENTITY FULL).",
    "PartitionRouting": "The partition of a record by fields of its envelope in place of its key.",
    "HeaderToValue": "Headers as fields of the value.",
    "DecodeLogicalDecodingMessageContent": "The JSON object in a message of `pg_logical_emit_message` as the row of an insert, for "
    "EventRouter behind it. Another content is an error.",
    "io.debezium.transforms.Filter": "Leaves out the records for which a condition in CEL is false.",
    "ContentBasedRouter": "The topic that an expression in CEL gives for a record.",
    "HasHeaderKey": "Met by records that have a header of this name.",
    "RecordIsTombstone": "Met by records without a value.",
    "TopicNameMatches": "Met by records whose topic's name an expression matches as a whole.",
}
"""What the classes do, by their names without package and without `$Key` or `$Value`, and whole where Kafka Connect has another."""


@dataclass(frozen=True, slots=True)
class PluginPart:
    """A class that a config may name; `keys` are without the prefix that a config gives them."""

    name: str
    kind: Literal["converter", "header_converter", "transformation", "predicate"]
    keys: tuple[ConfigKey, ...] = ()

    @property
    def doc(self) -> str:
        """What a transform, a predicate or a converter does."""
        converter = BY_NAME.get(self.name)
        if converter is not None:
            return converter.doc
        return _DOCS.get(self.name) or _DOCS.get(short_name(self.name).partition("$")[0], "")


def _bare(keys: Iterable[ConfigKey], prefix: str) -> tuple[ConfigKey, ...]:
    return tuple(
        replace(key, name=key.name.removeprefix(prefix))
        for key in keys
        if key.name.startswith(prefix) and key.group != NOT_AVAILABLE
    )


def _converter(of: Format) -> PluginPart:
    return PluginPart(of.name, "converter", of.keys)


def _own(plural: Plural, name: str) -> tuple[ConfigKey, ...]:
    return tuple(key for key in _bare(own_keys(plural, name, "it.", ""), "it.") if key.name not in _IMPLICIT)


PARTS: Final[Sequence[PluginPart]] = (
    *(_converter(each) for each in FORMATS),
    PluginPart(SIMPLE_HEADERS, "header_converter"),
    *(PluginPart(name, "transformation", _own("transforms", name)) for name in TRANSFORM_CLASSES),
    *(PluginPart(name, "predicate", _own("predicates", name)) for name in PREDICATES),
)


def part_of(name: str) -> PluginPart | None:
    """Returns the class by any of its names."""
    converter = BY_NAME.get(name)
    known = (
        (converter.name if converter else "") or KNOWN["transforms"].get(name) or KNOWN["predicates"].get(name) or name
    )
    return next((part for part in PARTS if part.name == known), None)
