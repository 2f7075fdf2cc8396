"""Changes of the cluster's picture as numbered events: compared now and then, kept for a while, handed to who listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcworker.coordinator.model import TaskId, View
from cdcworker.coordinator.numbers import RETRYING
from cdcworker.worker.rest import shapes

LOOK_S = 0.25
KEPT_MAX = 1_000
"""Events that a listener who comes back can still be given."""
QUEUE_MAX = 1_000
"""Events that a listener may be behind before it is dropped."""
LINGER_S = 60.0
"""How long events are still noted after the last listener has gone."""
LISTENERS_MAX = 100
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    type: str
    ts_ms: int
    data: Json
    connector: str | None = None


@dataclass(frozen=True)
class Picture:
    """What events tell about, ready to be compared."""

    connectors: Mapping[str, Json] = field(default_factory=dict)
    tasks: Mapping[TaskId, Json] = field(default_factory=dict)
    workers: Mapping[str, Json] = field(default_factory=dict)
    leader: Json | None = None
    journal: int = 0

    @classmethod
    def of(cls, view: View) -> Picture:
        held, leader = shapes.holders(view), view.state.leader
        connectors, tasks = {}, {}
        for name, connector in view.state.connectors.items():
            state, error = shapes.own_state(view, connector)
            connectors[name] = {
                "state": state,
                "version": connector.version,
                "config_version": connector.config_version or connector.version,
                "incarnation": connector.incarnation,
                "error": error,
            }
        for task in shapes.task_ids(view):
            shown = shapes.task_state(view, task, held)
            tasks[task] = {
                "state": shown["state"],
                "worker": shown["worker_id"] or None,
                "epoch": held[task].task.task_epoch if task in held else None,
                "error": shown.get("error"),
                # Not how often: each try would be an event.
                "retrying": shown.get(RETRYING, {}).get("code"),
            }
        return cls(
            connectors,
            tasks,
            {name: {"boot": item.boot_id, "draining": item.draining} for name, item in view.workers.items()},
            {"worker": leader.worker_id, "epoch": leader.epoch} if leader else None,
            max((entry.seq for entry in view.state.journal.values()), default=0),
        )


def compared(before: Picture, after: Picture, view: View) -> Iterator[tuple[str, str | None, Json]]:
    """(type, connector, data) of each difference, causes before effects."""
    if before.leader != after.leader:
        yield "leader.changed", None, {"from": before.leader, "to": after.leader}
    yield from _workers(before.workers, after.workers)
    yield from _connectors(before.connectors, after.connectors)
    for entry in reversed(shapes.journal(view, len(view.journal))):
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


class Listener:
    """One who listens. `get` gives None when there will be no more."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE_MAX)
        self.is_behind = False

    def put(self, event: Event | None) -> None:
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:
            self.is_behind = True


class Feed:
    """Compares while somebody listens, and a while longer, so that who lost the connection misses nothing."""

    def __init__(self, view: Callable[[], View], clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._listeners: set[Listener] = set()
        self._kept: deque[Event] = deque(maxlen=KEPT_MAX)
        self._number = 0
        self._picture: Picture | None = None
        self._task: asyncio.Task[None] | None = None
        self._alone_since: float | None = None

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= LISTENERS_MAX

    @property
    def number(self) -> int:
        """Of the last event."""
        return self._number

    @contextlib.asynccontextmanager
    async def listening(self, after: int | None) -> AsyncIterator[tuple[Listener, bool]]:
        """A listener with the events after this number, and whether those are all that there were."""
        listener, complete = Listener(), True
        if self._task is None or self._task.done():
            self._picture = Picture.of(self._view())
            self._task = asyncio.create_task(self._run())
            complete = after is None
        elif after is not None:
            oldest = self._kept[0].number if self._kept else self._number + 1
            complete = oldest - 1 <= after <= self._number
            for event in self._kept:
                if complete and event.number > after:
                    listener.put(event)
        self._listeners.add(listener)
        try:
            yield listener, complete
        finally:
            self._listeners.discard(listener)

    def look(self) -> None:
        """One comparison; cheap when nothing changed."""
        view = self._view()
        before, after = self._picture or Picture(), Picture.of(view)
        self._picture = after
        if before == after:
            return
        now_ms = round(self._clock() * 1000)
        for kind, connector, data in compared(before, after, view):
            self._number += 1
            event = Event(self._number, kind, now_ms, data, connector)
            self._kept.append(event)
            for listener in self._listeners:
                listener.put(event)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        alone_since = loop.time()
        while loop.time() - alone_since < LINGER_S:
            self.look()
            if self._listeners:
                alone_since = loop.time()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        task, self._task = self._task, None
        for listener in self._listeners:
            listener.put(None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
