"""What fits into the quotas of labels, by itself and over REST."""

import asyncio
import json
from concurrent.futures import Future
from dataclasses import replace

import pytest
from cdcworker.coordinator.model import DeleteConnector, PutConnector, Reply
from cdcworker.worker.quotas.admission import refusal
from cdcworker.worker.quotas.settings import parse

from tests.app_in_memory import ask
from tests.unit.worker.conftest import Cluster

QUOTAS = parse({"quotas": [{"label": "team", "connectors": 2, "tasks": 4}, {"label": "team=big", "connectors": 5}]})
REQUIRED = parse({"quotas": [], "required": ["team"]})


@pytest.fixture
def connectors():
    """Team a has two connectors with three tasks, team b one."""
    cluster = Cluster()
    cluster.add("a1", {"tasks.max": "2"}, labels={"team": "a"})
    cluster.add("a2", {}, labels={"team": "a", "tier": "gold"})
    cluster.add("b1", {"tasks.max": "1"}, labels={"team": "b"})
    cluster.add("none", {"tasks.max": "50"})
    return cluster.state.connectors


def told(settings, connectors, *arguments, **more):
    error = refusal(settings, connectors, PutConnector(*arguments, **more))
    return error and (error.code, error.message)


def config(tasks):
    return {"connector.class": "fake", "tasks.max": str(tasks)}


@pytest.mark.parametrize(
    ("name", "tasks", "labels", "fits"),
    [
        ("new", 1, {"team": "a"}, False),  # a third connector
        ("new", 3, {"team": "b"}, True),
        ("new", 4, {"team": "b"}, False),  # five tasks
        ("new", 4, {"team": "c"}, True),
        ("new", 5, {"team": "c"}, False),
        ("new", 99, {"team": "big"}, True),  # has a quota of its own, with any number of tasks
        ("new", 99, {}, True),
        ("new", 99, None, True),
        ("new", 99, {"other": "a"}, True),
        ("a1", 3, None, True),
        ("a1", 4, None, False),
        ("b1", 2, {"team": "a"}, False),  # moves there
        ("a2", 1, {"team": "b"}, True),
        ("none", 2, {"team": "b"}, True),
    ],
)
def test_what_fits(connectors, name, tasks, labels, fits):
    found = told(QUOTAS, connectors, name, config(tasks), labels=labels)
    assert (found is None) is fits
    if found:
        assert found[0] == "quota.exceeded"
        assert "team=" in found[1]


def test_labels_alone_are_counted_too(connectors):
    assert told(QUOTAS, connectors, "b1", None, labels={"team": "a"})
    assert told(QUOTAS, connectors, "none", None, labels={"team": "c"})[1].endswith("this one would use 50")
    assert told(QUOTAS, connectors, "a1", None, labels={}) is None


def test_what_uses_too_much_already_may_stay_and_become_less(connectors):
    tight = parse({"quotas": [{"label": "team", "connectors": 0, "tasks": 0}]})
    assert told(tight, connectors, "a1", config(2)) is None
    assert told(tight, connectors, "a1", config(1)) is None
    assert told(tight, connectors, "a1", config(3))
    assert told(tight, connectors, "a1", None, target_state="PAUSED") is None
    assert refusal(tight, connectors, DeleteConnector("a1")) is None


def test_a_label_that_is_required(connectors):
    assert told(REQUIRED, connectors, "new", config(1))[0] == "quota.label_needed"
    assert told(REQUIRED, connectors, "new", config(1), labels={"tier": "x"})
    assert told(REQUIRED, connectors, "new", config(1), labels={"team": "x"}) is None
    assert told(REQUIRED, connectors, "a1", None, labels={}), "it cannot be taken away"
    assert told(REQUIRED, connectors, "a1", config(1)) is None
    assert told(REQUIRED, connectors, "none", config(1)) is None, "what is there without it goes on"


def test_a_change_of_what_is_not_there_is_not_judged(connectors):
    assert told(REQUIRED, connectors, "new", config(1), must_exist=True) is None


