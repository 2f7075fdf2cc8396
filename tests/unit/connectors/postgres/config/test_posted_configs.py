"""Configurations as they are found in tutorials, charts and blogs, posted as they are."""

import json
from pathlib import Path

import pytest
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF, parse
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.connectors.registry import names as registry
from cdcworker.connectors.transform_chain.config import format_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import AddedField, ConnectJsonFormat, FlatFormat, RecordFormat

FILES = {path.stem: path for path in sorted((Path(__file__).parent / "data").glob("*.json"))}
JSON, PLAIN = ConnectJsonFormat(), ConnectJsonFormat(schemas=False)


def posted(name: str) -> dict[str, str]:
    """As the REST API hands it on: scalars are text."""
    body = json.loads(FILES[name].read_text())["posted"]
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in body["config"].items()}
    return {**texts, "name": body["name"]}


def added(*texts: str, prefix: str = "__") -> tuple[AddedField, ...]:
    return tuple(AddedField.parse(text, prefix) for text in texts)


FORMS = {
    "tutorial": RecordFormat(),
    "tutorial_avro": RecordFormat(),
    "tutorial_json": RecordFormat(JSON, JSON),
    "unwrap_json": RecordFormat(PLAIN, PLAIN, FlatFormat("rewrite", True, added("op", "table", "lsn", "source.ts_ms"))),
    "ksqldb_avro": RecordFormat(flat=FlatFormat("rewrite", True, (), added("op", "source.ts_ms"))),
    "strimzi": RecordFormat(PLAIN, PLAIN),
    "msk_apicurio": RecordFormat(
        flat=FlatFormat("rewrite", True, added("name", "op", "db", "table", "schema", "lsn", "source.ts_ms"))
    ),
    "compose_tuned": RecordFormat(JSON, ConnectJsonFormat(schemas=False, numeric=True)),
    "helm_signals": RecordFormat(
        value=JSON, flat=FlatFormat("tombstone", False, added("op:operation", "source.commit_lsn", prefix="cdc_"))
    ),
}


def test_there_are_ten():
    assert set(FILES) == {*FORMS, "unwrap_route"}
    assert len(FILES) == 10


@pytest.mark.parametrize("name", FILES)
def test_a_posted_config_is_accepted_and_says_what_has_no_effect(name):
    config = posted(name)
    assert registry.lookup(config["connector.class"]).name == "postgres"
    assert [value.errors for value in CONFIG_DEF.validate(config) if value.errors] == []
    parse(config)
    always = {"tasks.max", "plugin.name"}
    notes = {key: note for key, note in CONFIG_DEF.notes(config) if key not in always}
    assert notes == json.loads(FILES[name].read_text())["notes"]


@pytest.mark.parametrize("name", FORMS)
def test_its_converters_and_transforms_decide_the_form(name):
    assert format_of(posted(name)) == FORMS[name]


def test_a_router_renames_the_topic():
    form = format_of(posted("unwrap_route"))
    assert form.flat == FlatFormat("tombstone", True)
    assert [route.apply("pg.public.orders") for route in form.routes] == ["orders"]
    assert [route.apply("pg.message") for route in form.routes] == ["pg.message"]


def test_java_names_groups_in_its_own_way():
    config = {
        **posted("unwrap_route"), "transforms.route.regex": r"(?<db>\w+)\.(.*)\.(\w+)",
        "transforms.route.replacement": "${db}-$3.$0",
    }  # fmt: skip
    parse(config)
    assert format_of(config).routes[0].apply("pg.public.orders") == "pg-orders.pg.public.orders"


