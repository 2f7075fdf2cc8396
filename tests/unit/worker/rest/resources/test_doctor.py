from __future__ import annotations

import sys

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.diagnostics import doctor
from cdcworker.worker.diagnostics import doctor_child as doctor_main
from cdcworker.worker.offsets import model as offsets
from cdcworker.worker.offsets.model import ConnectorOffset

GEN = {"connector.class": "datagen", "topic.prefix": "p"}


@pytest.fixture
def asked():
    return []


@pytest.fixture
def client(connect, herder, kept, asked):
    def examine(question, timeout_s):
        asked.append((question, timeout_s))
        return list(doctor_main.findings({**question, "config": GEN, "providers": {}}))

    return connect(herder, offsets=kept, examine=examine)


def test_a_connector_is_examined_with_its_secrets_and_its_positions(client, cluster, kept, asked, words):
    cluster.add("c")
    kept.found = [
        ConnectorOffset({"server": "s", "task": 1}, {"n": 2}),
        ConnectorOffset({"server": "s", "task": 0}, {"n": 1}),
    ]
    answer = client.get("/v1/connectors/c/doctor?check=connector.*")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["connector"], body["blocked"], body["counts"]) == ("c", False, {"ok": 1})
    assert body["findings"][0]["check"] == "connector.validate"
    ((question, timeout_s),) = asked
    assert question["config"]["password"] == words.secret
    assert question["offsets"] == [{"partition": one.partition, "offset": one.offset} for one in kept.found]
    assert doctor.target("c", GEN, {}, question["offsets"]).positions == {0: {"n": 1}, 1: {"n": 2}}
    assert (question["deep"], timeout_s) == (False, 30.0)
    assert words.secret not in answer.text


def test_compacted_topics_of_a_task_are_a_warning(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING")
    cluster.report("c", 0, "RUNNING", metrics={"incomplete_topics": ["p.public.b"]})
    body = client.get("/v1/connectors/c/doctor?check=topics.*").json()
    (found,) = body["findings"]
    assert (found["severity"], found["measured"]) == ("warning", "p.public.b")
    assert found["configPath"] == "/config/topic.creation.default.cleanup.policy"
    assert (body["blocked"], body["counts"]) == (False, {"warning": 1})


def test_a_deep_look_has_more_time_and_an_unknown_position_is_none(client, cluster, kept, asked):
    cluster.add("c")
    kept.error = CdcError(offsets.UNFINISHED, "no")
    assert client.get("/v1/connectors/c/doctor?deep=true").status_code == 200
    assert (asked[0][0]["offsets"], asked[0][0]["deep"], asked[0][1]) == ([], True, 75.0)


def test_an_unknown_connector_is_404_and_a_worker_without_a_doctor_501(client, connect, herder, cluster):
    assert client.get("/v1/connectors/x/doctor").status_code == 404
    cluster.add("c")
    assert connect(herder).get("/v1/connectors/c/doctor").status_code == 501


def test_what_keeps_the_doctor_from_looking_is_a_finding():
    question = {
        "connector": "c",
        "config": {**GEN, "rows.per.second": "y"},
        "providers": {},
        "offsets": [],
        "deep": False,
        "checks": [],
    }
    (found,) = doctor_main.findings(question)
    assert (found["check"], found["severity"], found["code"]) == ("doctor.start", "error", "config.invalid")


def test_a_child_is_believed_as_far_as_it_came():
    question = {"connector": "c", "config": GEN, "providers": {}, "offsets": [], "deep": False, "checks": []}
    assert [item["severity"] for item in doctor_main.run_child(question, 30.0)] == ["ok"]
    slow = 'print(\'{"severity": "ok"}\\n{"sev\', flush=True); import time; time.sleep(60)'
    found = doctor_main.run_child(question, 1.0, (sys.executable, "-c", slow))
    assert [item["severity"] for item in found] == ["ok", "unknown"]
    assert found[1]["code"] == "doctor.unknown"
