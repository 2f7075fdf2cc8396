"""Incidents as values: conditions that last are opened, those that are gone for long enough are resolved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from cdcworker.worker.alerts.conditions import Condition, Key
from cdcworker.worker.alerts.settings import AlertSettings, Receiver, Severity

Stage = Literal["opened", "resolved"]
WANTED: Final = "wanted"
"""Stands for a receiver that is to be told and was not yet."""
KEPT_MS: Final = 30 * 86_400_000
KEPT_MAX: Final = 1_000
"""So long, and so many at most, are incidents kept that are over and of which everybody knows."""
KEPT_UNTOLD_MAX: Final = 20_000
"""So many at most are kept that are over, whoever is still to be told of them."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, behind which no time can be written."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Now: by the clock that only goes forward, in seconds, and since 1970 in milliseconds."""

    mono: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Incident:
    """The `incident/<id>` record of the topic of alerts."""

    id: str
    condition: Condition
    opened_ms: int
    resolved_ms: int | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    """What each receiver has been told last, by its name."""

    @property
    def key(self) -> Key:
        return self.condition.connector, self.condition.kind

    @property
    def is_open(self) -> bool:
        return self.resolved_ms is None

    def due(self, receiver: Receiver) -> Stage | None:
        """Returns what the receiver is to be told next. Of what was over before it was told it hears once, that it is over; who
        heard that it began hears that it is over, whatever it wants by then."""
        told = self.told.get(receiver.name)
        if not self.is_open and told == "opened":
            return "resolved"
        if not receiver.wants(self.condition.connector, self.condition.severity):
            return None
        if self.is_open:
            return None if told == "opened" else "opened"
        return "resolved" if told == WANTED else None

    def tell(self, receiver: str, stage: str) -> Incident:
        """Returns the incident of which the receiver has been told."""
        return replace(self, told={**self.told, receiver: stage})


@dataclass(frozen=True, slots=True)
class Watch:
    """The open incidents, and since when conditions last that are none yet and incidents have none any more."""

    open: Mapping[Key, Incident] = field(default_factory=dict)
    pending: Mapping[Key, float] = field(default_factory=dict)
    gone: Mapping[Key, float] = field(default_factory=dict)


def look(
    watch: Watch, found: Mapping[Key, Condition], settings: AlertSettings, now: Moment, cluster: str = ""
) -> tuple[Watch, tuple[Incident, ...]]:
    """Compares what is wrong now with the open incidents. Returns the watch that follows and the incidents that have changed:
    those that begin, go on with other tasks or another error, or are over."""
    pending = {key: watch.pending.get(key, now.mono) for key in found if key not in watch.open}
    gone = {key: watch.gone.get(key, now.mono) for key in watch.open if key not in found}
    begun = [key for key, since in pending.items() if now.mono - since >= settings.hold_s]
    over = {key for key, since in gone.items() if now.mono - since >= settings.resolve_s}
    changed = [_opened(found[key], settings.receivers, now.wall_ms, cluster) for key in begun]
    changed += [replace(watch.open[key], resolved_ms=now.wall_ms) for key in over]
    changed += [
        replace(incident, condition=found[key])
        for key, incident in watch.open.items()
        if key in found and _facts(found[key]) != _facts(incident.condition)
    ]
    after = Watch(
        with_changes(watch.open, changed),
        {key: since for key, since in pending.items() if key not in begun},
        {key: since for key, since in gone.items() if key not in over},
    )
    return after, tuple(changed)


def with_changes(known: Mapping[Key, Incident], changed: Iterable[Incident]) -> dict[Key, Incident]:
    """Returns the open incidents after changes of some."""
    after = dict(known)
    for incident in changed:
        if incident.is_open:
            after[incident.key] = incident
        elif (before := after.get(incident.key)) is not None and before.id == incident.id:
            del after[incident.key]
    return after


def _facts(condition: Condition) -> tuple[Any, ...]:
    """Returns what makes a condition another one; not its text, whose numbers change at every look."""
    return condition.code, condition.tasks, condition.tables, condition.severity


def _opened(condition: Condition, receivers: Iterable[Receiver], wall_ms: int, cluster: str) -> Incident:
    name = "\n".join((cluster, condition.connector, condition.kind, str(wall_ms)))
    wanted = {one.name: WANTED for one in receivers if one.wants(condition.connector, condition.severity)}
    return Incident(hashlib.sha256(name.encode()).hexdigest()[:24], condition, wall_ms, told=wanted)


def outdated(resolved: Iterable[Incident], now_ms: int, receivers: Sequence[Receiver] = ()) -> list[Incident]:
    """Returns the incidents that are over for so long, or are so many, that they are forgotten: of those that are too many only
    what no receiver is still to be told of."""
    newest_first = sorted(resolved, key=lambda incident: -(incident.resolved_ms or 0))
    return [
        incident
        for number, incident in enumerate(newest_first)
        if now_ms - (incident.resolved_ms or 0) > KEPT_MS
        or number >= KEPT_UNTOLD_MAX
        or (number >= KEPT_MAX and not any(incident.due(one) for one in receivers))
    ]


def to_json(incident: Incident) -> dict[str, Any]:
    """Returns the value of the record, which is what the REST API shows, too."""
    condition = incident.condition
    return {
        "v": 1,
        "id": incident.id,
        "connector": condition.connector,
        "kind": condition.kind,
        "severity": condition.severity,
        "code": condition.code,
        "summary": condition.summary,
        "tasks": list(condition.tasks),
        "tables": list(condition.tables),
        "opened": incident.opened_ms,
        "resolved": incident.resolved_ms,
        "told": dict(incident.told),
    }


def from_json(value: Mapping[str, Any]) -> Incident:
    """Returns the incident of a record's value. KeyError, TypeError or ValueError for one that is none."""
    severity: Severity = "critical" if value["severity"] == "critical" else "warning"
    condition = Condition(
        str(value["connector"]),
        str(value["kind"]),
        severity,
        str(value["summary"]),
        str(value["code"]),
        tuple(int(task) for task in value["tasks"]),
        tuple(str(table) for table in value["tables"]),
    )
    resolved = value["resolved"]
    told = {str(name): str(stage) for name, stage in dict(value["told"]).items()}
    return Incident(
        str(value["id"]), condition, _time(value["opened"]), None if resolved is None else _time(resolved), told
    )


def _time(value: Any) -> int:
    ms = int(value)
    if not 0 <= ms <= TIME_MS_MAX:
        raise ValueError("is no time")
    return ms


def trial(now_ms: int) -> tuple[Incident, Incident]:
    """Returns an incident that is none, for a trial of receivers, and the same one when it is over."""
    condition = Condition("trial", "trial", "warning", "a trial of this receiver: nothing is wrong")
    begun = _opened(condition, (), now_ms, "trial")
    return begun, replace(begun, resolved_ms=now_ms)
