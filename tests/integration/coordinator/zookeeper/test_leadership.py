"""The ZooKeeper backend against real servers: an ensemble that loses a server, restarts, or was rebuilt."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from cdcworker.coordinator.errors import ENSEMBLE_CHANGED, OTHER_CLUSTER
from cdcworker.coordinator.log.leader_claim import CLUSTER
from cdcworker.coordinator.model import PutConnector
from cdcworker.coordinator.zookeeper import errors as zk_errors
from cdcworker.coordinator.zookeeper import leadership
from cdcworker.coordinator.zookeeper.client import ZkSettings, client_errors, end_client, make_client
from cdcworker.coordinator.zookeeper.leadership import ZkLeadership
from cdcworker.schemas.errors import CdcError

from tests.contract import backends as contract
from tests.contract.backends import elected, eventually, leader_of

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def rig(kafka, zookeeper):
    with contract.opened(contract.ZooKeeperRig(kafka, zookeeper)) as opened:
        yield opened


@pytest.fixture
def three(kafka, ensemble):
    with contract.opened(contract.ZooKeeperRig(kafka, ensemble)) as opened:
        yield opened


def put(herder, name):
    return herder.submit(PutConnector(name, {"tasks.max": "1"}, kind="source")).result(60).outcome


def is_connected(herder):
    contender = herder._cluster._leadership._current
    return contender is not None and contender.client.connected and contender._ensemble


def claims(rig):
    return [record.key for record in rig.records() if record.key.startswith("claim/") and record.value]


# --- members --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2, "locks")
def test_the_hint_is_the_czxid_of_the_lock_node_and_ticks_do_not_wait_for_servers(rig, zookeeper):
    member = rig.member("w1")
    elected(member)
    client = member._current.client
    path = ZkSettings(zookeeper.connect).node(rig.group, "leader")
    (node,) = client.get_children(path)
    assert client.exists(f"{path}/{node}").czxid == member.term().hint
    zookeeper.pause()
    try:
        began = time.monotonic()
        for _ in range(100):
            member.tick(0)
            member.term()
        assert time.monotonic() - began < 2, "one that asks the server waits for its answer"
    finally:
        zookeeper.resume()


@pytest.mark.sampled(2, "locks")
def test_a_lock_node_that_is_deleted_by_hand_ends_the_term(rig):
    member = rig.member("w1")
    elected(member)
    hint = member.term().hint
    client = member._current.client
    client.delete(f"{member._paths[0]}/{member._current._lock.node}")
    eventually(lambda: (member.tick(0), member.term() is None)[1], what="the end of the term")
    assert elected(member).term().hint > hint


@pytest.mark.sampled(2, "locks")
def test_between_two_lock_nodes_there_is_a_moment_without_a_term(rig):
    member = rig.member("w1")
    elected(member)
    old = member.term()
    rig.lose(member)
    eventually(lambda: member._held() not in (None, old), what="another node")
    assert member.term() is None
    member.tick(0)
    assert member.term() is None
    member.tick(0)
    assert member.term().hint > old.hint


@pytest.mark.sampled(2, "locks")
def test_a_member_that_is_not_ticked_loses_the_lock_although_its_session_lives(rig, monkeypatch):
    monkeypatch.setattr(leadership, "HUNG_S", 1.0)
    hanging, other = rig.member("w1"), rig.member("w2")
    hanging._settings = ZkSettings(hanging._settings.connect, 1.0)
    first = elected(hanging, other)
    while first is not hanging:
        first.close()
        first = elected(hanging)
        other = rig.member("w3")
    eventually(lambda: (other.tick(0.01), other.term())[1], what="the other's term")
    assert hanging.term() is None


@pytest.mark.sampled(2, "locks")
def test_nodes_are_closed_to_strangers_when_a_digest_is_set(rig, zookeeper):
    def settings(digest):
        return ZkSettings(f"{zookeeper.connect}/closed", 6.0, digest)

    ours = ZkLeadership(settings("cdc:secret"), group_id=rig.group, name="w1")
    strangers = [ZkLeadership(settings(digest), group_id=rig.group, name="s") for digest in ("", "cdc:wrong")]
    with contextlib.closing(ours):
        ours.open(10)
        ours.join()
        elected(ours)
        for stranger in strangers:
            with contextlib.closing(stranger), pytest.raises(CdcError) as caught:
                stranger.open(10)
            assert caught.value.code == zk_errors.AUTHORIZATION
            assert "wrong" not in str(caught.value)


@pytest.mark.sampled(2, "locks")
def test_an_ensemble_that_does_not_answer_is_said_clearly_and_soon():
    began = time.monotonic()
    member = ZkLeadership(ZkSettings("127.0.0.1:9"), group_id="g", name="w1")
    with pytest.raises(CdcError) as caught:
        member.open(1.0)
    assert caught.value.code == zk_errors.UNREACHABLE
    assert caught.value.where == {"zookeeper.connect": "127.0.0.1:9"}
    assert time.monotonic() - began < 30


@pytest.mark.sampled(2, "locks")
def test_threads_of_a_closed_member_end(rig):
    def mine():
        return [thread for thread in threading.enumerate() if thread.name.startswith(("zk-", "kazoo"))]

    before = len(mine())
    members = [rig.member("w1"), rig.member("w2")]
    elected(*members)
    for member in members:
        member.close()
    eventually(lambda: len(mine()) <= before, what="the end of the threads")


# --- ensembles ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2, "locks")
def test_the_loss_of_one_of_three_servers_costs_no_decision(three, ensemble):
    herds = [three.herder("w1"), three.herder("w2")]
    assert put(leader_of(*herds), "a") == "ok"
    for number in range(3):
        ensemble.kill_server(number)
        began = time.monotonic()
        eventually(lambda n=number: put(leader_of(*herds), f"b{n}") == "ok", 30, "a write with two servers")
        print(f"\nserver {number + 1} of 3 killed: config write accepted after {time.monotonic() - began:.2f} s")
        ensemble.start_server(number)
    epochs = [int(record.headers["e"]) for record in three.records()]
    assert epochs == sorted(epochs)


@pytest.mark.long
def test_after_a_restart_of_the_whole_ensemble_there_is_a_leader_and_the_tasks_never_stopped(three, ensemble):
    herds = [three.herder("w1"), three.herder("w2")]
    assert put(leader_of(*herds), "a") == "ok"
    eventually(lambda: len(contract.placement(herds[0].view())) == 1, what="the task")
    ensemble.kill()
    eventually(lambda: not any(one.view().is_leader for one in herds), what="nobody leads")
    assert herds[0].submit(PutConnector("b", {}, kind="source")).result(60).outcome == "no_leader"
    ensemble.start()
    began = time.monotonic()
    assert put(leader_of(*herds), "b") == "ok"
    print(f"\nensemble back: config write accepted after {time.monotonic() - began:.2f} s")
    stopped = [entry for one in herds for entry in one._launcher.history if entry[0] == "stop"]
    assert stopped == []
    assert len({record.value["ensemble"] for record in three.records() if record.key == CLUSTER}) == 1


@pytest.mark.sampled(2, "locks")
def test_a_rebuilt_ensemble_is_refused_until_an_operator_accepts_it(kafka, devstack_dir, request):
    servers = type(request.getfixturevalue("zookeeper"))(devstack_dir / "rebuilt")
    request.addfinalizer(servers.remove)
    servers.start()
    with contract.opened(contract.ZooKeeperRig(kafka, servers, session_timeout_s=3.0)) as rig:
        first = rig.herder("w1")
        assert put(leader_of(first), "a") == "ok"
        old = first.view().state.settings[CLUSTER]["ensemble"]
        servers.rebuild()
        with pytest.raises(CdcError) as caught:
            rig.herder("w2")
        assert caught.value.code == ENSEMBLE_CHANGED
        assert old in str(caught.value)
        eventually(lambda: is_connected(first), what="a session with the rebuilt ensemble")
        assert put(first, "b") == "no_leader"
        accept = caught.value.hint.partition("coordination.accept=")[2].rstrip(".")
        third = rig.herder("w3", accepted_identity=accept)
        assert put(leader_of(third), "c") == "ok"
        assert third.view().state.settings[CLUSTER]["ensemble"] != old
        # Who saw the log go over to the new ensemble takes part again.
        eventually(lambda: first.view().state.settings[CLUSTER]["ensemble"] != old, what="the new identity")
        assert third.drain()
        assert put(leader_of(first), "d") == "ok"
        assert {"a", "c", "d"} == set(first.view().state.connectors)


@pytest.mark.sampled(2, "locks")
def test_a_worker_that_elects_by_the_group_does_not_start_on_a_log_of_a_lock(rig, kafka):
    first = rig.herder("w1")
    eventually(lambda: CLUSTER in first.view().state.settings, what="the identity")
    assert first.drain()
    with pytest.raises(CdcError) as caught:
        rig.herder("w2", backend="kafka")
    assert caught.value.code == OTHER_CLUSTER
    assert "backend is kafka here and zookeeper there" in str(caught.value)


@pytest.mark.sampled(2, "locks")
def test_one_claim_stands_in_the_log_however_often_the_lead_changed(rig):
    herds = [rig.herder("w1"), rig.herder("w2")]
    for number in range(3):
        leader = leader_of(*herds)
        assert put(leader, f"c{number}") == "ok"
        rig.lose(leader._cluster._leadership)
        eventually(lambda one=leader: not one.view().is_leader, what="the end of the lead")
    leader_of(*herds)
    written = claims(rig)
    assert len(written) >= 4
    numbers = [int(key.partition("/")[2]) for key in written]
    assert numbers == sorted(numbers)
    standing = {key for key in leader_of(*herds).view().state.settings if key.startswith("claim/")}
    assert standing == {written[-1]}


@pytest.mark.sampled(2, "locks")
def test_a_client_without_a_server_ends_without_noise():
    client = make_client(ZkSettings("127.0.0.1:9"))
    end_client(client)
    with pytest.raises(client_errors()):
        client.get("/x")
