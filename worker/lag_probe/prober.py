"""Measures the tasks that stand still, and tells the herder: its own ones each worker, those that nobody runs the leader."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.log.config_fold import task_set_of
from cdcworker.coordinator.log.connections import as_run, own_shares
from cdcworker.coordinator.log.task_metrics import RETRYING
from cdcworker.coordinator.model import AssignedTask, Connector, JsonObject, TaskId, TaskStatus, View
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.call import call_child
from cdcworker.worker.protocol.messages import fits

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
AGAIN_S: Final = 30.0
"""How often each task that stands still is measured."""
TIMEOUT_S: Final = 25.0
TASKS_MAX: Final = 100
"""The most tasks of one question; where there are more, those come first that were measured longest ago."""
COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.lag_probe.child")
STANDING: Final = ("PAUSED", "FAILED", "RESTARTING")
REMEMBERED: Final = ("lag_s", "lag_bytes", "lag_records", "offsets", "position", "table_lag_s", "table_lag_bytes")
"""The numbers of a task that has ended from which a measurement goes on."""

Key = tuple[str, int, int]
"""Connector, task, and the task epoch (0: nobody runs it)."""
Ask = Callable[[JsonObject], str]
Tell = Callable[[AssignedTask, JsonObject], None]
Plan = Callable[[Connector], Sequence[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Standing:
    """A task that stands still: its config, what is known of it, and the assignment under which this worker runs it."""

    key: Key
    config: Mapping[str, str]
    numbers: Mapping[str, Any]
    entry: AssignedTask | None = None
    prefixes: tuple[str, ...] = ()
    """What the names of the connector's topics begin with; empty: anything."""


