"""Two real workers that elect by a lock: the leader dies while rows flow, and decisions and rows go on."""

from __future__ import annotations

import time
import uuid

import pytest

from tests import plain_http
from tests.integration import one_worker

pytestmark = [pytest.mark.zookeeper, pytest.mark.sampled(2)]

SESSION_S = 6.0


def config(prefix, **more):
    """Ten rows a second, numbered."""
    return {
        "connector.class": "datagen",
        "topic.prefix": prefix,
        "rows.per.second": "10",
        "tasks.max": "2",
        **{key.replace("_", "."): value for key, value in more.items()},
    }


@pytest.fixture
def workers(kafka, ensemble, tmp_path):
    group = f"z{uuid.uuid4().hex[:8]}"
    lock = {"coordination_backend": "zookeeper", "zookeeper_connect": f"{ensemble.connect}/cdc"}
    made = [one_worker.Worker(tmp_path, kafka.bootstrap, group, f"w{n}", **lock) for n in (1, 2)]
    yield made
    for worker in made:
        worker.kill()


def leader_name(worker):
    leader = worker.get("/v1/cluster")["leader"]
    return leader.get("worker_id", leader.get("id")) if isinstance(leader, dict) else leader


def test_a_killed_leader_costs_no_more_than_the_session_and_two_seconds(workers):
    for worker in workers:
        worker.wait_ready()
    workers[0].put("rows", config("zk"))
    for number in (0, 1):
        workers[0].wait_state("rows", "RUNNING", number)
    name = workers[0].wait(lambda: leader_name(workers[0]), "a leader")
    dying = next(worker for worker in workers if worker.name == name)
    rest = next(worker for worker in workers if worker is not dying)
    rest.wait(lambda: leader_name(rest) == name, "the leader in the other's view")
    dying.process.kill()
    killed = time.monotonic()

    def accepted():
        answer = plain_http.put(f"{rest.url}/connectors/more/config", json=config("zk2"), timeout=30.0)
        return answer.status_code == 201

    rest.wait(accepted, "a config write", SESSION_S + 10)
    wrote_s = time.monotonic() - killed
    print(f"\nzookeeper: config write accepted {wrote_s:.1f} s after the leader's SIGKILL")
    assert wrote_s < SESSION_S + 2
    for number in (0, 1):
        rest.wait(lambda n=number: rest.task("rows", n)["worker"] == rest.name, f"rows-{number} here")
        rest.wait_state("rows", "RUNNING", number)
        topic = f"zk.task{number}.rows"
        before = len(rest.read(topic))
        rest.wait(lambda t=topic, n=before: len(rest.read(t)) > n + 10, "new rows")
        keys = [message.key() for message in rest.read(topic)]
        assert len(keys) == len(set(keys)), "a row was written twice"
    assert rest.end() == 0
