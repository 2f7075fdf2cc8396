"""The transforms and predicates that a config may name: their classes, their keys as Kafka Connect has them, what they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, ConfigType, Importance, non_empty, one_of, one_of_any_case
from cdcworker.connectors.config.refusals import Refusal, Sentence
from cdcworker.connectors.transforms import cast, fields, headers, routing, timestamps
from cdcworker.connectors.transforms.dates import date_format
from cdcworker.connectors.transforms.field_path import FieldPath
from cdcworker.connectors.transforms.flatten import Flatten
from cdcworker.connectors.transforms.masks import MaskField
from cdcworker.connectors.transforms.transform import Predicate, Transform
from cdcworker.schemas import patterns
from cdcworker.schemas.record_format import GROUP, RegexRoute

PACKAGE: Final = "org.apache.kafka.connect.transforms."
Config = Mapping[str, Any]
"""Parsed values of the keys of one transform, by their own names."""
Problems = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class TransformDefinition:
    """A transform that a config may name. `check` looks at several keys together, in Kafka Connect's words."""

    name: str
    keys: tuple[ConfigKey, ...]
    make: Callable[[Config], Transform]
    check: Callable[[Config], Problems] = lambda _: ()


@dataclass(frozen=True, slots=True)
class PredicateDefinition:
    """A predicate that a config may name."""

    name: str
    keys: tuple[ConfigKey, ...]
    make: Callable[[Config], Predicate]


def key(name: str, type: ConfigType = "STRING", importance: Importance = "MEDIUM", **more: Any) -> ConfigKey:
    """Returns a key of a transform. What it names is no place that secrets are sent to."""
    return ConfigKey(name, type, importance=importance, connects=False, **more)


REPLACE_NULL: Final = key(
    "replace.null.with.default",
    "BOOLEAN",
    default=True,
    doc="Whether a field that is null and has a default counts as its default.",
)
_DOTS: Final = "V1: the name of a field; V2: names behind dots, those with dots between backticks."


def _not_empty(value: Sequence[str]) -> str | None:
    return None if value else Refusal("Empty list")


def _regex(value: str) -> str | None:
    return non_empty(value) or patterns.problem(value)


def _java_pattern(value: str) -> str | None:
    try:
        date_format(value)
    except ValueError as exc:
        return f"expects a pattern of java.text.SimpleDateFormat: {exc}"
    return None


def _cast_spec(value: Sequence[str]) -> str | None:
    if not value:
        return Sentence("Must specify at least one field to cast.")
    try:
        cast.parse_spec(value)
    except ValueError as exc:
        text = str(exc)
        return Refusal(text) if text.startswith("Invalid rename") else Sentence(text)
    return None


def _renames(value: Sequence[str]) -> str | None:
    try:
        fields.parse_renames(value)
    except ValueError as exc:
        return Refusal(exc)
    return None


# Problems of several keys


def _check_path(config: Config) -> Problems:
    try:
        _path(config)
    except ValueError as exc:
        yield "field", Sentence(exc)


def _path(config: Config) -> FieldPath:
    is_nested = config["field.syntax.version"].upper() == "V2"
    text: str = config["field"]
    return FieldPath(text.strip() if is_nested else text, nested=is_nested)


def _as_many_headers(config: Config) -> Problems:
    if len(config["fields"]) != len(config["headers"]):
        yield "headers", Sentence("'fields' config must have the same number of elements as 'headers' config.")


_INSERTED: Final = ("topic", "partition", "offset", "timestamp", "static")


def _inserted(config: Config) -> Problems:
    if not any(config[f"{what}.field"] for what in _INSERTED):
        yield "type", Sentence("No field insertion configured")
    elif config["static.field"] and config["static.value"] is None:
        yield "static.value", Refusal("No value specified for static field")
    if config["offset.field"]:
        yield "offset.field", "is applicable to sink connectors only: a record of a source has no offset yet"
    if str(config["partition.field"] or "").endswith("!"):
        yield "partition.field", "cannot be required: a record of a source has no partition yet"


