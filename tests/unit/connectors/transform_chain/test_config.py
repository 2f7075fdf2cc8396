"""The keys of transforms and predicates: what is refused, in whose words, and what a config makes."""

import pytest
from cdcworker.connectors.config.common_keys import SOURCE_KEYS
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.transform_chain.chain import Stage
from cdcworker.connectors.transform_chain.config import (
    ALIASES_MAX,
    PREDICATES_KEY,
    TRANSFORMS,
    TRANSFORMS_KEY,
    chain_of,
    format_of,
    transform_checks,
    transform_keys,
)
from cdcworker.connectors.transform_chain.plugin_parts import PARTS, part_of
from cdcworker.connectors.transforms.data import TIMESTAMP, ConnectRecord, ConnectSchema
from cdcworker.connectors.transforms.definitions import PREDICATES
from cdcworker.schemas.errors import CdcError

PACKAGE = "org.apache.kafka.connect.transforms."
DEFINITION = ConfigDef(
    [*SOURCE_KEYS, TRANSFORMS_KEY, PREDICATES_KEY], check=transform_checks(("lsn",)), more=transform_keys
)
UNWRAP = {"transforms.u.type": "io.debezium.transforms.ExtractNewRecordState"}
ROUTE = {"transforms.r.type": f"{PACKAGE}RegexRouter", "transforms.r.regex": "(.*)", "transforms.r.replacement": "$1"}
TOPIC = {"predicates": "p", "predicates.p.type": f"{PACKAGE}predicates.TopicNameMatches", "predicates.p.pattern": "foo"}


def of(kind, **keys):
    config = {"transforms": "t", "transforms.t.type": PACKAGE + kind}
    return {**config, **{f"transforms.t.{name.replace('_', '.')}": value for name, value in keys.items()}}


def problems(config):
    return [error for value in DEFINITION.validate(config) for error in value.errors]


def test_there_are_all_of_kafka_connect():
    of_kafka = [name for name in TRANSFORMS if name.startswith(PACKAGE)]
    names = {name.removeprefix(PACKAGE).partition("$")[0] for name in of_kafka} | {"RegexRouter"}
    assert sorted(names) == [
        "Cast", "DropHeaders", "ExtractField", "Filter", "Flatten", "HeaderFrom", "HoistField", "InsertField", "InsertHeader",
        "MaskField", "RegexRouter", "ReplaceField", "SetSchemaMetadata", "TimestampConverter", "TimestampRouter", "ValueToKey",
    ]  # fmt: skip
    assert len(PREDICATES) == 3
    for name in TRANSFORMS:
        assert part_of(name).kind == "transformation"
        short = part_of(name.rpartition(".")[2])
        assert short is (part_of(f"{PACKAGE}Filter") if name == "io.debezium.transforms.Filter" else part_of(name))
    assert all(part.doc for part in PARTS if part.kind in ("transformation", "predicate"))
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (of("Cast$Value"), 'Missing required configuration "transforms.t.spec" which has no default value.'),
        (of("Cast$Value", spec=""), "Must specify at least one field to cast."),
        (of("Cast$Value", spec="a:decimal"), "Invalid type found in casting spec: decimal"),
        (of("Cast$Value", spec="a:array"), "Cast transformation does not support casting to ARRAY; supported types are [INT8, "
         "INT16, INT32, INT64, FLOAT32, FLOAT64, BOOLEAN, STRING]"),
        (of("Cast$Value", spec="int8,a:int8"), "Cast transformations that specify a type to cast the entire value to may only "
         "specify a single cast in their spec"),
        (of("Cast$Value", spec="a:b:c"),
         "Invalid value [a:b:c] for configuration transforms.t.spec: Invalid rename mapping: a:b:c"),
        (of("DropHeaders", headers=" , "), "Invalid value [] for configuration transforms.t.headers: Empty list"),
        (of("ReplaceField$Key", renames="a"),
         "Invalid value [a] for configuration transforms.t.renames: Invalid rename mapping: a"),
        (of("ExtractField$Key", field="a", field_syntax_version="V3"), "Invalid value V3 for configuration "
         "transforms.t.field.syntax.version: String must be one of (case insensitive): V1, V2"),
        (of("ExtractField$Key", field="`a", field_syntax_version="v2"), "Incomplete backtick pair in path: [`a], consider adding "
         "a backslash before backtick at position 0 to escape it"),
        (of("HeaderFrom$Key", fields="a", headers="b", operation="swap"),
         "Invalid value swap for configuration transforms.t.operation: String must be one of: move, copy"),
        (of("HeaderFrom$Key", fields="a", headers="b,c", operation="move"),
         "'fields' config must have the same number of elements as 'headers' config."),
        (of("InsertField$Value"), "No field insertion configured"),
        (of("InsertField$Value", static_field="x"),
         "Invalid value for configuration transforms.t.static.value: No value specified for static field"),
        (of("InsertField$Value", offset_field="x"), "transforms.t.offset.field is applicable to sink connectors only: a record of "
         "a source has no offset yet"),
        (of("InsertField$Value", partition_field="p!"), "transforms.t.partition.field cannot be required: a record of a source "
         "has no partition yet"),
        (of("MaskField$Value", fields="a", replacement=""),
         "Invalid value  for configuration transforms.t.replacement: String must be non-empty"),
        (of("SetSchemaMetadata$Value"), "Neither schema name nor version configured"),
        (of("SetSchemaMetadata$Value", schema_version="x"),
         "Invalid value x for configuration transforms.t.schema.version: Not a number of type INT"),
        (of("TimestampConverter$Value", target_type="epoch"), "Invalid value epoch for configuration transforms.t.target.type: "
         "String must be one of: string, unix, Date, Time, Timestamp"),
        (of("TimestampConverter$Value", target_type="string"),
         "TimestampConverter requires format option to be specified when using string timestamps"),
        (of("TimestampRouter", timestamp_format="qq"), "transforms.t.timestamp.format expects a pattern of "
         "java.text.SimpleDateFormat: Illegal pattern character 'q'"),
        (of("Filter", negate="true"), "Config 'transforms.t.negate' was provided but there is no config 'transforms.t.predicate' "
         "defining a predicate to be negated."),
        (of("Filter", predicate="p"), "transforms.t.predicate names no predicate of the key predicates"),
        ({"predicates": "p", "predicates.p.type": f"{PACKAGE}predicates.HasHeaderKey"},
         'Missing required configuration "predicates.p.name" which has no default value.'),
        ({"transforms": "r,u", **ROUTE, **UNWRAP, **TOPIC, "transforms.r.predicate": "p"}, "transforms.u.type comes after "
         "transforms.r: only a RegexRouter without a predicate may stand before it"),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_in_connects_words(config, problem):
    assert [each.replace("value  for", "value  for") for each in problems(config)] == [problem]