@dataclass(slots=True)
class _Known:
    measured_at: float = float("-inf")
    tries: int = 0
    """Questions in a row that brought no answer."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


class LagProber:
    """Asks one child for all tasks that are due: no process for each, and none while everything runs.

    What a task of this worker is found to lag goes to `tell`; of tasks that nobody runs, `unassigned` has it.
    """

    def __init__(
        self,
        surroundings: Mapping[str, Mapping[str, str]],
        view: Callable[[], View],
        tell: Tell,
        plan: Plan,
        ask: Ask | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`surroundings`: `providers`, and the properties of Kafka clients (`kafka`). `plan` returns the configs of the tasks
        that a stopped connector would have."""
        self._surroundings = surroundings
        self._view = view
        self._tell = tell
        self._plan = plan
        self._ask = ask or run_child
        self._clock = clock
        self._known: dict[Key, _Known] = {}
        self._last: dict[TaskId, dict[str, Any]] = {}
        """What tasks reported before they ended."""
        self._plans: dict[tuple[str, int], Sequence[Mapping[str, str]]] = {}
        self._unassigned: Mapping[TaskId, Mapping[str, Any]] = {}
        self._ended = threading.Event()
        self._thread: SupervisedThread | None = None

    def start(self) -> None:
        self._thread = SupervisedThread(self._serve, name="lag-probe", restart_until=self._ended)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def unassigned(self) -> Mapping[TaskId, Mapping[str, Any]]:
        """Returns the numbers of tasks that nobody runs, while this worker leads."""
        return self._unassigned

    def _serve(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Measures what is due, in one question."""
        view = self._view()
        if not view.ready:
            return
        found = {item.key: item for item in (*_own(view), *self._of_nobody(view))}
        self._known = {key: self._known.get(key, _Known()) for key in found}
        self._remember(view)
        due_at = self._clock() - AGAIN_S
        due = [key for key, known in self._known.items() if known.measured_at <= due_at]
        # Those that never answer come last, so that they keep nobody waiting.
        due.sort(key=lambda key: (self._known[key].tries, self._known[key].measured_at))
        if due:
            self._measure([found[key] for key in due[:TASKS_MAX]])
        self._unassigned = {
            TaskId(key[0], key[1]): self._known[key].numbers for key, item in found.items() if item.entry is None
        }

    def _measure(self, items: Sequence[Standing]) -> None:
        now = self._clock()
        for item in items:
            self._known[item.key].measured_at = now
            self._known[item.key].tries += 1
        tasks = [
            {
                "key": number,
                "connector": item.key[0],
                "task": item.key[1],
                "config": dict(item.config),
                "prefixes": list(item.prefixes),
                "numbers": {**_kept(item.numbers), **_kept(self._known[item.key].numbers)},
                "memory": dict(self._known[item.key].memory),
            }
            for number, item in enumerate(items)
        ]
        for line in self._ask({**self._surroundings, "tasks": tasks}).splitlines():
            self._take(items, line)

    def _take(self, items: Sequence[Standing], line: str) -> None:
        try:
            answer = parse_message(line)
            item = items[answer["key"]]
        except (JsonRefused, LookupError, TypeError):
            return  # half a line of a child whose time was over
        numbers = answer.get("numbers")
        if not numbers:
            if "code" in answer:
                log.info("lag not measured connector=%s task=%d code=%s", *item.key[:2], answer["code"])
            return
        known, memory = self._known[item.key], answer.get("memory") or {}
        if not (isinstance(numbers, dict) and isinstance(memory, dict) and fits(numbers) and fits(memory)):
            log.info("lag not measured connector=%s task=%d code=too_large", *item.key[:2])
            return
        known.tries = 0
        known.memory, known.numbers = memory, numbers
        if item.entry is not None:
            self._tell(item.entry, numbers)

    def _remember(self, view: View) -> None:
        """Keeps what running tasks say last: once their connector is stopped nobody knows it any more."""
        connectors = view.state.connectors
        self._last = {task: kept for task, kept in self._last.items() if task.connector in connectors}
        if view.is_leader:
            self._last.update((task, _kept(status.metrics)) for task, status in view.statuses.items() if status.metrics)

    def _of_nobody(self, view: View) -> Iterator[Standing]:
        """Yields the tasks that no worker has, for the leader: those of stopped connectors and those that wait for a worker."""
        if not view.is_leader:
            return
        assigned = {entry.id for one in view.state.assignments.values() for entry in one.tasks}
        stopped = {(name, one.version) for name, one in view.state.connectors.items() if one.target_state == "STOPPED"}
        self._plans = {key: plan for key, plan in self._plans.items() if key in stopped}
        for name, connector in view.state.connectors.items():
            if not _measurable(connector):
                continue
            for number, share in enumerate(self._shares(view, connector)):
                task = TaskId(name, number)
                if task not in assigned:
                    config, last = {**as_run(view.state, connector).config, **share}, self._last.get(task, {})
                    yield Standing((name, number, 0), config, last, prefixes=connector.topic_prefixes)

    def _shares(self, view: View, connector: Connector) -> Sequence[Mapping[str, str]]:
        if connector.target_state != "STOPPED":
            planned = task_set_of(view.state, connector.name)
            return planned.tasks if planned is not None else ()
        key = (connector.name, connector.version)
        if key not in self._plans:
            try:
                shares = self._plan(as_run(view.state, connector))
                # Without what the connection provides, which may be another one at the next look.
                self._plans[key] = own_shares(view.state, connector, shares)
            except Exception as error:  # noqa: BLE001 - the connector's own code; its config is judged where it is submitted
                log.info("lag not measured connector=%s error=%s", connector.name, type(error).__name__)
                return ()
        return self._plans[key]


def _own(view: View) -> Iterator[Standing]:
    """Yields the tasks of this worker that read nothing: paused, failed, or waiting for another try."""
    assignment = view.state.assignments.get(view.worker_id)
    if assignment is None or assignment.boot_id != view.boot_id:
        return
    for entry in assignment.tasks:
        connector, status = view.state.connectors.get(entry.connector), view.statuses.get(entry.id)
        if connector is None or status is None or status.task_epoch != entry.task_epoch:
            continue
        if not _measurable(connector) or not _stands(connector, status):
            continue
        planned = task_set_of(view.state, entry.connector)
        if planned is not None and entry.task < len(planned.tasks):
            config = {**as_run(view.state, connector).config, **planned.tasks[entry.task]}
            key = (entry.connector, entry.task, entry.task_epoch)
            yield Standing(key, config, status.metrics, entry, connector.topic_prefixes)


def _stands(connector: Connector, status: TaskStatus) -> bool:
    """Returns whether the task reads nothing. A sink that tries again looks at its topics meanwhile."""
    return status.state in STANDING or (connector.kind == "source" and bool(status.metrics.get(RETRYING)))


def _measurable(connector: Connector) -> bool:
    try:
        return lookup(connector.config.get("connector.class", "")).measures
    except CdcError:
        return False


def _kept(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: numbers[name] for name in REMEMBERED if numbers.get(name) is not None}


def run_child(question: JsonObject) -> str:
    """Returns what the child has answered until its time was over."""
    return call_child(COMMAND, question, TIMEOUT_S).out.decode(errors="replace")
