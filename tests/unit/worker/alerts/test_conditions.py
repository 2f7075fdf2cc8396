"""What is wrong with connectors, from the state of a cluster."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.model import TaskId
from cdcworker.worker.alerts.conditions import conditions, judged
from cdcworker.worker.alerts.settings import Objective

FRESH = Objective("fresh", 60.0)
TABLES = Objective("orders", 5.0, connectors=("sh*",), tables=("public.o*", "shop.public.o*"), severity="critical")


@pytest.fixture
def found(herder):
    """`found(…)`: the conditions with these objectives."""

    def look(*objectives, unassigned=None):
        view = herder.view()
        return conditions(view, judged(view, objectives, unassigned or {}))

    return look


def test_of_a_cluster_that_works_there_are_none(cluster, found):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING", "RUNNING")
    assert found(FRESH, TABLES) == {}


def test_tasks_that_failed_are_one_condition_of_their_connector(cluster, found):
    cluster.add("shop")
    cluster.plan("shop", "FAILED", "RUNNING", "FAILED")
    ((key, condition),) = found().items()
    assert key == ("shop", "failed")
    assert (condition.severity, condition.code, condition.tasks) == ("critical", "postgres.slot_lost", (0, 2))
    assert condition.summary == "2 of 3 tasks FAILED"


def test_a_connector_that_cannot_be_split_has_failed(cluster, found):
    cluster.add("shop")
    cluster.plan("shop", error={"code": "config.invalid", "message": "no"})
    (condition,) = found().values()
    assert (condition.kind, condition.code, condition.severity) == ("failed", "config.invalid", "critical")


def test_a_task_that_nobody_runs_is_one_unless_it_waits_for_its_worker(cluster, herder, found):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING", None)
    (condition,) = found().values()
    assert (condition.kind, condition.tasks, condition.severity) == ("unassigned", (1,), "critical")
    herder.changes["waiting_s"] = {TaskId("shop", 1): 30.0}
    assert found() == {}


@pytest.mark.parametrize("state", ["PAUSED", "STOPPED"])
def test_of_what_somebody_has_stopped_neither_tasks_nor_lag_are_missed(cluster, found, state):
    cluster.add("shop", target_state=state)
    cluster.plan("shop", None)
    cluster.report("shop", 0, "PAUSED", metrics={"lag_s": 9_999})
    assert found(FRESH) == {}


def test_tries_in_a_row_and_tables_that_are_held_are_warnings(cluster, found):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING")
    retrying = {"code": "postgres.unreachable", "count": 3, "since_ms": 5}
    cluster.report("shop", 0, "RUNNING", metrics={"retrying": retrying, "tables_held": 2})
    tries, held = found()["shop", "retrying"], found()["shop", "held_tables"]
    assert (tries.severity, tries.code) == ("warning", "postgres.unreachable")
    assert (held.severity, held.summary) == ("warning", "2 tables are held back")


@pytest.mark.parametrize(("lag", "late"), [(61.5, True), (60.0, False), ("61.5", False), (None, False)])
def test_a_connector_behind_its_objective_is_late(cluster, found, lag, late):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING")
    cluster.report("shop", 0, "RUNNING", metrics={"lag_s": lag})
    told = {key: (one.severity, one.summary) for key, one in found(FRESH).items()}
    summary = "62 s behind, the objective fresh allows 60 s"
    assert told == ({("shop", "late/fresh"): ("warning", summary)} if late else {})


@pytest.mark.parametrize("metric", ["table_lag_s", "topic_lag_s"])
def test_tables_behind_their_objective_are_named(cluster, found, metric):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING")
    lags = {"public.orders": 7.0, "public.offers": 4.0, "public.items": 99.0, "shop.public.orders": 6.0}
    cluster.report("shop", 0, "RUNNING", metrics={metric: lags, "lag_s": 0.0})
    (condition,) = found(TABLES).values()
    assert (condition.severity, condition.tables) == ("critical", ("public.orders", "shop.public.orders"))


def test_an_objective_is_for_the_connectors_that_it_names(cluster, found):
    cluster.add("other")
    cluster.plan("other", "RUNNING")
    cluster.report("other", 0, "RUNNING", metrics={"table_lag_s": {"public.orders": 99.0}})
    assert found(TABLES) == {}


def test_of_a_task_that_nobody_runs_what_was_measured_from_outside_counts(cluster, found):
    cluster.add("shop")
    cluster.plan("shop", None)
    found_late = found(FRESH, unassigned={TaskId("shop", 0): {"lag_s": 100.0}})
    assert {kind for _, kind in found_late} == {"unassigned", "late/fresh"}


@pytest.mark.parametrize(
    ("metrics", "known", "late"),
    [
        ({}, False, {}),
        ({"lag_s": 5.0}, True, {}),
        ({"lag_s": 61.0}, True, {0: {"": 61.0}}),
        ({"lag_s": "x"}, False, {}),
    ],
)
def test_what_is_not_measured_is_not_judged(cluster, herder, metrics, known, late):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING")
    cluster.report("shop", 0, "RUNNING", metrics=metrics)
    one = judged(herder.view(), [FRESH], {})["fresh", "shop"]
    assert (one.is_known, one.late) == (known, late)
