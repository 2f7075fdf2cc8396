"""A connector that is created once for one key, and one that begins where it is told to."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.model import Reply, TaskSet
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets.model import BAD_POSITION, UNFINISHED, ConnectorOffset

KEY = {"Idempotency-Key": "deploy-7"}
FROM = [{"partition": {"server": "s"}, "offset": {"n": 12, "at": 1.5}}]


@pytest.fixture
def body(config):
    return {"name": "c", "config": config}


class TestTheSameRequestAgain:
    def test_is_answered_as_the_first_was(self, client, cluster, body, words):
        first = client.post("/connectors", json=body, headers=KEY)
        again = client.post("/connectors", json=body, headers=KEY)
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json() == first.json()
        assert again.headers["location"] == first.headers["location"] == "/connectors/c"
        assert again.headers["etag"] == first.headers["etag"]
        assert cluster.state.connectors["c"].version == 1
        assert words.secret not in again.text

    def test_also_through_a_follower_and_after_a_change(self, pair, cluster, body):
        assert pair.follower.post("/connectors", json=body, headers=KEY).status_code == 201
        pair.leader.put("/connectors/c/pause")
        pair.leader.put("/connectors/c/config", json={**body["config"], "port": "1"})
        for client in (pair.follower, pair.leader):
            assert client.post("/connectors", json=body, headers=KEY).status_code == 201
        assert (cluster.state.connectors["c"].version, cluster.state.connectors["c"].config["port"]) == (3, "1")

    @pytest.mark.parametrize(
        ("headers", "change"),
        [({}, {}), ({"Idempotency-Key": "deploy-8"}, {}), (KEY, {"port": "1"}), (KEY, {"password": "other"})],
    )
    def test_is_not_one_with_another_key_or_another_content(self, client, body, headers, change):
        client.post("/connectors", json=body, headers=KEY)
        answer = client.post("/connectors", json={**body, "config": {**body["config"], **change}}, headers=headers)
        assert (answer.status_code, answer.headers["x-cdc-reason"]) == (409, "exists")

    def test_makes_it_anew_when_it_was_deleted(self, client, cluster, body):
        client.post("/connectors", json=body, headers=KEY)
        first = cluster.state.connectors["c"].incarnation
        client.delete("/connectors/c")
        assert client.post("/connectors", json=body, headers=KEY).status_code == 201
        assert cluster.state.connectors["c"].incarnation != first

    def test_needs_a_key_that_can_be_one(self, client, body):
        for key in ("", "x" * 256, "ä"):
            answer = client.post("/connectors", json=body, headers=[(b"Idempotency-Key", key.encode())])
            assert answer.status_code == 400
            assert "Idempotency-Key" in answer.json()["message"]


@pytest.fixture
def planning(cluster, herder):
    """The leader makes the empty task set of a stopped connector as soon as it is asked for it."""
    decide = cluster.decide

    def decided(request):
        reply = decide(request)
        sets = dict(cluster.state.task_sets)
        for name, found in cluster.state.connectors.items():
            if found.target_state == "STOPPED":
                sets[name] = TaskSet(found.incarnation, 0, (), task_epoch=77)
        object.__setattr__(cluster.state, "task_sets", sets)
        return reply

    cluster.decide = decided
    return herder


class TestInitialOffsets:
    def test_are_there_before_it_runs(self, client, cluster, kept, planning, body):
        answer = client.post("/connectors", json={**body, "initial_offsets": FROM})
        assert (answer.status_code, answer.headers["location"]) == (201, "/connectors/c")
        assert kept.asked == [("c", 77, [ConnectorOffset({"server": "s"}, {"n": 12, "at": 1.5})])]
        assert [getattr(item, "target_state", None) for item in planning.submitted] == ["STOPPED", "RUNNING"]
        assert cluster.state.connectors["c"].target_state == "RUNNING"

    @pytest.mark.parametrize("state", ["PAUSED", "STOPPED"])
    def test_go_with_the_state_that_is_wanted(self, client, cluster, kept, planning, body, state):
        sent = {**body, "initial_offsets": FROM, "initial_state": state}
        assert client.post("/connectors", json=sent).status_code == 201
        assert cluster.state.connectors["c"].target_state == state
        assert len(kept.asked) == 1

    def test_that_nobody_could_check_are_answered_with_a_warning(self, connect, kept, planning, body):
        class Unsure(type(kept)):
            def verify(self, _connector, _changes):
                return "the d\u00e4tabase is away"

        client = connect(planning, offsets=Unsure(), plan=lambda _: [{"table": "t0"}])
        answer = client.post("/connectors", json={**body, "initial_offsets": FROM})
        assert answer.status_code == 201
        assert "the d\\xe4tabase is away" in answer.headers["x-cdc-warning"]
        assert "x-cdc-warning" not in client.post("/connectors", json={**body, "name": "other"}).headers

    def test_that_are_refused_leave_nothing_behind(self, client, cluster, kept, planning, body):
        kept.error = CdcError(BAD_POSITION, "no task starts there", where={"index": 0})
        answer = client.post("/connectors", json={**body, "initial_offsets": FROM})
        assert (answer.status_code, answer.json()["configPath"]) == (400, "/initial_offsets/0/offset")
        assert cluster.state.connectors == {}
        kept.error = CdcError(UNFINISHED, "no answer")
        assert client.post("/connectors", json={**body, "initial_offsets": FROM}).status_code == 500
        assert cluster.state.connectors == {}

    @pytest.mark.parametrize(
        ("given", "path"),
        [
            ({}, "/initial_offsets"),
            ("x", "/initial_offsets"),
            ([1], "/initial_offsets/0"),
            ([{"partition": {}, "offset": 1}], "/initial_offsets/0/offset"),
            ([{"offset": {}}], "/initial_offsets/0"),
        ],
    )
    def test_of_a_wrong_shape_are_400_and_nothing_is_made(self, client, cluster, herder, body, given, path):
        answer = client.post("/connectors", json={**body, "initial_offsets": given})
        assert (answer.status_code, answer.json()["configPath"]) == (400, path)
        assert herder.submitted == []

    def test_that_are_none_change_nothing(self, client, kept, body):
        for number, given in enumerate((None, [])):
            sent = {**body, "name": f"c{number}", "initial_offsets": given}
            assert client.post("/connectors", json=sent).status_code == 201
        assert kept.asked == []

    def test_of_a_dry_run_are_looked_at_only(self, client, cluster, kept, herder, body):
        answer = client.post("/connectors?dry_run=true", json={**body, "initial_offsets": FROM})
        assert (answer.status_code, answer.json()["effect"]) == (200, "created")
        assert (kept.asked, herder.submitted, cluster.state.connectors) == ([], [], {})

    def test_of_one_that_exists_change_nothing(self, client, cluster, kept, planning, body):
        cluster.add("c")
        assert client.post("/connectors", json={**body, "initial_offsets": FROM}).status_code == 409
        assert (kept.asked, "c" in cluster.state.connectors) == ([], True)

    def test_a_follower_leaves_it_to_the_leader(self, pair, cluster, body):
        pair.following.script = [Reply("not_leader", leader_url="http://leader:8083")]
        answer = pair.follower.post("/connectors", json={**body, "initial_offsets": FROM})
        assert answer.status_code == 409  # the leader of this test keeps no offsets, nor does it plan
        assert cluster.state.connectors == {}
        assert len(pair.leading.submitted) == 2
