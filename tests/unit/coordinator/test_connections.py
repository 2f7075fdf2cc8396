"""Connections in the core: which tasks start again when one changes, and with which config."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.core import events
from cdcworker.coordinator.core.placement import workers_with_plugin
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.log.config_fold import current_record, fold_all
from cdcworker.coordinator.log.connections import all_as_run
from cdcworker.coordinator.log.status_fold import lease_record
from cdcworker.coordinator.model import (
    ClusterState,
    Connector,
    DeleteConnection,
    DeleteConnector,
    PutConnection,
    PutConnector,
    Restart,
)

from .core.leader_herd import ME, OTHER, Driver, of

LOGIN = {"connector.class": "fake", "host": "db1", "password": "p1"}
USES = {"connector.class": "fake", "connection": "pg", "table": "t"}


def ask(driver, *requests):
    """The leader decides; each split that it asks for gives one task that repeats the whole config, as a sink's does."""
    commands = []
    for number, request in enumerate(requests):
        driver.now += 1
        commands += driver.settle(driver.feed(events.RequestArrived(f"{driver.now}-{number}", request)))
    out = list(commands)
    for _ in range(8):
        plans, commands = of(commands, events.PlanTasks), []
        for plan in plans:
            made = plan.connector
            answer = events.TasksPlanned(
                made.name, made.incarnation, plan.config_version, (dict(made.config),), connection=plan.connection
            )
            commands += driver.settle(driver.feed(answer))
        commands += passed(driver)
        out += commands
    return out


def passed(driver):
    """A second passes, in which the worker renews its lease."""
    driver.now += 1
    commands = driver.feed(events.LeaseAcked(driver.now)) + driver.feed(events.Tick())
    return driver.settle(commands + driver.status(lease_record("me", "b1", round(driver.now))))


def ended(driver, stop):
    """The process has ended; returns what is started then."""
    commands = driver.settle(driver.feed(events.TaskExited(stop.task, 0)))
    for _ in range(4):
        commands += passed(driver)
    return of(commands, events.StartTask)


def leading():
    driver = Driver()
    driver.settle(driver.lead())
    return driver


def test_a_task_starts_with_what_its_connection_provides_below_its_own_config():
    driver = leading()
    commands = ask(driver, PutConnection("pg", LOGIN), PutConnector("c", {**USES, "host": "own"}, "source"))
    (start,) = of(commands, events.StartTask)
    assert start.config == {**USES, "host": "own", "password": "p1"}
    kept = driver.state.cluster.task_sets["c"]
    assert kept.tasks == ({**USES, "host": "own"},)
    assert "p1" not in str(kept)


def test_a_changed_connection_starts_the_tasks_that_use_it_again_and_no_others():
    driver = leading()
    ask(
        driver,
        PutConnection("pg", LOGIN),
        PutConnector("c", USES, "source"),
        PutConnector("other", {"connector.class": "fake"}, "source"),
    )
    before = dict(driver.state.cluster.task_sets)
    version = driver.state.cluster.connectors["c"].version
    commands = ask(driver, PutConnection("pg", {**LOGIN, "password": "p2"}))
    after = driver.state.cluster.task_sets
    assert after["c"].task_epoch > before["c"].task_epoch
    assert after["other"] == before["other"]
    assert driver.state.cluster.connectors["c"].version == version
    assert [stop.task.connector for stop in of(commands, events.StopTask)] == ["c"]
    (stop,) = of(commands, events.StopTask)
    assert [start.config["password"] for start in ended(driver, stop)] == ["p2"]


def test_the_same_connection_again_changes_nothing():
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN), PutConnector("c", USES, "source"))
    before = driver.state.cluster.task_sets["c"]
    ask(driver, PutConnection("pg", dict(LOGIN)))
    assert driver.state.cluster.task_sets["c"] == before
    assert driver.state.cluster.connections["pg"].version == 1


def test_an_answer_to_a_split_under_the_former_connection_is_ignored():
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN))
    (first,) = of(
        driver.settle(driver.feed(events.RequestArrived("r1", PutConnector("c", USES, "source")))), events.PlanTasks
    )
    changed = events.RequestArrived("r2", PutConnection("pg", {**LOGIN, "host": "db2"}))
    (second,) = of(driver.settle(driver.feed(changed)), events.PlanTasks)
    assert (first.connector.config["host"], second.connector.config["host"]) == ("db1", "db2")
    made = first.connector
    late = events.TasksPlanned(made.name, made.incarnation, first.config_version, ({},), connection=first.connection)
    driver.settle(driver.feed(late))
    assert "c" not in driver.state.cluster.task_sets


