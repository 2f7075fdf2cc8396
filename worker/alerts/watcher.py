"""Watches the cluster while this worker leads it: opens incidents, tells receivers, and resolves what is over."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.coordinator.model import TaskId, View
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.alerts.alert_topic import AlertTopic, budget_records, incident_records
from cdcworker.worker.alerts.budgets import WRITE_EVERY_S, Budget, after, expired, used_up
from cdcworker.worker.alerts.conditions import Condition, Judged, Key, conditions, judged
from cdcworker.worker.alerts.delivery import Delivery
from cdcworker.worker.alerts.incidents import Incident, Moment, Stage, Watch, look, outdated, to_json, with_changes
from cdcworker.worker.alerts.messages import message
from cdcworker.worker.alerts.posting import REQUEST_S, Poster
from cdcworker.worker.alerts.settings import AlertSettings, Receiver

log = logging.getLogger(__name__)

POLL_S: Final = 0.25
LOOK_EVERY_S: Final = 5.0
RETRY_S: Final = 5.0


@dataclass(frozen=True)
class Surroundings:
    """What an `AlertWatcher` watches and reads. `cluster` is the worker's `group.id`."""

    cluster: str
    view: Callable[[], View]
    unassigned: Callable[[], Mapping[TaskId, Mapping[str, Any]]]
    """Returns what was measured of tasks that nobody runs."""
    settings: Callable[[], AlertSettings]
    open_topic: Callable[[], AlertTopic]


