"""Where a warehouse's bucket is, by the config of a sink."""

from __future__ import annotations

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.allowed_hosts import HostPolicy, parse_allowed
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.schemas.errors import CdcError

BUCKET = {
    "name": "files",
    "topics": "t",
    "warehouse": "parquet",
    "warehouse.path": "s3://lake/some//prefix/",
    "warehouse.s3.endpoint": "http://127.0.0.1:9",
    "warehouse.s3.path.style.access": "true",
    "warehouse.s3.access.key": "key",
    "warehouse.s3.secret.key": "secret",
}


@pytest.mark.parametrize("path", ["s3://lake", "s3://lake/x", "s3a://my.lake-2/x/y"])
def test_a_bucket_needs_no_folder_of_the_worker(path):
    config = CONFIG_DEF.parse({**BUCKET, "warehouse.path": path})
    kind = kind_of(config)
    kind.check_paths(config, ())
    assert kind.location(config).startswith(f"parquet {path}")
    writer = kind.open(config, WriterTask("files"))
    assert writer._storage.place("a/b").startswith("s3://")


def test_empty_parts_of_a_prefix_are_left_out():
    writer = kind_of(BUCKET).open(CONFIG_DEF.parse(BUCKET), WriterTask("files"))
    assert writer._storage.place("a/b") == "s3://lake/some/prefix/a/b"


@pytest.mark.parametrize("path", ["hdfs://nn/x", "s3n://lake/x"])
def test_other_stores_are_refused_by_name(path):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**BUCKET, "warehouse.path": path})
    assert "expects a folder, s3://bucket/prefix, gs://" in str(caught.value)
    # A config of another version that was not validated here is not opened.
    config = {**CONFIG_DEF.parse(BUCKET), "warehouse.path": path}
    with pytest.raises(CdcError) as caught:
        kind_of(config).open(config, WriterTask("files", file_roots=["/"]))
    assert caught.value.code == "spark.target_store_unfit"


@pytest.mark.parametrize(
    "more",
    [
        {"warehouse.path": "s3://La_ke/x"},
        {"warehouse.path": "s3://l/x"},
        {"warehouse.path": "s3://key:secret@lake/x"},
        {"warehouse.path": "s3://lake/../x"},
        {"warehouse.path": "s3://lake/x?y"},
        {"warehouse.s3.access.key": ""},
        {"warehouse.s3.secret.key": ""},
        {"warehouse.s3.endpoint": "127.0.0.1:9"},
        {"warehouse.s3.endpoint": "http://user:password@127.0.0.1"},
        {"warehouse.s3.endpoint": "http://169.254.169.254"},
        {"warehouse.s3.region": "eu west"},
    ],
)
def test_what_is_wrong_with_the_keys_of_a_bucket_is_said(more):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**BUCKET, **more})
    assert next(iter(more)) in str(caught.value)
    assert "password" not in str(caught.value)


DELTA = {**BUCKET, "warehouse": "delta"}


def test_delta_tables_in_a_bucket_need_no_folder_of_the_worker_and_no_further_library():
    config = CONFIG_DEF.parse(DELTA)
    kind = kind_of(config)
    kind.check_paths(config, ())
    writer = kind.open(config, WriterTask("files"))
    assert writer._tables.name(LakeName("public", "t")) == "delta.`s3://lake/some/prefix/public/t`"
    assert writer._tables._bucket.place("a") == "s3://lake/some/prefix/a"
    assert kind.libraries == "delta"


def test_a_uri_without_keys_is_opened_by_the_hadoop_client_of_a_worker_that_opens_everything():
    config = CONFIG_DEF.parse({name: value for name, value in DELTA.items() if "warehouse.s3" not in name})
    kind = kind_of(config)
    with pytest.raises(CdcError) as caught:
        kind.check_paths(config, ["/srv"])
    assert caught.value.code == "file.path_not_allowed"
    writer = kind.open(config, WriterTask("files", file_roots=["/"]))
    assert writer._tables._bucket is None
    assert kind.probe(config) == []


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"warehouse.s3.access.key": ""}, "warehouse.s3.access.key"),
        ({"warehouse.s3.secret.key": ""}, "warehouse.s3.secret.key"),
        ({"warehouse.path": "s3://l/x"}, "warehouse.path"),
        ({"spark.launcher": "client", "spark.master": "spark://127.0.0.1:7077"}, "spark.master"),
        ({"warehouse": "iceberg", "warehouse.path": "/srv/lake"}, "warehouse.s3.endpoint"),
    ],
)
def test_what_a_lake_in_a_bucket_cannot_do_is_said(more, key):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**DELTA, **more})
    assert key in str(caught.value)


@pytest.mark.parametrize("catalog", ["hadoop", "rest", "jdbc"])
def test_iceberg_in_a_bucket_has_its_tables_there_whatever_the_catalog(catalog):
    uri = {"rest": "https://127.0.0.1:1", "jdbc": "jdbc:sqlite:/tmp/catalog"}.get(catalog, "")
    config = CONFIG_DEF.parse(
        {**DELTA, "warehouse": "iceberg", "warehouse.catalog": catalog, "warehouse.catalog.uri": uri}
    )
    writer = kind_of(config).open(config, WriterTask("files", file_roots=["/"]))
    assert writer._tables._settings["warehouse"] == "s3://lake/some/prefix"
    assert writer._tables._store.place("") == "s3://lake/some/prefix/"


def opened(more=None):
    config = CONFIG_DEF.parse({**BUCKET, **(more or {})})
    kind = kind_of(config)
    return (
        lambda: kind.check_paths(config, ()),
        lambda: kind.open(config, WriterTask("files")),
        lambda: kind.admin(config, LedgerAccess("files", (1, 0)), None).__enter__().offsets(),
        lambda: kind.dead_letters(config, LedgerAccess("files", (1, 0)), None).__enter__(),
        lambda: kind.verify_side(config, LedgerAccess("files", (1, 0)), None).__enter__(),
    )


@pytest.mark.parametrize(
    "policy", [HostPolicy(loopback=False), HostPolicy(allowed=parse_allowed(["10.0.0.0/8"]))], ids=["loopback", "list"]
)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_an_endpoint_that_is_closed_to_connectors_is_never_asked(monkeypatch, policy, kind):
    monkeypatch.setattr(allowed_hosts, "_policy", policy)
    for step in opened({"warehouse": kind}):
        with pytest.raises(CdcError) as caught:
            step()
        assert caught.value.code == "config.host_not_allowed"


def test_an_endpoint_without_tls_is_judged(monkeypatch):
    monkeypatch.setattr(tls_policy, "_needed", "verified")
    # What stays on this machine needs none.
    opened()[0]()
    for step in opened({"warehouse.s3.endpoint": "http://192.0.2.1:9"}):
        with pytest.raises(CdcError) as caught:
            step()
        assert caught.value.code == "config.tls_not_enough"
