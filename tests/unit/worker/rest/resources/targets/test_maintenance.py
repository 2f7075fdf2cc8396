"""Maintenance of lakes over REST and on the command line: what the last runs did, and a run that is asked for."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.model import PutJob
from cdcworker.worker.cli.commands.maintenance import asked, table

PATH = "/v1/connectors/c/maintenance"
LAST = {
    "began_ms": 1_700_000_000_000,
    "took_s": 1.5,
    "rewritten": {"files": 6, "bytes": 600},
    "expired_snapshots": 2,
    "removed_files": 3,
    "conflicts": 0,
    "before": {"files": 6, "bytes": 600, "deletes": 1},
    "after": {"files": 1, "bytes": 500, "deletes": 0},
    "errors": {"public.orders": "spark.target_broken"},
    "whole": True,
}


@pytest.fixture
def lake(cluster):
    cluster.add("c", kind="sink", config={"connector.class": "spark", "warehouse": "iceberg", "topics": "t"})
    cluster.plan("c", "RUNNING")

    def report(**metrics):
        cluster.report("c", 0, "RUNNING", metrics=metrics)

    return report


def test_the_last_run_of_each_task_is_shown(client, lake):
    lake(rows=1)
    assert client.get(PATH).json() == {"connector": "c", "tasks": [{"task": 0, "runs": 0, "last": None}], "runs": []}
    lake(maintenance_runs=4, maintenance=LAST)
    shown = client.get(PATH).json()
    assert shown["tasks"] == [{"task": 0, "runs": 4, "last": LAST}]
    text = table(shown)
    assert text.rows[0][2:] == ("1.5 s", "6 > 1", "600 > 500", "1 > 0", "6", "2", "3")
    assert "public.orders was not maintained: spark.target_broken" in text.after


def test_a_run_is_asked_for_once_until_it_has_ended(client, lake, herder):
    answer = client.post(PATH)
    assert (answer.status_code, answer.json()["state"]) == (202, "PENDING")
    assert client.post(PATH).json()["id"] == answer.json()["id"]
    assert herder.submitted[0] == PutJob("c", "maintenance", {})
    one = {"id": answer.json()["id"], "kind": "maintenance", "state": "COMPLETED", "started_ms": 5, "ended_ms": 9}
    lake(jobs=[one])
    (run,) = client.get(PATH).json()["runs"]
    assert (run["state"], run["started_ms"], run["ended_ms"], run["error"]) == ("COMPLETED", 5, 9, None)
    assert asked(answer.json()) == f"run {one['id']} PENDING"


def test_a_dry_run_asks_for_nothing(client, lake, herder):
    assert client.post(f"{PATH}?dry_run=true").status_code == 200
    assert client.get(PATH).json()["runs"] == []


def test_a_sink_into_a_database_has_none(client, cluster):
    cluster.add("c", kind="sink", config={"connector.class": "spark", "warehouse": "postgres", "topics": "t"})
    for answer in (client.get(PATH), client.post(PATH)):
        assert answer.status_code == 409
        assert "rest.no_maintenance" in answer.text