class AlertWatcher(SupervisedThread):
    """Follows the topic of incidents on a thread, on every worker; the leader writes to it, and tells receivers.

    A message that was sent and whose record was not written before the leader died is sent again by the next one, with the same
    id. When Kafka does not answer, the topic is read again after a pause.
    """

    def __init__(self, around: Surroundings, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop_requested = threading.Event()
        super().__init__(name="alerts", restart_until=self._stop_requested)
        self._around = around
        self._clock = clock
        self._incidents: tuple[Incident, ...] = ()
        self._budgets: tuple[Budget, ...] = ()
        self._problems: Mapping[str, str] = {}
        self._watch: Watch | None = None
        self._led = -1
        """The cluster's epoch of the leader that this worker is or was last."""
        self._epoch = -1
        """The epoch of this leader's records."""
        self._look_at = self._looked_at = self._write_at = 0.0
        self._counted: dict[Key, Budget] = {}
        """The budgets as they are now; the topic has them as they were when they were written last."""
        self._refused: Counter[str] = Counter()
        """How often messages of an incident were not taken, by its id."""

    def incidents(self) -> list[dict[str, Any]]:
        """Returns the incidents that are known, the newest first, as `incidents.to_json` writes them."""
        return [to_json(one) for one in sorted(self._incidents, key=lambda one: (-one.opened_ms, one.id))]

    def objectives(self) -> list[dict[str, Any]]:
        """Returns how connectors do by the objectives that have a target: which share of the time of which the lag is known they
        held, and which share of the budget is left."""
        targets = {one.name: one.target for one in self._around.settings().objectives if one.target is not None}
        return [
            budget_shown(one, targets[one.objective])
            for one in sorted(self._budgets, key=lambda one: one.key)
            if one.objective in targets
        ]

    def problems(self) -> Mapping[str, str]:
        """Returns why receivers take no messages, by their names: of this worker, while it leads."""
        return self._problems

    def stop(self) -> None:
        self._stop_requested.set()
        if self.is_alive():
            self.join(REQUEST_S)

    def serve(self) -> None:
        while not self._stop_requested.is_set():
            try:
                self._follow(Delivery(Poster().post, self._clock))
            except CdcError as error:
                log.warning("incidents are read again error=%s", error)
                self._stop_requested.wait(RETRY_S)

    def _follow(self, delivery: Delivery) -> None:
        topic = self._around.open_topic()
        try:
            topic.read_to_end()
            self.works()
            self._watch = None
            while not self._stop_requested.is_set():
                self.turn(topic, delivery)
                topic.poll(POLL_S)
        finally:
            topic.close()

    def turn(self, topic: AlertTopic, delivery: Delivery) -> None:
        """Does what is to be done now, once what the topic holds has been read."""
        self._lead(topic, delivery)
        self._incidents = tuple(topic.fold.incidents.values())
        self._budgets = tuple((self._counted if self._watch is not None else topic.fold.budgets).values())
        self._problems = delivery.problems()

    def _lead(self, topic: AlertTopic, delivery: Delivery) -> None:
        view, now = self._around.view(), self._clock()
        leader = view.state.leader
        if not view.ready or not view.is_leader or leader is None or leader.boot_id != view.boot_id:
            self._watch = None
            return
        if self._watch is None or leader.epoch != self._led:
            self._led = leader.epoch
            self._watch = self._begun(topic, now)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        settings, moment = self._around.settings(), Moment(now, time.time_ns() // 1_000_000)
        judgements = judged(view, settings.objectives, self._around.unassigned())
        found = conditions(view, judgements) | self._count(topic, judgements, moment)
        self._watch, changed = look(self._watch, found, settings, moment, self._around.cluster)
        resolved = [one for one in topic.fold.incidents.values() if not one.is_open]
        forgotten = outdated(resolved, moment.wall_ms, settings.receivers)
        topic.write(incident_records(changed, forgotten), self._epoch)
        for incident in changed:
            self._log(incident)
        for receiver, incident, stage in self._due(topic, settings):
            self._tell(topic, delivery, receiver, incident, stage)

    def _begun(self, topic: AlertTopic, now: float) -> Watch:
        """Returns the watch of a leader that goes on from all that the last one has stored."""
        topic.read_to_end()
        # The cluster's epochs begin anew with another config topic, and the topic of alerts may be older.
        self._epoch = max(self._led, topic.fold.last[0] + 1)
        if topic.fold.is_new:
            # Nothing, unless somebody has deleted the topic: what is open would else be told anew, and its end never.
            topic.write(incident_records(self._incidents) | budget_records(self._budgets), self._epoch)
        self._counted, self._looked_at, self._write_at = dict(topic.fold.budgets), now, now + WRITE_EVERY_S
        return Watch({one.key: one for one in topic.fold.incidents.values() if one.is_open})

    def _count(self, topic: AlertTopic, judgements: Mapping[Key, Judged], now: Moment) -> dict[Key, Condition]:
        """Takes the time since the last look from budgets, stores them from time to time, and returns those that are used up."""
        self._counted = after(self._counted, judgements, now.wall_ms, now.mono - self._looked_at)
        self._looked_at = now.mono
        if now.mono >= self._write_at:
            self._write_at = now.mono + WRITE_EVERY_S
            gone = expired(self._counted, now.wall_ms)
            self._counted = {key: one for key, one in self._counted.items() if key not in gone}
            changed = [one for key, one in self._counted.items() if topic.fold.budgets.get(key) != one]
            topic.write(budget_records(changed, gone), self._epoch)
        used = (used_up(self._counted[key], one.objective) for key, one in judgements.items() if key in self._counted)
        return {(one.connector, one.kind): one for one in used if one is not None}

    def _due(self, topic: AlertTopic, settings: AlertSettings) -> Iterator[tuple[Receiver, Incident, Stage]]:
        """Yields what receivers are to be told, the oldest incidents first; behind the others those of which one was not taken:
        a receiver that refuses one message for ever hears of all that comes after it."""
        refused = {id: self._refused[id] for id in self._refused if id in topic.fold.incidents}
        self._refused = Counter(refused)
        order = sorted(topic.fold.incidents.values(), key=lambda one: (refused.get(one.id, 0), one.opened_ms, one.id))
        for known in order:
            for receiver in settings.receivers:
                # As it is now: others may have been told of it meanwhile.
                incident = topic.fold.incidents[known.id]
                if (stage := incident.due(receiver)) is not None:
                    yield receiver, incident, stage

    def _tell(
        self, topic: AlertTopic, delivery: Delivery, receiver: Receiver, incident: Incident, stage: Stage
    ) -> None:
        # The messages before this one may have taken long.
        is_leader = self._around.view().is_leader
        if self._stop_requested.is_set() or not is_leader or not delivery.is_asked(receiver.name):
            return
        if delivery.send(receiver, message(receiver, incident, stage, self._around.cluster)):
            told = incident.tell(receiver.name, stage)
            topic.write(incident_records([told]), self._epoch)
            if told.is_open and self._watch is not None:
                self._watch = replace(self._watch, open=with_changes(self._watch.open, [told]))
        else:
            self._refused[incident.id] += 1

    @staticmethod
    def _log(incident: Incident) -> None:
        condition = incident.condition
        what = "incident" if incident.is_open else "incident resolved"
        log.warning(
            "%s id=%s connector=%s kind=%s severity=%s code=%s summary=%s",
            *(what, incident.id, condition.connector, condition.kind, condition.severity),
            *(condition.code or "-", condition.summary),
        )


def budget_shown(budget: Budget, target: float) -> dict[str, Any]:
    """Returns how a connector does by an objective, as the REST API shows it."""
    measured, late = budget.total()
    return {
        "objective": budget.objective,
        "connector": budget.connector,
        "target": target,
        "held": round(1 - late / measured, 6) if measured else None,
        "budget_left": round(budget.left(target), 6),
        "late_s": round(late, 1),
        "measured_s": round(measured, 1),
    }
