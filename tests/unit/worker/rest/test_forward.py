from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

CONFLICT = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"


class Leader:
    """A leader that answers what it is told and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.transport = httpx.MockTransport(self)

    def __call__(self, request):
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def follow(connect, make_herder):
    """A follower whose leader gives these answers."""

    def make(*answers):
        leader = Leader(*answers)
        return SimpleNamespace(client=connect(make_herder(leads=False), transport=leader.transport), leader=leader)

    return make


def test_a_follower_has_the_leader_do_everything(pair, config, cluster):
    made = pair.follower.post("/connectors", json={"name": "a;b/c", "config": config})
    assert (made.status_code, made.headers["location"]) == (201, "/connectors/a%3Bb%2Fc")
    assert made.json()["config"]["password"] == "****"
    place = made.headers["location"]
    assert pair.follower.put(place + "/config", json={**config, "port": "1"}).headers["etag"] == '"2"'
    assert pair.follower.patch(place + "/config", json={"port": "2"}).json()["config"]["port"] == "2"
    assert pair.follower.put(place + "/pause").status_code == 202
    assert pair.follower.put(place + "/resume").status_code == 202
    assert pair.follower.post(place + "/restart").status_code == 204
    assert pair.follower.post(place + "/restart?includeTasks=true").status_code == 202
    assert pair.follower.put(place + "/stop").status_code == 204
    assert pair.follower.get(place).json()["name"] == "a;b/c"
    assert pair.follower.delete(place).status_code == 204
    assert cluster.state.connectors == {}


def test_errors_of_the_leader_pass_through(pair, config, cluster):
    cluster.add("c")
    answer = pair.follower.post("/connectors", json={"name": "c", "config": config})
    assert (answer.status_code, answer.json()["message"]) == (409, "Connector c already exists")
    assert answer.headers["x-cdc-reason"] == "exists"
    missing = pair.follower.put("/connectors/nope/pause")
    assert (missing.status_code, missing.json()["message"]) == (404, "Unknown connector nope")


def test_a_masked_secret_is_kept_through_a_follower(pair, config, cluster, words):
    cluster.add("c")
    assert (
        pair.follower.put("/connectors/c/config", json={**config, "password": "****", "port": "1"}).status_code == 200
    )
    assert cluster.state.connectors["c"].config["password"] == words.secret


def test_if_match_reaches_the_leader(pair, config, cluster):
    cluster.add("c", version=4)
    headers = {"if-match": '"3"'}
    assert pair.follower.put("/connectors/c/config", json={**config, "port": "1"}, headers=headers).status_code == 412
    assert pair.follower.patch("/connectors/c/config", json={"port": "1"}, headers=headers).status_code == 412


def test_the_outside_is_asked_once(pair, config, checks, cluster):
    assert pair.follower.post("/connectors", json={"name": "c", "config": config}).status_code == 201
    assert len(checks.asked) == 1
    assert pair.follower.patch("/connectors/c/config", json={"port": "2"}).status_code == 200
    assert len(checks.asked) == 2


def test_an_invalid_config_is_refused_without_the_leader(pair):
    assert (
        pair.follower.post("/connectors", json={"name": "c", "config": {"connector.class": "fake"}}).status_code == 400
    )
    assert pair.following.submitted == []
    assert pair.leading.submitted == []


def test_a_mask_that_only_the_leader_can_lift_is_left_to_it(follow, config):
    follower = follow(httpx.Response(200, json={"name": "c"}))
    assert follower.client.put("/connectors/c/config", json={**config, "password": "****"}).status_code == 200
    assert "validate" not in follower.leader.asked[0].url.params


def test_few_headers_are_sent(follow):
    follower = follow(httpx.Response(202))
    headers = {
        "authorization": "Bearer x",
        "cookie": "a=b",
        "x-forwarded-for": "1.2.3.4",
        "user-agent": "curl",
        "accept": "*/*",
    }
    assert follower.client.put("/connectors/c/pause", headers=headers).status_code == 202
    sent = follower.leader.asked[0]
    assert sent.headers["user-agent"] == "cdcworker"
    assert sent.headers["accept"] == "application/json"
    assert not {"authorization", "cookie", "x-forwarded-for", "if-match"} & set(sent.headers)


def test_two_hops_and_no_more(follow):
    follower = follow(httpx.Response(202), httpx.Response(202))
    assert follower.client.put("/connectors/c/pause").status_code == 202
    assert follower.client.put("/connectors/c/pause?forward=true").status_code == 202
    assert [request.url.params["forward"] for request in follower.leader.asked] == ["true", "false"]
    answer = follower.client.put("/connectors/c/pause?forward=false")
    assert (answer.status_code, answer.json()["message"]) == (409, CONFLICT)
    assert answer.headers["retry-after"] == "1"
    assert len(follower.leader.asked) == 2


def test_a_patch_takes_no_third_hop(follow):
    follower = follow()
    answer = follower.client.patch("/connectors/c/config?forward=false", json={"port": "1"})
    assert answer.status_code in (404, 409)
    assert follower.leader.asked == []


def test_the_query_of_the_caller_is_kept(follow):
    follower = follow(httpx.Response(202, json={}))
    follower.client.post("/connectors/c/restart?includeTasks=true&onlyFailed=True&x=%26")
    params = follower.leader.asked[0].url.params
    assert (params["includeTasks"], params["onlyFailed"], params["x"]) == ("true", "True", "&")


@pytest.mark.parametrize("name", ["a%2Fb", "%2E%2E", "%2E", "a%3Bb", "%25", "a%5Cb", "%E3%82%B3"])
def test_the_path_arrives_as_it_was_meant(follow, name):
    follower = follow(httpx.Response(202))
    follower.client.put(f"/connectors/{name}/pause")
    assert follower.leader.asked[0].url.raw_path.startswith(f"/connectors/{name}/pause?".encode())


def test_a_base_path_of_the_leader_is_kept(follow, cluster):
    follower = follow(httpx.Response(202))
    cluster.state = replace(cluster.state, leader=replace(cluster.state.leader, url="http://lb/cdc/"))
    follower.client.put("/connectors/c/pause")
    assert str(follower.leader.asked[0].url) == "http://lb/cdc/connectors/c/pause?forward=true"


def test_a_leader_that_cannot_be_reached_is_a_rebalance(follow, words):
    follower = follow(httpx.ConnectError("refused"))
    answer = follower.client.put("/connectors/c/pause")
    assert answer.status_code == 409
    assert words.leader_url in answer.json()["message"]
    assert "rebalance" in answer.json()["message"]
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
        httpx.Response(502, text="<html>proxy</html>"),
        httpx.Response(404, json=["no", "error"]),
        httpx.Response(302, headers={"location": "http://elsewhere"}),
    ],
)
def test_an_answer_that_is_none_is_500(follow, answer):
    got = follow(answer).client.put("/connectors/c/pause")
    assert got.status_code == 500
    assert got.json()["message"].startswith("IO Error trying to forward REST request: ")
    assert got.json()["code"] == "rest.forward_failed"


@pytest.mark.parametrize("url", ["", "http://follower:8083", "http://follower:8083/"])
def test_a_worker_does_not_forward_to_itself(follow, cluster, url):
    cluster.state = replace(cluster.state, leader=replace(cluster.state.leader, url=url))
    follower = follow()
    assert follower.client.put("/connectors/c/pause").status_code == 409
    assert follower.leader.asked == []


def test_without_a_leader_it_is_409(follow, cluster):
    cluster.state = replace(cluster.state, leader=None)
    answer = follow().client.put("/connectors/c/pause")
    assert (answer.status_code, answer.headers["x-cdc-reason"]) == (409, "rebalance")


def test_the_answer_waits_until_this_worker_has_read_the_change(connect, cluster, make_herder, monkeypatch):
    leader = Leader(httpx.Response(202, headers={"x-cdc-version": "12"}))
    herder = make_herder(leads=False)
    client = connect(herder, transport=leader.transport, catch_up_s=30.0)
    plain_view, versions = herder.view, [1]

    def later_view():
        """Comes nearer with each look, once the leader has changed something."""
        versions.append(versions[-1] + bool(leader.asked))
        return replace(plain_view(), state=replace(cluster.state, version=versions[-1]))

    monkeypatch.setattr(herder, "view", later_view)
    assert client.put("/connectors/c/pause").status_code == 202
    assert versions[-1] >= 12
