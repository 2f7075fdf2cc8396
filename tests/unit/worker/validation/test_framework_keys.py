"""Kafka Connect's own keys, by the definitions of the real plugins: checked and shown for each connector as Connect does."""

import pytest
from cdcworker.connectors.config.framework_keys import KEYS
from cdcworker.connectors.registry import names as registry
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.validation.validate import ConnectorCatalog, check_keys

PLUGINS = [plugin.name for plugin in registry.plugins()]
SINKS = [plugin.name for plugin in registry.plugins() if plugin.kind == "sink"]
SOURCES = [plugin.name for plugin in registry.plugins() if plugin.kind == "source"]
CATALOG = ConnectorCatalog()
WRONG = [
    *(("tasks.max", value) for value in ("0", "-3", "abc", "1.5", "", "99999999999")),
    *(("tasks.max.enforce", value) for value in ("maybe", "")),
    ("config.action.reload", "sometimes"),
    ("errors.retry.timeout", "soon"),
    ("errors.retry.delay.max.ms", "x"),
    ("errors.tolerance", "some"),
    ("errors.log.enable", "1"),
    ("errors.log.include.messages", "yes"),
    ("predicates", "isRow"),
]
OF_SOURCES = [
    ("exactly.once.support", "perhaps"),
    ("transaction.boundary", "batch"),
    ("transaction.boundary.interval.ms", "-1"),
]
OF_SINKS = [
    ("errors.deadletterqueue.topic.replication.factor", "x"),
    ("errors.deadletterqueue.context.headers.enable", "x"),
    ("transforms", "unwrap"),
]
LETTERS_IN_TOPICS = {"http-sink", "jdbc-sink", "kafka", "nats", "opensearch", "rabbitmq", "redis", "s3", "stdout"}
"""Sinks that write dead letters into a topic, as Kafka Connect does."""
PLAIN = {
    "name", "type", "required", "default_value", "importance", "documentation", "group", "width", "display_name",
    "dependents", "order_in_group", "order",
}  # fmt: skip


def errors(plugin, **config):
    report = check_keys(CATALOG, {"name": "c", "connector.class": plugin, **config}, TopicAccess())
    return {finding.key: finding.message for finding in report.errors}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_value_is_refused_for_every_connector(plugin, key, value):
    # Where a connector applies predicates, one without a type is what is wrong.
    assert {key, f"{key}.{value}.type"} & errors(plugin, **{key: value}).keys()


@pytest.mark.parametrize(
    ("plugin", "key", "value"),
    [
        *((plugin, *case) for plugin in SOURCES for case in OF_SOURCES),
        *((plugin, *case) for plugin in SINKS for case in OF_SINKS),
    ],
)
def test_a_wrong_value_is_refused_for_every_connector_of_a_side(plugin, key, value):
    assert {key, f"{key}.{value}.type"} & errors(plugin, **{key: value}).keys()


@pytest.mark.parametrize("plugin", SINKS)
def test_a_topic_of_dead_letters_is_refused_where_none_is_written(plugin):
    found = errors(plugin, **{"errors.deadletterqueue.topic.name": "dead"})
    assert ("errors.deadletterqueue.topic.name" in found) is (plugin not in LETTERS_IN_TOPICS)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_connects_defaults_posted_together_are_taken(plugin):
    kind = registry.lookup(plugin).kind
    shown = {item["name"]: item for item in CATALOG.definition(registry.lookup(plugin)).definitions()}
    own = {key.name for key in KEYS[kind]} - {"name", "connector.class"}
    given = {name: shown[name]["default_value"] for name in own if shown[name]["default_value"] is not None}
    assert {"tasks.max", "tasks.max.enforce", "errors.retry.timeout"} <= set(given)
    assert not set(errors(plugin, **given)) & (own - {"topics", "topics.regex"})


