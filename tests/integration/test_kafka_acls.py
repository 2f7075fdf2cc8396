"""A broker that allows nothing by itself: workers live by the ACLs that are generated for them."""

from __future__ import annotations

import uuid

import pytest
from cdcworker.coordinator.kafka_topics import TopicNames
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.kafka_acls import Acl, Wanted, acls
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from . import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.long]

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
    broker = EmbeddedKafka(devstack_dir / "guarded", GUARDED, heap="256m")
    broker.start()
    yield broker
    broker.remove()


@pytest.fixture(scope="module")
def admin(guarded):
    return AdminClient({"bootstrap.servers": guarded.bootstrap, **login("admin"), "log_level": 2})


def binding(acl: Acl, operation: str) -> AclBinding:
    words = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in operation).strip("_")
    kind = ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    name = acl.name or "kafka-cluster"
    user, allow = "User:cdc", AclPermissionType.ALLOW
    place = RESOURCES[acl.resource], name, kind
    return AclBinding(*place, user, "*", AclOperation[words.upper()], allow)


def allow(admin: AdminClient, found: list[Acl]) -> list[AclBinding]:
    made = [binding(acl, operation) for acl in found for operation in acl.operations]
    for answer in admin.create_acls(made).values():
        answer.result(30)
    return made


def test_a_worker_with_exactly_the_generated_acls_writes_and_reads(guarded, admin, tmp_path):
    group = f"a{uuid.uuid4().hex[:8]}"
    allow(admin, acls(Wanted(group, TopicNames.of_group(group), [f"{group}-lines"], [f"{group}-lines"])))
    there, back, topic = tmp_path / "in.txt", tmp_path / "out.txt", f"{group}-lines.all"
    there.write_text("one\ntwo\nthree\n")
    settings = {**login("cdc"), "file.connector.paths": str(tmp_path)}
    worker = one_worker.Worker(tmp_path, guarded.bootstrap, group, **settings)
    try:
        worker.wait_ready()
        source = {"connector.class": "file", "file": str(there), "topic": topic}
        worker.put("in", source)
        worker.wait_state("in", "RUNNING")
        worker.put("out", {"connector.class": "file-sink", "file": str(back), "topics": topic})
        worker.wait(lambda: back.exists() and back.read_text() == "one\ntwo\nthree\n", "all lines")
        assert "AUTHORIZATION" not in worker.log.read_text()
        worker.put("elsewhere", {**source, "topic": f"other-{group}"})
        failed = worker.wait_state("elsewhere", "FAILED")
        assert failed["error"]["code"] == "kafka.authorization"
        withdraw(admin, f"{group}:")
        worker.put("in", {**source, "batch.size": "7"})
        assert worker.wait_state("in", "FAILED")["error"]["code"] == "kafka.authorization"
        assert worker.end() == 0
    finally:
        worker.kill()


def withdraw(admin: AdminClient, transactional_ids: str) -> None:
    kind = ResourcePatternType.PREFIXED
    chosen = AclBindingFilter(
        ResourceType.TRANSACTIONAL_ID, transactional_ids, kind, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    (answer,) = admin.delete_acls([chosen]).values()
    assert len(answer.result(30)) == 2
