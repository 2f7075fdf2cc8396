"""The leader opens incidents, tells receivers and stores what they know; whoever follows it goes on from there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.model import Leader
from cdcworker.worker.alerts import watcher as watching
from cdcworker.worker.alerts.alert_topic import AlertFold, incident_records
from cdcworker.worker.alerts.budgets import WRITE_EVERY_S
from cdcworker.worker.alerts.delivery import BACKOFF_S, Delivery
from cdcworker.worker.alerts.settings import AlertSettings, Objective, Receiver
from cdcworker.worker.alerts.watcher import AlertWatcher, Surroundings

OPS = Receiver("ops", "webhook", "https://ops.example.com/")
TEAM = Receiver("team", "slack", "https://team.example.com/")


class Topic:
    """The topic of incidents in memory: what every worker of a test reads."""

    def __init__(self, records: list[LogRecord]) -> None:
        self.records = records
        self.fold = AlertFold()
        self.fold.apply(records)
        self.unread: list[LogRecord] = []
        """What others have written that has not been read yet."""

    def read_to_end(self):
        self.fold.apply(self.unread)
        self.unread = []

    def write(self, values, epoch):
        for key, value in values.items():
            headers = {"e": str(epoch), "n": str(len(self.records))}
            self.records.append(LogRecord(key, value, headers, len(self.records)))
        self.fold.apply(self.records[len(self.records) - len(values) :])


class World:
    """One worker with a clock, and receivers that answer with `status`."""

    def __init__(self, herder, records=None, settings=None) -> None:
        self.now = 1_000.0
        self.herder = herder
        self.settings = settings or AlertSettings((OPS,), hold_s=10.0, resolve_s=20.0)
        self.status: dict[str, int | Exception] = {}
        self.sent: list[tuple[str, str]] = []
        self.records = [] if records is None else records
        self.topic = Topic(self.records)
        around = Surroundings("c", herder.view, dict, lambda: self.settings, lambda: self.topic)
        self.watcher = AlertWatcher(around, lambda: self.now)
        self.delivery = Delivery(self.post, lambda: self.now)

    def post(self, url, *, content, headers):
        answer = self.status.get(url, 200)
        answer = answer(content) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        if 200 <= answer < 300:
            self.sent.append((url.split(".")[0].removeprefix("https://"), headers.get("webhook-id", "")[25:]))
        return SimpleNamespace(status_code=answer, headers={"retry-after": "7"} if answer == 429 else {})

    def passes(self, seconds: float, step: float = watching.LOOK_EVERY_S) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += step
            self.watcher.turn(self.topic, self.delivery)


@pytest.fixture
def fails(cluster):
    cluster.add("shop")
    cluster.plan("shop", "FAILED")
    return cluster


def repair(cluster):
    cluster.report("shop", 0, "RUNNING")


def test_an_incident_is_told_once_and_its_end_once(fails, herder):
    world = World(herder)
    world.passes(8)
    assert world.sent == []
    world.passes(200)
    assert world.sent == [("ops", "opened")]
    assert [one["resolved"] for one in world.watcher.incidents()] == [None]
    repair(fails)
    world.passes(200)
    assert world.sent == [("ops", "opened"), ("ops", "resolved")]
    (shown,) = world.watcher.incidents()
    assert (shown["told"], shown["resolved"] is None) == ({"ops": "resolved"}, False)


def test_the_next_leader_knows_who_was_told(fails, herder):
    first = World(herder)
    first.passes(30)
    herder.cluster.state = replace(herder.cluster.state, leader=Leader(9, "leader:8083", "boot-l", "u"), epoch=9)
    second = World(herder, first.records)
    second.passes(100)
    repair(fails)
    second.passes(100)
    assert (first.sent, second.sent) == ([("ops", "opened")], [("ops", "resolved")])


def test_a_follower_tells_nobody_and_knows_the_incidents(fails, herder):
    first = World(herder)
    first.passes(30)
    herder.leads = False
    second = World(herder, first.records)
    second.passes(100)
    assert second.sent == []
    assert [one["connector"] for one in second.watcher.incidents()] == ["shop"]


def test_a_former_leader_that_still_writes_changes_nothing(fails, herder):
    world = World(herder)
    world.passes(30)
    (incident,) = world.topic.fold.incidents.values()
    world.topic.write(incident_records([incident.tell("ops", "resolved")]), 99)
    world.topic.write(incident_records([incident]), 5)
    assert world.topic.fold.incidents[incident.id].told == {"ops": "resolved"}


def test_a_cluster_whose_epochs_begin_anew_goes_on_with_the_topic_that_it_has(fails, herder):
    first = World(herder)
    first.topic.write({"incident/x": None}, 99)
    first.passes(30)
    second = World(herder, first.records)
    second.passes(30)
    repair(fails)
    second.passes(60)
    assert (first.sent, second.sent) == ([("ops", "opened")], [("ops", "resolved")])


def test_of_a_topic_that_somebody_has_deleted_the_leader_writes_again_what_it_knows(fails, herder):
    world = World(herder)
    world.passes(30)
    before = world.watcher.incidents()
    fails.state = replace(fails.state, leader=Leader(9, "leader:8083", "boot-l", "u"), epoch=9)
    world.topic = Topic([])
    world.passes(2)
    assert world.watcher.incidents() == before
    repair(fails)
    world.passes(60)
    assert world.sent == [("ops", "opened"), ("ops", "resolved")]


def test_whoever_begins_to_lead_reads_first_what_the_last_leader_has_stored(fails, herder):
    first = World(herder)
    first.passes(30)
    second = World(herder)
    second.topic.unread = first.records
    second.passes(30)
    assert (first.sent, second.sent) == ([("ops", "opened")], [])


@pytest.mark.parametrize("trouble", [500, 404, 429, 302, httpx.ConnectError("no")])
def test_a_receiver_that_takes_nothing_is_asked_again_later_and_keeps_no_other_waiting(fails, herder, trouble):
    world = World(herder, settings=AlertSettings((OPS, TEAM), hold_s=10.0, resolve_s=20.0))
    world.status[OPS.url] = trouble
    world.passes(600)
    assert world.sent == [("team", "")]
    assert set(world.watcher.problems()) == {"ops"}
    world.status.clear()
    world.passes(BACKOFF_S[1] + 10)
    assert world.sent == [("team", ""), ("ops", "opened")]
    assert world.watcher.problems() == {}


def test_of_what_was_over_before_it_could_be_told_a_receiver_hears_once(fails, herder):
    world = World(herder)
    world.status[OPS.url] = 503
    world.passes(60)
    repair(fails)
    world.passes(60)
    world.status.clear()
    world.passes(BACKOFF_S[1] + 10)
    assert world.sent == [("ops", "resolved")]


def test_a_receiver_that_is_new_hears_of_what_is_open_and_not_of_the_past(fails, herder):
    world = World(herder)
    world.passes(30)
    repair(fails)
    world.passes(60)
    fails.add("other")
    fails.plan("other", "FAILED", worker="leader:8083")
    world.passes(30)
    world.settings = replace(world.settings, receivers=(OPS, TEAM))
    world.passes(30)
    assert world.sent.count(("team", "")) == 1


def test_a_message_that_is_refused_for_ever_keeps_none_behind_it_waiting(fails, herder):
    world = World(herder)
    world.status[OPS.url] = lambda body: 400 if b'"shop"' in body else 200
    world.passes(30)
    fails.add("other")
    fails.plan("other", "FAILED", worker="leader:8083")
    world.passes(BACKOFF_S[1])
    assert world.sent == [("ops", "opened")]
    told = {one["connector"]: one["told"] for one in world.watcher.incidents()}
    assert told == {"shop": {"ops": "wanted"}, "other": {"ops": "opened"}}


def test_a_deleted_connector_ends_its_incident(fails, herder):
    world = World(herder)
    world.passes(30)
    fails.state = replace(fails.state, connectors={})
    world.passes(60)
    assert world.sent == [("ops", "opened"), ("ops", "resolved")]


TARGET = Objective("fresh", 60.0, target=0.999)


def lag(cluster, seconds):
    cluster.report("shop", 0, "RUNNING", metrics={"lag_s": seconds})


def test_time_that_a_connector_is_late_is_taken_from_its_budget_over_a_change_of_leaders(cluster, herder):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING")
    settings = AlertSettings((OPS,), (TARGET,), hold_s=1e9, resolve_s=20.0)
    first = World(herder, settings=settings)
    lag(cluster, 5.0)
    first.passes(600)
    lag(cluster, 99.0)
    first.passes(400)
    cluster.state = replace(cluster.state, leader=Leader(9, "leader:8083", "boot-l", "u"), epoch=9)
    second = World(herder, first.records, settings)
    second.passes(120)
    (shown,) = second.watcher.objectives()
    assert (shown["objective"], shown["connector"], shown["target"]) == ("fresh", "shop", 0.999)
    # What the first leader counted last may not have been stored.
    assert 520 - WRITE_EVERY_S <= shown["late_s"] <= 520
    assert shown["held"] == pytest.approx(1 - shown["late_s"] / shown["measured_s"], abs=1e-5)
    assert shown["budget_left"] == pytest.approx(1 - shown["late_s"] / (0.001 * 30 * 86_400), abs=1e-5)


def test_a_budget_that_is_used_up_is_an_incident(cluster, herder):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING")
    lag(cluster, 99.0)
    settings = AlertSettings((OPS,), (replace(TARGET, target=0.9999),), hold_s=4.0, resolve_s=20.0)
    world = World(herder, settings=settings)
    world.passes(240)
    assert {one["kind"] for one in world.watcher.incidents()} == {"late/fresh"}
    world.passes(60)
    assert {one["kind"] for one in world.watcher.incidents()} == {"late/fresh", "budget/fresh"}
    lag(cluster, 0.0)
    world.passes(60)
    assert {one["kind"] for one in world.watcher.incidents() if not one["resolved"]} == {"budget/fresh"}


def test_time_in_which_nobody_looked_or_nothing_was_measured_does_not_count(cluster, herder):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING")
    world = World(herder, settings=AlertSettings((OPS,), (TARGET,)))
    world.passes(100)
    assert world.watcher.objectives() == []
    lag(cluster, 99.0)
    world.passes(2)
    world.now += 5_000
    world.passes(4)
    assert world.watcher.objectives()[0]["late_s"] <= 16


def test_foreign_records_change_nothing():
    fold = AlertFold()
    headers = {"e": "1", "n": "1"}
    for record in (
        LogRecord("x", {}, headers),
        LogRecord("incident/a", {}, {}),
        LogRecord("incident/a", {}, {"e": "-1", "n": "x"}),
        LogRecord("incident/a", {"id": "b"}, headers),
        LogRecord("incident/a", {}, headers, refused="no JSON"),
        LogRecord("objective/a/b", {"days": {"x": [1, 2]}}, headers),
        LogRecord("objective/a/b", {"days": {"2026-01-01": 1}}, headers),
    ):
        fold.apply([record])
    assert (fold.incidents, fold.budgets) == ({}, {})
