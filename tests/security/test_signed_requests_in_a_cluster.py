"""Two workers with a secret on a real broker: they forward to each other, and what lies in the config topic signs nothing."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from cdcworker.coordinator.model import ClusterState, View
from cdcworker.worker.security.access import Caller, Grant
from cdcworker.worker.security.signing import SESSION_KEY, SignedRequest, Signer, keys_of
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests import plain_http
from tests.e2e.cluster import Cluster, Worker, wait

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PATH = "/admin/loggers/cdcworker.testing?scope=cluster&details=true"
BODY = json.dumps({"level": "WARN"})


@pytest.fixture
def secrets(tmp_path) -> dict[str, Path]:
    """A file of secrets for each worker, with the same secret."""
    files = {name: tmp_path / f"{name}.secrets" for name in ("w0", "w1")}
    for file in files.values():
        file.touch(0o600)
        file.write_text("o" * 40)
    return files


@pytest.fixture
def cluster(kafka, tmp_path, secrets):
    made = Cluster(kafka, SimpleNamespace(create_database=lambda: ""), tmp_path)
    try:
        for name, file in secrets.items():
            made.start_worker(name=name, sink_standby="0", inter_worker_secret_file=str(file))
        yield made
    finally:
        made.stop()


def published_key(cluster: Cluster) -> dict[str, object]:
    """The session key as whoever may read the config topic finds it."""
    reader = Consumer(
        {"bootstrap.servers": cluster.kafka.bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
    )
    reader.assign([TopicPartition(f"{cluster.group}.configs", 0, OFFSET_BEGINNING)])
    found: dict[str, object] = {}
    try:
        while True:
            (message,) = reader.consume(1, 60.0)
            if message.error() is not None:
                return found
            if message.key() == SESSION_KEY.encode():
                found = json.loads(message.value())
    finally:
        reader.close()


def put(worker: Worker, headers: dict[str, str] | None = None) -> httpx.Response:
    sent = {"content-type": "application/json", **(headers or {})}
    return plain_http.put(worker.url + PATH, content=BODY, headers=sent, timeout=30)


def test_workers_forward_with_the_secret_and_the_published_key_signs_nothing(cluster, secrets):
    wait("a session key", lambda: keys_of({SESSION_KEY: published_key(cluster)}), 60, 1.0)
    leader = cluster.leader()
    (follower,) = (worker for worker in cluster.workers.values() if worker is not leader)
    wait("the follower forwards", lambda: put(follower).status_code == 204, 60, 0.5)

    state = ClusterState(settings={SESSION_KEY: published_key(cluster)})
    signer = Signer(lambda: View(follower.id, "b", follower.url, "k", True, False, state, {}, {}, {}))
    pairs = (("content-type", "application/json"),)
    forged = signer.sign(
        SignedRequest("PUT", PATH, BODY.encode(), leader.url, pairs), Caller("root", (Grant("admin"),), "token")
    )
    answer = put(leader, forged)
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")

    for lines in ("n" * 40 + "\n" + "o" * 40, "n" * 40):
        for file in (secrets[follower.id], secrets[leader.id]):
            file.write_text(lines)
            wait("the follower forwards during a change of the secret", lambda: put(follower).status_code == 204)
    secrets[follower.id].write_text("o" * 40)
    wait("the secret before is worth nothing", lambda: put(follower).status_code == 403)
