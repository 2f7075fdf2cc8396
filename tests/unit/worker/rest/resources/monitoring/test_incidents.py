"""`/v1/incidents`: who sees which, and what a worker without alerts answers."""

from __future__ import annotations

from types import SimpleNamespace

INCIDENTS = [
    {"v": 1, "id": "b", "connector": "shop", "resolved": None},
    {"v": 1, "id": "a", "connector": "orders", "resolved": 5},
]
ALERTS = SimpleNamespace(incidents=lambda: INCIDENTS, objectives=list, problems=lambda: {"ops": "status 503"})


def test_all_are_shown_or_those_that_are_open(connect, herder):
    client = connect(herder, alerts=ALERTS)
    found = client.get("/v1/incidents").json()
    assert [one["id"] for one in found["incidents"]] == ["b", "a"]
    assert found["receivers"] == {"ops": "status 503"}
    assert [one["id"] for one in client.get("/v1/incidents?open=true").json()["incidents"]] == ["b"]


def test_a_worker_without_alerts_says_so(client):
    answer = client.get("/v1/incidents")
    assert (answer.status_code, "alerts.file" in answer.json()["message"]) == (501, True)
