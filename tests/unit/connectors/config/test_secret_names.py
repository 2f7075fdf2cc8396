"""Secrets under innocuous names: planted in every form that is known, and looked for in what is shown."""

from __future__ import annotations

import json
import time

import pytest
from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config import config_providers as references
from cdcworker.worker.logs import redaction
from cdcworker.worker.rest.dry_run import config_changes
from cdcworker.worker.validation.validate import MASKED_VALUE, ConnectorCatalog, check_keys, telling

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
    "a": f"postgresql://svc$app:{PLANTED}@h/db",
    "b": f"postgresql://${{env:U}}$x:{PLANTED}@h/db",
    "c": f"postgresql://u@srv:{PLANTED}@h/db?x=a@b",
    "d": json.dumps(json.dumps({"user": "u", "password": PLANTED, "n": 1})),
    "e": json.dumps(json.dumps(json.dumps({"password": PLANTED}))),
    "f": f'{{"password":"{PLANTED}',
    "g": f"jdbc:sqlserver://h\\i:1433;user=u;password={PLANTED}",
}
WHOLE = {
    "postgresql://u:pa/ss@h/db": ("postgresql://u:****@h/db", "pa/ss"),
    "postgresql://u:pa?s#s@h/db": ("postgresql://u:****@h/db", "pa?s#s"),
    r"user=a password='it\'s me' b=1": ("user=a password='****' b=1", "it's me"),
    "set token='it''s me', b=1": ("set token='****', b=1", "it's me"),
    r"password=a\ b c=d": ("password=**** c=d", "a b"),
    r'x password="a\"b c" d=1': ('x password="****" d=1', 'a"b c'),
    r'"{\"password\":\"z, z\",\"n\":1}"': (r'"{\"password\":\"****\",\"n\":1}"', "z, z"),
    r'"{\"url\":\"x?password=zzz\",\"n\":1}"': (r'"{\"url\":\"x?password=****,\"n\":1}"', "zzz"),
    "jdbc:sqlserver://h:1433;password=p@ss;a=b": ("jdbc:sqlserver://h:1433;password=****;a=b", "p@ss"),
    "http://h:8081/x,http://u:p/w@h2": ("http://h:8081/x,http://u:****@h2", "p/w"),
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
        "https://registry:8081/path@x", "https://registry:${env:PORT}/path@x",
        "http://h:8081?x=a@b", "password=${env:SHOP_PASSWORD}", "https://${env:U}:${env:P}@registry", "a:b@c",
    ],
)  # fmt: skip
def test_what_is_no_secret_and_what_is_a_reference_stay(value):
    assert secret_names.text(value) == value
    assert list(secret_names.secrets({"k": value})) == []


@pytest.mark.parametrize("value", WHOLE)
def test_nothing_of_a_secret_stays_behind_the_mask(value):
    shown, secret = WHOLE[value]
    assert secret_names.text(value) == shown
    assert secret in set(secret_names.secrets({"k": value}))
    assert secret_names.holds_mask(shown)
    assert secret_names.text(shown) == shown


@pytest.mark.parametrize("name", VALUES)
def test_each_is_known_for_cutting_and_what_is_shown_holds_a_mask(name):
    assert PLANTED in set(secret_names.secrets(VALUES))
    assert PLANTED in set(secret_names.secrets({name: VALUES[name]}))
    assert secret_names.holds_mask(secret_names.text(VALUES[name]))


def test_a_password_that_is_told_openly_cuts_up_nothing():
    config = {
        "connector.class": "file",
        "x.url": "postgresql://postgres:postgres@h/d?password=hunter22&sslpassword=shop",
    }
    config |= {"topics": "shop.orders", "y.url": "http://u:app1@h", "z.password": "app1"}
    redaction.forget()
    references.resolve(config)
    try:
        said = "postgres.slot_lost: role postgres, shop.orders, hunter22, app1"
        assert redaction.clean(said) == "postgres.slot_lost: role postgres, shop.orders, ****, ****"
        assert sorted(telling(config, {"z.password"})) == ["app1", "app1", "hunter22"]
    finally:
        redaction.forget()


def test_a_salt_is_no_part_of_a_name_that_is_shown():
    two = {SALT: "a.b", f"{SALT}2": "c.d", "column.mask.with.3.chars": "e.f"}
    shown = ConfigDef(()).mask(two)
    assert PLANTED not in str(shown)
    assert sorted(shown.values()) == ["a.b", "c.d", "e.f"], "two of them are two still"


def test_what_was_read_can_be_written_back():
    catalog = ConnectorCatalog()
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
        ConnectorCatalog().unmask(
            {**{name: value for name, value in stored.items() if name not in sent}, **sent}, stored
        )
    assert caught.value.code == MASKED_VALUE


def test_validation_says_nothing_of_them():
    wrong = {**CONFIG, SALT: "(", "database.jdbc.url": VALUES["database.jdbc.url"], f"{SALT}.": None}
    report = check_keys(ConnectorCatalog(), wrong)
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
    found = config_changes(ConnectorCatalog().mask, Stored(CONFIG), Stored(other))
    assert len(found) == 3
    assert not any(word in str(found) for word in (PLANTED, "another"))


def test_they_are_cut_out_of_whatever_a_task_says(monkeypatch):
    redaction.forget()
    references.resolve({**CONFIG, "x.url": "postgresql://u:p%40ss%2Fw@h/d"})
    try:
        for text in (f"login failed for {PLANTED}", "the password p@ss/w is wrong", "p%40ss%2Fw", f"the key {SALT}"):
            assert redaction.clean(text) != text
        assert PLANTED in telling(CONFIG, ())
    finally:
        redaction.forget()


@pytest.mark.parametrize(
    "value",
    [
        "a" * 500_000,
        "token" * 100_000,
        "token=${" * 60_000,
        'password="' * 50_001,
        "://a:" * 99_999,
        "password='" * 50_001,
        'token\\":\\"' * 40_000,
        "password=\\" * 50_001,
        "://a:x/" * 70_000,
        "://" + "$" * 200_000,
        "://" + "${" * 50_000,
        "://a:" + "/?x" * 100_000,
        "password" + "\\" * 200_000,
        'token=\\"' + "\\" * 200_000,
    ],
)
def test_long_values_take_no_time(value):
    began = time.process_time()
    secret_names.text(value)
    assert time.process_time() - began < 5.0
