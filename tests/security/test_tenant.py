"""A user who may only create connectors under one prefix, on two workers over TLS, gives every key a hostile value."""

from __future__ import annotations

import json
import re
import secrets
import ssl
import time
from collections import Counter

import httpx
import pytest
import yaml
from cdcworker.connectors import registry
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.security.credentials import new_token
from cdcworker.worker.validation.validate import ConnectorCatalog
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import certificates
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PATTERNS = re.compile(r"regex|include\.list|exclude\.list|columns|pattern")
PLACES = re.compile(r"hostname|host|uri|url|servers|endpoint")
FILES = re.compile(r"file|path|location|dir|cert|key$")
CLASSES = re.compile(r"class|converter|strategy|transport|impl")
ANSWER_S_MAX = 20.0
REFUSED_MIN = 80
"""So many of the hostile values are refused when they are submitted; the others have led nowhere by the end of the test."""
FOREIGN = "of-another-tenant"


class Tenancy:
    """Two workers over TLS, an operator and a tenant who may administrate what begins with `shop-`."""

    def __init__(self, kafka, folder) -> None:
        self.kafka, self.folder, self.group = kafka, folder, f"t{secrets.token_hex(4)}"
        self.open = folder / "open"
        self.open.mkdir()
        (folder / "outside").write_text(FOREIGN)
        authority = certificates.Authority(folder, "ours")
        certificate = authority.issue("worker")
        self.context = ssl.create_default_context(cafile=str(authority.file))
        self.tokens = {}
        entries = []
        for name, grant in (("operator", "admin"), ("tenant", "admin:shop-")):
            number, self.tokens[name], digest = new_token()
            entries.append({"name": name, "grants": [grant], "tokens": [{"id": number, "hash": digest}]})
        users = folder / "users.yaml"
        users.write_text(yaml.safe_dump({"users": entries}))
        users.chmod(0o600)
        self.workers = []
        for name, port in zip(("w1", "w2"), free_ports(2), strict=True):
            properties = {
                "listeners": f"https://127.0.0.1:{port}",
                "listeners.https.ssl.keystore.location": str(certificate),
                "listeners.https.ssl.truststore.location": str(authority.file),
                "rest.auth.file": str(users),
                "audit.topic": f"{self.group}.audit",
                "file.connector.paths": str(self.open),
                "connector.hosts.loopback": "true",
            }
            made = one_worker.Worker(folder, kafka.bootstrap, self.group, name, **properties)
            made.url = properties["listeners"]
            self.workers.append(made)

    def ask(self, method, path, body=None, *, who="tenant", worker=0):
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        with httpx.Client(verify=self.context, trust_env=False, timeout=ANSWER_S_MAX, headers=headers) as client:
            return client.request(method, self.workers[worker].url + path, json=body)

    def cluster(self):
        """Who leads since when, and the starts of both workers: another value says that a worker was lost."""
        leader = self.ask("GET", "/v1/cluster", who="operator").json()["leader"]
        return leader, [self.ask("GET", "/v1/live", worker=number).json()["boot"] for number in range(2)]

    def ends(self, topic):
        """The end of a topic of one partition."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": "t"})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, 0), 30.0)[1]
        finally:
            consumer.close()

    def workers_seen(self):
        return len(self.ask("GET", "/v1/cluster", who="operator").json()["workers"])

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()


@pytest.fixture
def tenancy(kafka, tmp_path):
    made = Tenancy(kafka, tmp_path)
    try:
        for number, worker in enumerate(made.workers):
            worker.wait(lambda n=number: made.ask("GET", "/health", worker=n).json()["status"] == "healthy", "health")
        made.workers[0].wait(lambda: made.workers_seen() == 2, "two workers")
        yield made
    finally:
        made.end()


def base(plugin, tenancy):
    """An ordinary config of the tenant for each connector class."""
    name = plugin.name
    if name == "postgres":
        host = {"database.hostname": "127.0.0.1", "database.port": "1", "database.user": "u", "database.dbname": "d"}
        return {**host, "topic.prefix": "shop-p"}
    if name == "datagen":
        return {"topic.prefix": "shop-d", "tables": "1", "rows.per.second": "5"}
    if name == "file":
        return {"file": str(tenancy.open / "in.jsonl"), "topic": "shop-in"}
    if name == "file-sink":
        return {"file": str(tenancy.open / f"{secrets.token_hex(4)}.jsonl"), "topics": "shop-in"}
    return {"topics": "shop-in", "warehouse": "parquet", "warehouse.path": str(tenancy.open / "lake")}


def hostile(key, tenancy):
    """Values that a key may be given by whoever wants more than is granted; none for a key that leads nowhere."""
    own = (f"{tenancy.group}.configs", f"{tenancy.group}.audit", "__consumer_offsets", "billing.public.x")
    if key.topics == "pattern":
        yield from (".*", "(b+)+c", f"{tenancy.group}.*", "billing.*")
    elif key.topics in ("prefix", "part", "heartbeats"):
        yield from (tenancy.group, "billing", f"../{tenancy.group}.configs")
    elif key.topics:
        yield from own
    elif PATTERNS.search(key.name):
        yield from ("(a+)+$", ".*" * 2_000)
    elif PLACES.search(key.name):
        yield from ("169.254.169.254", "http://169.254.169.254/latest", "[::ffff:169.254.169.254]")
    elif FILES.search(key.name):
        yield from ("/etc/passwd", str(tenancy.folder / "outside"), f"{tenancy.open}/../outside", "/proc/self/environ")
    elif CLASSES.search(key.name) and key.name != "connector.class" and not key.name.endswith(".plugin.version"):
        yield from ("java.lang.Runtime", "os.system")


def attacks(tenancy):
    """(class, key, config) of every key of every definition that may lead elsewhere, with each hostile value."""
    catalog = ConnectorCatalog()
    router = {"transforms": "r", "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter"}
    router |= {"transforms.r.regex": "(.*)", "transforms.r.replacement": "shop-r"}
    for plugin in registry.plugins():
        more = router if plugin.kind == "source" else {}
        for key in catalog.definition(plugin).of({**base(plugin, tenancy), **more}).keys.values():
            for value in hostile(key, tenancy):
                config = {
                    **base(plugin, tenancy),
                    **(more if key.name.startswith("transforms") else {}),
                    key.name: value,
                }
                if key.topics == "pattern":
                    config.pop("topics", None)
                yield plugin.name, key, {"connector.class": plugin.name, **config}


def lines_of(tenancy):
    return [line for file in tenancy.open.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_a_tenant_reads_writes_and_freezes_nothing_that_is_not_his(tenancy):
    topics = [NewTopic(name, 1, 1) for name in ("billing.public.x", "b" * 200)]
    admin = AdminClient({"bootstrap.servers": tenancy.kafka.bootstrap})
    for answer in admin.create_topics(topics).values():
        answer.result(30)
    producer = Producer({"bootstrap.servers": tenancy.kafka.bootstrap})
    for topic, value in (("billing.public.x", FOREIGN), ("b" * 200, FOREIGN)):
        producer.produce(topic, json.dumps({"value": value}), "k")
    assert producer.flush(30) == 0
    (tenancy.open / "in.jsonl").write_text(json.dumps({"value": "from a file"}) + "\n")
    generator = {"connector.class": "datagen", "topic.prefix": "billing", "tables": "1", "rows.per.second": "5"}
    worker = tenancy.workers[0]
    worker.wait(
        lambda: tenancy.ask("PUT", "/connectors/billing/config", generator, who="operator").status_code == 201,
        "a leader",
    )
    before, end = tenancy.cluster(), tenancy.ends("billing.public.x")
    assert end == 1

    counts: Counter[int] = Counter()
    for number, (plugin, key, config) in enumerate(attacks(tenancy)):
        name, is_read = f"shop-{number}", plugin != "spark" and (key.topics or key.name == "file")
        # Only what may read or write elsewhere need run; a driver of Spark would take seconds to start.
        body = {"name": name, "config": config, **({} if is_read else {"initial_state": "STOPPED"})}
        began = time.monotonic()
        answer = tenancy.ask("POST", "/connectors?validate=false", body, worker=number % 2)
        assert time.monotonic() - began < ANSWER_S_MAX, (plugin, key.name)
        assert answer.status_code in (201, 400, 403, 413), (plugin, key.name, answer.status_code)
        assert FOREIGN not in answer.text, (plugin, key.name)
        counts[answer.status_code] += 1
        if answer.status_code == 201:
            if is_read:
                rows = tenancy.ask("GET", f"/v1/connectors/{name}/changes?from=beginning&limit=50&follow=false")
                assert FOREIGN not in rows.text, (plugin, key.name)
                assert "session-key" not in rows.text, (plugin, key.name)
            assert tenancy.ask("DELETE", f"/connectors/{name}").status_code == 204
    assert sum(counts.values()) >= 100
    assert counts[400] >= REFUSED_MIN, counts

    for method, path in (
        *(
            ("GET", "/connectors/billing/config"),
            ("GET", "/connectors/billing/offsets"),
            ("DELETE", "/connectors/billing"),
        ),
        *(("PUT", "/connectors/billing/pause"), ("GET", "/v1/connectors/billing/changes")),
    ):
        assert tenancy.ask(method, path).status_code in (403, 404), path

    source = {"connector.class": "file", "file": str(tenancy.open / "in.jsonl"), "topic": "shop-in"}
    assert tenancy.ask("PUT", "/connectors/shop-in/config", source).status_code == 201
    sink = {
        "connector.class": "file-sink",
        "file": str(tenancy.open / "all.jsonl"),
        "topics.regex": f"shop-in|billing.*|{tenancy.group}.*|b+",
    }
    assert tenancy.ask("PUT", "/connectors/shop-all/config", sink).status_code == 201
    worker.wait(
        lambda: (tenancy.open / "all.jsonl").exists() and "from a file" in (tenancy.open / "all.jsonl").read_text(),
        lambda: f"his own rows: {tenancy.ask('GET', '/connectors?expand=status').text}",
    )
    assert [line for line in lines_of(tenancy) if FOREIGN in line or "session-key" in line] == []
    assert tenancy.ends("billing.public.x") == end, "somebody wrote to another tenant's topic"
    assert all(
        json.loads(record.value())["who"] in ("operator", "tenant", "anonymous")
        for record in worker.read(f"{tenancy.group}.audit")
    )
    assert tenancy.cluster() == before, "no worker was lost, and none took over"
    task = tenancy.ask("GET", "/connectors/billing/status", who="operator").json()["tasks"][0]
    assert task["state"] == "RUNNING"
