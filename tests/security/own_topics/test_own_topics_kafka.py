"""Own topics on a real Kafka: whatever a connector is told, its tasks and those who look at it neither read nor write them."""

from __future__ import annotations

import json
import secrets

import pytest
import yaml
from cdcworker.worker.cli.client.remote import detailed
from cdcworker.worker.security.credentials import new_token
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import plain_http
from tests.integration import one_worker

pytestmark = pytest.mark.kafka
PARTS = ("configs", "offsets", "status", "schemas", "coordination")
CANARY = "canary-of-another-cluster"
QUICK = {"task.restart.max": "100", "task.restart.backoff.ms": "10", "task.restart.backoff.max.ms": "50"}
WAIT_S = 180.0


class World:
    """A closed worker with an admin of everything and a tenant, beside the topics of another cluster."""

    def __init__(self, kafka, folder):
        self.folder = folder
        self.group, self.other = (f"{letter}{secrets.token_hex(4)}" for letter in "go")
        self.tokens, users = {}, []
        for name, grant in {"ops": "admin", "tenant": "admin:shop-", "wide": "admin:wide-@topics=wide-+ref."}.items():
            id, self.tokens[name], hash = new_token()
            users.append({"name": name, "grants": [grant], "tokens": [{"id": id, "hash": hash}]})
        path = folder / "users.yaml"
        path.write_text(yaml.safe_dump({"users": users}))
        self.audit = f"{self.group}-audit"
        self.own = {f"{self.group}.{part}" for part in PARTS} | {self.audit}
        self.others = {f"{self.other}.{part}" for part in PARTS}
        self._fill(kafka)
        properties = {"rest.auth.file": str(path), "audit.topic": self.audit, "file.connector.paths": str(folder)}
        self.worker = one_worker.Worker(
            folder, kafka.bootstrap, self.group, variables={"CDC_SECRET_OWN": f"{self.group}.configs"}, **properties
        )

    def _fill(self, kafka):
        names = [*self.others, "shop-plain", "billing-plain", "__hidden"]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        missing = set(names) - admin.list_topics(timeout=30).topics.keys()
        for answer in admin.create_topics([NewTopic(name, 1, 1) for name in missing]).values():
            answer.result(30)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for name in names:
            said = CANARY if name.startswith((self.other, "__")) else f"row of {name}"
            producer.produce(name, json.dumps({"said": said}).encode(), b"k")
        producer.flush(30)

    def ask(self, who, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        return plain_http.request(method, self.worker.url + detailed(path), json=body, headers=headers, timeout=60.0)

    def put(self, who, name, unchecked=False, **config):
        given = {key.replace("_", "."): value for key, value in config.items()}
        path = f"/connectors/{name}/config" + ("?validate=false" if unchecked else "")
        return self.ask(who, "PUT", path, given)

    def sink(self, who, name, unchecked=False, **topics):
        path = str(self.folder / f"{name}.txt")
        return self.put(who, name, unchecked, connector_class="FileStreamSink", file=path, **QUICK, **topics)

    def tasks(self, name):
        return self.ask("ops", "GET", f"/connectors/{name}/status").json()["tasks"]

    def failed(self, name):
        """The error of a connector whose task, or whose plan, has failed for good."""

        def there():
            status = self.ask("ops", "GET", f"/connectors/{name}/status").json()
            return next(
                (part["trace"] for part in (*status["tasks"], status["connector"]) if part["state"] == "FAILED"), None
            )

        return self.worker.wait(there, f"{name} fails", WAIT_S)

    def wait_lines(self, name, text):
        path = self.folder / f"{name}.txt"
        self.worker.wait(lambda: path.exists() and text in read(path), f"{text} in {path.name}", WAIT_S)
        return read(path)

    def looked_at(self, who, name):
        """Which topics `changes` reads, and what it says."""
        path = f"/v1/connectors/{name}/changes?from=beginning&follow=false"
        answer = self.ask(who, "GET", path)
        ready = [line for line in answer.text.splitlines() if line.startswith("data:") and '"topics"' in line]
        return set(json.loads(ready[0].removeprefix("data:"))["topics"]) if ready else set(), answer.text


def read(path):
    """What a sink has written: lines of text and, of topics in Avro, bytes."""
    return path.read_bytes().decode(errors="replace")


@pytest.fixture(scope="module")
def world(kafka, tmp_path_factory):
    made = World(kafka, tmp_path_factory.mktemp("topics"))
    try:
        made.worker.wait(lambda: made.worker.get("/health")["status"] == "healthy", "health", WAIT_S)
        made.worker.wait(lambda: made.ask("ops", "GET", "/v1/cluster").json()["leader"], "a leader")
        yield made
    finally:
        made.worker.kill()


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["ops", "tenant"])
def test_a_sink_that_names_an_own_topic_is_refused(world, who):
    for number, topic in enumerate(sorted(world.own | {"__consumer_offsets"})):
        answer = world.sink(who, f"shop-named-{number}", topics=f"shop-plain,{topic}")
        assert answer.status_code == 400, f"{topic}: {answer.text}"
        assert "topic.internal" in answer.text
        assert world.ask(who, "GET", f"/connectors/shop-named-{number}").status_code == 404