def _metadata(config: Config) -> Problems:
    if not config["schema.name"] and config["schema.version"] is None:
        yield "type", Sentence("Neither schema name nor version configured")


def _needs_format(config: Config) -> Problems:
    if config["target.type"] == "string" and not config["format"].strip():
        yield (
            "format",
            Sentence("TimestampConverter requires format option to be specified when using string timestamps"),
        )


# Both sides


def _sides(
    name: str,
    keys: Sequence[ConfigKey],
    make: Callable[[Config, bool], Transform],
    check: Callable[[Config], Problems] = lambda _: (),
) -> Iterable[TransformDefinition]:
    for side in ("Key", "Value"):
        yield TransformDefinition(f"{PACKAGE}{name}${side}", tuple(keys), _of_side(make, side == "Key"), check)


def _of_side(make: Callable[[Config, bool], Transform], is_key: bool) -> Callable[[Config], Transform]:
    return lambda config: make(config, is_key)


def _of_fields() -> Iterable[TransformDefinition]:
    yield from _sides(
        "Cast",
        (
            key(
                "spec", "LIST", "HIGH", required=True, validator=_cast_spec,
                doc="Fields and types as field:type, or one type for the whole. Types are int8, int16, int32, int64, float32, "
                "float64, boolean and string; bytes become a string only.",
            ),
            REPLACE_NULL,
        ),
        lambda c, is_key: cast.Cast(cast.parse_spec(c["spec"]), replace_null=c[REPLACE_NULL.name], is_key=is_key),
    )  # fmt: skip
    yield from _sides(
        "ExtractField",
        (
            key("field", required=True, doc="The field that takes the place of the whole."),
            REPLACE_NULL,
            key(
                "field.syntax.version", importance="HIGH", default="V1", validator=one_of_any_case("v1", "v2"),
                recommended=("V1", "V2"), doc=_DOTS,
            ),
        ),
        lambda c, is_key: fields.ExtractField(_path(c), replace_null=c[REPLACE_NULL.name], is_key=is_key),
        _check_path,
    )  # fmt: skip


def _of_nested() -> Iterable[TransformDefinition]:
    yield from _sides(
        "Flatten",
        (
            key(
                "delimiter",
                default=".",
                doc="What stands between the names of a field and of the structs that it is in.",
            ),
        ),
        lambda c, is_key: Flatten(c["delimiter"], is_key=is_key),
    )
    yield from _sides(
        "HoistField",
        (key("field", required=True, doc="The only field of the struct or map that is made."),),
        lambda c, is_key: fields.HoistField(c["field"], is_key=is_key),
    )
    yield from _sides(
        "MaskField",
        (
            key("fields", "LIST", "HIGH", required=True, validator=_not_empty, doc="Fields to mask."),
            key(
                "replacement", importance="LOW", validator=non_empty,
                doc="What numbers and texts become; without it each becomes the empty value of its type.",
            ),
            REPLACE_NULL,
        ),
        lambda c, is_key: MaskField(
            c["fields"], c["replacement"], replace_null=c[REPLACE_NULL.name], is_key=is_key
        ),
    )  # fmt: skip


def _of_structs() -> Iterable[TransformDefinition]:
    insert = [
        key(f"{what}.field", doc=f"The field for {of}; ! at the end makes it required, ? optional (the default).")
        for what, of in (
            ("topic", "the topic"),
            ("partition", "the partition, which is null in a source"),
            ("offset", "the offset, in sink connectors only"),
            ("timestamp", "the record's timestamp"),
            ("static", "a fixed text"),
        )
    ]
    insert += [key("static.value", doc="The fixed text."), REPLACE_NULL]
    yield from _sides("InsertField", insert, _insert_field, _inserted)
    yield from _sides(
        "ReplaceField",
        (
            key("exclude", "LIST", default=[], doc="Fields to leave out; they count before those to include."),
            key("include", "LIST", default=[], doc="Fields to keep; without it all are kept."),
            key("renames", "LIST", default=[], validator=_renames, doc="Other names, as old:new."),
            REPLACE_NULL,
        ),
        lambda c, is_key: fields.ReplaceField(
            c["exclude"], c["include"], fields.parse_renames(c["renames"]), replace_null=c[REPLACE_NULL.name], is_key=is_key
        ),
    )  # fmt: skip
    yield TransformDefinition(
        f"{PACKAGE}ValueToKey",
        (
            key(
                "fields",
                "LIST",
                "HIGH",
                required=True,
                validator=_not_empty,
                doc="Fields of the value that make the key.",
            ),
            REPLACE_NULL,
        ),
        lambda c: fields.ValueToKey(c["fields"], replace_null=c[REPLACE_NULL.name]),
    )


