from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.scratch_folder import StateFolder
from cdcworker.connectors.sink_engine import warehouse_kinds
from cdcworker.connectors.sink_engine.kafka.brokers import client_settings
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.sink_errors import from_spark
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.connectors.spark.runtime import kafka_source as read
from cdcworker.connectors.spark.runtime.client_properties import jvm_settings
from cdcworker.connectors.spark.runtime.session import local, settings
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.connectors.warehouses.lake.consistent_sets import WholeLakeWriter
from cdcworker.connectors.warehouses.lake.kind import catalog_settings, delta_tables
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import data_topics, watermark_topics

BASE = {
    "connector.class": "spark",
    "warehouse.hostname": "h",
    "warehouse.user": "u",
    "warehouse.password": "hidden",
    "warehouse.dbname": "d",
}


def test_topics_are_dealt_out_and_none_is_lost():
    shares = SparkSink({**BASE, "topics": "a,b,c,d,e"}).split(2, [])
    assert [share["topics"] for share in shares] == ["a,c,e", "b,d"]


def test_a_pattern_is_replaced_by_the_topics_it_found():
    shares = SparkSink({**BASE, "topics.regex": "s.*"}).split(9, ["s.public.b", "s.public.a", "s.watermark"])
    assert [share["topics"] for share in shares] == ["s.public.a", "s.public.b"]
    for share in shares:  # as the herder starts it: laid over the connector's config
        assert CONFIG_DEF.parse({**BASE, "topics.regex": "s.*", **share})["topics"] == [share["topics"]]


def test_a_pattern_without_topics_gives_no_task():
    assert SparkSink({**BASE, "topics.regex": "s.*"}).split(2, []) == []


def test_topics_beside_the_tables_are_left_out_but_tables_of_the_same_name_are_not():
    names = ["shop.public.message", "shop.public.orders", "shop.message", "shop.transaction", "shop.watermark", "__x"]
    assert data_topics(names) == ["shop.public.message", "shop.public.orders"]


@pytest.mark.parametrize("topics", [{}, {"topics": "a", "topics.regex": "b"}])
def test_exactly_one_of_topics_and_pattern_is_wanted(topics):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**BASE, **topics})
    assert caught.value.code == "config.invalid"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"position.column": "changed_at", "synced.column": "synced_at"}, None),
        ({"position.column": "none", "output.mode": "log"}, None),
        ({"position.column": "none"}, "position.column"),
        ({"position.column": "_cdc_key"}, "position.column"),
        ({"synced.column": "_cdc_deleted"}, "synced.column"),
        ({"synced.column": "_cdc_position"}, "synced.column"),
        ({"schema.change.policy": "fail", "schema.change.drop": "delete"}, "schema.change.drop"),
        ({"position.column": "at", "synced.column": "at"}, "synced.column"),
        ({"output.mode": "scd2"}, None),
        ({"output.mode": "scd2", "position.column": "none"}, "position.column"),
        ({"output.mode": "scd2", "delete.mode": "soft"}, "delete.mode"),
        ({"output.mode": "scd2", "schema.change.drop": "delete"}, "schema.change.drop"),
    ],
)
def test_columns_of_the_sink_have_names_of_their_own(more, named):
    found = CONFIG_DEF.validate({**BASE, "topics": "a", **more})
    assert {value.name for value in found if value.errors} == ({named} if named else set())


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta", "mysql", "postgres"])
def test_every_warehouse_keeps_versions(kind):
    found = CONFIG_DEF.validate(
        {**BASE, "topics": "a", "warehouse": kind, "warehouse.path": "/lake", "output.mode": "scd2"}
    )
    assert [value.errors for value in found if value.name == "output.mode" and value.errors] == []


