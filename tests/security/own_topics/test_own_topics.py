"""Every key of every connector that names topics is given topics that the connector may not have: own ones and others'."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cdcworker.connectors.registry import names as registry
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.log.config_fold import fold_all
from cdcworker.coordinator.model import ClusterState, Connector, PutConnector
from cdcworker.schemas.change import Change, OutRecord, Position
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topic_access import NOT_GRANTED, OWN_TOPIC, TopicAccess
from cdcworker.worker.config.worker_properties import parse
from cdcworker.worker.diagnostics.tail_child import places
from cdcworker.worker.herder.planner import matching_topics
from cdcworker.worker.offsets.model import ConnectorOffset
from cdcworker.worker.offsets.sink import SinkOffsetsClient
from cdcworker.worker.rest.settings import ApiSettings, Services
from cdcworker.worker.security.access import Caller, parse_grant
from cdcworker.worker.security.topic_rules import access_of
from cdcworker.worker.source.topic_guard import TABLE_REFUSED, TopicGuard, guarded, named
from cdcworker.worker.validation.validate import CHECK_INCOMPLETE, ConnectorCatalog, check_clusters, check_keys

from tests.app_in_memory import ask, create_app
from tests.unit.worker.conftest import Cluster, FakeHerder

GROUP = "cdc"
PARTS = ("configs", "offsets", "status", "schemas", "coordination")
AUDIT = "cdc-audit"
CONFIG, _ = parse(
    {"bootstrap.servers": "k:1", "group.id": GROUP, "audit.topic": AUDIT, "connector.topics.closed": "shut.*"}
)
ACCESS = access_of(CONFIG.providers)
OWN = (*(f"{GROUP}.{part}" for part in PARTS), AUDIT, "__consumer_offsets", "shut.x")
CATALOG = ConnectorCatalog()
NO_TOPIC = re.compile(
    r"topics\.dir|topic\.creation\..*|topic\.(naming\.strategy|delimiter|regex|replacement)|offsets\.storage\.topic|errors\.deadletterqueue\.topic\..*"
    r"|topic\.name\.format|topics\.exclude|sync\.topic\.configs\.enabled|topic\.schema\.ignore|topic\.to\.external\.resource\.mapping|rabbitmq\.topic\.queue\.map"
)
"""Keys with `topic` in their names that name none, choose among those that `topics` names, or are refused whatever they say."""
ROUTER = {
    "transforms": "r",
    "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.r.regex": "(.*)",
}


def definitions():
    """The definition of each connector, for a source of rows with the keys of a transform."""
    for plugin in registry.plugins():
        definition = CATALOG.definition(plugin)
        yield (
            plugin,
            definition.of({**ROUTER, "transforms.r.replacement": "x"}) if plugin.kind == "source" else definition,
        )


KEYS = [(plugin, key) for plugin, definition in definitions() for key in definition.keys.values() if key.topics]
IDS = [f"{plugin.name}:{key.name}" for plugin, key in KEYS]


def findings(plugin, given, access=ACCESS):
    base = {"name": "c", "connector.class": plugin.name, **given}
    return [item for item in check_keys(CATALOG, base, access).findings if item.code in (OWN_TOPIC, NOT_GRANTED)]


def hostile(key, topic):
    """A config that leads to the topic by this key; None where the key cannot."""
    more = ROUTER if key.name.startswith("transforms.") else {}
    first, _, last = topic.rpartition(".")
    if key.topics in ("name", "template"):
        return {**more, key.name: topic}
    if key.topics == "names":
        return {key.name: f"shop-fine, {topic} ,shop-also"}
    if key.topics == "prefix":
        return {key.name: first} if last == "watermark" else None
    if key.topics == "part":
        return {"topic.prefix": first, key.name: last} if first else None
    if key.topics == "heartbeats":
        return {"topic.prefix": last, key.name: first} if first else None
    return None


def test_every_key_that_names_a_topic_says_how():
    """A new connector gets the checks of this module by the marks in its definition."""
    marked = {(plugin.name, key.name) for plugin, key in KEYS}
    for plugin, definition in definitions():
        for name in definition.keys:
            if "topic" in name and not NO_TOPIC.fullmatch(name):
                assert (plugin.name, name) in marked, (
                    f"{plugin.name}: {name} says not how it names topics (ConfigKey.topics)"
                )
        kinds = {key.topics for _, key in KEYS if _.name == plugin.name}
        assert kinds & {"name", "names", "prefix"}, f"{plugin.name} has no key that says where its records are"
        assert plugin.kind != "source" or "transforms.r.replacement" not in definition.keys or "template" in kinds


@pytest.mark.parametrize(("plugin", "key"), KEYS, ids=IDS)
def test_no_key_names_an_own_topic(plugin, key):
    tried = 0
    for topic in (*OWN, "shut.watermark"):
        given = hostile(key, topic)
        if given is not None:
            tried += 1
            found = findings(plugin, given)
            assert [(item.key, item.code) for item in found if item.key == key.name] == [(key.name, OWN_TOPIC)], topic
    assert tried or key.topics == "pattern"


@pytest.mark.parametrize(("plugin", "key"), KEYS, ids=IDS)
def test_no_key_names_a_topic_of_another_tenant(plugin, key):
    bound = ACCESS.bounded(("shop-",))
    for topic in ("billing.x.watermark", "shop.watermark", "bill"):
        given = hostile(key, topic)
        if given is not None:
            assert NOT_GRANTED in {item.code for item in findings(plugin, given, bound)}, topic
    given = hostile(key, "shop-x.y.watermark")
    if given is not None and key.topics != "heartbeats":
        assert not findings(plugin, {"topic.prefix": "shop-a", **given}, bound)


@pytest.mark.parametrize(("plugin", "key"), KEYS, ids=IDS)
def test_no_key_names_a_topic_of_another_cluster_where_kafka_can_be_asked(plugin, key):
    topic = "other.status"
    given = hostile(key, topic)
    if given is None:
        return
    config = {"name": "c", "connector.class": plugin.name, **given}
    report = check_keys(CATALOG, config, ACCESS)
    asked = []

    def exists(names):
        asked.append(set(names))
        return set(names)

    found = check_clusters(report, config, ACCESS, exists).findings
    assert {item.key for item in found if item.code == OWN_TOPIC} >= {key.name}
    assert asked
    assert asked[0] >= {"other.configs", "other.offsets"}
    # Without the topics of a cluster beside it, it is a topic like others.
    assert OWN_TOPIC not in {item.code for item in check_clusters(report, config, ACCESS, lambda _: ()).findings}
    silent = check_clusters(report, config, ACCESS, refusing).findings
    assert [(item.severity, item.code) for item in silent[len(report.findings) :]] == [("note", CHECK_INCOMPLETE)]


def refusing(_):
    raise CdcError("kafka.unreachable", "no answer")


def test_kafka_is_not_asked_about_topics_that_look_like_no_clusters():
    config = {"name": "c", "connector.class": "FileStreamSink", "topics": "shop-a,shop.public.orders", "file": "x"}
    report = check_keys(CATALOG, config, ACCESS)
    assert check_clusters(report, config, ACCESS, refusing) is report


@pytest.mark.parametrize(("live", "status"), [("true", 400), ("false", 201)])
def test_rest_refuses_a_topic_of_another_cluster(live, status):
    settings = ApiSettings(services=Services(existing=frozenset))
    app = create_app(FakeHerder(Cluster()), settings=settings, checks=lambda *_: [])
    config = {"connector.class": "FileStreamSink", "topics": "other.configs", "file": "/tmp/x"}
    body = json.dumps({"name": "c", "config": config}).encode()
    answer = asyncio.run(ask(app, "POST", f"/connectors?validate={live}", body))
    assert answer.status == status, answer.body
    assert (OWN_TOPIC in answer.body.decode()) == (status == 400)


def test_heartbeats_under_debeziums_name_are_the_connectors_own():
    given = {"topic.prefix": "shop-a", "heartbeat.interval.ms": "1000"}
    postgres = registry.lookup("postgres")
    assert not findings(postgres, given, ACCESS.bounded(("shop-",)))


# -- run time: reading ------------------------------------------------------------------------------------------------

OTHER = [f"other.{part}" for part in PARTS]
THERE = [*OWN, *OTHER, "shop-a", "billing", "cdc.public.orders"]


class Listing:
    """A consumer of which only the list of topics is asked."""

    def list_topics(self, timeout):
        return SimpleNamespace(topics={name: SimpleNamespace(error=None, partitions={0: None}) for name in THERE})


def read(names=(), pattern="", prefixes=()):
    return {topic for topic, _ in places(Listing(), names, pattern, access_of(CONFIG.providers, prefixes))}


def test_who_looks_at_rows_sees_no_own_topic_by_name_or_by_pattern():
    assert read(names=THERE) == {"shop-a", "billing", "cdc.public.orders"}
    assert read(pattern=".*") == {"shop-a", "billing", "cdc.public.orders"}
    assert read(pattern=r"cdc\..+") == {"cdc.public.orders"}
    assert read(names=THERE, pattern=".*", prefixes=("shop-",)) == {"shop-a"}


def connector(**fields):
    return Connector("c", "i", 1, {"topics.regex": ".*"}, "RUNNING", "sink", **fields)


def test_a_pattern_is_expanded_within_the_bound():
    readable = ACCESS.readable(THERE)
    assert matching_topics(connector(), readable) == {"shop-a", "billing", "cdc.public.orders"}
    assert matching_topics(connector(topic_prefixes=("shop-",)), readable) == {"shop-a"}


@pytest.mark.parametrize("topic", [*OWN, *OTHER, "billing"])
def test_altering_offsets_tells_nothing_of_other_topics(topic):
    """The answer would say how many partitions a topic has, and where it ends."""
    client = SinkOffsetsClient(CONFIG.providers, lambda: dict.fromkeys(THERE, 1), lambda *_: {0: 7}, lambda _: {})
    change = [ConnectorOffset({"kafka_topic": topic, "kafka_partition": 0}, {"kafka_offset": 99})]
    with pytest.raises(CdcError) as refused:
        client.alter(connector(topic_prefixes=("shop-",)), 1, change, dry_run=True)
    assert refused.value.code in (OWN_TOPIC, NOT_GRANTED)
    assert "7" not in refused.value.message


# -- run time: writing ------------------------------------------------------------------------------------------------


def guard(prefixes=()):
    asked = []

    def exists(names):
        asked.append(names)
        return set(names) & set(THERE)

    return TopicGuard(access_of(CONFIG.providers, prefixes), exists), asked


@pytest.mark.parametrize("topic", [*OWN, *OTHER])
def test_a_source_writes_no_own_topic(topic):
    with pytest.raises(CdcError) as refused:
        guard()[0].check(["fine", topic])
    assert (refused.value.code, refused.value.kind) == (OWN_TOPIC, "config")


def test_a_topic_is_asked_about_once():
    checker, asked = guard()
    for _ in range(3):
        checker.check(["shop.public.status", "shop.public.orders"])
    assert len(asked) == 1


def test_a_schema_of_a_refused_topic_is_not_registered_and_the_table_is_named():
    registered = []
    register = guarded(registered.append, guard(("shop-",))[0].check)
    for topic in ("cdc.configs", "billing"):
        registration = SimpleNamespace(
            subject=f"{topic}-value", meta=SimpleNamespace(path=("public", "orders"), table_id=9)
        )
        with pytest.raises(CdcError) as refused:
            register([registration])
        assert (refused.value.code, refused.value.kind) == (TABLE_REFUSED, "data")
        assert refused.value.where == {"topic": topic, "table": "public.orders"}
    assert not registered


def test_a_schema_of_records_of_no_table_halts_the_task():
    heartbeat = SimpleNamespace(subject="cdc.configs-value", meta=SimpleNamespace(path=("heartbeat",), table_id=0))
    with pytest.raises(CdcError) as refused:
        guarded(lambda _: (), guard()[0].check)([heartbeat])
    assert (refused.value.code, refused.value.kind) == (OWN_TOPIC, "config")


def test_a_refused_record_names_its_table_and_one_of_no_table_halts_the_task():
    class Encoder:
        def encode(self, changes):
            return [OutRecord(f"t.{change.table.path[-1]}", None, b"", None, None) for change in changes]

    changes = [
        Change("c", SimpleNamespace(path=("public", name), plain=None), Position(1, 0, 0), {}) for name in ("a", "b")
    ]
    error = CdcError(OWN_TOPIC, "no", where={"topic": "t.b"})
    assert named(error, Encoder(), changes).where["table"] == "public.b"
    assert named(error, Encoder(), changes[:1]) is error


# -- grants -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grants", "bound"),
    [
        (["admin"], ()),
        (["admin:shop-"], ("shop-",)),
        (["admin:shop-@topics=shop-+shop."], ("shop-", "shop.")),
        (["admin:shop-@topics=*"], ()),
        (["admin:shop-", "operate"], ("shop-",)),
        (["admin:shop-", "admin:bill-"], ("shop-",)),
        (["admin:shop-", "admin:shop-a@topics=ref."], ("ref.", "shop-")),
        (["admin:shop-", "admin"], ()),
    ],
)
def test_a_grant_bounds_the_topics_of_its_connectors(grants, bound):
    caller = Caller("u", tuple(map(parse_grant, grants)))
    assert caller.topic_prefixes("shop-a") == bound
    assert [str(grant) for grant in caller.grants] == grants


@pytest.mark.parametrize(
    "text",
    [
        "admin@topics=a",
        "operate:s@topics=a",
        "admin:s@topics=",
        "admin:s@topics=a+",
        "admin:s@topics=a,b",
        "admin:s@topics=*+a",
    ],
)
def test_a_grant_with_a_bound_that_says_nothing_is_refused(text):
    with pytest.raises(ValueError, match="topics"):
        parse_grant(text)


def state_after(state, request, number):
    decision = decide(state, PendingRequest(f"r{number}", request, number))
    records = [replace(record, headers={**record.headers, "e": str(state.epoch)}) for record in decision.records]
    # As another worker reads them.
    records = [replace(record, value=json.loads(json.dumps(record.value))) for record in records]
    return fold_all(state, records)


def test_a_bound_stays_with_its_connector_whoever_changes_the_config():
    state = ClusterState()
    for number, (config, prefixes, expected) in enumerate(
        [
            ({"a": "1"}, ("shop-",), ("shop-",)),
            ({"a": "2"}, None, ("shop-",)),  # an admin of everything
            (None, None, ("shop-",)),  # a pause
            ({"a": "2"}, ("ref.", "shop-"), ("ref.", "shop-")),
        ],
        1,
    ):
        state = state_after(state, PutConnector("c", config, "sink", topic_prefixes=prefixes), number)
        assert state.connectors["c"].topic_prefixes == expected
    # Tasks that were started with another bound are made anew, also where the config is the same.
    assert state.connectors["c"].config_version == state.connectors["c"].version == 3


def test_a_connector_of_an_earlier_version_has_no_bound_until_a_tenant_changes_it():
    state = state_after(ClusterState(), PutConnector("c", {"a": "1"}, "sink"), 1)
    assert state.connectors["c"].topic_prefixes == ()
    state = state_after(state, PutConnector("c", {"a": "1"}, "sink", topic_prefixes=("shop-",)), 2)
    assert state.connectors["c"].topic_prefixes == ("shop-",)


def test_a_task_that_knows_no_rules_still_leaves_kafkas_topics_alone():
    assert not access_of({}).may_read("__consumer_offsets")
    assert TopicAccess() == access_of({})
