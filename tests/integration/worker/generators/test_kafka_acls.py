"""A broker that allows nothing by itself: workers live by the ACLs that are generated for them."""

from __future__ import annotations

import select
import time
import uuid

import psycopg
import pytest
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.kafka.member_removal import remove_member
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka
from cdcworker.worker.generators.kafka_acls import ALTERED, TASKS, WRITTEN, Acl, ConnectorAcls, acls
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.herders import eventually
from tests.integration import one_worker

pytestmark = pytest.mark.kafka

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
GUARDED = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": f"{MODULE} required username=admin password=admin user_admin=admin user_cdc=cdc;",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}


def login(user: str) -> dict[str, str]:
    mechanism = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return {**mechanism, "sasl.username": user, "sasl.password": user}


@pytest.fixture(scope="module")
def guarded(devstack_dir):
    broker = EmbeddedKafka(devstack_dir / "guarded", GUARDED, heap="256m", jvm_options=QUICK_COMPILER_ONLY)
    broker.start()
    yield broker
    broker.remove()


@pytest.fixture(scope="module")
def admin(guarded):
    return AdminClient({"bootstrap.servers": guarded.bootstrap, **login("admin"), "log_level": 2})


def binding(acl: Acl, operation: str, rule: AclPermissionType = AclPermissionType.ALLOW) -> AclBinding:
    words = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in operation).strip("_")
    kind = ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    name = acl.name or "kafka-cluster"
    user = "User:cdc"
    place = RESOURCES[acl.resource], name, kind
    return AclBinding(*place, user, "*", AclOperation[words.upper()], rule)


def allow(admin: AdminClient, found: list[Acl]) -> list[AclBinding]:
    # A source's and a sink's may be the same: Kafka takes no list with one twice.
    made = list(dict.fromkeys(binding(acl, operation) for acl in found for operation in acl.operations))
    for answer in admin.create_acls(made).values():
        answer.result(30)
    return made


@pytest.mark.long
def test_a_worker_with_exactly_the_generated_acls_writes_and_reads(guarded, admin, tmp_path):
    group = f"a{uuid.uuid4().hex[:8]}"
    lines, topics = [f"{group}-lines"], TopicNames.of_group(group)
    allow(admin, acls(ConnectorAcls(group, topics, lines, lines, alerts=f"{group}.alerts")))
    alerts = tmp_path / "alerts.yaml"
    alerts.write_text("receivers:\n- {name: nobody, url: 'http://127.0.0.1:9/'}\n")
    alerts.chmod(0o600)
    files = tmp_path / "files"
    files.mkdir()
    there, back, topic = files / "in.txt", files / "out.txt", f"{group}-lines.all"
    there.write_text("one\ntwo\nthree\n")
    settings = {**login("cdc"), "file.connector.paths": str(tmp_path / "files"), "alerts.file": str(alerts)}
    worker = one_worker.Worker(tmp_path, guarded.bootstrap, group, **settings)
    try:
        worker.wait_ready()
        source = {"connector.class": "file", "file": str(there), "topic": topic}
        worker.put("in", source)
        worker.wait_state("in", "RUNNING")
        worker.put("out", {"connector.class": "file-sink", "file": str(back), "topics": topic})
        worker.wait(lambda: back.exists() and back.read_text() == "one\ntwo\nthree\n", "all lines")
        # Lines that are no JSON are dead letters of a sink without Spark, in a topic that the ACLs cover.
        set_aside = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": f"{group}-lines.dead"}
        json_lines = {"value.converter": "json", "value.converter.schemas.enable": "false", "key.converter": "json"}
        target = {"connector.class": "stdout", "topics": topic, "file": f"{back}.json", **set_aside, **json_lines}
        worker.put("lines", target)
        worker.wait(lambda: worker.task("lines")["metrics"].get("lag_records") == 0, "committed offsets")
        assert [m.value() for m in read_as_admin(guarded, f"{group}-lines.dead")] == [b"one", b"two", b"three"]
        assert not [word for word in ("AUTHORIZATION", "incidents are read again") if word in worker.log.read_text()]
        worker.put("elsewhere", {**source, "topic": f"other-{group}"})
        failed = worker.wait_state("elsewhere", "FAILED")
        assert failed["error"]["code"] == "kafka.authorization"
        worker.wait(lambda: worker.get("/v1/incidents")["incidents"], "an incident", 90)
        withdraw(admin, f"{group}:")
        worker.put("in", {**source, "batch.size": "7"})
        assert worker.wait_state("in", "FAILED")["error"]["code"] == "kafka.authorization"
        assert worker.end() == 0
    finally:
        worker.kill()