def test_a_connector_that_names_a_topic_of_another_cluster_is_refused(world):
    lines = world.folder / "refused.txt"
    lines.write_text("a line\n")
    for topic in sorted(world.others):
        for answer in (
            world.sink("ops", "other-refused", topics=f"shop-plain,{topic}"),
            world.put("ops", "other-refused", connector_class="FileStreamSource", file=str(lines), topic=topic),
        ):
            assert answer.status_code == 400, f"{topic}: {answer.text}"
            assert "topic.internal" in answer.text
    assert world.ask("ops", "GET", "/connectors/other-refused").status_code == 404


def test_a_sink_that_names_a_topic_of_another_cluster_fails_and_reads_nothing(world):
    # Without live checks, as for a cluster that is set up after the connector.
    assert world.sink("ops", "other-named", unchecked=True, topics=f"{world.other}.configs").is_success
    assert "topic.internal" in world.failed("other-named")
    path = world.folder / "other-named.txt"
    assert not path.exists() or CANARY not in read(path)
    topics, text = world.looked_at("ops", "other-named")
    assert not topics
    assert CANARY not in text


def test_a_pattern_never_means_an_own_topic(world):
    # The broker has topics of other tests too, which would take minutes to read.
    pattern = rf"(shop-|billing-|__|{world.group}|{world.other}).*"
    assert world.sink("ops", "all", topics_regex=pattern).status_code in (200, 201)
    text = world.wait_lines("all", "row of billing-plain")
    assert "session-key" not in text
    assert CANARY not in text
    listed = world.ask("ops", "GET", "/v1/cluster")
    assert listed.status_code == 200
    topics, said = world.looked_at("ops", "all")
    assert "shop-plain" in topics
    assert not topics & (world.own | world.others | {"__hidden", "__consumer_offsets"})
    assert "session-key" not in said


def test_changes_of_a_source_named_like_the_cluster_show_no_own_topic(world):
    answer = world.put("ops", "like-us", connector_class="datagen", topic_prefix=world.group, **{"max.rows": "5"})
    assert answer.status_code in (200, 201), answer.text
    topic = f"{world.group}.task0.rows"
    world.worker.wait(lambda: topic in world.looked_at("ops", "like-us")[0], "rows")
    topics, text = world.looked_at("ops", "like-us")
    assert not topics & world.own
    assert "session-key" not in text


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_source_that_names_an_own_topic_is_refused(world):
    lines = world.folder / "in.txt"
    lines.write_text("a line\n")
    for number, topic in enumerate(sorted(world.own | {"__consumer_offsets"})):
        answer = world.put("ops", f"w{number}", connector_class="FileStreamSource", file=str(lines), topic=topic)
        assert answer.status_code == 400, f"{topic}: {answer.text}"
        assert "topic.internal" in answer.text