def _insert_field(config: Config, is_key: bool) -> Transform:
    inserted = [
        fields.InsertedField.parse(what, config[f"{what}.field"]) for what in _INSERTED if config[f"{what}.field"]
    ]
    return fields.InsertField(inserted, config["static.value"], replace_null=config[REPLACE_NULL.name], is_key=is_key)


def _of_headers() -> Iterable[TransformDefinition]:
    yield TransformDefinition(
        f"{PACKAGE}DropHeaders",
        (key("headers", "LIST", "HIGH", required=True, validator=_not_empty, doc="Headers to leave out."),),
        lambda c: headers.DropHeaders(c["headers"]),
    )
    yield from _sides(
        "HeaderFrom",
        (
            key("fields", "LIST", "HIGH", required=True, validator=_not_empty, doc="Fields whose values become headers."),
            key("headers", "LIST", "HIGH", required=True, validator=_not_empty, doc="The headers, in the order of fields."),
            key(
                "operation", importance="HIGH", required=True, validator=one_of("move", "copy"),
                recommended=("move", "copy"), doc="move: the fields are left out of the record; copy: they stay.",
            ),
            REPLACE_NULL,
        ),
        lambda c, is_key: headers.HeaderFrom(
            c["fields"], c["headers"], moves=c["operation"] == "move", replace_null=c[REPLACE_NULL.name], is_key=is_key
        ),
        _as_many_headers,
    )  # fmt: skip
    yield TransformDefinition(
        f"{PACKAGE}InsertHeader",
        (
            key("header", importance="HIGH", required=True, doc="The header's name."),
            key("value.literal", importance="HIGH", required=True, doc="The header's value on all records."),
        ),
        lambda c: headers.InsertHeader(c["header"], c["value.literal"]),
    )


def _of_schemas() -> Iterable[TransformDefinition]:
    yield from _sides(
        "SetSchemaMetadata",
        (
            key("schema.name", importance="HIGH", doc="The schema's name."),
            key("schema.version", "INT", "HIGH", doc="The schema's version."),
            REPLACE_NULL,
        ),
        lambda c, is_key: fields.SetSchemaMetadata(
            c["schema.name"] or None, c["schema.version"], replace_null=c[REPLACE_NULL.name], is_key=is_key
        ),
        _metadata,
    )
    yield from _sides(
        "TimestampConverter",
        (
            key("field", importance="HIGH", default="", doc="The field with the moment; empty: the whole is one."),
            key(
                "target.type", importance="HIGH", required=True, validator=one_of(*timestamps.TARGETS),
                recommended=timestamps.TARGETS, doc="What the moment becomes.",
            ),
            key(
                "format", default="", validator=_java_pattern,
                doc="A pattern of java.text.SimpleDateFormat: how a text is written or read.",
            ),
            key(
                "unix.precision", importance="LOW", default="milliseconds", validator=one_of(*timestamps.PRECISIONS),
                recommended=timestamps.PRECISIONS, doc="The unit of numbers. What is less than a millisecond is lost.",
            ),
            REPLACE_NULL,
        ),
        _timestamp_converter,
        _needs_format,
    )  # fmt: skip


