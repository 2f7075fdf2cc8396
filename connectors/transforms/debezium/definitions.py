"""Debezium's transforms that a config may name: their classes, their keys as Debezium has them, what they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, non_empty, one_of_any_case
from cdcworker.connectors.config.refusals import Sentence
from cdcworker.connectors.transforms.conditions.expression import Expression, problem
from cdcworker.connectors.transforms.conditions.expression_text import Language
from cdcworker.connectors.transforms.debezium.changed_state import ExtractChangedRecordState
from cdcworker.connectors.transforms.debezium.event_router import (
    AdditionalField,
    EventOptions,
    EventRouter,
    OutboxColumns,
)
from cdcworker.connectors.transforms.debezium.header_to_value import HeaderToValue
from cdcworker.connectors.transforms.debezium.json_shape import ShapeOptions
from cdcworker.connectors.transforms.debezium.logical_message import DecodeLogicalDecodingMessageContent
from cdcworker.connectors.transforms.debezium.logical_topic_router import KeyField, ToLogicalTopicRouter
from cdcworker.connectors.transforms.debezium.partition_routing import PartitionRouting
from cdcworker.connectors.transforms.debezium.scripting import ContentBasedRouter, Filter, ScriptScope
from cdcworker.connectors.transforms.definitions import (
    Config,
    Problems,
    TransformDefinition,
    check_route,
    key,
    replacement_problem,
)
from cdcworker.connectors.transforms.routing import TopicNameMatches
from cdcworker.connectors.transforms.transform import Transform
from cdcworker.schemas import patterns
from cdcworker.schemas.record_format import RegexRoute

PACKAGE: Final = "io.debezium.transforms."
PARTITIONS_MAX: Final = 100_000


def _route(regex: str, replacement: str) -> RegexRoute:
    return RegexRoute(patterns.required(regex.strip()), replacement.strip())


def _not_there(reason: str) -> Any:
    return lambda value: f"is not available: {reason}" if value else None


def _names(value: Sequence[str]) -> str | None:
    return None if value and all(value) else "expects at least one name, and none that is empty"


# The outbox


def _additional(value: Sequence[str]) -> str | None:
    for number, item in enumerate(value, 1):
        try:
            AdditionalField.parse(item)
        except ValueError as error:
            return f"item {number} {error}"
    return None


_OUTBOX_KEYS: Final = (
    key("table.field.event.id", importance="LOW", default="id", validator=non_empty, doc="The column with the event's id."),
    key("table.field.event.key", importance="LOW", default="aggregateid", doc="The column with the record's key; empty: none."),
    key(
        "table.field.event.type", importance="LOW", default="type",
        doc="The column with the event's type. Name it in table.fields.additional.placement to have it in the record.",
    ),
    key(
        "table.field.event.payload", importance="LOW", default="payload", validator=non_empty,
        doc="The column with the event itself.",
    ),
    key(
        "table.field.event.timestamp",
        validator=_not_there("records have the time at which they are written; place the column in a header"),
        doc="The column with the record's time.",
    ),
    key(
        "table.fields.additional.placement", "LIST", "HIGH", default=[], validator=_additional,
        doc="Further columns as column:placement or column:placement:name; a placement is header, envelope (beside the payload) "
        "or partition.",
    ),
    key(
        "table.field.additional.missing", default="error", validator=one_of_any_case("error", "ignore"),
        recommended=("error", "ignore"), doc="What is done where a table has no such column.",
    ),
    key(
        "table.field.event.schema.version", importance="LOW",
        doc="The column with the version that the schema of an event gets, where other columns stand beside the payload.",
    ),
    key(
        "route.by.field", importance="HIGH", default="aggregatetype", validator=non_empty,
        doc="The column whose text decides on the topic.",
    ),
    key(
        "route.topic.regex", importance="LOW", default="(?<routedByValue>.*)", validator=patterns.problem,
        doc="An expression for the whole of that text.",
    ),
    key(
        "route.topic.replacement", importance="HIGH", default="outbox.event.${routedByValue}", topics="template",
        validator=replacement_problem, doc="The topic's name; ${name} and $1 are groups of the expression.",
    ),
    key(
        "route.tombstone.on.empty.payload", "BOOLEAN", "HIGH", default=False,
        doc="Whether an event without a payload becomes a tombstone.",
    ),
    key(
        "table.op.invalid.behavior", default="warn", validator=one_of_any_case("warn", "error", "fatal"),
        recommended=("warn", "error", "fatal"),
        doc="What an update of the outbox table is: left out with a line in the log, or an error that holds the table.",
    ),
    key(
        "table.expand.json.payload", "BOOLEAN", default=False,
        doc="Whether a payload with a JSON object becomes a struct. Another text stays as it is.",
    ),
    key(
        "table.json.payload.null.behavior", default="ignore", validator=one_of_any_case("ignore", "optional_bytes"),
        recommended=("ignore", "optional_bytes"), doc="What nulls of the object are: left out, or optional bytes.",
    ),
    key(
        "table.json.payload.empty.array.behavior", default="ignore",
        validator=one_of_any_case("ignore", "optional_string"), recommended=("ignore", "optional_string"),
        doc="What empty arrays of the object are: left out, or arrays of optional texts.",
    ),
)  # fmt: skip


def _event_router(config: Config) -> EventRouter:
    shapes = ShapeOptions(
        null_as_bytes=config["table.json.payload.null.behavior"].lower() == "optional_bytes",
        empty_array_of_strings=config["table.json.payload.empty.array.behavior"].lower() == "optional_string",
    )
    columns = OutboxColumns(
        config["table.field.event.id"].strip(),
        (config["table.field.event.key"] or "").strip() or None,
        config["table.field.event.payload"].strip(),
        config["route.by.field"].strip(),
        (config["table.field.event.schema.version"] or "").strip() or None,
        [AdditionalField.parse(item) for item in config["table.fields.additional.placement"]],
        may_lack_additional=config["table.field.additional.missing"].lower() == "ignore",
    )
    options = EventOptions(
        _route(config["route.topic.regex"], config["route.topic.replacement"]),
        config["table.op.invalid.behavior"].lower(),
        tombstones=config["route.tombstone.on.empty.payload"],
        expand=shapes if config["table.expand.json.payload"] else None,
    )
    return EventRouter(columns, options)


def _check_outbox(config: Config) -> Problems:
    yield from check_route("route.topic.regex", config["route.topic.regex"], config["route.topic.replacement"])
    aliases = [AdditionalField.parse(item) for item in config["table.fields.additional.placement"]]
    beside = [each.alias for each in aliases if each.placement == "envelope"]
    if len(set(beside) | {"payload"}) <= len(beside):
        yield "table.fields.additional.placement", "gives a name twice to fields beside the payload"


# Logical topics


def _router_keys(default_name: str, cache: str) -> tuple[ConfigKey, ...]:
    return (
        key("topic.regex", importance="LOW", required=True, validator=_regex, doc="An expression for the whole name of a topic."),
        key(
            "topic.replacement", importance="LOW", required=True, topics="template", validator=replacement_problem,
            doc="The name of the topic that all of these become; $1 is a group.",
        ),
        key(
            "key.enforce.uniqueness", "BOOLEAN", "LOW", default=True,
            doc="Whether keys get a field with the name of the topic that a record would have gone to.",
        ),
        key("key.field.regex", importance="LOW", validator=_regex, doc="An expression for that name, by which it is shortened."),
        key(
            "key.field.replacement", importance="LOW", validator=replacement_problem,
            doc="The field's value for names that key.field.regex matches.",
        ),
        key("key.field.name", importance="LOW", default=default_name, validator=non_empty, doc="The name of the key's field."),
        key(
            "schema.name.adjustment.mode", importance="LOW", default="none",
            validator=one_of_any_case("none", "avro", "avro_unicode"), recommended=("none", "avro", "avro_unicode"),
            doc="Accepted; names are always written as Avro allows them.",
        ),
        key(cache, "INT", "LOW", default=16, doc="Accepted; what is kept follows the number of tables."),
    )  # fmt: skip


def _regex(value: str) -> str | None:
    return non_empty(value) or patterns.problem(value)


def _topic_router(config: Config) -> ToLogicalTopicRouter:
    field = None
    if config["key.enforce.uniqueness"]:
        regex, replacement = config["key.field.regex"], config["key.field.replacement"]
        field = KeyField(config["key.field.name"].strip(), _route(regex, replacement) if regex else None)
    return ToLogicalTopicRouter(_route(config["topic.regex"], config["topic.replacement"]), field)


def _check_router(config: Config) -> Problems:
    yield from check_route("topic.regex", config["topic.regex"], config["topic.replacement"])
    regex, replacement = config["key.field.regex"], config["key.field.replacement"]
    if regex and not (replacement or "").strip():
        yield "key.field.replacement", Sentence("key.field.replacement must be non-empty if key.field.regex is set.")
    elif regex:
        yield from check_route("key.field.regex", regex, replacement)


# The others


def _as_many_fields(config: Config) -> Problems:
    if len(config["fields"]) != len(config["headers"]):
        yield "fields", Sentence("'headers' config must have the same number of elements as 'fields' config.")


def _java_only(value: str) -> str | None:
    return (
        None if value.lower() == "java" else "is not available: expects java, whose partitions are Debezium's default"
    )


def _partition_count(value: int) -> str | None:
    return None if 0 < value <= PARTITIONS_MAX else f"expects a number from 1 to {PARTITIONS_MAX}"


def _of_envelopes() -> Iterable[TransformDefinition]:
    yield TransformDefinition(
        f"{PACKAGE}ExtractChangedRecordState",
        (
            key(
                "header.changed.name",
                importance="LOW",
                doc="The header with the names of the columns that have changed.",
            ),
            key("header.unchanged.name", importance="LOW", doc="The header with the names of those that have not."),
        ),
        lambda c: ExtractChangedRecordState(
            (c["header.changed.name"] or "").strip(), (c["header.unchanged.name"] or "").strip()
        ),
    )
    yield TransformDefinition(
        f"{PACKAGE}partitions.PartitionRouting",
        (
            key(
                "partition.payload.fields", "LIST", "HIGH", required=True, validator=_names,
                doc="Fields of the envelope, such as after.tenant or source.table; change is the row image that there is.",
            ),
            key("partition.topic.num", "INT", "HIGH", required=True, validator=_partition_count, doc="The topic's number of partitions."),
            key(
                "partition.hash.function", importance="LOW", default="java", validator=_java_only, recommended=("java",),
                doc="The hash function of the fields' values.",
            ),
        ),
        lambda c: PartitionRouting(c["partition.payload.fields"], c["partition.topic.num"]),
    )  # fmt: skip


def _of_headers_and_messages() -> Iterable[TransformDefinition]:
    yield TransformDefinition(
        f"{PACKAGE}HeaderToValue",
        (
            key("headers", "LIST", "HIGH", required=True, validator=_names, doc="Headers whose values become fields."),
            key("fields", "LIST", "HIGH", required=True, validator=_names, doc="The fields, in the order of headers; dots lead into structs."),
            key(
                "operation", importance="HIGH", required=True, validator=one_of_any_case("move", "copy"),
                recommended=("move", "copy"), doc="move: the headers are left out of the record; copy: they stay.",
            ),
        ),
        lambda c: HeaderToValue(c["headers"], c["fields"], moves=c["operation"].lower() == "move"),
        _as_many_fields,
    )  # fmt: skip
    yield TransformDefinition(
        "io.debezium.connector.postgresql.transforms.DecodeLogicalDecodingMessageContent",
        (
            key(
                "fields.null.include", "BOOLEAN", default=False,
                doc="Whether nulls of the content are kept, as optional bytes; they are left out otherwise.",
            ),
        ),
        lambda c: DecodeLogicalDecodingMessageContent(includes_null=c["fields.null.include"]),
    )  # fmt: skip


# Expressions

_LANGUAGES: Final[Mapping[str, Language]] = {"cel": "cel", "jsr223.groovy": "groovy"}


def _language(value: str) -> str | None:
    if value.lower() in _LANGUAGES:
        return None
    return f"is not available: expects {' or '.join(_LANGUAGES)}"


def _expression_keys(name: str, doc: str) -> tuple[ConfigKey, ...]:
    return (
        key("topic.regex", importance="LOW", validator=patterns.problem, doc="An expression for the whole name of a topic; others pass as they are."),
        key(
            "language", importance="HIGH", required=True, validator=_language, recommended=tuple(_LANGUAGES),
            doc="cel; or jsr223.groovy for expressions that mean the same in CEL.",
        ),
        key(name, importance="HIGH", required=True, validator=non_empty, doc=f"{doc} It can name value, key, topic and headers."),
        key(
            "null.handling.mode", importance="LOW", default="keep", validator=one_of_any_case("keep", "drop", "evaluate"),
            recommended=("keep", "drop", "evaluate"), doc="What becomes of tombstones: they pass, are left out, or are judged like others.",
        ),
    )  # fmt: skip


def _with_expression(name: str, kind: Callable[[Expression, ScriptScope], Transform]) -> Callable[[Config], Transform]:
    def make(config: Config) -> Transform:
        regex = (config["topic.regex"] or "").strip()
        topics = TopicNameMatches(patterns.required(regex)) if regex else None
        expression = Expression(config[name], _LANGUAGES[config["language"].strip().lower()])
        return kind(expression, ScriptScope(topics, config["null.handling.mode"].lower()))

    return make


def _check_expression(name: str) -> Callable[[Config], Problems]:
    def check(config: Config) -> Problems:
        found = problem(config[name], _LANGUAGES[config["language"].strip().lower()])
        if found:
            yield name, found

    return check


def _of_expressions() -> Iterable[TransformDefinition]:
    for kind, name, doc in (
        (Filter, "condition", "Records for which it is true are kept."),
        (ContentBasedRouter, "topic.expression", "The topic of a record; null: the one that it has."),
    ):
        keys, make = _expression_keys(name, doc), _with_expression(name, kind)
        yield TransformDefinition(f"{PACKAGE}{kind.__name__}", keys, make, _check_expression(name))


TRANSFORMS: Final[Mapping[str, TransformDefinition]] = {
    each.name: each
    for each in (
        TransformDefinition(f"{PACKAGE}outbox.EventRouter", _OUTBOX_KEYS, _event_router, _check_outbox),
        TransformDefinition(
            f"{PACKAGE}ToLogicalTopicRouter",
            _router_keys("__dbz__sourceIdentifier", "logical.destination.cache.size"),
            _topic_router,
            _check_router,
        ),
        TransformDefinition(
            f"{PACKAGE}ByLogicalTableRouter",
            _router_keys("__dbz__physicalTableIdentifier", "logical.table.cache.size"),
            _topic_router,
            _check_router,
        ),
        *_of_envelopes(),
        *_of_headers_and_messages(),
        *_of_expressions(),
    )
}
"""By class name; ExtractNewRecordState, which the encoder itself knows, is not among them."""
