"""Connector configuration: types, defaults, nearest names, notes, secrets that do not print."""

from __future__ import annotations

import json
import pickle

import pytest
from cdcworker.connectors.config.common_keys import ACCEPTED, CONNECTOR_KEYS, SOURCE_KEYS
from cdcworker.connectors.config.definition import (
    ConfigDef,
    ConfigKey,
    Secret,
    between,
    has_reference,
    is_regex,
    matches,
    non_empty,
    one_of,
    regex_list,
)
from cdcworker.connectors.registry.names import lookup, plugins
from cdcworker.schemas.errors import CdcError

DEFINITION = ConfigDef(
    [
        ConfigKey("name", required=True),
        ConfigKey("port", "INT", default=5432, validator=between(1, 65535)),
        ConfigKey("tiny", "SHORT", default=1),
        ConfigKey("big", "LONG"),
        ConfigKey("ratio", "DOUBLE", default=0.5),
        ConfigKey("active", "BOOLEAN", default=True),
        ConfigKey("mode", default="a", validator=one_of("a", "b"), recommended=("a", "b")),
        ConfigKey("tables", "LIST", default=(), validator=regex_list),
        ConfigKey("password", "PASSWORD", note="Prefer a reference."),
    ],
    accepted={"old.key": "Not needed.", "converter.*": "Not needed either.", "producer.": "Passed on."},
)


def errors(config: dict) -> dict[str, tuple[str, ...]]:
    return {value.name: value.errors for value in DEFINITION.validate(config) if value.errors}


def test_values_are_typed_and_missing_ones_have_their_default():
    values = DEFINITION.parse(
        {
            "name": " x ",
            "port": "1",
            "big": "-9223372036854775808",
            "active": "FALSE",
            "tables": "a, b,,c",
            "ratio": "1e3",
        }
    )
    assert values == {
        "name": "x",
        "port": 1,
        "tiny": 1,
        "big": -(2**63),
        "ratio": 1000.0,
        "active": False,
        "mode": "a",
        "tables": ["a", "b", "c"],
        "password": None,
    }


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("port", "x", "Not a number of type INT"),
        ("port", "70000", "Value must be no more than 65535"),
        ("port", "2147483648", "Not a number of type INT"),
        ("port", "", "Not a number of type INT"),
        ("port", "1_000", "Not a number of type INT"),
        ("port", "٣", "Not a number of type INT"),
        ("tiny", "32768", "Not a number of type SHORT"),
        ("big", "9223372036854775808", "Not a number of type LONG"),
        ("ratio", "half", "Not a number of type DOUBLE"),
        ("active", "yes", "Expected value to be either true or false"),
        ("mode", "c", "String must be one of: a, b"),
        ("tables", "ok,(", "item 2 is not a regular expression"),
        ("name", " ", "String must be non-empty"),
    ],
)
def test_a_wrong_value_is_named_and_not_repeated_where_it_may_be_a_secret(key, text, problem):
    found = errors({"name": "x", key: text})
    assert list(found) == [key]
    assert problem in found[key][0]
    assert key in found[key][0]
    with pytest.raises(CdcError) as caught:
        DEFINITION.require_valid({"name": "x", key: text})
    assert problem in caught.value.message
    assert key in caught.value.message
    if text.strip() and len(text) > 4:
        assert text not in caught.value.message.replace("65535", "")


def test_a_refusal_shows_a_value_as_it_may_be_shown_in_connects_words():
    assert errors({"name": "x", "port": "abc"})["port"] == (
        "Invalid value abc for configuration port: Not a number of type INT",
    )
    (told,) = errors({"name": "x", "mode": "http://user:hunter2@host/"})["mode"]
    assert "hunter2" not in told
    (told,) = errors({"name": "x", "mode": "m" * 500})["mode"]
    assert len(told) < 200
    values = {value.name: value for value in DEFINITION.validate({"name": "x", "port": "abc", "mode": "c"})}
    assert (values["port"].value, values["mode"].value) == (None, "c")


def test_all_problems_come_in_one_error():
    with pytest.raises(CdcError) as caught:
        DEFINITION.parse({"port": "x", "mode": "c"})
    assert caught.value.code == "config.invalid"
    assert caught.value.message.count("\n") == 3
    assert 'Missing required configuration "name" which has no default value.' in caught.value.message


def test_an_unknown_key_names_its_nearest():
    assert "did you mean password?" in errors({"name": "x", "pasword": "hunter2"})["pasword"][0]
    assert "hunter2" not in str(DEFINITION.validate({"name": "x", "pasword": "hunter2"}))
    assert "did you mean" not in errors({"name": "x", "zzz": "1"})["zzz"][0]


@pytest.mark.parametrize("key", ["old.key", "converter.a", "converter.", "producer.acks"])
def test_accepted_keys_carry_a_note_and_no_error(key):
    value = DEFINITION.validate({"name": "x", key: "1"})[-1]
    assert value.name == key
    assert value.note
    assert not value.errors