@pytest.mark.parametrize(
    ("mode", "old", "tombstones", "flat"),
    [
        ({}, {}, "true", ("tombstone", False)),
        ({"delete.tombstone.handling.mode": "drop"}, {}, "true", ("drop", False)),
        ({"delete.tombstone.handling.mode": "rewrite"}, {}, "true", ("rewrite", False)),
        ({"delete.tombstone.handling.mode": "rewrite-with-tombstone"}, {}, "true", ("rewrite", True)),
        ({"delete.tombstone.handling.mode": "rewrite-with-tombstone"}, {}, "false", ("rewrite", False)),
        ({"delete.tombstone.handling.mode": "delete-to-tombstone"}, {}, "false", ("tombstone", False)),
        ({}, {"delete.handling.mode": "drop"}, "true", ("drop", False)),
        ({}, {"drop.tombstones": "true"}, "true", ("drop", False)),
        ({}, {"drop.tombstones": "false"}, "true", ("drop", True)),
        ({}, {"delete.handling.mode": "rewrite"}, "true", ("rewrite", False)),
        ({}, {"delete.handling.mode": "none", "drop.tombstones": "true"}, "true", ("tombstone", False)),
        ({"delete.tombstone.handling.mode": "drop"}, {"delete.handling.mode": "rewrite"}, "true", ("drop", False)),
    ],
)
def test_older_and_newer_settings_of_deletions_are_understood(mode, old, tombstones, flat):
    options = {f"transforms.unwrap.{key}": value for key, value in {**mode, **old}.items()}
    unwrap = {"transforms": "unwrap", "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState"}
    config = {**posted("tutorial"), **unwrap, **options, "tombstones.on.delete": tombstones}
    parse(config)
    assert format_of(config).flat == FlatFormat(*flat)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "key.converter",
            "org.apache.kafka.connect.storage.StringConverter",
            "put org.apache.kafka.connect.transforms.ExtractField$Key before it",
        ),
        ("value.converter", "org.apache.kafka.connect.converters.ByteArrayConverter", "a row is a record with fields"),
        (
            "key.converter",
            "org.apache.kafka.connect.storage.StringConverter",
            "JsonConverter with schemas.enable=false",
        ),
        (
            "transforms.unwrap.type",
            "io.debezium.transforms.TimezoneConverter",
            "TimestampConverter writes moments in UTC",
        ),
        ("transforms.unwrap.type", "io.debezium.transforms.Filter", "transforms.unwrap.condition"),
        ("transforms.unwrap.type", "com.example.Mine", "Class could not be found"),
        (
            "value.converter",
            "org.apache.kafka.connect.json.JsonConvertor",
            "did you mean org.apache.kafka.connect.json.Json",
        ),
        ("value.converter", "com.example.Converter", "not available"),
        ("value.converter.schema.enable", "false", "did you mean value.converter.schemas.enable"),
        ("value.converter.schemas.enable", "no", "Expected value to be either true or false"),
        ("value.converter.decimal.format", "TEXT", "BASE64"),
        ("transforms", "unwrap,filter", 'Missing required configuration "transforms.filter.type"'),
        ("transforms", "other", "belongs to no transform"),
        ("transforms.unwrap.type", "io.debezium.transforms.VectorToJsonConverter", "transform where the topic is read"),
        ("transforms.unwrap.type", "io.debezium.transforms.ExtractNewRecordStat", "did you mean io.debezium"),
        ("transforms.unwrap.drop.tombstone", "false", "did you mean transforms.unwrap.drop.tombstones"),
        ("transforms.unwrap.delete.handling.mode", "keep", "String must be one of: drop, rewrite, none"),
        ("transforms.unwrap.add.fields", "op,before.id", "item 2 is no field name"),
        ("transforms.unwrap.add.fields", "op,lsnn", "did you mean lsn"),
        ("transforms.unwrap.add.headers", "sourc.ts_ms", "item 1 is no field name"),
        ("transforms.unwrap.route.by.field", "id", "a topic belongs to one table"),
        ("transforms.unwrap.predicate", "isFoo", "applied to every record"),
        ("predicates", "isFoo", 'Missing required configuration "predicates.isFoo.type"'),
        ("predicates.isFoo.type", "RecordIsTombstone", "belongs to no predicate that the key predicates names"),
        ("table.whitelist", "public.a", "its name is table.include.list"),
    ],
)
def test_what_is_not_available_is_refused_by_name(key, value, says):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.require_valid({**posted("unwrap_json"), key: value})
    assert key in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("regex", "replacement", "says"),
    [("(", "$1", "regular expression"), ("(.*)", "$2", "does not have"), ("(.*)", "${x}", "does not have"),
     ("(.*)", "a b", "characters of a topic name")],
)  # fmt: skip
def test_a_route_that_cannot_work_is_refused(regex, replacement, says):
    route = {"transforms.route.regex": regex, "transforms.route.replacement": replacement}
    with pytest.raises(CdcError) as caught:
        parse({**posted("unwrap_route"), **route})
    assert says in caught.value.message


def test_a_transform_is_applied_once_only():
    again = {"transforms": "unwrap,more", "transforms.more.type": "io.debezium.transforms.ExtractNewRecordState"}
    with pytest.raises(CdcError) as caught:
        parse({**posted("unwrap_json"), **again})
    assert "the same as that of transforms.unwrap" in caught.value.message


def test_a_registrys_login_is_masked():
    config = {**posted("ksqldb_avro"), "value.converter.basic.auth.user.info": "me:hush"}
    assert CONFIG_DEF.mask(config)["value.converter.basic.auth.user.info"] == "****"
    assert "hush" not in str(CONFIG_DEF.validate(config))


def test_a_config_from_before_debezium_2_has_its_prefix_under_the_former_name():
    config = posted("tutorial")
    config["database.server.name"] = config.pop("topic.prefix")
    assert [value.errors for value in CONFIG_DEF.validate(config) if value.errors] == []
    assert parse(config).prefix == "dbserver1"
    (share,) = PostgresSource(config).split(1)
    assert share["topic.prefix"] == "dbserver1"
    assert parse({**config, "topic.prefix": "now"}).prefix == "now"
    assert PostgresSource({**config, "topic.prefix": "now"}).split(1)[0]["topic.prefix"] == "now"
    with pytest.raises(CdcError, match="letters, digits"):
        parse({**config, "database.server.name": "a b"})
    del config["database.server.name"]
    with pytest.raises(CdcError, match=r"Missing required configuration .topic\.prefix."):
        parse(config)