def test_versions_are_refused_with_the_warehouses_that_keep_them(monkeypatch):
    parquet = next(kind for kind in warehouse_kinds.KINDS if kind.name == "parquet")
    plain = replace(parquet, keeps_versions=False)
    others = [kind for kind in warehouse_kinds.KINDS if kind is not parquet]
    monkeypatch.setattr(warehouse_kinds, "KINDS", (plain, *others))
    monkeypatch.setattr(warehouse_kinds, "kind_of", lambda _config: plain)
    found = CONFIG_DEF.validate(
        {**BASE, "topics": "a", "warehouse": "parquet", "warehouse.path": "/lake", "output.mode": "scd2"}
    )
    (errors,) = [value.errors for value in found if value.name == "output.mode"]
    assert "scd2 is offered by warehouse=" in errors[0]
    assert "parquet" not in errors[0]


def test_starting_offsets_name_every_partition():
    found = read.starting_offsets({"b": 1, "a": 2}, {("a", 1): 7})
    assert found == '{"a": {"0": -2, "1": 7}, "b": {"0": -2}}'


def test_client_settings_are_translated_for_java_and_nothing_else_goes_along():
    kafka = {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": 'p"q\\',
        "ssl.ca.location": "/ca.pem",
        "transactional.id": "t",
    }
    found = jvm_settings(kafka)
    assert found["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p\\"q\\\\";'
    )
    assert found["ssl.truststore.location"] == "/ca.pem"
    assert "transactional.id" not in found
    assert "transactional.id" not in client_settings(kafka)


def test_session_settings_hold_no_secret_and_listen_on_loopback_only(tmp_path):
    found = {**settings(tmp_path, 2), **local(2)}
    assert "hidden" not in str(found)
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "false"


def test_lost_data_is_told_from_a_broker_that_does_not_answer():
    assert from_spark(RuntimeError("… Some data may have been lost …")).code == "spark.data_lost"
    assert (
        from_spark(RuntimeError("org.apache.kafka.common.errors.TimeoutException: …")).code == "spark.kafka_unreachable"
    )
    assert from_spark(RuntimeError("?")).kind == "transient"


def test_a_state_folder_removes_what_the_dead_left_and_spares_the_living(tmp_path):
    living, dead = StateFolder(tmp_path), tmp_path / "dead"
    living.open()
    dead.mkdir()
    other = StateFolder(tmp_path)
    other.open()
    assert living.path.exists()
    assert not dead.exists()
    living.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_the_password_is_not_in_the_task_specification_as_text():
    spec = SinkSpec("c", 0, "i", (1, 1), ("t",), {}, "s", BASE, "/tmp")
    assert "hidden" not in repr(CONFIG_DEF.parse({**spec.config, "topics": "t"}))


@pytest.mark.parametrize(
    ("memory", "fine"), [("520m", True), ("2g", True), ("519m", False), ("512m", False), ("1", False), ("xg", False)]
)
def test_the_heap_is_at_least_what_spark_accepts(memory, fine):
    problems = [value.errors for value in CONFIG_DEF.validate({**BASE, "topics": "t", "spark.driver.memory": memory})]
    assert (not any(problems)) is fine
    if memory == "512m":
        assert "System memory 469762048 must be at least 471859200" in str(problems), "Spark's own words"


def test_whole_transactions_take_one_task(tmp_path):
    whole = {**BASE, "topics": "s.public.a,s.public.b,t.public.c", "consistency": "source"}
    assert [share["topics"] for share in SparkSink(whole).split(9, [])] == ["s.public.a,s.public.b,t.public.c"]
    assert watermark_topics(CONFIG_DEF.parse(whole)["topics"]) == ["s.watermark", "t.watermark"]
    config = CONFIG_DEF.parse({**whole, "warehouse": "parquet", "warehouse.path": str(tmp_path / "lake")})
    assert isinstance(kind_of(config).open(config, WriterTask("sink", file_roots=[str(tmp_path)])), WholeParquetWriter)


