"""REST over three real herders and a real broker: any worker takes any request."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

import httpx
import pytest
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer

from tests import herders
from tests.herders import eventually

pytestmark = pytest.mark.kafka

SECRET = "s3cr3t-hunter2"
CONFIG = {
    "connector.class": "postgres",
    "topic.prefix": "shop",
    "database.hostname": "db",
    "database.user": "u",
    "database.password": SECRET,
    "database.dbname": "shop",
    "tasks.max": "2",
}


@dataclass
class Worker:
    herder: Herder
    server: RestServer
    http: httpx.Client

    def stop(self) -> None:
        self.http.close()
        self.server.stop()
        self.herder.stop()


def start(bootstrap: str, group: str, port: int) -> Worker:
    worker_id = f"127.0.0.1:{port}"
    config = HerderConfig(
        kafka={"bootstrap.servers": bootstrap},
        group_id=group,
        worker_id=worker_id,
        url=f"http://{worker_id}",
        topics=TopicNames.of_group(group),
        offsets_partitions=3,
        session_timeout_s=herders.SESSION_S,
    )
    herder = Herder(config, herders.shares, herders.StubLauncher())
    server = RestServer(create_app(herder), "127.0.0.1", port)
    herder.start()
    server.start()
    # Nothing listens at the config's database: the live checks have tests of their own.
    http = httpx.Client(base_url=f"http://{worker_id}", params={"validate": "false"}, trust_env=False, timeout=30)
    return Worker(herder, server, http)


@pytest.fixture
def workers(kafka):
    group = f"g-{uuid.uuid4().hex[:8]}"
    started = [start(kafka.bootstrap, group, port) for port in free_ports(3)]
    try:
        for worker in started:
            assert worker.herder.wait_started(30)
        eventually(lambda: all(len(worker.herder.view().workers) == 3 for worker in started), 30)
        eventually(lambda: any(worker.herder.view().is_leader for worker in started), 30)
        eventually(lambda: len({worker.herder.view().state.epoch for worker in started}) == 1, 30)
        yield started
    finally:
        for worker in started:
            worker.stop()


def leader_first(workers):
    return sorted(workers, key=lambda worker: not worker.herder.view().is_leader)


def task_states(worker, name):
    answer = worker.http.get(f"/connectors/{quote(name, safe='')}/status")
    return [task["state"] for task in answer.json().get("tasks", [])]


def test_a_connector_lives_its_life_through_followers(workers):
    _, first, second = leader_first(workers)
    name = "shop/orders;1 ü%"
    made = first.http.post("/connectors", json={"name": name, "config": CONFIG})
    assert made.status_code == 201, made.text
    place = made.headers["location"]
    assert first.http.get(place).status_code == 200
    for worker in workers:
        eventually(lambda worker=worker: task_states(worker, name) == ["RUNNING", "RUNNING"])
    assert second.http.put(place + "/pause").status_code == 202
    assert second.http.get(place + "/status").json()["connector"]["state"] == "PAUSED"
    eventually(lambda: task_states(first, name) == ["PAUSED", "PAUSED"])
    assert first.http.put(place + "/resume").status_code == 202
    assert second.http.post(place + "/restart", params={"includeTasks": "true"}).status_code == 202
    eventually(lambda: task_states(first, name) == ["RUNNING", "RUNNING"])
    assert first.http.put(place + "/stop").status_code == 204
    assert first.http.get(place + "/status").json()["tasks"] == []
    assert second.http.delete(place).status_code == 204
    assert second.http.get(place).status_code == 404
    for worker in workers:
        eventually(lambda worker=worker: worker.http.get(place + "/status").status_code == 404)


def test_one_of_many_creations_wins(workers):
    def create(worker):
        return worker.http.post("/connectors", json={"name": "one", "config": CONFIG}).status_code

    with ThreadPoolExecutor(6) as pool:
        codes = list(pool.map(create, workers * 2))
    assert sorted(codes) == [201, 409, 409, 409, 409, 409]


def test_no_patch_is_lost(workers):
    workers[0].http.post("/connectors", json={"name": "p", "config": CONFIG})

    def patch(number):
        key, answers = f"topic.creation.default.x{number}", []

        def is_taken():
            answer = workers[number % 3].http.patch("/connectors/p/config", json={key: str(number)})
            answers.append(answer.status_code)
            # Refused for the others' changes, or while the lead changes hands: it is to be sent again.
            return answer.status_code != 409

        eventually(is_taken)
        return answers[-1]

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(patch, range(8))) == {200}
    config = leader_first(workers)[0].http.get("/connectors/p/config").json()
    assert {config[f"topic.creation.default.x{number}"] for number in range(8)} == set(map(str, range(8)))


def test_a_stale_version_is_refused_and_a_secret_survives_its_mask(workers):
    leader, follower, _ = leader_first(workers)
    follower.http.post("/connectors", json={"name": "m", "config": CONFIG})
    shown = follower.http.get("/connectors/m/config")
    assert shown.json()["database.password"] == "****"
    headers = {"if-match": shown.headers["etag"]}
    changed = {**shown.json(), "database.user": "other"}
    assert follower.http.put("/connectors/m/config", json=changed, headers=headers).status_code == 200
    assert follower.http.put("/connectors/m/config", json=changed, headers=headers).status_code == 412
    assert leader.herder.view().state.connectors["m"].config["database.password"] == SECRET


def test_after_the_leader_has_gone_the_others_take_requests(workers):
    leader, first, second = leader_first(workers)
    leader.http.post("/connectors", json={"name": "before", "config": CONFIG})
    leader.herder.stop()
    leader.server.stop()

    def created():
        answer = first.http.post("/connectors", json={"name": "after", "config": CONFIG})
        # Until there is a leader again, clients are told to come back, in Connect's words.
        assert answer.status_code in (201, 409), answer.text
        assert answer.status_code == 201 or "rebalance" in answer.text
        return answer.status_code == 201

    eventually(created, 30)
    eventually(lambda: second.http.get("/connectors").json() == ["after", "before"])
    cluster = first.http.get("/v1/cluster").json()
    assert cluster["leader"]["id"] != leader.herder.config.worker_id
    eventually(lambda: task_states(second, "before") == ["RUNNING", "RUNNING"], 30)
