"""The keys of Debezium's transforms: what is refused, and in whose words."""

import pytest
from cdcworker.connectors.config.common_keys import SOURCE_KEYS
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.transform_chain.config import PREDICATES_KEY, TRANSFORMS_KEY, transform_checks, transform_keys

DEFINITION = ConfigDef(
    [*SOURCE_KEYS, TRANSFORMS_KEY, PREDICATES_KEY], check=transform_checks(("lsn",)), more=transform_keys
)
FILTER = "io.debezium.transforms.Filter"
ROUTER = {"topic_regex": "(.*)", "topic_replacement": "$1"}
PARTITIONS = {"partition_payload_fields": "after.id", "partition_topic_num": "3"}


def problems(kind, **keys):
    config = {"transforms": "t", "transforms.t.type": kind}
    config |= {f"transforms.t.{name.replace('_', '.')}": value for name, value in keys.items()}
    return [error for value in DEFINITION.validate(config) for error in value.errors]


@pytest.mark.parametrize(
    ("kind", "keys", "problem"),
    [
        ("EventRouter", {"table_field_event_timestamp": "at"}, "is not available: records have the time"),
        ("EventRouter", {"table_fields_additional_placement": "a:header,b"}, "item 2 expects column:placement or"),
        ("EventRouter", {"table_fields_additional_placement": "a:body"}, "item 1 expects header, envelope or partition"),
        ("EventRouter", {"table_fields_additional_placement": "a:envelope,b:envelope:a"}, "gives a name twice"),
        ("EventRouter", {"table_fields_additional_placement": "a:envelope:payload"}, "gives a name twice"),
        ("EventRouter", {"route_topic_replacement": "x.${other}"}, "names a group that regex does not have"),
        ("EventRouter", {"route_topic_regex": "("}, "transforms.t.route.topic.regex"),
        ("EventRouter", {"table_op_invalid_behavior": "panic"}, "must be one of (case insensitive): WARN, ERROR, FATAL"),
        ("ByLogicalTableRouter", {"topic_regex": "(.*)"}, 'Missing required configuration "transforms.t.topic.replacement"'),
        ("ByLogicalTableRouter", {**ROUTER, "key_field_regex": "(.*)"}, "key.field.replacement must be non-empty if"),
        ("ToLogicalTopicRouter", {**ROUTER, "topic_replacement": "$2"}, "names a group that regex does not have"),
        ("ToLogicalTopicRouter", {**ROUTER, "topic_replacement": "a b"}, "expects characters of a topic name"),
        ("PartitionRouting", {**PARTITIONS, "partition_topic_num": "0"}, "expects a number from 1 to"),
        ("PartitionRouting", {**PARTITIONS, "partition_payload_fields": ""}, "String must be non-empty"),
        ("PartitionRouting", {**PARTITIONS, "partition_hash_function": "murmur"}, "is not available: expects java"),
        ("HeaderToValue", {"headers": "a", "fields": "b,c", "operation": "copy"}, "must have the same number of elements"),
        (FILTER, {"language": "cel", "condition": "value.op =="}, "transforms.t.condition is no expression of CEL"),
        (FILTER, {"language": "jsr223.groovy", "condition": "value.op ==~ /c/"}, "write it in CEL with language=cel"),
        (FILTER, {"language": "jsr223.graal.js", "condition": "true"}, "is not available: expects cel or jsr223.groovy"),
        (FILTER, {"language": "cel", "condition": "true", "null_handling_mode": "x"}, "KEEP, DROP, EVALUATE"),
        ("ContentBasedRouter", {"language": "cel"}, 'Missing required configuration "transforms.t.topic.expression"'),
        ("io.debezium.transforms.TimezoneConverter", {}, "TimestampConverter writes moments in UTC"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(kind, keys, problem):
    (found,) = problems(kind, **keys)
    assert problem in found


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("EventRouter", {}),
        (
            "io.debezium.transforms.outbox.EventRouter",
            {"table_expand_json_payload": "true", "table_field_event_key": ""},
        ),
        ("ByLogicalTableRouter", {**ROUTER, "logical_table_cache_size": "32", "schema_name_adjustment_mode": "avro"}),
        ("ExtractChangedRecordState", {"header_changed_name": "Changed"}),
        ("PartitionRouting", {**PARTITIONS, "partition_hash_function": "java"}),
        ("HeaderToValue", {"headers": "a", "fields": "b", "operation": "Move"}),
        ("DecodeLogicalDecodingMessageContent", {}),
        (FILTER, {"language": "jsr223.groovy", "condition": "value.op == 'u' && value.before.id == 2"}),
        ("ContentBasedRouter", {"language": "jsr223.groovy", "topic_expression": "value.op == 'u' ? 'updates' : null"}),
    ],
)
def test_what_debezium_s_documentation_shows_is_taken(kind, keys):
    assert problems(kind, **keys) == []


def test_the_short_name_of_a_filter_is_kafka_connect_s():
    assert problems("Filter") == []
