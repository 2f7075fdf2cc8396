"""A user who may only create connectors under one prefix, on two workers over TLS, gives every key a hostile value."""

from __future__ import annotations

import json
import secrets
import ssl
import time
from collections import Counter

import httpx
import pytest
import yaml
from cdcworker.worker.cli.client.remote import detailed
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.security.credentials import new_token
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import certificates
from tests.integration import one_worker
from tests.sampling import seed_of, share

from .tenant_attacks import Attacks

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

ANSWER_S_MAX = 20.0
REFUSED_MIN = 200
"""So many of the hostile values are refused when they are submitted; the others have led nowhere by the end of the test."""
FOREIGN = "of-another-tenant"
OWN = "of-the-tenant"
"""In every row that the tenant writes."""
LOGS = ("configs", "offsets", "status", "schemas", "coordination", "audit")
KEYS_RUN = 3
"""Of every so many keys that lead elsewhere the tasks of one run, by the seed; the long tier runs those of all."""
AT_ONCE, DRIVERS_AT_ONCE = 8, 2
SETTLED_S = 150.0
READS_A_FILE = ("file", "database.sslcert", "database.sslkey", "database.sslrootcert")
"""Keys that name a file, of which no hostile value gets a task to run."""


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
            return client.request(method, self.workers[worker].url + detailed(path), json=body)

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


def texts_of(tenancy, names="*.jsonl"):
    """The texts of files of sinks. Records are there as they come: in Avro, too."""
    return [file.read_text(errors="replace") for file in tenancy.open.glob(names)]


def lines_of(tenancy):
    return [line for text in texts_of(tenancy) for line in text.splitlines()]


class Campaign:
    """Attacks that are made one after the other; connectors that were taken are deleted when their tasks have run or failed.
    `seed` chooses the keys that lead elsewhere of which the tasks of one value run; without one all of them run, also those
    that take a driver of Spark's."""

    def __init__(self, tenancy, seed):
        self.tenancy, self.whole = tenancy, seed is None
        self._attacks = list(Attacks(tenancy.group, tenancy.folder, tenancy.open))
        self._keys = share({key_of(attack) for attack in self._attacks}, seed or 0, KEYS_RUN)
        self.counts: Counter[int] = Counter()
        self.states: Counter[str] = Counter()
        self._taken = []
        self._started = set()

    def run(self):
        for number, attack in enumerate(self._attacks):
            self._submit(f"shop-{number}", attack, number % 2)
            drivers = sum(is_run and one.has_driver for _, one, is_run in self._taken)
            if len(self._taken) >= AT_ONCE or drivers >= DRIVERS_AT_ONCE:
                self._settle()
        self._settle()

    def _submit(self, name, attack, worker):
        is_run = self.whole or self._is_first(attack)
        body = {"name": name, "config": attack.config, **({} if is_run else {"initial_state": "STOPPED"})}
        began = time.monotonic()
        answer = self.tenancy.ask("POST", "/connectors?validate=false", body, worker=worker)
        told = (attack.plugin, attack.key.name, attack.value[:100], answer.status_code)
        assert time.monotonic() - began < ANSWER_S_MAX, told
        assert answer.status_code in (201, 400, 403, 413), told
        assert FOREIGN not in answer.text, told
        self.counts[answer.status_code] += 1
        if answer.status_code == 201:
            self._taken.append((name, attack, is_run))
            self._started.add((attack.plugin, attack.key.name))

    def _is_first(self, attack):
        """Whether no other value of the key has been taken before. Each pattern leads to other topics."""
        is_new = attack.key.topics or (attack.plugin, attack.key.name) not in self._started
        is_chosen = attack.leads_elsewhere and key_of(attack) in self._keys
        return is_chosen and not attack.has_driver and bool(is_new)

    def _settle(self):
        for name, attack, is_run in self._taken:
            if is_run:
                told = (attack.plugin, attack.key.name, attack.value[:100])
                state = self._state_in_the_end(name, attack, told)
                self.states[state] += 1
                if attack.key.name in READS_A_FILE:
                    assert state == "FAILED", told
                self._check_what_is_told(name, told)
        for name, _, _ in self._taken:
            assert self.tenancy.ask("DELETE", f"/connectors/{name}").status_code == 204
        self._taken = []

    def _state_in_the_end(self, name, attack, told):
        """The state of the task when it has run or failed; of a sink none of whose topics is the tenant's, what the leader
        says when it has acted for it."""

        def state():
            if attack.config.get("verify.interval.ms") and not attack.has_driver:
                compared = self.tenancy.ask("GET", f"/v1/connectors/{name}/verify")
                assert "billing" not in compared.text, told
                return compared.json()["error"]["code"] if compared.status_code == 200 else None
            found = self.tenancy.ask("GET", f"/connectors/{name}/status").json()
            if not found["tasks"]:
                return "no task" if attack.key.topics == "pattern" and attack.value != ".*" else None
            if found["tasks"][0]["state"] != "UNASSIGNED":
                return found["tasks"][0]["state"]
            # A server that does not answer is asked for a minute.
            return "retries" if f"[{name}-0]" in retries(self.tenancy) else None

        def missing():
            return f"{told}: {self.tenancy.ask('GET', f'/connectors/{name}/status').text}"

        return self.tenancy.workers[0].wait(state, missing, SETTLED_S)

    def _check_what_is_told(self, name, told):
        rows = self.tenancy.ask("GET", f"/v1/connectors/{name}/changes?from=beginning&limit=50&follow=false")
        status = self.tenancy.ask("GET", f"/connectors/{name}/status?details=true")
        for text in (rows.text, status.text):
            assert FOREIGN not in text, told
            assert "session-key" not in text, told
            assert "root:x:0" not in text, told


