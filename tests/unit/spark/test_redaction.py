"""What Spark shows to nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cdcworker.connectors.config import Secret
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.kafka import jvm_settings
from cdcworker.connectors.spark.redaction import NAMES, TEXTS
from cdcworker.connectors.spark.session import settings
from cdcworker.connectors.spark.warehouses import catalog_settings, spark_settings

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
    parsed = CONFIG_DEF.parse({**config, "warehouse.catalog.secrets": "header.X-Tenant=canary,token=canary"})
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
    ],
)
def test_a_secret_in_a_text_is_cut_out_of_it(text):
    assert "canary" not in re.sub(TEXTS, "*", text)
    assert re.sub(TEXTS, "*", "table public.orders at jdbc:postgresql://h:5432/db") == (
        "table public.orders at jdbc:postgresql://h:5432/db"
    )
    assert re.search(NAMES, "password")