def test_a_key_that_only_shares_letters_with_an_accepted_prefix_is_unknown():
    assert errors({"name": "x", "producers": "1"})


def test_secrets_are_masked_wherever_they_are_shown():
    config = {"name": "x", "password": "hunter2", "producer.sasl.jaas.config": "hunter2"}
    assert "hunter2" not in str(DEFINITION.validate(config))
    assert DEFINITION.mask(config) == {"name": "x", "password": "****", "producer.sasl.jaas.config": "****"}
    assert DEFINITION.mask({"password": "${env:PW}"}) == {"password": "${env:PW}"}
    assert DEFINITION.mask({"password": "${env:PW}hunter2"}) == {"password": "****"}
    assert DEFINITION.secrets == {"password"}


def test_a_secret_does_not_print_and_does_not_travel():
    secret = DEFINITION.parse({"name": "x", "password": " hunter2 "})["password"]
    assert secret.reveal() == " hunter2 "
    assert "hunter2" not in f"{secret} {secret!r} {secret!s:>20} {[secret]}"
    assert secret == Secret(" hunter2 ")
    assert secret != " hunter2 "
    assert not Secret("")
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_references_are_taken_as_they_are_until_they_are_resolved():
    values = DEFINITION.parse({"name": "${env:NAME}", "port": "${env:PORT}", "password": "${file:/run/secrets/x:pw}"})
    assert values["name"] == "${env:NAME}"
    assert values["port"] == 5432
    assert values["password"].reveal() == "${file:/run/secrets/x:pw}"
    assert not has_reference("$env:NAME {x}")


def test_a_check_over_several_keys_runs_when_each_is_fine():
    definition = ConfigDef(
        [ConfigKey("low", "INT", default=1), ConfigKey("high", "INT", default=2)],
        check=lambda v: [("high", "must not be below low")] if v["high"] < v["low"] else [],
    )
    assert [v.errors for v in definition.validate({"low": "3"})] == [(), ("high must not be below low",)]
    assert [bool(v.errors) for v in definition.validate({"low": "x"})] == [True, False]


def test_definitions_have_connects_form():
    first = DEFINITION.definitions()[1]
    assert first == {
        "name": "port",
        "type": "INT",
        "required": False,
        "default_value": "5432",
        "importance": "MEDIUM",
        "documentation": "",
        "group": None,
        "width": "MEDIUM",
        "display_name": "port",
        "dependents": [],
        "order_in_group": 2,
        "order": 2,
    }
    assert [d["default_value"] for d in DEFINITION.definitions() if d["name"] in ("active", "tables")] == ["true", ""]


def test_a_key_that_is_defined_twice_is_a_bug():
    with pytest.raises(ValueError, match="twice"):
        ConfigDef([ConfigKey("a"), ConfigKey("a")])


def test_a_value_that_is_no_string_is_an_error_and_not_a_crash():
    assert errors({"name": 5})["name"] == ("name expects a string",)  # type: ignore[dict-item]


def test_validators_say_what_they_expect():
    assert non_empty("") == "String must be non-empty"
    assert matches("[a-z]+", "small letters")("A") == "expects small letters"
    assert "not a regular expression" in (is_regex("(") or "")
    assert between(low=1)(0) == "Value must be at least 1"


def test_common_keys_do_not_overlap_and_have_words():
    definition = ConfigDef([*CONNECTOR_KEYS, *SOURCE_KEYS], ACCEPTED)
    assert all(key.doc for key in definition.keys.values())
    assert not set(definition.keys) & set(ACCEPTED)
    values = definition.parse(
        {"name": "n", "connector.class": "postgres", "key.converter": "x", "value.converter.y": "z"}
    )
    assert values["tasks.max"] == 1


def test_debezium_class_names_are_known_and_others_are_refused_with_the_nearest():
    assert lookup("io.debezium.connector.postgresql.PostgresConnector") is lookup(" postgres ")
    with pytest.raises(CdcError) as caught:
        lookup("postgress")
    assert caught.value.code == "config.unknown_connector"
    assert "did you mean postgres?" in caught.value.message
    with pytest.raises(CdcError):
        lookup("os.system")
    assert {plugin.kind for plugin in plugins()} == {"source", "sink"}


@pytest.mark.parametrize(
    ("name", "plugin"),
    [
        ("io.debezium.connector.mysql.MySqlConnector", "mysql"),
        ("MySqlConnector", "mysql"),
        ("io.debezium.connector.mariadb.MariaDbConnector", "mariadb"),
        ("MariaDbConnector", "mariadb"),
    ],
)
def test_debeziums_names_are_those_of_our_sources(name: str, plugin: str) -> None:
    assert lookup(name).name == lookup(plugin).name == plugin