LAKE = {"connector.class": "spark", "topics": "a", "warehouse": "iceberg"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"warehouse.catalog": "rest", "warehouse.path": "/lake"},
        {"warehouse.path": "lake"},
        {"warehouse.path": "file:///lake"},
        {"warehouse.path": "/lake", "warehouse.catalog.properties": "no value"},
        {"warehouse.path": "/lake", "warehouse.catalog.properties": "io-impl=a.B"},
        {"warehouse.path": "/lake", "warehouse.catalog.secrets": "a=b,catalog-impl=a.B"},
    ],
)
def test_a_lake_without_a_place_or_with_classes_of_its_own_is_refused(more):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**LAKE, **more})
    assert caught.value.code == "config.invalid"


def test_a_delta_lake_is_a_folder(tmp_path):
    delta = {**LAKE, "warehouse": "delta"}
    with pytest.raises(CdcError):
        CONFIG_DEF.parse(delta)
    config = CONFIG_DEF.parse({**delta, "warehouse.path": str(tmp_path / "lake")})
    tables = delta_tables(config, [str(tmp_path)])
    assert tables.name(LakeName("public", "a`b")) == f"delta.`{tmp_path}/lake/public/a``b`"
    with pytest.raises(CdcError):
        delta_tables(config, ["/srv"])


def test_a_lake_shows_whole_transactions_by_sets(tmp_path):
    config = CONFIG_DEF.parse({**LAKE, "warehouse.path": str(tmp_path / "lake"), "consistency": "source"})
    assert isinstance(kind_of(config).open(config, WriterTask("s", file_roots=[str(tmp_path)])), WholeLakeWriter)


def test_a_catalog_gets_its_properties_and_its_secrets():
    config = CONFIG_DEF.parse(
        {
            **LAKE,
            "warehouse.catalog": "rest",
            "warehouse.catalog.uri": "http://127.0.0.1",
            "warehouse.catalog.properties": "warehouse=main, scope=all",
            "warehouse.catalog.secrets": "credential=a:b=c",
        }
    )
    found = catalog_settings(config, ["/"])
    rest = {"type": "rest", "uri": "http://127.0.0.1", "warehouse": "main", "scope": "all", "credential": "a:b=c"}
    assert found == rest
    assert "a:b=c" not in repr(config)
    with pytest.raises(CdcError) as caught:
        catalog_settings(config, ["/srv"])
    assert caught.value.code == "file.path_not_allowed"


def test_a_folder_of_a_lake_lies_in_one_that_the_worker_opens(tmp_path):
    config = CONFIG_DEF.parse({**LAKE, "warehouse.path": str(tmp_path / "lake")})
    assert catalog_settings(config, [str(tmp_path)])["warehouse"] == str(tmp_path / "lake")
    for roots, path in (
        ([], str(tmp_path / "lake")),
        ([str(tmp_path)], "/etc/lake"),
        ([str(tmp_path)], "s3a://b/lake"),
    ):
        with pytest.raises(CdcError):
            catalog_settings(CONFIG_DEF.parse({**LAKE, "warehouse.path": path}), roots)


def test_a_lake_has_libraries_of_its_own():
    assert SparkSink(LAKE).jars == "spark+iceberg"
    assert SparkSink({**LAKE, "warehouse": "delta"}).jars == "spark+delta"
    assert SparkSink(BASE).jars == "spark"


def test_an_interval_of_comparisons_that_is_too_short_is_refused_and_keeps_no_stored_config_from_running():
    for text, is_taken in (("0", True), ("1", False), ("59999", False), ("60000", True), ("2678400001", False)):
        found = CONFIG_DEF.validate({**BASE, "topics": "t", "verify.interval.ms": text})
        (errors,) = [value.errors for value in found if value.name == "verify.interval.ms"]
        assert (errors == ()) == is_taken, text
        assert CONFIG_DEF.parse({**BASE, "topics": "t", "verify.interval.ms": text})["topics"] == ["t"]
    (told,) = [
        error
        for value in CONFIG_DEF.validate({"verify.interval.ms": "1"})
        for error in value.errors
        if "interval" in error
    ]
    assert told == "Invalid value 1 for configuration verify.interval.ms: Value must be 0 or at least 60000"
