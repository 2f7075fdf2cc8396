"""Buckets of Google's and containers of Azure's in the config of a sink."""

from __future__ import annotations

import base64
import json

import pytest
from cdcworker.connectors.config import allowed_hosts
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.schemas.errors import CdcError

OWN = {"name": "sink", "topics": "t"}
ACCOUNT = json.dumps({"client_email": "a@b", "private_key": "k", "token_uri": "http://127.0.0.1:1/token"})
GCS = {
    "warehouse.path": "gs://lake/a//b",
    "warehouse.gcs.credentials": ACCOUNT,
    "warehouse.gcs.endpoint": "http://127.0.0.1:1",
}
AZURE = {
    "warehouse.path": "abfss://lake@account.dfs.core.windows.net/a//b",
    "warehouse.azure.account.key": base64.b64encode(b"k").decode(),
    "warehouse.azure.endpoint": "http://127.0.0.1:1",
}
SIGNED = {
    **AZURE,
    "warehouse.azure.account.key": "",
    "warehouse.azure.sas.token": "?sv=2024-11-04&sp=rcwdl&sig=a%2Fb%3D",
}
PLACES = {"gs": "gs://lake/a/b/x", "abfss": "abfss://lake@account.dfs.core.windows.net/a/b/x"}


def parsed(config, kind="parquet"):
    return CONFIG_DEF.parse({**OWN, "warehouse": kind, **config})


@pytest.mark.parametrize("config", [GCS, AZURE, SIGNED])
def test_the_files_of_a_warehouse_lie_below_the_prefix(config):
    found = parsed(config)
    writer = kind_of(found).open(found, WriterTask("sink"))
    assert writer._storage.place("x") == PLACES[writer._storage.scheme]
    lake = parsed(config, "delta")
    assert kind_of(lake).open(lake, WriterTask("sink"))._tables._bucket.place("x") == PLACES[writer._storage.scheme]


@pytest.mark.parametrize(
    ("config", "more", "key"),
    [
        (GCS, {"warehouse.path": "gs://UPPER/x"}, "warehouse.path"),
        (GCS, {"warehouse.gcs.credentials": ""}, "warehouse.gcs.credentials"),
        (GCS, {"warehouse.gcs.credentials": "no JSON"}, "warehouse.gcs.credentials"),
        (GCS, {"warehouse.gcs.credentials": ACCOUNT.replace("http:", "file:")}, "warehouse.gcs.credentials"),
        (GCS, {"warehouse.gcs.endpoint": "ftp://x"}, "warehouse.gcs.endpoint"),
        (AZURE, {"warehouse.path": "abfss://account.dfs.core.windows.net/x"}, "warehouse.path"),
        (AZURE, {"warehouse.azure.account.key": ""}, "warehouse.azure.account.key"),
        (AZURE, {"warehouse.azure.account.key": "n o base64"}, "warehouse.azure.account.key"),
        (AZURE, {"warehouse.azure.sas.token": "sig=x"}, "warehouse.azure.account.key"),
        (SIGNED, {"warehouse.azure.sas.token": "a word"}, "warehouse.azure.sas.token"),
        (SIGNED, {"warehouse.azure.sas.token": "sv=1&se=2"}, "warehouse.azure.sas.token"),
        (
            SIGNED,
            {"warehouse.azure.sas.token": "https://a.blob.core.windows.net/c?sv=1&sig=x"},
            "warehouse.azure.sas.token",
        ),
    ],
)
def test_what_is_wrong_is_said_at_its_key_without_the_value(config, more, key):
    with pytest.raises(CdcError) as caught:
        parsed({**config, **more})
    assert key in str(caught.value)
    assert not [value for value in more.values() if value and value in str(caught.value)]


@pytest.mark.parametrize("config", [GCS, AZURE, {**GCS, "warehouse.gcs.endpoint": ""}])
def test_a_host_that_is_closed_to_connectors_is_never_asked(monkeypatch, config):
    """Neither the store, nor the server of tokens that the credentials name."""
    found = parsed(config)
    monkeypatch.setattr(allowed_hosts, "_policy", HostPolicy(loopback=False))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_a, **_k: [(2, 1, 6, "", ("127.0.0.1", 0))])
    with pytest.raises(CdcError) as caught:
        kind_of(found).check_paths(found, ())
    assert caught.value.code == "config.host_not_allowed"
