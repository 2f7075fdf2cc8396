"""Whose task it is, by the log that a process reads for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from cdcworker.coordinator.model import AssignedTask, Assignment, ClusterState, Connector, TaskSet
from cdcworker.worker.source.task_identity import owns

MINE = AssignedTask("c", "i", 0, 7)
SPEC = cast(
    Any,
    SimpleNamespace(connector="c", task=0, incarnation="i", task_epoch=7, worker_id="w", boot_id="b"),
)


def state(assignment=None, **changed) -> ClusterState:
    given = {
        "connectors": {"c": Connector("c", "i", 1, {}, "RUNNING", "source")},
        "task_sets": {"c": TaskSet("i", 1, ({},), task_epoch=5)},
        "assignments": {"w": assignment or Assignment("b", (MINE,))},
    }
    return ClusterState(**{**given, **changed})


def test_the_start_that_the_log_names_goes_on():
    assert owns(state(), SPEC)


@pytest.mark.parametrize(
    "other",
    [
        state(assignments={}),
        state(assignments={"x": Assignment("b", (MINE,))}),
        state(Assignment("b2", (MINE,))),
        state(Assignment("b", ())),
        state(Assignment("b", (), (MINE,))),
        state(Assignment("b", (MINE._replace(task_epoch=8),))),
        state(Assignment("b", (MINE._replace(incarnation="i2"),))),
        state(Assignment("b", (MINE._replace(task=1),))),
        state(connectors={}),
        state(connectors={"c": Connector("c", "i2", 1, {}, "RUNNING", "source")}),
        state(connectors={"c": Connector("c", "i", 1, {}, "STOPPED", "source")}),
        state(task_sets={}),
        state(task_sets={"c": TaskSet("i", 1, ())}),
        state(task_sets={"c": TaskSet("i", 1, ({},), task_epoch=8)}),
    ],
)
def test_any_other_start_ends(other):
    assert not owns(other, SPEC)
