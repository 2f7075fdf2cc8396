from dataclasses import replace

import pytest
from cdcworker.coordinator.model import Restart


def states(answer):
    body = answer.json()
    return body["connector"]["state"], [task["state"] for task in body["tasks"]]


def test_status_has_connects_shape(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    answer = client.get("/connectors/c/status?details=true")
    assert answer.status_code == 200
    error = {"code": "postgres.slot_lost", "kind": "environment", "message": "gone", "hint": "make one"}
    assert answer.json() == {
        "name": "c",
        "connector": {"state": "RUNNING", "worker_id": "leader:8083", "version": "0.1.0"},
        "tasks": [
            {"id": 0, "state": "RUNNING", "worker_id": "follower:8083", "version": "0.1.0"},
            {
                "id": 1,
                "state": "FAILED",
                "worker_id": "follower:8083",
                "version": "0.1.0",
                "trace": "[postgres.slot_lost] gone (make one)",
                "error": error,
            },
        ],
        "type": "source",
        "health": "degraded",
        "reason": "1 of 2 tasks FAILED",
    }


def test_status_of_an_unknown_connector_is_404(client):
    answer = client.get("/connectors/c/status")
    assert (answer.status_code, answer.json()["message"]) == (404, "No status found for connector c")


def test_an_assigned_task_that_has_not_reported_is_unassigned(client, cluster):
    cluster.add("c")
    cluster.plan("c", None)
    assert states(client.get("/connectors/c/status")) == ("RUNNING", ["UNASSIGNED"])


def test_a_planned_task_without_an_owner_is_unassigned(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING")
    cluster.state = replace(cluster.state, assignments={})
    task = client.get("/connectors/c/status").json()["tasks"][0]
    assert task == {"id": 0, "state": "UNASSIGNED", "worker_id": ""}


def test_a_report_of_an_earlier_assignment_does_not_count(client, cluster):
    cluster.add("c")
    cluster.plan("c", None)
    cluster.report("c", 0, "RUNNING", task_epoch=99)
    assert states(client.get("/connectors/c/status")) == ("RUNNING", ["UNASSIGNED"])


@pytest.mark.parametrize("boot", [None, "boot-other"])
def test_a_task_of_a_lost_worker_is_unassigned(client, cluster, boot):
    cluster.add("c")
    cluster.plan("c", "RUNNING")
    gone = cluster.workers.pop("follower:8083")
    if boot:
        cluster.workers["follower:8083"] = replace(gone, boot_id=boot)
    assert states(client.get("/connectors/c/status")) == ("RUNNING", ["UNASSIGNED"])


def test_a_task_of_an_earlier_incarnation_is_not_taken_for_this_one(client, cluster):
    cluster.add("c", incarnation="inc-2")
    cluster.plan("c", "RUNNING", incarnation="inc-2")
    assert states(client.get("/connectors/c/status")) == ("RUNNING", ["UNASSIGNED"])


def test_a_connector_that_cannot_be_split_is_failed(client, cluster):
    cluster.add("c")
    error = {"code": "config.invalid", "message": "no table", "hint": ""}
    cluster.plan("c", error=error)
    body = client.get("/connectors/c/status?details=true").json()
    assert body["connector"]["state"] == "FAILED"
    assert body["connector"]["trace"] == "[config.invalid] no table"
    assert body["health"] == "failed"


@pytest.mark.parametrize(
    ("target", "tasks", "health"),
    [
        ("RUNNING", ["RUNNING", "RUNNING"], "healthy"),
        ("RUNNING", ["RUNNING", "FAILED"], "degraded"),
        ("RUNNING", ["FAILED", "FAILED"], "failed"),
        ("RUNNING", ["RUNNING", None], "degraded"),
        ("RUNNING", ["RESTARTING"], "degraded"),
        ("RUNNING", [], "healthy"),
        ("PAUSED", ["PAUSED", "PAUSED"], "healthy"),
        ("PAUSED", ["PAUSED", "FAILED"], "degraded"),
        ("STOPPED", ["FAILED"], "healthy"),
    ],
)
def test_health_sums_up_the_tasks(client, cluster, target, tasks, health):
    cluster.add("c", target_state=target)
    cluster.plan("c", *tasks)
    assert client.get("/connectors/c/status?details=true").json()["health"] == health


@pytest.mark.parametrize(("kind", "count", "words"), [("source", 1, "1 table is"), ("sink", 3, "3 tables are")])
def test_a_connector_of_which_tables_stand_still_is_degraded_and_says_how_many(client, cluster, kind, count, words):
    cluster.add("c", kind=kind)
    cluster.plan("c", "RUNNING", "RUNNING")
    for held, health, reason in ((count, "degraded", f"{words} held back"), (0, "healthy", None)):
        cluster.report("c", 1, "RUNNING", metrics={"tables_held": held})
        body = client.get("/connectors/c/status?details=true").json()
        assert (body["health"], body.get("reason")) == (health, reason)
        assert body["tasks"][1].get("held_tables", 0) == held
        assert client.get("/v1/connectors").json()["connectors"][0]["reason"] == (reason or "")
        assert client.get("/v1/cluster").json()["tasks"][1]["held_tables"] == held


def test_every_reason_for_not_being_well_is_named(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED", None)
    tries = {"code": "postgres.unreachable", "count": 2, "since_ms": 1}
    cluster.report("c", 0, "RUNNING", metrics={"tables_held": 2, "retrying": tries})
    body = client.get("/connectors/c/status?details=true").json()
    said = "1 of 3 tasks FAILED; 1 of 3 tasks UNASSIGNED; 1 task tries again and again; 2 tables are held back"
    assert (body["health"], body["reason"]) == ("degraded", said)


def test_a_stopped_connector_has_no_tasks(client, cluster):
    cluster.add("c", target_state="STOPPED")
    cluster.plan("c", "RUNNING")
    assert states(client.get("/connectors/c/status")) == ("STOPPED", [])
    assert client.get("/connectors/c/tasks").json() == []
    assert client.get("/connectors/c/tasks/0/status").status_code == 404


@pytest.mark.parametrize(
    ("verb", "code", "state"), [("pause", 202, "PAUSED"), ("resume", 202, "RUNNING"), ("stop", 204, "STOPPED")]
)
def test_target_states_are_set_again_and_again(client, cluster, verb, code, state):
    cluster.add("c")
    for _ in range(2):
        answer = client.put(f"/connectors/c/{verb}")
        assert (answer.status_code, answer.content) == (code, b"")
    assert cluster.state.connectors["c"].target_state == state
    assert cluster.state.connectors["c"].config["host"] == "db"


@pytest.mark.parametrize("verb", ["pause", "resume", "stop"])
def test_the_target_state_of_an_unknown_connector_is_404(client, verb):
    answer = client.put(f"/connectors/c/{verb}")
    assert (answer.status_code, answer.json()["message"]) == (404, "Unknown connector c")


def test_resume_with_a_text_body_is_415_and_does_nothing(client, cluster):
    cluster.add("c", target_state="PAUSED")
    answer = client.put("/connectors/c/resume", content="x", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()) == (
        415,
        {"error_code": 415, "message": "HTTP 415 Unsupported Media Type"},
    )
    assert cluster.state.connectors["c"].target_state == "PAUSED"


class TestRestart:
    def test_of_the_connector_alone_is_204(self, client, cluster, herder):
        cluster.add("c")
        answer = client.post("/connectors/c/restart")
        assert (answer.status_code, answer.content) == (204, b"")
        assert herder.submitted == [Restart("c")]

    @pytest.mark.parametrize("query", ["includeTasks=True", "includeTasks=true&onlyFailed=false"])
    def test_with_tasks_shows_what_restarts(self, client, cluster, herder, query):
        cluster.add("c")
        cluster.plan("c", "RUNNING", "FAILED")
        answer = client.post(f"/connectors/c/restart?{query}")
        assert answer.status_code == 202
        assert states(answer) == ("RESTARTING", ["RESTARTING", "RESTARTING"])
        assert answer.json()["tasks"][1]["trace"], "as in Kafka Connect"
        assert herder.submitted == [Restart("c", include_tasks=True)]

    def test_of_what_failed_leaves_the_rest(self, client, cluster, herder):
        cluster.add("c")
        cluster.plan("c", "RUNNING", "FAILED")
        answer = client.post("/connectors/c/restart?includeTasks=TRUE&onlyFailed=True")
        assert states(answer) == ("RUNNING", ["RUNNING", "RESTARTING"])
        assert herder.submitted == [Restart("c", include_tasks=True, only_failed=True)]

    def test_only_failed_without_tasks_is_202(self, client, cluster):
        cluster.add("c")
        cluster.plan("c", "FAILED")
        answer = client.post("/connectors/c/restart?onlyFailed=true")
        assert (answer.status_code, *states(answer)) == (202, "RUNNING", ["FAILED"])

    @pytest.mark.parametrize("query", ["", "?includeTasks=yes", "?includeTasks=true"])
    def test_of_an_unknown_connector_is_404(self, client, query):
        answer = client.post(f"/connectors/c/restart{query}")
        assert (answer.status_code, answer.json()["message"]) == (404, "Unknown connector: c")

    def test_of_a_stopped_connector_with_tasks_is_202(self, client, cluster):
        cluster.add("c", target_state="STOPPED")
        answer = client.post("/connectors/c/restart?includeTasks=true")
        assert (answer.status_code, *states(answer)) == (202, "RESTARTING", [])

    def test_of_a_task_is_204(self, client, cluster, herder):
        cluster.add("c")
        cluster.plan("c", "FAILED")
        assert client.post("/connectors/c/tasks/0/restart").status_code == 204
        assert herder.submitted == [Restart("c", task=0)]

    def test_of_an_unknown_task_is_404(self, client, cluster):
        cluster.add("c")
        cluster.plan("c", "FAILED")
        answer = client.post("/connectors/c/tasks/1/restart")
        assert (answer.status_code, answer.json()["message"]) == (404, "Unknown task: c-1")

    def test_of_a_task_of_an_unknown_connector_is_404(self, client):
        answer = client.post("/connectors/c/tasks/1/restart")
        assert (answer.status_code, answer.json()["message"]) == (404, "Unknown connector: c")

    def test_of_a_task_of_a_stopped_connector_is_409(self, client, cluster):
        cluster.add("c", target_state="STOPPED")
        cluster.plan("c", "RUNNING")
        assert client.post("/connectors/c/tasks/0/restart").status_code == 409


def test_tasks_show_their_shares_masked(client, cluster, words):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "RUNNING")
    answer = client.get("/connectors/c/tasks")
    assert answer.json()[1] == {
        "id": {"connector": "c", "task": 1},
        "config": {"connector.class": "fake", "table": "t1", "password": "****"},
    }
    old = client.get("/connectors/c/tasks-config")
    assert old.json()["c-0"]["table"] == "t0"
    assert words.secret not in answer.text + old.text


def test_the_tasks_of_a_sink_show_no_key_that_nobody_gave(client, cluster):
    def shown(config, share):
        cluster.add("c", config)
        cluster.plan("c", "RUNNING")
        planned = cluster.state.task_sets["c"]
        cluster.state = replace(cluster.state, task_sets={"c": replace(planned, tasks=({**config, **share},))})
        return client.get("/connectors/c/tasks").json()[0]["config"]

    split = {"topics": "a", "topics.regex": ""}
    assert shown({"topics": "a,b"}, split) == {"topics": "a"}
    assert shown({"topics.regex": "[ab]"}, split) == {"topics.regex": "[ab]"}
    assert shown({"topics.regex": "[ab]", "topics": ""}, split) == {"topics.regex": "[ab]", "topics": "a"}
    assert shown({"topics": "a,b", "topics.regex": ""}, split) == split


def test_shares_without_a_class_are_masked_as_their_connector(client, cluster, words):
    cluster.add("c")
    cluster.plan("c", "RUNNING")
    planned = cluster.state.task_sets["c"]
    cluster.state = replace(cluster.state, task_sets={"c": replace(planned, tasks=({"password": words.secret},))})
    assert client.get("/connectors/c/tasks").json()[0]["config"] == {"password": "****"}


def test_a_task_status_is_that_of_the_connector_status(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    answer = client.get("/connectors/c/tasks/1/status")
    assert answer.json() == client.get("/connectors/c/status").json()["tasks"][1]


@pytest.mark.parametrize("task", ["2", "-1", "2147483647"])
def test_the_status_of_an_unknown_task_is_404(client, cluster, task):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "RUNNING")
    answer = client.get(f"/connectors/c/tasks/{task}/status")
    assert (answer.status_code, answer.json()["message"]) == (404, f"No status found for task c-{task}")


@pytest.mark.parametrize("task", ["x", "1.5", "99999999999", "2147483648", "%D9%A1"])
def test_a_task_that_is_no_number_is_an_unknown_path(client, cluster, task):
    cluster.add("c")
    answer = client.get(f"/connectors/c/tasks/{task}/status")
    assert (answer.status_code, answer.json()) == (404, {"error_code": 404, "message": "HTTP 404 Not Found"})


class TestTopics:
    def test_in_use_are_listed(self, client, cluster):
        cluster.add("c")
        cluster.topics["c"] = frozenset({"b", "a"})
        assert client.get("/connectors/c/topics").json() == {"c": {"topics": ["a", "b"]}}

    def test_of_an_unknown_connector_are_none(self, client):
        assert client.get("/connectors/c/topics").json() == {"c": {"topics": []}}

    def test_are_forbidden_when_tracking_is_off(self, connect, herder):
        client = connect(herder, topic_tracking=False)
        for answer in (client.get("/connectors/c/topics"), client.put("/connectors/c/topics/reset")):
            assert (answer.status_code, answer.json()["message"]) == (403, "Topic tracking is disabled.")

    def test_reset_is_forbidden_when_switched_off(self, connect, herder):
        answer = connect(herder, topic_tracking_reset=False).put("/connectors/c/topics/reset")
        assert (answer.status_code, answer.json()["message"]) == (403, "Topic tracking reset is disabled.")

    @pytest.mark.parametrize("leads", [True, False])
    def test_are_forgotten_by_any_worker(self, connect, make_herder, cluster, leads):
        client = connect(make_herder(leads=leads))
        cluster.topics |= {"c": frozenset({"a"}), "d": frozenset({"b"})}
        for _ in range(2):
            answer = client.put("/connectors/c/topics/reset")
            assert (answer.status_code, answer.content) == (202, b"")
        assert client.get("/connectors/c/topics").json() == {"c": {"topics": []}}
        assert client.get("/connectors/d/topics").json() == {"d": {"topics": ["b"]}}