def _timestamp_converter(config: Config, is_key: bool) -> Transform:
    pattern = date_format(config["format"]) if config["format"].strip() else None
    settings = timestamps.TimestampSettings(config["field"], config["target.type"], pattern, config["unix.precision"])
    return timestamps.TimestampConverter(settings, replace_null=config[REPLACE_NULL.name], is_key=is_key)


def _of_ways() -> Iterable[TransformDefinition]:
    yield TransformDefinition(f"{PACKAGE}Filter", (), lambda _: routing.Filter())
    yield TransformDefinition(
        f"{PACKAGE}TimestampRouter",
        (
            key(
                "topic.format", importance="HIGH", default="${topic}-${timestamp}", topics="template",
                doc="The topic's name, with ${topic} and ${timestamp}.",
            ),
            key(
                "timestamp.format", importance="HIGH", default="yyyyMMdd", validator=_java_pattern,
                doc="A pattern of java.text.SimpleDateFormat for the record's timestamp, in UTC.",
            ),
        ),
        lambda c: routing.TimestampRouter(c["topic.format"], c["timestamp.format"]),
    )  # fmt: skip


ROUTER: Final = f"{PACKAGE}RegexRouter"


def router_keys(at: str, group: str) -> Iterable[ConfigKey]:
    """Yields the keys of RegexRouter; `at` is what they begin with."""
    yield ConfigKey(f"{at}regex", required=True, group=group, validator=patterns.problem, doc="A whole topic name.")
    yield ConfigKey(
        f"{at}replacement",
        required=True,
        group=group,
        validator=replacement_problem,
        topics="template",
        doc="The new name; $1 is a group.",
    )


def replacement_problem(value: str) -> str | None:
    """Returns what is wrong with the new name that a route gives to topics; None if nothing is."""
    rest = GROUP.sub("", value)
    return None if re.fullmatch(r"[A-Za-z0-9._\-]*", rest) else "expects characters of a topic name, and $1 for groups"


def check_route(name: str, regex: str, replacement: str) -> Iterable[tuple[str, str]]:
    """Yields what is wrong with the groups of a replacement."""
    pattern = patterns.required(regex)
    for group, number in GROUP.findall(replacement):
        if (group and group not in pattern.names) or (number and int(number) > pattern.groups):
            yield name.removesuffix("regex") + "replacement", "names a group that regex does not have"


def regex_router(config: Config) -> Transform:
    """Returns the router of parsed values."""
    return routing.RegexRouter(RegexRoute(patterns.required(config["regex"].strip()), config["replacement"].strip()))


TRANSFORMS: Final[Mapping[str, TransformDefinition]] = {
    each.name: each
    for each in (*_of_fields(), *_of_nested(), *_of_structs(), *_of_headers(), *_of_schemas(), *_of_ways())
}
"""By class name; RegexRouter and ExtractNewRecordState, which the encoder itself knows, are not among them."""

PREDICATES: Final[Mapping[str, PredicateDefinition]] = {
    each.name: each
    for each in (
        PredicateDefinition(
            f"{PACKAGE}predicates.HasHeaderKey",
            (key("name", required=True, validator=non_empty, doc="The header's name."),),
            lambda c: routing.HasHeaderKey(c["name"]),
        ),
        PredicateDefinition(f"{PACKAGE}predicates.RecordIsTombstone", (), lambda _: routing.RecordIsTombstone()),
        PredicateDefinition(
            f"{PACKAGE}predicates.TopicNameMatches",
            (key("pattern", required=True, validator=_regex, doc="An expression for the whole name of the topic."),),
            lambda c: routing.TopicNameMatches(patterns.required(c["pattern"])),
        ),
    )
}
"""By class name."""


def short_name(name: str) -> str:
    """Returns a class name without its package, which a config may give instead."""
    return name.rpartition(".")[2]


def under(keys: Iterable[ConfigKey], prefix: str, group: str) -> Iterable[ConfigKey]:
    """Returns keys as a config has them, behind the name that it gives to a transform or a predicate."""
    return (replace(each, name=prefix + each.name, group=group) for each in keys)
