"""Secrets under innocuous names: planted in every form that is known, and looked for in what is shown."""

from __future__ import annotations

import time

import pytest
from cdcworker.connectors import veil
from cdcworker.connectors.config import ConfigDef
from cdcworker.connectors.postgres.source import PostgresSource
from cdcworker.schemas.errors import CdcError
from cdcworker.worker import references
from cdcworker.worker.rest.dry import changes
from cdcworker.worker.security import redact
from cdcworker.worker.validate import MASKED_VALUE, Catalog, check_keys, telling

PLANTED = "hunter2x"
SALT = f"column.mask.hash.SHA-256.with.salt.{PLANTED}"
VALUES = {
    "database.jdbc.url": f"jdbc:postgresql://db:5432/shop?user=a&password={PLANTED}&ssl=true",
    "value.converter.schema.registry.url": f"https://user:{PLANTED}@registry:8081",
    "transforms.a.config": f'org.x.PlainLoginModule required username="a" password="{PLANTED}";',
    "header.converter.settings": f'{{"apiKey": "{PLANTED}", "n": 1}}',
    "database.initial.statements": f"set app.token='{PLANTED}'",
    "key.converter.x": f"jdbc:sqlserver://h;user=u;Pwd={PLANTED};encrypt=true",
    "producer.override.sasl.jaas.config": f"x required secret={PLANTED};",
}
CONFIG = {
    "connector.class": "postgres",
    "name": "shop",
    "topic.prefix": "shop",
    "database.hostname": "db",
    "database.user": "u",
    "database.dbname": "d",
    SALT: "public.t.a",
    "value.converter.schema.registry.url": VALUES["value.converter.schema.registry.url"],
    "heartbeat.action.query": f"update beat set token='{PLANTED}'",
}


@pytest.mark.parametrize("name", VALUES)
def test_a_secret_inside_of_a_value_is_masked_whatever_the_name(name):
    for definition in (ConfigDef(()), PostgresSource.config_def):
        shown = definition.mask({name: VALUES[name]})[name]
        assert PLANTED not in shown
        assert "****" in shown


@pytest.mark.parametrize(
    "value",
    [
        "inventory.customers:pk1;(.*).secret:pk3", "public.users.password", "jdbc:postgresql://db:5432/shop?user=a",
        "https://registry:8081/path@x", "password=${env:SHOP_PASSWORD}", "https://${env:U}:${env:P}@registry", "a:b@c",
    ],
)  # fmt: skip
def test_what_is_no_secret_and_what_is_a_reference_stay(value):
    assert veil.text(value) == value
    assert list(veil.secrets({"k": value})) == []


def test_a_salt_is_no_part_of_a_name_that_is_shown():
    two = {SALT: "a.b", f"{SALT}2": "c.d", "column.mask.with.3.chars": "e.f"}
    shown = ConfigDef(()).mask(two)
    assert PLANTED not in str(shown)
    assert sorted(shown.values()) == ["a.b", "c.d", "e.f"], "two of them are two still"


def test_what_was_read_can_be_written_back():
    catalog = Catalog()
    read = catalog.mask(CONFIG)
    assert PLANTED not in str(read)
    assert catalog.unmask(read, CONFIG) == CONFIG


@pytest.mark.parametrize(
    "sent",
    [
        {SALT.replace(PLANTED, "****"): "public.t.a"},
        {"value.converter.schema.registry.url": "https://user:****@elsewhere:8081"},
    ],
)
def test_what_is_masked_where_nothing_is_kept_is_refused(sent):
    stored = {**CONFIG}
    stored.pop(SALT)
    with pytest.raises(CdcError) as caught:
        Catalog().unmask({**{name: value for name, value in stored.items() if name not in sent}, **sent}, stored)
    assert caught.value.code == MASKED_VALUE


def test_validation_says_nothing_of_them():
    wrong = {**CONFIG, SALT: "(", "database.jdbc.url": VALUES["database.jdbc.url"], f"{SALT}.": None}
    report = check_keys(Catalog(), wrong)
    assert report.errors
    assert PLANTED not in str(report.config_infos())
    assert PLANTED not in str(report.shown(report.findings))
    assert PLANTED not in str(report.lines())
    with pytest.raises(CdcError) as caught:
        report.definition.parse({name: value for name, value in wrong.items() if value is not None})
    assert PLANTED not in str(caught.value.to_dict())


def test_the_differences_that_go_to_the_audit_say_nothing_of_them():
    class Stored:
        def __init__(self, config):
            self.config = config

    other = {**CONFIG, "value.converter.schema.registry.url": "https://user:another1@registry:8081"}
    other[SALT.replace(PLANTED, "another2")] = other.pop(SALT)
    found = changes(Catalog().mask, Stored(CONFIG), Stored(other))
    assert len(found) == 3
    assert not any(word in str(found) for word in (PLANTED, "another"))


def test_they_are_cut_out_of_whatever_a_task_says(monkeypatch):
    redact.forget()
    references.resolve({**CONFIG, "x.url": "postgresql://u:p%40ss%2Fw@h/d"})
    try:
        for text in (f"login failed for {PLANTED}", "the password p@ss/w is wrong", "p%40ss%2Fw", f"the key {SALT}"):
            assert redact.clean(text) != text
        assert PLANTED in telling(CONFIG, ())
    finally:
        redact.forget()


@pytest.mark.parametrize(
    "value", ["a" * 500_000, "token" * 100_000, "token=${" * 60_000, 'password="' * 50_001, "://a:" * 99_999]
)
def test_long_values_take_no_time(value):
    began = time.process_time()
    veil.text(value)
    assert time.process_time() - began < 5.0