def read_as_admin(guarded, topic: str) -> list[Message]:
    settings = {"bootstrap.servers": guarded.bootstrap, **login("admin"), "group.id": "cdcworker-t"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30.0)) is not None and not message.error():
        found.append(message)
    consumer.close()
    return found


def withdraw(admin: AdminClient, beginning: str) -> None:
    """Takes back what is granted on transactional ids."""
    kind, of = ResourcePatternType.PREFIXED, ResourceType.TRANSACTIONAL_ID
    chosen = AclBindingFilter(of, beginning, kind, None, None, AclOperation.ANY, AclPermissionType.ANY)
    (answer,) = admin.delete_acls([chosen]).values()
    assert len(answer.result(30)) == 2


def test_a_worker_may_end_the_place_of_a_member_of_its_group_and_of_no_other(guarded, admin):
    group = f"a{uuid.uuid4().hex[:8]}"
    allow(admin, acls(ConnectorAcls(group, TopicNames.of_group(group), [f"{group}-lines"], [])))
    properties = {"bootstrap.servers": guarded.bootstrap, **login("cdc")}

    def removed() -> bool:
        try:
            remove_member(properties, group_id=group, member_id="nobody", client_id="test")
        except CdcError as exc:
            if exc.code != "kafka.transient":  # a new broker has no coordinator for groups yet
                raise
            return False
        return True

    eventually(removed, what="an answer of the coordinator")
    with pytest.raises(CdcError) as caught:
        remove_member(properties, group_id=f"other-{group}", member_id="nobody", client_id="test")
    assert caught.value.code == "kafka.authorization"
    wrong = {**properties, "sasl.password": "wrong"}
    with pytest.raises(CdcError) as caught:
        remove_member(wrong, group_id=group, member_id="nobody", client_id="test")
    assert caught.value.code in ("kafka.authentication", "kafka.timeout")
    assert "wrong" not in str(caught.value)


# -- the whole way -------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.spark
def test_with_exactly_the_documented_acls_rows_go_from_postgres_to_the_warehouse(guarded, admin, postgres, tmp_path):
    group = f"w{uuid.uuid4().hex[:8]}"
    allow(admin, acls(ConnectorAcls(group, TopicNames.of_group(group), [f"data-{group}"], [f"data-{group}.public."])))
    source, warehouse = postgres.create_database(), postgres.create_database()
    with psycopg.connect(postgres.dsn(source), autocommit=True) as rows:
        rows.execute("create table orders (id int primary key, note text)")
        rows.execute("insert into orders select n, 'row' from generate_series(1, 20) n")
    there, target = (psycopg.conninfo.conninfo_to_dict(postgres.dsn(name)) for name in (source, warehouse))
    worker = one_worker.Worker(tmp_path, guarded.bootstrap, group, **login("cdc"))
    try:
        worker.wait_ready()
        worker.put("shop", {"connector.class": "postgres", "topic.prefix": f"data-{group}", **named(there, "database")})
        worker.wait_state("shop", "RUNNING")
        topics = {"topics": f"data-{group}.public.orders"}
        worker.put("wh", {"connector.class": "spark", **topics, **named(target, "warehouse")})
        worker.wait(lambda: count(postgres.dsn(warehouse)) == 20, "the snapshot", 150)
        with psycopg.connect(postgres.dsn(source), autocommit=True) as rows:
            rows.execute("insert into orders values (21, 'streamed')")
        worker.wait(lambda: count(postgres.dsn(warehouse)) == 21, "the stream", 150)
        assert "AUTHORIZATION" not in worker.log.read_text()
        numbers = worker.wait(lambda: (n := worker.task("wh")["metrics"]).get("lag_records") == 0 and n, "the lag", 60)
        assert numbers["topic_lag_bytes"] == {f"data-{group}.public.orders": 0}
        # The sink loses its right while it runs: it halts and says of which topic.
        # Of the source's right to read its own topics, by the same user, a right of the sink would be left.
        reading = Acl("topic", f"data-{group}.public.", ("Read",), prefixed=True)
        (answer,) = admin.create_acls([binding(reading, "Read", AclPermissionType.DENY)]).values()
        answer.result(30)
        with psycopg.connect(postgres.dsn(source), autocommit=True) as rows:
            rows.execute("insert into orders values (22, 'unseen')")
        failed = worker.wait_state("wh", "FAILED", timeout_s=150)
        assert failed["error"]["code"] == "spark.kafka_denied"
        assert "cdcworker roles kafka" in failed["error"]["hint"]
    finally:
        worker.kill()


