"""Groups of created topics, as genuine Kafka Connect chooses and refuses them: `data/topic_creation.json` has its answers."""

import json
from pathlib import Path

import pytest
from cdcworker.connectors.config.topic_creation import GROUPS, GROUPS_MAX, compacts
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF as POSTGRES
from cdcworker.connectors.registry import names as registry
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.source.settings import SourceSettings
from cdcworker.worker.validation.validate import ConnectorCatalog, check_keys

CASES = json.loads((Path(__file__).parent / "data" / "topic_creation.json").read_text())["cases"]
TAKEN = [case for case in CASES if case["error"] is None]
SOURCES = [plugin.name for plugin in registry.plugins() if plugin.kind == "source"]
CATALOG = ConnectorCatalog()
MYSQL = {"database.hostname": "h", "database.user": "u", "database.password": "p", "database.server.id": "1"}
BASIS = {
    "postgres": {f"database.{name}": "x" for name in ("hostname", "user", "password", "dbname")},
    "mysql": MYSQL,
    "mariadb": MYSQL,
    "datagen": {"topic.prefix": "shop"},
    "file": {"file": "/tmp/f", "topic": "t"},
    "http": {"topic.prefix": "shop", "http.url": "https://api.example/", "http.table": "t", "http.key": "id"},
    "query": {
        "topic.prefix": "shop",
        "connection.url": "jdbc:sqlite:/tmp/f.db",
        "query": "select id from t",
        "query.table": "t",
        "query.key": "id",
        "mode": "diff",
    },
}
A = "topic.creation.a."


def config_of(plugin: str, **more: str) -> dict[str, str]:
    return {"name": "c", "connector.class": plugin, "topic.prefix": "shop", **BASIS[plugin], **more}


def errors(plugin: str, **more: str) -> dict[str, str]:
    own = {name: text for name, text in config_of(plugin, **more).items() if (plugin, name) != ("file", "topic.prefix")}
    return {finding.key: finding.message for finding in check_keys(CATALOG, own, TopicAccess()).errors}


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case["config"].get(GROUPS, "default"))
def test_a_topic_is_created_as_its_group_says(case):
    settings = SourceSettings.from_config(config_of("postgres", **case["config"]))
    for topic, (name, partitions, replicas, given) in case["topics"].items():
        group = next(group for group in settings.groups if group.has(topic))
        made = settings.plan(topic)
        # Of groups whose names begin alike the longer one has a key; Connect gives it to both.
        given = {key: text for key, text in given.items() if key != "b.include"}
        expected = (name, partitions, replicas, {"cleanup.policy": "delete", **given})
        assert (group.name, made.partitions, made.replication_factor, dict(made.config)) == expected


@pytest.mark.parametrize("plugin", SOURCES)
@pytest.mark.parametrize("case", [case for case in CASES if case["error"]], ids=lambda case: case["error"][:40])
def test_what_connect_refuses_is_refused_by_the_name_of_its_key(plugin, case):
    found = errors(plugin, **case["config"])
    if "Missing required" in case["error"]:
        # The number of replicas has a default here.
        assert found == {}
    else:
        assert len(found) == 1
        assert next(iter(found)) in case["config"]


@pytest.mark.parametrize("plugin", SOURCES)
def test_keys_of_groups_are_known_where_the_group_is_named(plugin):
    keys = {f"{A}include": "shop.*", f"{A}exclude": "x", f"{A}partitions": "3", f"{A}retention.ms": "9"}
    assert errors(plugin, **{GROUPS: "a", **keys}) == {}
    assert set(errors(plugin, **keys)) == set(keys)
    assert GROUPS in errors(plugin, **{GROUPS: ",".join(f"g{n}" for n in range(GROUPS_MAX + 1))})


def test_an_expression_that_could_freeze_a_worker_is_refused():
    assert f"{A}include" in errors("postgres", **{GROUPS: "a", f"{A}include": r"(a+)\1"})


def test_own_topics_of_the_source_keep_their_settings():
    config = config_of("postgres", **{GROUPS: "a", f"{A}include": ".*", f"{A}partitions": "7", f"{A}retention.ms": "9"})
    settings = SourceSettings.from_config(config)
    assert (settings.plan("shop.watermark").partitions, settings.plan("shop.public.t").partitions) == (1, 7)
    assert settings.plan("shop.watermark").config["cleanup.policy"] == "compact"


def test_rows_are_whole_where_any_group_compacts():
    plain = config_of("postgres", **{GROUPS: "a", f"{A}include": "x"})
    assert not compacts(POSTGRES.parse(plain))
    assert compacts(POSTGRES.parse({**plain, f"{A}cleanup.policy": "compact"}))