def key_of(attack):
    return f"{attack.plugin} {attack.key.name}"


def retries(tenancy):
    """The lines of both logs that tell of tasks which try again."""
    lines = (line for worker in tenancy.workers for line in worker.log.read_text().splitlines())
    return "\n".join(line for line in lines if "session dropped" in line)


def topics_there(tenancy):
    return set(AdminClient({"bootstrap.servers": tenancy.kafka.bootstrap}).list_topics(timeout=30).topics)


def start_both_tenants(tenancy):
    """Topics with rows of others, a source of the operator's, and a source of the tenant's, whose rows are there."""
    topics = [NewTopic(name, 1, 1) for name in ("billing.public.x", "b" * 200)]
    admin = AdminClient({"bootstrap.servers": tenancy.kafka.bootstrap})
    for answer in admin.create_topics(topics).values():
        answer.result(30)
    producer = Producer({"bootstrap.servers": tenancy.kafka.bootstrap})
    for topic, value in (("billing.public.x", FOREIGN), ("b" * 200, FOREIGN)):
        producer.produce(topic, json.dumps({"value": value}), "k")
    assert producer.flush(30) == 0
    (tenancy.open / "in.jsonl").write_text(json.dumps({"value": OWN}) + "\n")
    generator = {"connector.class": "datagen", "topic.prefix": "billing", "tables": "1", "rows.per.second": "5"}
    source = {"connector.class": "file", "file": str(tenancy.open / "in.jsonl"), "topic": "shop-in"}
    worker = tenancy.workers[0]
    worker.wait(
        lambda: tenancy.ask("PUT", "/connectors/billing/config", generator, who="operator").status_code == 201,
        "a leader",
    )
    assert tenancy.ask("PUT", "/connectors/shop-in/config", source).status_code == 201
    worker.wait(lambda: "billing.task0.1" in topics_there(tenancy), "rows of the operator's")
    worker.wait(lambda: any(OWN in str(record.value()) for record in worker.read("shop-in")), "the tenant's own rows")


def billings(tenancy):
    return {name for name in topics_there(tenancy) if name.startswith("billing.")}


def test_a_tenant_reads_writes_and_freezes_nothing_that_is_not_his(tenancy, request):
    """Every value is submitted; of a share of the keys that lead elsewhere the tasks of one value run."""
    attack_and_check(tenancy, seed_of(request.config))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(3_000)
def test_no_task_of_any_attack_leads_elsewhere(tenancy):
    """The tasks of all values run, drivers of Spark among them."""
    attack_and_check(tenancy, None)


def attack_and_check(tenancy, seed):
    worker = tenancy.workers[0]
    start_both_tenants(tenancy)
    before, end, topics = tenancy.cluster(), tenancy.ends("billing.public.x"), topics_there(tenancy)
    assert end == 1

    campaign = Campaign(tenancy, seed)
    campaign.run()
    print(campaign.counts, campaign.states)
    assert campaign.counts[400] >= REFUSED_MIN, campaign.counts

    for method, path in (
        *(
            ("GET", "/connectors/billing/config"),
            ("GET", "/connectors/billing/offsets"),
            ("DELETE", "/connectors/billing"),
        ),
        *(("PUT", "/connectors/billing/pause"), ("GET", "/v1/connectors/billing/changes")),
    ):
        assert tenancy.ask(method, path).status_code in (403, 404), path

    sink = {
        "connector.class": "file-sink",
        "file": str(tenancy.open / "all.jsonl"),
        "topics.regex": f"shop-in|billing.*|{tenancy.group}.*|b+",
    }
    assert tenancy.ask("PUT", "/connectors/shop-all/config", sink).status_code == 201
    worker.wait(
        lambda: any(OWN in text for text in texts_of(tenancy, "all.jsonl")),
        lambda: f"his own rows: {tenancy.ask('GET', '/connectors?expand=status').text}",
    )
    assert [line for line in lines_of(tenancy) if FOREIGN in line or "session-key" in line] == []
    assert tenancy.ends("billing.public.x") == end, "somebody wrote to another tenant's topic"
    check_no_row_of_the_tenant_elsewhere(tenancy, topics)
    assert all(
        json.loads(record.value())["who"] in ("operator", "tenant", "anonymous")
        for record in worker.read(f"{tenancy.group}.audit")
    )
    assert tenancy.cluster() == before, "no worker was lost, and none took over"
    task = tenancy.ask("GET", "/connectors/billing/status", who="operator").json()["tasks"][0]
    assert task["state"] == "RUNNING"


def check_no_row_of_the_tenant_elsewhere(tenancy, topics):
    """No own topic has a row of the tenant, and there is no new topic outside of his prefix. `topics`: those of before."""
    logs = [f"{tenancy.group}.{name}" for name in LOGS]
    for topic in (*logs, "__consumer_offsets", *billings(tenancy)):
        for record in tenancy.workers[0].read(topic):
            assert OWN.encode() not in (record.key() or b"") + (record.value() or b""), topic
    new = topics_there(tenancy) - topics - {*logs, "billing.watermark", "__consumer_offsets", "__transaction_state"}
    assert [name for name in new if not name.removeprefix("__debezium-heartbeat.").startswith("shop-")] == []