def test_a_config_that_no_number_can_be_read_from_counts_as_one_task(connectors):
    odd = {**connectors, "b1": replace(connectors["b1"], config={"tasks.max": "many"})}
    assert told(QUOTAS, odd, "new", config(3), labels={"team": "b"}) is None
    assert told(QUOTAS, odd, "new", config(4), labels={"team": "b"})


def create(name, **labels):
    return {"name": name, "config": {"connector.class": "fake", "host": "db"}, "labels": labels}


def test_a_connector_beyond_the_quota_is_refused_with_a_code(connect, herder, cluster):
    client = connect(herder, quotas=lambda: QUOTAS)
    for name in ("c1", "c2"):
        assert client.post("/connectors", json=create(name, team="c")).status_code == 201
    for path in ("/connectors", "/connectors?dry_run=true"):
        answer = client.post(path, json=create("c3", team="c"))
        assert (answer.status_code, answer.json()["code"]) == (403, "quota.exceeded")
    assert "c3" not in cluster.state.connectors
    assert client.post("/connectors", json=create("c3", team="d")).status_code == 201
    for query in ("", "?dry_run=true"):
        answer = client.put(f"/v1/connectors/c3/labels{query}", json={"team": "c"})
        assert (answer.status_code, answer.json()["code"]) == (403, "quota.exceeded")
    assert client.delete("/connectors/c1").status_code == 204
    assert client.put("/v1/connectors/c3/labels", json={"team": "c"}).status_code == 200
    assert client.put("/connectors/c3/pause").status_code == 202


def test_without_quotas_nothing_is_refused(connect, herder):
    client = connect(herder)
    assert [client.post("/connectors", json=create(f"c{n}", team="c")).status_code for n in range(5)] == [201] * 5


def test_a_worker_that_does_not_lead_leaves_it_to_the_leader(pair, connect, cluster):
    for worker in (pair.leader, pair.follower):
        services = worker.app.state.api.settings.services
        worker.app.state.api.settings = replace(
            worker.app.state.api.settings, services=replace(services, quotas=lambda: QUOTAS)
        )
    for name, status in (("c1", 201), ("c2", 201), ("c3", 403)):
        assert pair.follower.post("/connectors", json=create(name, team="c")).status_code == status


class LaterHerder:
    """Decides a moment after it was asked, as a real one does: others may ask meanwhile."""

    def __init__(self, herder):
        self._herder = herder

    def __getattr__(self, name):
        return getattr(self._herder, name)

    def submit(self, request):
        future = Future()
        decided = lambda: future.set_result(self._herder.submit(request).result())  # noqa: E731
        asyncio.get_running_loop().call_later(0.01, decided)
        return future


def test_those_that_come_together_use_no_more_than_there_is(connect, herder, cluster, runner):
    herder = LaterHerder(herder)
    client = connect(herder, quotas=lambda: QUOTAS)

    async def all_at_once():
        bodies = [json.dumps(create(f"c{n}", team="c")).encode() for n in range(8)]
        return await asyncio.gather(*(ask(client.app, "POST", "/connectors", body, stays=True) for body in bodies))

    statuses = sorted(answer.status for answer in runner.run(all_at_once()))
    assert statuses == [201, 201, *[403] * 6]
    assert sum(one.labels.get("team") == "c" for one in cluster.state.connectors.values()) == 2


def test_a_worker_that_becomes_the_leader_while_it_is_asked_looks_at_the_quotas(connect, herder, cluster):
    for name in ("c1", "c2"):
        cluster.add(name, {}, labels={"team": "c"})
    client = connect(herder, quotas=lambda: QUOTAS)
    settings = client.app.state.api.settings
    client.app.state.api.settings = replace(settings, limits=replace(settings.limits, leader_wait_s=5.0))
    herder.changes["is_leader"] = False
    submit = herder.submit

    def elected(request):
        herder.changes.clear()
        herder.submit = submit
        future = Future()
        future.set_result(Reply("no_leader"))
        return future

    herder.submit = elected
    answer = client.post("/connectors", json=create("c3", team="c"))
    assert (answer.status_code, answer.json()["code"]) == (403, "quota.exceeded")
    assert "c3" not in cluster.state.connectors
