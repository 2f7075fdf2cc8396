"""Converters as a config names them: what is refused before a connector starts, and what is noted."""

from __future__ import annotations

import pytest
from cdcworker.connectors.converters.config import converter_keys, wire_of
from cdcworker.connectors.converters.shipped import FORMATS
from cdcworker.connectors.datagen.config import CONFIG_DEF as SOURCE
from cdcworker.connectors.formats.registry_keys import RegistrySettings, registry_of
from cdcworker.connectors.spark.config import CONFIG_DEF as SPARK
from cdcworker.connectors.targets.stdout.connector import CONFIG_DEF as SINK
from cdcworker.connectors.transform_chain.plugin_parts import PARTS, part_of

BASE = {"topic.prefix": "shop", "tables": "orders"}
EXTRACT = {"transforms": "x", "transforms.x.field": "id"}
PACKAGE = "org.apache.kafka.connect.transforms."


def problems(config: dict[str, str], definition=SOURCE) -> dict[str, str]:
    base = BASE if definition is SOURCE else {"topics": "t", "file": "/tmp/lines"}
    found = definition.validate({**base, **config})
    return {value.name: " ".join(value.errors) for value in found if value.errors}


@pytest.mark.parametrize("of", [each for each in FORMATS if each.single], ids=lambda of: of.name.rpartition(".")[2])
@pytest.mark.parametrize("side", ["key", "value"])
def test_a_row_does_not_fit_a_single_value_unless_a_transform_leaves_one(of, side):
    config = {f"{side}.converter": of.name}
    kind = side.capitalize()
    assert f"ExtractField${kind}" in problems(config)[f"{side}.converter"]
    assert of.single in problems(config)[f"{side}.converter"]
    other = "Value" if side == "key" else "Key"
    assert f"{side}.converter" in problems({**config, **EXTRACT, "transforms.x.type": f"{PACKAGE}ExtractField${other}"})
    assert problems({**config, **EXTRACT, "transforms.x.type": f"{PACKAGE}ExtractField${kind}"}) == {}
    assert problems(config, SINK) == {}, "a sink learns from records what they are"


def test_records_with_fields_of_the_sources_own_are_refused_with_a_strict_converter():
    from cdcworker.connectors.postgres.config.settings import CONFIG_DEF

    base = {"database.hostname": "h", "database.user": "u", "database.dbname": "d", "topic.prefix": "shop"}
    config = {
        **base, **EXTRACT, "transforms.x.type": f"{PACKAGE}ExtractField$Value", "value.converter": "ByteArrayConverter",
        "heartbeat.interval.ms": "1000",
    }  # fmt: skip
    found = {value.name: value.errors for value in CONFIG_DEF.validate(config) if value.errors}
    assert "BinaryDataConverter" in found["heartbeat.interval.ms"][0]
    delegate = {
        "value.converter": "BinaryDataConverter",
        "value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
    }
    assert not [value.name for value in CONFIG_DEF.validate({**config, **delegate}) if value.errors]
    assert not [
        value.name for value in CONFIG_DEF.validate({**config, "value.converter": "StringConverter"}) if value.errors
    ]


def test_a_setting_of_another_converter_is_noted():
    config = {
        **BASE,
        "value.converter": "protobuf",
        "value.converter.decimal.format": "NUMERIC",
        "value.converter.optional.for.nullables": "true",
    }
    notes = dict(SOURCE.notes(config))
    assert "Without effect" in notes["value.converter.decimal.format"]
    assert "value.converter.optional.for.nullables" not in notes
    assert "null is read as zero" in notes["value.converter"]
    assert wire_of(config, "value").options.optional_for_nullables
    misspelt = {**BASE, "value.converter": "protobuf", "value.converter.optional.for.nullable": "true"}
    assert "did you mean" in problems(misspelt)["value.converter.optional.for.nullable"]


def test_values_of_settings_are_judged():
    assert "value.converter.decimal.format" in problems(
        {"value.converter": "json_schema", "value.converter.decimal.format": "X"}
    )
    assert "key.converter.converter.encoding" in problems(
        {"key.converter": "string", "key.converter.converter.encoding": "EBCDIC"}
    )


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("schema.registry.url", "ftp://x", "expects addresses"),
        ("schema.registry.url", "http://user:pw@", "expects addresses"),
        ("schema.registry.url", "http://x?y=1", "expects addresses"),
        ("schema.registry.ids", "mine", "one of"),
        ("basic.auth.credentials.source", "SASL_INHERIT", "one of"),
        ("basic.auth.credentials.source", "USER_INFO", "basic.auth.user.info"),
        ("basic.auth.user.info", "nobody", "USER:PASSWORD"),
        ("bearer.auth.credentials.source", "STATIC_TOKEN", "bearer.auth.token"),
        ("value.subject.name.strategy", "com.example.Mine", "TopicNameStrategy"),
        ("use.latest.version", "true", "auto.register.schemas=false"),
        ("schema.registry.ssl.keystore.key", "x", "keystore.certificate.chain"),
    ],
)
@pytest.mark.parametrize("definition", [SOURCE, SINK], ids=["source", "sink"])
def test_what_is_wrong_with_a_registry_is_told_by_name(definition, key, value, says):
    config = {"value.converter.schema.registry.url": "http://r:8081", f"value.converter.{key}": value}
    found = problems(config, definition)
    assert any(says in f"{name} {text}" for name, text in found.items()), found
    assert "pw" not in str(found)


def test_a_config_that_was_taken_before_the_url_meant_it_still_runs():
    config = {
        **BASE,
        "value.converter.schema.registry.url": "nonsense",
        "value.converter.basic.auth.credentials.source": "SASL_INHERIT",
    }
    SOURCE.parse(config)
    assert registry_of(config, "value") is None


def test_logins_are_secrets_and_addresses_decide_where_they_go():
    for definition in (SOURCE, SINK, SPARK):
        for side in ("key", "value"):
            at = f"{side}.converter."
            assert definition.connects(f"{at}schema.registry.url") is True
            assert definition.connects(f"{at}schema.registry.ssl.truststore.certificates") is True
            assert {
                f"{at}basic.auth.user.info",
                f"{at}bearer.auth.token",
                f"{at}schema.registry.ssl.keystore.key",
            } <= definition.secrets
    masked = SOURCE.mask(
        {"value.converter.basic.auth.user.info": "a:b", "value.converter.schema.registry.basic.auth.user.info": "a:b"}
    )
    assert set(masked.values()) == {"********"} or "a:b" not in masked.values()
    settings = registry_of(
        {"value.converter.schema.registry.url": "http://r", "value.converter.basic.auth.user.info": "a:secret"}, "value"
    )
    assert isinstance(settings, RegistrySettings)
    assert "secret" not in repr(settings)


def test_a_warehouse_sink_asks_one_registry():
    config = {f"{side}.converter.schema.registry.url": f"http://{side}:1" for side in ("key", "value")}
    base = {"topics": "t", "warehouse": "parquet", "warehouse.path": "/tmp/w"}
    found = [value.name for value in SPARK.validate({**base, **config}) if value.errors]
    assert found == ["key.converter.schema.registry.url"]


def test_every_converter_is_a_part_that_can_be_asked_for_with_its_keys():
    names = [part.name for part in PARTS if part.kind == "converter"]
    assert names == [each.name for each in FORMATS]
    assert [key.name for key in part_of("ProtobufConverter").keys] == [
        "optional.for.nullables", "wrapper.for.nullables", "scrub.invalid.names",
    ]  # fmt: skip
    assert all(part_of(name).doc for name in names)
    assert len({key.name for key in converter_keys()}) == len(list(converter_keys()))
