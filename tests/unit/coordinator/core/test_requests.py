"""What requests change."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.log.config_fold import deadline_record, fold_all, task_set_record
from cdcworker.coordinator.model import (
    AssignedTask,
    ClusterState,
    DeleteConnector,
    PutConnector,
    Reply,
    Restart,
    ReturnDeadline,
    TaskSet,
)


def ask(state, request, request_id="r1", wall_ms=1000):
    decision = decide(state, PendingRequest(request_id, request, wall_ms))
    return decision.reply, fold_all(state, decision.records)


@pytest.fixture
def state():
    _, state = ask(ClusterState(), PutConnector("c", {"a": "1"}, "source"))
    incarnation = state.connectors["c"].incarnation
    return fold_all(state, [task_set_record("c", TaskSet(incarnation, 1, ({}, {}), task_epoch=1))])


def test_creating_gives_version_one_and_an_incarnation_of_its_own(state):
    connector = state.connectors["c"]
    assert (connector.version, connector.config_version, connector.target_state) == (1, 1, "RUNNING")
    assert (connector.created_ms, connector.updated_ms) == (1000, 1000)
    _, other = ask(ClusterState(), PutConnector("c", {"a": "1"}, "source"), "r2")
    assert other.connectors["c"].incarnation != connector.incarnation
    _, same = ask(ClusterState(), PutConnector("c", {"a": "1"}, "source"), "r1")
    assert same.connectors["c"].incarnation == connector.incarnation


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (PutConnector("c", {}, "source", create_only=True), "exists"),
        (PutConnector("c", {}, if_version=9), "version_mismatch"),
        (PutConnector("x", None), "not_found"),
        (PutConnector("x", {}, "source", must_exist=True), "not_found"),
        (PutConnector("x", {}, "source", if_version=1), "version_mismatch"),
        (PutConnector("x", {}), "conflict"),
        (DeleteConnector("x"), "not_found"),
        (DeleteConnector("c", if_version=9), "version_mismatch"),
        (Restart("x", include_tasks=True), "not_found"),
        (Restart("c", task=2), "not_found"),
    ],
)
def test_refusals_change_nothing(state, request_, outcome):
    reply, after = ask(state, request_)
    assert reply.outcome == outcome
    assert after == state


def test_a_new_config_is_a_new_version_of_config_and_connector(state):
    reply, after = ask(state, PutConnector("c", {"a": "2"}, if_version=1), wall_ms=2000)
    connector = after.connectors["c"]
    assert reply == Reply("ok", version=2)
    assert (connector.version, connector.config_version, connector.updated_ms) == (2, 2, 2000)
    assert connector.incarnation == state.connectors["c"].incarnation


def test_pausing_is_a_new_version_but_no_new_config(state):
    _, after = ask(state, PutConnector("c", None, target_state="PAUSED"))
    connector = after.connectors["c"]
    assert (connector.version, connector.config_version, connector.config) == (2, 1, {"a": "1"})


def test_what_is_so_already_is_not_written_again(state):
    for request in (PutConnector("c", {"a": "1"}), PutConnector("c", None, target_state="RUNNING")):
        assert decide(state, PendingRequest("r", request, 0)).records == ()
        assert decide(state, PendingRequest("r", request, 0)).reply == Reply("ok", version=1)


def test_deleting_removes_connector_and_tasks(state):
    _, after = ask(state, DeleteConnector("c", if_version=1))
    assert (after.connectors, after.task_sets) == ({}, {})


def test_restarting_writes_a_command_that_expires(state):
    reply, after = ask(state, Restart("c", task=1, only_failed=True), "r7", wall_ms=1000)
    assert reply.outcome == "ok"
    command = after.commands["r7"]
    assert command.expires_ms == 1000 + 180_000
    assert command.scope["task"] == 1
    assert command.scope["only_failed"] is True


def test_a_restart_says_which_starts_come_after_it_and_waits_as_long_as_the_tasks_do(state):
    incarnation = state.connectors["c"].incarnation
    waiting = ReturnDeadline("b1", "restart announced", 90_000, (AssignedTask("c", incarnation, 0, 7),))
    elsewhere = ReturnDeadline("b2", "restart announced", 500_000, (AssignedTask("d", "j", 0, 8),))
    state = fold_all(state, [deadline_record("worker/w1", waiting), deadline_record("worker/w2", elsewhere)])
    asked = PendingRequest("r8", Restart("c", include_tasks=True), 1000, task_epoch=7)
    (command,) = fold_all(state, decide(state, asked).records).commands.values()
    assert (command.scope["after"], command.expires_ms) == (7, 1000 + 180_000 + 90_000)


def test_restarting_the_connector_alone_writes_nothing_when_nothing_is_wrong(state):
    assert decide(state, PendingRequest("r", Restart("c"), 0)).records == ()


def test_restarting_a_connector_that_could_not_be_split_makes_it_split_again(state):
    failed = TaskSet(state.connectors["c"].incarnation, 1, (), {"code": "x"}, 5)
    broken = fold_all(state, [task_set_record("c", failed)])
    _, after = ask(broken, Restart("c"))
    assert after.task_sets == {}


def test_a_stopped_connector_cannot_be_restarted(state):
    _, stopped = ask(state, PutConnector("c", None, target_state="STOPPED"))
    reply, after = ask(stopped, Restart("c", include_tasks=True))
    assert reply.outcome == "conflict"
    assert after == stopped
