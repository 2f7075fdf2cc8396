"""What Spark shows to nobody."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from cdcworker.connectors.config.definition import Secret
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.runtime.client_properties import jvm_settings
from cdcworker.connectors.spark.runtime.redaction import NAMES, TEXTS
from cdcworker.connectors.spark.runtime.session import settings
from cdcworker.connectors.spark.spark_host import spark_settings
from cdcworker.connectors.warehouses.lake.kind import catalog_settings

PEM = "-----BEGIN {0}-----\ncanary\n-----END {0}-----\n"
KAFKA = {
    "bootstrap.servers": "k:9092",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "canary",
    "ssl.key.password": "canary",
    "ssl.key.pem": PEM.format("PRIVATE KEY"),
    "ssl.certificate.pem": PEM.format("CERTIFICATE").replace("canary", "open"),
}
STORE = {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "canary"}
LAKE = {"topics": "t", "warehouse": "iceberg", "warehouse.path": "/srv/lake"}

LONG = [
    *("token" * 100_000, "password" + "a" * 400_000, "://" + "a" * 400_000, "://a:" + "b" * 400_000, "://" * 100_000),
    *("secret " + " " * 200_000, ("token" + " " * 50) * 5_000, "token=" * 80_000, "://a:" * 80_000, "://a:x/" * 60_000),
    *('password="' * 40_001, "password='" * 40_001, 'token\\":\\"' * 40_000, "password" + "\\" * 200_000),
    *("://a:" + "/?x" * 100_000, 'token=\\"' + "\\" * 200_000, "password=\\" * 40_001),
]


def masked(name, pattern=""):
    return re.search(pattern or settings(Path("/s"), 1)["spark.redaction.regex"], name) is not None


@pytest.mark.parametrize("kafka", [KAFKA, STORE])
def test_what_is_secret_of_kafkas_options_is_masked_by_its_name(kafka):
    found = jvm_settings(kafka)
    secret = [name for name, value in found.items() if "canary" in value]
    assert secret
    assert [name for name in secret if not masked(f"kafka.{name}")] == []
    assert not masked("kafka.bootstrap.servers")


@pytest.mark.parametrize("name", sorted(CONFIG_DEF.secrets))
def test_every_secret_key_of_the_sink_is_masked(name):
    assert masked(name)


@pytest.mark.parametrize(
    "name",
    [
        *("jdbc.password", "credential", "token", "oauth2-client-secret", "header.Authorization", "rest.auth.basic.password"),
        *("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "fs.s3a.secret.key", "gcs.oauth2.token"),
        *("adls.auth.shared-key.account.key", "adls.connection-string.store", "adls.sas-token.store", "header.Cookie"),
    ],
)  # fmt: skip
def test_what_stores_and_catalogs_call_a_secret_is_masked(name):
    assert masked(f"spark.sql.catalog.cdc_lake.{name}")


@pytest.mark.parametrize("form", [str, Secret])
def test_what_a_config_gives_as_secret_is_masked_however_it_is_called(form):
    config = {**LAKE, "warehouse.catalog.secrets": form("header.X-Tenant=canary, io.pin (1)=canary,token=canary")}
    given = dict(spark_settings(config))["spark.redaction.regex"]
    for name in ("header.X-Tenant", "io.pin (1)", "token"):
        assert masked(f"spark.sql.catalog.cdc_lake.{name}", given)
    assert not masked("spark.sql.catalog.cdc_lake.type", given)
    rest = {"warehouse.catalog": "rest", "warehouse.catalog.uri": "http://127.0.0.1"}
    parsed = CONFIG_DEF.parse({**config, **rest, "warehouse.catalog.secrets": "header.X-Tenant=canary,token=canary"})
    names = [name for name, value in catalog_settings(parsed, ["/"]).items() if "canary" in value]
    assert len(names) == 2
    given = dict(spark_settings(parsed))["spark.redaction.regex"]
    assert all(masked(name, given) for name in names)


def test_nothing_is_set_for_a_config_whose_secrets_are_covered():
    assert spark_settings({**LAKE, "warehouse.catalog.secrets": "token=canary"}) == ()
    assert spark_settings(LAKE) == ()


@pytest.mark.parametrize(
    "text",
    [
        "jdbc:postgresql://u:canary@h:5432/db",
        "jdbc:postgresql://h/db?user=u&password=canary",
        "Relation [kafka.ssl.key.password=canary,topic=t]",
        "secret_key: canary",
        'required username="u" password="can, canary";',
        'secret_key: "can canary"',
        "password='can''t canary' b=1",
        '{"password": "canary"}',
        '{"password": "can\\"canary", "n": 1}',
        '"{\\"password\\":\\"z, canary\\",\\"n\\":1}"',
        "Map(password -> canary, password => canary)",
        "password=can)canary",
        "jdbc:postgresql://u:ca/nary/canary@h/db",
        "redis://:canary@h",
        "jdbc:postgresql://u@srv:p@canary@h/db",
        "jdbc:sqlserver://h:1433;password=p@canary;a=b",
        "jdbc:sqlserver://h\\i:1433;user=u;password=canary",
    ],
)
def test_a_secret_in_a_text_is_cut_out_of_it(text):
    assert "canary" not in re.sub(TEXTS, "*", text)
    assert re.sub(TEXTS, "*", "table public.orders at jdbc:postgresql://h:5432/db") == (
        "table public.orders at jdbc:postgresql://h:5432/db"
    )
    assert re.search(NAMES, "password")


@pytest.mark.parametrize(
    "text",
    [
        "table public.orders at jdbc:postgresql://h:5432/db, id=5, key: string",
        "https://registry:8081/path@x",
        "http://h:8081?x=a@b",
        '{"user": "u", "n": 1}',
    ],
)
def test_a_text_without_secrets_stays(text):
    assert re.sub(TEXTS, "*", text) == text


def test_what_stands_beside_a_secret_stays():
    assert re.sub(TEXTS, "*", '{"user":"u","password":"x","n":1}') == '{"user":"u","*,"n":1}'
    assert re.sub(TEXTS, "*", "jdbc:postgresql://u:x@h:5432/db?a=b") == "jdbc:postgresql://*@h:5432/db?a=b"
    assert re.sub(TEXTS, "*", 'x required password="a\\"b c" d=1;') == "x required * d=1;"


@pytest.mark.parametrize("text", [*LONG, *(f"password={text}" for text in LONG)])
def test_long_texts_take_no_time(text):
    began = time.process_time()
    re.sub(TEXTS, "*", text)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("pattern", [NAMES, TEXTS])
def test_java_goes_through_them_without_a_call_for_each_character(pattern):
    """A group that repeats without end is possessive; and Python's named groups are not Java's."""
    assert not re.search(r"\)[*+](?!\+)", pattern)
    assert "(?P" not in pattern


@pytest.mark.parametrize(
    "name",
    [
        *("fs.s3a.access.key", "fs.s3a.encryption.key", "s3.sse.key", "awsAccessKeyId", "fs.azure.account.key.a.dfs.x.net"),
        *("AccountKey", "SharedAccessKey", "fs.gs.auth.service.account.private.key", "gcs.encryption-key", "X-Api-Key"),
        *("ssl.keystore.key", "sslkey", "header.Proxy-Authorization", "authorisation", "sasl.jaas.config", "basic.auth.user.info"),
        *("spark.authenticate.secret", "spark.ssl.keyPassword", "encryptionKeyValue", "authentication.header", "key", "auth"),
    ],
)  # fmt: skip
def test_what_is_a_secret_elsewhere_is_masked(name):
    assert masked(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "author",
            "book.authors",
            "url.authority",
            "primaryKey",
            "primary.key",
            "foreign_key",
            "spark.sql.legacy.keyValue",
        ),
        *("keywords", "keyspace", "/srv/monkey/x.jar", "spark.authenticate", "spark.sql.shuffle.partitions"),
        "spark.kubernetes.authenticate.driver.serviceAccountName",
    ],
)
def test_a_harmless_name_is_shown(name):
    assert not masked(name)