def test_unknown_keys_and_too_many_names_are_refused():
    assert "did you mean transforms.t.delimiter?" in problems(of("Flatten$Key", delimeter="x"))[0]
    many = ",".join(f"t{number}" for number in range(ALIASES_MAX + 1))
    assert problems({"transforms": many}) == [
        f"transforms names {ALIASES_MAX + 1} transforms; at most {ALIASES_MAX} may be named"
    ]


def test_the_type_names_all_classes_as_connect_does():
    definition = DEFINITION.of(of("Filter", predicate="p") | TOPIC)
    assert not problems(of("Filter", predicate="p") | TOPIC)
    key = definition.keys["transforms.t.type"].definition()
    assert (key["group"], key["display_name"]) == ("Transforms: t", "Transformation type for t")
    assert key["documentation"] == "Class for the 't' transformation."
    assert set(definition.keys["predicates.p.type"].recommended) == set(PREDICATES)
    assert [name for name in definition.keys if name.startswith("transforms.t.")] == [
        "transforms.t.type", "transforms.t.predicate", "transforms.t.negate",
    ]  # fmt: skip


class TestWhatAConfigMakes:
    def test_what_the_encoder_knows_is_no_chain(self):
        config = {"transforms": "r,u", **ROUTE, **UNWRAP}
        assert not problems(config)
        assert not chain_of(config)
        assert len(format_of(config).routes) == 1
        assert format_of(config).flat is not None

    def test_with_another_transform_the_routes_are_part_of_the_chain(self):
        config = {"transforms": "u,r,t", **ROUTE, **UNWRAP, **of("Filter")} | {"transforms": "u,r,t"}
        assert format_of(config).routes == ()
        assert format_of(config).flat is not None
        assert [stage.alias for stage in chain_of(config)._stages] == ["r", "t"]

    def test_a_route_with_a_predicate_is_a_chain(self):
        config = {"transforms": "r", **ROUTE, **TOPIC, "transforms.r.predicate": "p"}
        assert [stage.alias for stage in chain_of(config)._stages] == ["r"]

    def test_texts_keep_their_spaces(self):
        made = chain_of(of("Flatten$Value", delimiter=" ")).apply(ConnectRecord("t", value={"a": {"b": 1}}))
        assert made.value == {"a b": 1}

    @pytest.mark.parametrize("operation", ["MOVE", " move "])
    def test_a_choice_counts_in_any_case_and_without_spaces(self, operation):
        config = of("HeaderFrom$Value", fields="a", headers="h", operation=operation)
        assert not problems(config)
        assert chain_of(config).apply(ConnectRecord("t", value={"a": 1, "b": 2})).value == {"b": 2}

    def test_each_choice_counts_as_it_was_judged(self):
        config = of("TimestampConverter$Value", target_type="timestamp", unix_precision="Microseconds")
        assert not problems(config)
        made = chain_of(config).apply(ConnectRecord("t", value_schema=ConnectSchema("int64"), value=5_000))
        assert (made.value, made.value_schema.name) == (5, TIMESTAMP)
        config = of("ExtractField$Key", field="a.`b.c` ", field_syntax_version="v2 ")
        assert not problems(config)
        assert chain_of(config).apply(ConnectRecord("t", key={"a": {"b.c": 1}})).key == 1

    def test_connects_example_of_a_chain(self):
        config = {
            "transforms": "MakeMap, InsertSource",
            "transforms.MakeMap.type": f"{PACKAGE}HoistField$Value",
            "transforms.MakeMap.field": "line",
            "transforms.InsertSource.type": f"{PACKAGE}InsertField$Value",
            "transforms.InsertSource.static.field": "data_source",
            "transforms.InsertSource.static.value": "test-file-source",
        }
        assert not problems(config)
        found = [chain_of(config).apply(ConnectRecord("t", value=line)).value for line in ("foo", "bar", "hello world")]
        assert found == [{"line": line, "data_source": "test-file-source"} for line in ("foo", "bar", "hello world")]

    def test_connects_example_of_predicates(self):
        config = {
            "transforms": "FilterFoo,ExtractBar",
            "transforms.FilterFoo.type": f"{PACKAGE}Filter",
            "transforms.FilterFoo.predicate": "IsFoo",
            "transforms.ExtractBar.type": f"{PACKAGE}ExtractField$Key",
            "transforms.ExtractBar.field": "other_field",
            "transforms.ExtractBar.predicate": "IsBar",
            "transforms.ExtractBar.negate": "true",
            "predicates": "IsFoo,IsBar",
            "predicates.IsFoo.type": f"{PACKAGE}predicates.TopicNameMatches",
            "predicates.IsFoo.pattern": "foo",
            "predicates.IsBar.type": f"{PACKAGE}predicates.TopicNameMatches",
            "predicates.IsBar.pattern": "bar",
        }
        assert not problems(config)
        chain = chain_of(config)
        found = {topic: chain.apply(ConnectRecord(topic, key={"other_field": 1})) for topic in ("foo", "bar", "baz")}
        assert found["foo"] is None
        assert found["bar"].key == {"other_field": 1}
        assert found["baz"].key == 1
        assert (chain.take_filtered(), chain.take_filtered()) == ({"FilterFoo": 1}, {})

    @pytest.mark.parametrize(
        ("kind", "key", "value", "headers", "expected"),
        [
            ("RecordIsTombstone", "", None, (), True),
            ("RecordIsTombstone", "", 1, (), False),
            ("HasHeaderKey", "h", 1, ("h", "x"), True),
            ("HasHeaderKey", "h", 1, ("x",), False),
        ],
    )
    def test_predicates(self, kind, key, value, headers, expected):
        from cdcworker.connectors.transforms.data import Header

        config = of("Filter", predicate="p") | {"predicates": "p", "predicates.p.type": f"{PACKAGE}predicates.{kind}"}
        config |= {"predicates.p.name": key} if key else {}
        record = ConnectRecord("t", value=value, headers=tuple(Header(name, None, b"") for name in headers))
        assert (chain_of(config).apply(record) is None) is expected


def test_an_error_names_the_transform():
    with pytest.raises(CdcError) as caught:
        chain_of(of("ValueToKey", fields="a")).apply(ConnectRecord("t"))
    assert (caught.value.code, caught.value.where) == ("transform.failed", {"transform": "t"})
    assert Stage("a", None).negate is False