@pytest.mark.parametrize("plugin", PLUGINS)
def test_are_shown_in_connects_form_and_order(plugin):
    found = registry.lookup(plugin)
    shown = CATALOG.definition(found).definitions()
    assert all(set(item) == PLAIN and item["order"] == item["order_in_group"] for item in shown)
    keys = KEYS[found.kind]
    assert [item["name"] for item in shown][: len(keys)] == [key.name for key in keys]
    for item, key in zip(shown, keys, strict=False):
        own = (item["importance"], item["group"], item["order_in_group"], item["width"], item["display_name"])
        assert own == (key.importance, key.group, key.order, key.width, key.display_name)
        assert item["documentation"]
    common = {item["name"]: item for item in shown}
    assert common["tasks.max"]["default_value"] == "1"
    assert (common["tasks.max"]["display_name"], common["tasks.max"]["width"]) == ("Tasks max", "SHORT")
    assert common["connector.class"]["type"] == "STRING"
    assert common["errors.retry.delay.max.ms"]["default_value"] == "60000"
    assert common["transforms"]["default_value"] == ""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_missing_key_is_told_in_connects_words(plugin):
    found = check_keys(CATALOG, {"connector.class": plugin}).errors
    texts = {finding.key: finding.message for finding in found}
    assert texts["name"] == 'Missing required configuration "name" which has no default value.'
    for key in CATALOG.definition(registry.lookup(plugin)).keys.values():
        if key.required and key.name != "connector.class":
            assert texts[key.name] == f'Missing required configuration "{key.name}" which has no default value.'


@pytest.mark.parametrize("plugin", SINKS)
def test_topics_are_asked_for_in_connects_words_at_both_keys(plugin):
    given = {"file": "/f", "warehouse.hostname": "h", "warehouse.dbname": "d", "warehouse.user": "u"}
    known = {name: value for name, value in given.items() if name in CATALOG.definition(registry.lookup(plugin)).keys}
    none, both = errors(plugin, **known), errors(plugin, **known, topics="a", **{"topics.regex": "a"})
    for key in ("topics", "topics.regex"):
        assert none[key] == "Must configure one of topics or topics.regex"
        assert both[key] == "topics and topics.regex are mutually exclusive options, but both are set."


UNKNOWN = {"name": "c", "my.own.remark": "x", "tsks.max": "2"}


@pytest.mark.parametrize("plugin", PLUGINS)
class TestAKeyThatNobodyKnows:
    def test_is_refused_with_the_property_that_takes_it(self, plugin):
        found = check_keys(CATALOG, {"connector.class": plugin, **UNKNOWN}).errors
        texts = {finding.key: (finding.message, finding.hint) for finding in found}
        assert texts["my.own.remark"][0] == "my.own.remark is not a known key"
        assert texts["tsks.max"][0] == "tsks.max is not a known key; did you mean tasks.max?"
        assert "config.unknown.keys=warn" in texts["my.own.remark"][1]
        assert texts["tsks.max"][1] == "Rename it to tasks.max."

    def test_is_a_warning_where_the_property_says_so(self, plugin):
        report = check_keys(CATALOG, {"connector.class": plugin, **UNKNOWN}, takes_unknown=True)
        assert not {"my.own.remark", "tsks.max"} & {finding.key for finding in report.errors}
        warned = {finding.key: finding for finding in report.remarks if finding.severity == "warning"}
        assert {"my.own.remark", "tsks.max"} <= set(warned)
        assert warned["tsks.max"].message == "tsks.max is not a known key; did you mean tasks.max?"
        assert not {"my.own.remark", "tsks.max"} & {item["value"]["name"] for item in report.config_infos()["configs"]}


DATAGEN = {"name": "c", "connector.class": "datagen", "topic.prefix": "p"}


def test_a_config_that_runs_is_read_without_the_checks_of_what_is_submitted():
    stored = {**DATAGEN, "errors.tolerance": "some", "errors.retry.timeout": "soon", "my.own.remark": "x"}
    parsed = registry.lookup("datagen").load().config_def.parse(stored)
    assert parsed["topic.prefix"] == "p"
    assert "my.own.remark" not in parsed


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_class_of_tasks_that_connect_shows_is_taken_with_a_note(plugin):
    report = check_keys(CATALOG, {"name": "c", "connector.class": plugin, "task.class": "org.example.Task"})
    assert "task.class" not in {finding.key for finding in report.errors}
    assert ("task.class", "note") in {(finding.key, finding.severity) for finding in report.remarks}


@pytest.mark.parametrize(
    ("plugin", "given", "wanted"),
    [
        ("datagen", {}, False),
        ("datagen", {"seed": "${env:CDC_SECRET_SEED}"}, True),
        *((plugin, {}, True) for plugin in PLUGINS if plugin != "datagen"),
    ],
)
def test_live_checks_are_asked_for_where_there_is_something_outside(plugin, given, wanted):
    assert CATALOG.has_live_checks(registry.lookup(plugin), {"connector.class": plugin, **given}) is wanted