def test_a_source_that_routes_records_into_an_own_topic_halts_and_writes_nothing(world):
    before = len(world.worker.read(f"{world.group}.schemas"))
    answer = world.put(
        "ops", "routed", connector_class="datagen", topic_prefix=world.group, transforms="r",
        **{"transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
           "transforms.r.regex": r"([^.]+)\..*", "transforms.r.replacement": "$1.status"} | QUICK,
    )  # fmt: skip
    assert answer.status_code in (200, 201), answer.text
    assert "topic.internal" in world.failed("routed") or "source.topic_refused" in world.failed("routed")
    assert len(world.worker.starts("routed-0")) == 1
    assert len(world.worker.read(f"{world.group}.schemas")) == before
    assert not any(b'"task0"' in (message.value() or b"") for message in world.worker.read(f"{world.group}.status"))


def test_a_source_that_names_a_topic_of_another_cluster_halts_and_writes_nothing(world):
    lines = world.folder / "other.txt"
    lines.write_text("a line\n")
    before = len(world.worker.read(f"{world.other}.configs"))
    config = {"connector.class": "FileStreamSource", "file": str(lines), "topic": f"{world.other}.configs", **QUICK}
    assert world.put("ops", "other-written", unchecked=True, **config).status_code in (200, 201)
    assert "topic.internal" in world.failed("other-written")
    assert len(world.worker.starts("other-written-0")) == 1
    assert len(world.worker.read(f"{world.other}.configs")) == before


# -- grants -----------------------------------------------------------------------------------------------------------


def test_a_tenant_names_topics_of_its_prefix_only(world):
    lines = world.folder / "tenant.txt"
    lines.write_text("a line\n")
    refused = [
        world.sink("tenant", "shop-a", topics="shop-plain,billing-plain"),
        world.put("tenant", "shop-a", connector_class="FileStreamSource", file=str(lines), topic="billing-plain"),
        world.put("tenant", "shop-a", connector_class="datagen", topic_prefix="shop"),
        world.put("tenant", "shop-a", connector_class="datagen", topic_prefix="billing-x"),
    ]
    for answer in refused:
        assert answer.status_code == 400, answer.text
        assert "topic.not_granted" in answer.text
    assert world.sink("wide", "wide-a", topics="ref.public.rates").status_code in (200, 201)


def test_a_tenants_pattern_is_bounded_also_after_a_change_by_an_admin(world):
    assert world.sink("tenant", "shop-all", topics_regex=".*").status_code in (200, 201)
    world.wait_lines("shop-all", "row of shop-plain")
    answer = world.ask("ops", "PATCH", "/connectors/shop-all/config", {"batch.size": "10"})
    assert answer.status_code == 200, answer.text
    assert world.looked_at("tenant", "shop-all")[0] >= {"shop-plain"}
    assert all(topic.startswith("shop-") for topic in world.looked_at("tenant", "shop-all")[0])
    assert "billing" not in read(world.folder / "shop-all.txt")


def test_a_tenants_records_do_not_leave_its_prefix_by_a_transform(world):
    answer = world.put(
        "tenant", "shop-routed", connector_class="datagen", topic_prefix="shop-r", tables="billing", transforms="r",
        **{"transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
           "transforms.r.regex": r".*\.(.*)", "transforms.r.replacement": "$1-stolen"} | QUICK,
    )  # fmt: skip
    assert answer.status_code in (200, 201), answer.text
    assert "source.topic_refused" in world.failed("shop-routed") or "topic.not_granted" in world.failed("shop-routed")
    listed = AdminClient({"bootstrap.servers": world.worker.bootstrap}).list_topics(timeout=10).topics
    assert "billing-stolen" not in listed
