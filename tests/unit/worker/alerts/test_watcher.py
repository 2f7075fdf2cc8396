"""The leader opens incidents, tells receivers and stores what they know; whoever follows it goes on from there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.model import Leader
from cdcworker.worker.alerts import watcher as watching
from cdcworker.worker.alerts.delivery import BACKOFF_S, Delivery
from cdcworker.worker.alerts.incident_topic import IncidentFold
from cdcworker.worker.alerts.incidents import to_json
from cdcworker.worker.alerts.settings import AlertSettings, Receiver
from cdcworker.worker.alerts.watcher import AlertWatcher, Surroundings

OPS = Receiver("ops", "webhook", "https://ops.example.com/")
TEAM = Receiver("team", "slack", "https://team.example.com/")


class Topic:
    """The topic of incidents in memory: what every worker of a test reads."""

    def __init__(self, records: list[LogRecord]) -> None:
        self.records = records
        self.fold = IncidentFold()
        self.fold.apply(records)

    def write(self, incidents, epoch, *, forgotten=()):
        values = [(one.id, to_json(one)) for one in incidents] + [(one.id, None) for one in forgotten]
        for id, value in values:
            headers = {"e": str(epoch), "n": str(len(self.records))}
            self.records.append(LogRecord(f"incident/{id}", value, headers, len(self.records)))
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
    world.topic.write([incident.tell("ops", "resolved")], 99)
    world.topic.write([incident], 5)
    assert world.topic.fold.incidents[incident.id].told == {"ops": "resolved"}


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


def test_a_deleted_connector_ends_its_incident(fails, herder):
    world = World(herder)
    world.passes(30)
    fails.state = replace(fails.state, connectors={})
    world.passes(60)
    assert world.sent == [("ops", "opened"), ("ops", "resolved")]


def test_foreign_records_change_nothing():
    fold = IncidentFold()
    headers = {"e": "1", "n": "1"}
    for record in (
        LogRecord("x", {}, headers),
        LogRecord("incident/a", {}, {}),
        LogRecord("incident/a", {}, {"e": "-1", "n": "x"}),
        LogRecord("incident/a", {"id": "b"}, headers),
        LogRecord("incident/a", {}, headers, refused="no JSON"),
    ):
        fold.apply([record])
    assert fold.incidents == {}
