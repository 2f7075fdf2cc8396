"""State changes of the cluster as numbered events: successive states are compared, and recent events are kept for
clients that reconnect."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcworker.coordinator.log.task_metrics import RETRYING
from cdcworker.coordinator.model import TaskId, View
from cdcworker.schemas.threads import end_task, supervised_task
from cdcworker.worker.rest import connect_json

COMPARE_EVERY_S = 0.25
RECENT_MAX = 1_000
"""Recent events that a client which reconnects can still be given."""
QUEUE_MAX = 1_000
"""Events that a client may fall behind before it is disconnected."""
LINGER_S = 60.0
"""Seconds for which events are still recorded after the last client has gone."""
LISTENERS_MAX = 100
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One state change with its number."""

    number: int
    type: str
    ts_ms: int
    data: Json
    connector: str | None = None


@dataclass(frozen=True)
class EventState:
    """The part of the cluster's state that events tell about, in a form that can be compared."""

    connectors: Mapping[str, Json] = field(default_factory=dict)
    tasks: Mapping[TaskId, Json] = field(default_factory=dict)
    workers: Mapping[str, Json] = field(default_factory=dict)
    leader: Json | None = None
    journal: int = 0

    @classmethod
    def of(cls, view: View) -> EventState:
        """Returns the state in a view."""
        owners, leader = connect_json.task_owners(view), view.state.leader
        connectors, tasks = {}, {}
        for name, connector in view.state.connectors.items():
            state, error = connect_json.connector_own_state(view, connector)
            connectors[name] = {
                "state": state,
                "version": connector.version,
                "config_version": connector.config_version or connector.version,
                "incarnation": connector.incarnation,
                "error": error,
            }
        for task in connect_json.task_ids(view):
            state_json = connect_json.task_state(view, task, owners)
            tasks[task] = {
                "state": state_json["state"],
                "worker": state_json["worker_id"] or None,
                "epoch": owners[task].task.task_epoch if task in owners else None,
                "error": state_json.get("error"),
                # Not how often: each try would be an event.
                "retrying": state_json.get(RETRYING, {}).get("code"),
            }
        return cls(
            connectors,
            tasks,
            {name: {"boot": item.boot_id, "draining": item.draining} for name, item in view.workers.items()},
            {"worker": leader.worker_id, "epoch": leader.epoch} if leader else None,
            max((entry.seq for entry in view.state.journal.values()), default=0),
        )


def differences(before: EventState, after: EventState, view: View) -> Iterator[tuple[str, str | None, Json]]:
    """Yields (type, connector, data) of each difference, causes before effects."""
    if before.leader != after.leader:
        yield "leader.changed", None, {"from": before.leader, "to": after.leader}
    yield from _workers(before.workers, after.workers)
    yield from _connectors(before.connectors, after.connectors)
    for entry in reversed(connect_json.rebalance_journal(view, len(view.journal))):
        if entry["seq"] > before.journal:
            yield "tasks.moved", None, entry
    for task in sorted({*before.tasks, *after.tasks}):
        old, new = before.tasks.get(task), after.tasks.get(task)
        if old != new:
            yield "task.changed", task.connector, {**task._asdict(), "from": old, "to": new}


def _workers(before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[tuple[str, None, Json]]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if new is None:
            yield "worker.left", None, {"worker": name}
        elif old is None or old["boot"] != new["boot"]:
            yield "worker.joined", None, {"worker": name, **new}
        elif old != new:
            yield "worker.draining", None, {"worker": name, **new}


def _connectors(before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[tuple[str, str, Json]]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if new is None:
            yield "connector.deleted", name, {"connector": name}
        elif old is None or old["incarnation"] != new["incarnation"]:
            yield "connector.created", name, {"connector": name, **new}
        elif old != new:
            what = "config" if old["config_version"] != new["config_version"] else "state"
            yield "connector.changed", name, {"connector": name, "what": what, "from": old, "to": new}


class FeedListener:
    """The queue of one client. None in it means that no more events follow."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[FeedEvent | None] = asyncio.Queue(QUEUE_MAX)
        self.is_overrun = False

    def put(self, event: FeedEvent | None) -> None:
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:
            self.is_overrun = True


class EventFeed:
    """Compares states while a client listens and a while longer, so that a client that lost its connection misses
    nothing."""

    def __init__(self, view: Callable[[], View], clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._listeners: set[FeedListener] = set()
        self._recent: deque[FeedEvent] = deque(maxlen=RECENT_MAX)
        self._number = 0
        self._last_state: EventState | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= LISTENERS_MAX

    @property
    def number(self) -> int:
        """The number of the last event."""
        return self._number

    @contextlib.asynccontextmanager
    async def listening(self, after: int | None) -> AsyncIterator[tuple[FeedListener, bool]]:
        """Yields a listener with the events after this number, and whether those are all that there were."""
        listener, complete = FeedListener(), True
        if self._task is None or self._task.done():
            self._last_state = EventState.of(self._view())
            self._task = self._start()
            complete = after is None
        elif after is not None:
            oldest = self._recent[0].number if self._recent else self._number + 1
            complete = oldest - 1 <= after <= self._number
            for event in self._recent:
                if complete and event.number > after:
                    listener.put(event)
        self._listeners.add(listener)
        try:
            yield listener, complete
        finally:
            self._listeners.discard(listener)

    def compare(self) -> None:
        """Compares the state once; cheap when nothing has changed."""
        view = self._view()
        before, after = self._last_state or EventState(), EventState.of(view)
        self._last_state = after
        if before == after:
            return
        now_ms = round(self._clock() * 1000)
        for kind, connector, data in differences(before, after, view):
            self._number += 1
            event = FeedEvent(self._number, kind, now_ms, data, connector)
            self._recent.append(event)
            for listener in self._listeners:
                listener.put(event)

    def _start(self) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        alone_since = loop.time()

        def goes_on() -> bool:
            nonlocal alone_since
            if self._listeners:
                alone_since = loop.time()
            return loop.time() - alone_since < LINGER_S

        return supervised_task(self.compare, COMPARE_EVERY_S, name="event-feed", goes_on=goes_on)

    async def close(self) -> None:
        task, self._task = self._task, None
        for listener in self._listeners:
            listener.put(None)
        if task is not None:
            await end_task(task)