def named(place, prefix):
    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    return {f"{prefix}.{names[key]}": value for key, value in place.items() if key in names}


def count(dsn):
    with psycopg.connect(dsn) as rows:
        try:
            return rows.execute("select count(*) from public.orders").fetchone()[0]
        except psycopg.errors.UndefinedTable:
            return 0


# -- one at a time -------------------------------------------------------------------------------------------------------

LACKING = [
    pytest.param(acl, marks=() if acl.why == TASKS else pytest.mark.long, id=f"{acl.resource} {acl.why or acl.name}")
    for acl in acls(ConnectorAcls("G", TopicNames.of_group("G"), ["data-G"], ["data-G."]))
    if acl.why not in ("readers that join no group", "what sinks read", WRITTEN, ALTERED)
]  # fmt: skip
WORKERS = (TASKS, "changes, watermarks, messages")
"""What only a connector needs; without any other of them a worker joins no cluster."""


@pytest.mark.parametrize("acl", LACKING)
def test_without_one_of_them_it_is_said_what_to_grant(guarded, admin, tmp_path, acl):
    group = f"l{uuid.uuid4().hex[:8]}"
    found = acls(ConnectorAcls(group, TopicNames.of_group(group), [f"data-{group}"], [f"data-{group}."]))
    allow(admin, [one for one in found if one.why != acl.why or one.name.replace(group, "G") != acl.name])
    name = acl.name.replace("G", group, 1)
    worker = one_worker.Worker(tmp_path, guarded.bootstrap, group, **login("cdc"))
    try:
        if acl.why in WORKERS:
            worker.wait_ready()
            worker.put(
                "in",
                {"connector.class": "datagen", "topic.prefix": f"data-{group}", "tables": "1", "rows.per.second": "5"},
            )
            error = worker.wait_state("in", "FAILED")["error"]
            assert error["code"] == "kafka.authorization"
            assert "cdcworker roles kafka" in error["hint"]
            said = str(error)
        else:
            said = until_said(worker, "kafka.authorization", "cdcworker roles kafka")
        kind = {"transactional-id": "TRANSACTIONAL_ID", "topic": "TOPIC", "group": "GROUP"}[acl.resource]
        assert f"{kind}_AUTHORIZATION_FAILED" in said or name in said
    finally:
        worker.kill()


def until_said(worker, *words):
    """The log up to the error with what to do, whether the worker ends with it or tries again."""
    deadline = time.monotonic() + one_worker.DEADLINE_S
    while not all(word in worker.log.read_text() for word in words):
        assert time.monotonic() < deadline, worker.log.read_text()[-20_000:]
        select.select([], [], [], 0.05)
    return worker.log.read_text()
