"""Converters of the worker's properties, for connectors that name none."""

from __future__ import annotations

import pytest
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.config.inherited_converters import INHERITED, inherited_of, with_inherited

PROPERTIES = {
    "key.converter": "json",
    "key.converter.schemas.enable": "false",
    "value.converter": "protobuf",
    "value.converter.schema.registry.url": "http://r:1",
    "value.converterx": "no",
    "header.converter": "no",
    "group.id": "g",
}
SOURCE = {"connector.class": "datagen", "topic.prefix": "shop"}


def test_they_have_no_effect_unless_the_operator_says_so():
    assert inherited_of(PROPERTIES, {INHERITED: False}) == {}
    found = inherited_of(PROPERTIES, {INHERITED: True})
    assert found == {key: PROPERTIES[key] for key in list(PROPERTIES)[:4]}


def test_a_connector_has_each_side_whole_or_its_own():
    rules = inherited_of(PROPERTIES, {INHERITED: True})
    assert with_inherited(SOURCE, rules) == {**rules, **SOURCE}
    own = {**SOURCE, "key.converter": "avro"}
    assert with_inherited(own, rules) == {**own, **{key: rules[key] for key in rules if key.startswith("value.")}}


def test_a_login_of_the_workers_is_sent_to_no_address_of_the_connectors():
    login = {"value.converter": "avro", "value.converter.basic.auth.user.info": "shop:secret"}
    own = {**SOURCE, "value.converter.schema.registry.url": "http://evil"}
    assert with_inherited(own, login) == own


@pytest.mark.parametrize("name", ["file-source", "spark", "no-such-connector", ""])
def test_connectors_without_such_converters_are_as_they_are(name):
    rules = inherited_of(PROPERTIES, {INHERITED: True})
    config = {"connector.class": name}
    assert with_inherited(config, rules) == config


def test_references_in_them_are_resolved(tmp_path):
    secret = tmp_path / "login"
    secret.write_text("shop:secret")
    rules = {
        "value.converter": "avro", "value.converter.basic.auth.user.info": f"${{dir:{tmp_path}:login}}",
        "config.providers.dir.param.allowed.paths": str(tmp_path),
    }  # fmt: skip
    assert resolve(SOURCE, rules)["value.converter.basic.auth.user.info"] == "shop:secret"