def test_a_connection_whose_record_is_gone_fails_its_connectors_until_it_is_there_again():
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN), PutConnector("c", USES, "source"))
    records = [record for record in driver.topic.records if record.key == "connection/pg"]
    assert records
    state = driver.state.cluster
    lost = decide(state, PendingRequest("x", DeleteConnection("pg"), 0))
    assert (lost.reply.outcome, lost.reply.detail) == ("conflict", "1 connectors use the connection")
    # Whoever writes to the topic itself may delete it all the same.
    driver.topic.append([type(records[0])("connection/pg", None, {"e": str(state.epoch)})])
    driver.settle(driver.feed(events.ConfigRecords(tuple(driver.unread()))))
    driver.now += 10
    driver.settle(driver.feed(events.LeaseAcked(driver.now)) + driver.feed(events.Tick()))
    error = driver.state.cluster.task_sets["c"].error
    assert error is not None
    assert error["code"] == "coordinator.connection_missing"
    assert driver.state.cluster.task_sets["c"].tasks == ()
    ask(driver, PutConnection("pg", LOGIN))
    assert driver.state.cluster.task_sets["c"].error is None


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (PutConnection("x", LOGIN, must_exist=True), "not_found"),
        (PutConnection("x", LOGIN, if_version=1), "version_mismatch"),
        (PutConnection("pg", LOGIN, if_version=2), "version_mismatch"),
        (DeleteConnection("x"), "not_found"),
        (DeleteConnection("pg", if_version=2), "version_mismatch"),
        (DeleteConnection("pg"), "conflict"),
        (PutConnector("d", {"connection": "x"}, "source"), "conflict"),
    ],
)
def test_refusals_change_nothing(request_, outcome):
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN), PutConnector("c", USES, "source"))
    decision = decide(driver.state.cluster, PendingRequest("r", request_, 0))
    assert (decision.reply.outcome, decision.records) == (outcome, ())


def test_a_connection_is_written_again_as_it_was_read_with_fields_of_newer_versions():
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN))
    record = current_record(driver.state.cluster, "connection/pg")
    newer = type(record)(record.key, {**record.value, "color": "blue"}, {"e": "1"})
    state = fold_all(ClusterState(), [newer])
    assert current_record(state, "connection/pg").value["color"] == "blue"
    assert "p1" not in repr(state.connections["pg"])


def test_a_deleted_connector_frees_its_connection():
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN), PutConnector("c", USES, "source"), DeleteConnector("c"))
    ask(driver, DeleteConnection("pg"))
    assert driver.state.cluster.connections == {}
    assert all_as_run(driver.state.cluster) is driver.state.cluster


def test_a_restart_of_the_tasks_takes_the_connection_as_it_is():
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN), PutConnector("c", USES, "source"))
    commands = ask(driver, Restart("c", include_tasks=True))
    (stop,) = of(commands, events.StopTask)
    assert [start.config["host"] for start in ended(driver, stop)] == ["db1"]


def test_a_split_that_a_leader_without_connections_has_made_is_made_again():
    """It keeps members of records that it does not know, also of a set that it has split without the connection."""
    driver = leading()
    ask(driver, PutConnection("pg", LOGIN), PutConnector("c", USES, "source"))
    state = driver.state.cluster
    split = current_record(state, "tasks/c")
    error = {"code": "config.invalid", "kind": "config", "message": "host is missing"}
    value = {**split.value, "task_epoch": split.value["task_epoch"] + 1, "tasks": [], "error": error}
    driver.topic.append([replace(split, value=value, headers={"e": str(state.epoch)})])
    commands = driver.settle(driver.feed(events.ConfigRecords(tuple(driver.unread()))))
    assert driver.state.cluster.task_sets["c"].error == error
    commands += passed(driver)
    (plan,) = of(commands, events.PlanTasks)
    assert plan.connector.config["host"] == "db1"


def test_a_worker_without_connections_gets_no_task_of_a_connector_that_names_one():
    old, new = replace(OTHER, protocol=4), replace(OTHER, protocol=5)
    connector = Connector("c", "i", 1, USES, "RUNNING", "source")
    assert workers_with_plugin(connector, {"me": ME, "other": old}) == {"me"}
    assert workers_with_plugin(connector, {"me": ME, "other": new}) is None
    assert workers_with_plugin(replace(connector, config={"connector.class": "fake"}), {"me": ME, "other": old}) is None
