"""Splits connectors into task shares on threads of their own, and watches for topics that a sink's pattern matches."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cdcworker.coordinator.events import TasksPlanned
from cdcworker.coordinator.model import ClusterState, Connector
from cdcworker.schemas.errors import INTERNAL, CdcError, declare
from cdcworker.worker.pipes import short_error

log = logging.getLogger(__name__)

PLAN_TIMEOUT = declare(
    "worker.plan_timeout",
    "transient",
    "Splitting the connector into tasks took too long",
    "Check that the source answers; the plan is made again when the connector's config changes or it is restarted.",
)
PLANS_BUSY = declare(
    "worker.plans_busy",
    "transient",
    "Too many connectors are being split into tasks at once",
    "Check that the sources answer; an earlier plan hangs.",
)

PLAN_TIMEOUT_S = 30.0
PLANS_AT_ONCE_MAX = 8
WATCH_EVERY_S = 5.0
TOPICS_PATTERN = "topics.regex"

Plan = Callable[[Connector, frozenset[str]], Sequence[Mapping[str, str]]]
"""Splits a connector. The second argument is the topics that exist, empty unless the config has a topics pattern."""

Key = tuple[str, str, int]


@dataclass(slots=True)
class _Running:
    connector: Connector
    started: float


class Planner:
    """Called by the herder's thread; nothing here waits. User code that hangs costs its thread and nothing else."""

    def __init__(
        self,
        plan: Plan,
        topics: Callable[[], frozenset[str]],
        post: Callable[[TasksPlanned], None],
        *,
        timeout_s: float = PLAN_TIMEOUT_S,
        watch_every_s: float = WATCH_EVERY_S,
    ) -> None:
        self._plan = plan
        self._topics = topics
        self._post = post
        self._timeout_s = timeout_s
        self._watch_every_s = watch_every_s
        self._lock = threading.Lock()
        self._running: dict[Key, _Running] = {}
        self._waiting: dict[Key, Connector] = {}
        self._matched: dict[Key, frozenset[str]] = {}
        self._hung = 0
        self._watching = False
        self._watched_at = 0.0

    def request(self, connector: Connector, config_version: int) -> None:
        """Plan in the background; the answer is posted, in the worst case `worker.plan_timeout`."""
        key = (connector.name, connector.incarnation, config_version)
        with self._lock:
            if key in self._running or key in self._waiting:
                return
            is_stuck = self._hung >= PLANS_AT_ONCE_MAX
            if not is_stuck:
                self._waiting[key] = connector
        if is_stuck:
            self._answer(key, error=_busy(connector.name))
        self._start_waiting()

    def _start_waiting(self) -> None:
        """As many as may run at once, in the order in which they were asked for."""
        with self._lock:
            free = max(0, PLANS_AT_ONCE_MAX - len(self._running) - self._hung)
            begun = list(self._waiting.items())[:free]
            for key, connector in begun:
                del self._waiting[key]
                self._running[key] = _Running(connector, time.monotonic())
        for key, connector in begun:
            name = f"plan-{connector.name}"
            threading.Thread(target=self._run, args=(connector, key), name=name, daemon=True).start()

    def tick(self, state: ClusterState, *, leading: bool) -> None:
        """Give up on plans that hang; on the leader, look now and then whether patterns match other topics."""
        now = time.monotonic()
        with self._lock:
            late = [key for key, running in self._running.items() if now - running.started > self._timeout_s]
            for key in late:
                del self._running[key]
                self._hung += 1
            stuck = list(self._waiting) if self._hung >= PLANS_AT_ONCE_MAX else []
            for key in stuck:
                del self._waiting[key]
        self._start_waiting()
        for key in stuck:
            self._answer(key, error=_busy(key[0]))
        for key in late:
            text = f"no answer within {self._timeout_s:.0f} s"
            self._answer(key, error=CdcError(PLAN_TIMEOUT, text, where={"connector": key[0]}))
        if leading and not self._watching and now - self._watched_at >= self._watch_every_s:
            self._watched_at = now
            self._watch(state)

    def _run(self, connector: Connector, key: Key) -> None:
        tasks: Sequence[Mapping[str, str]] = ()
        failure: CdcError | None = None
        try:
            topics = self._matching(connector, key)
            tasks = [_share(share) for share in self._plan(connector, topics)]
        except CdcError as exc:
            failure = exc
        except BaseException as exc:  # also an exit: a plan without an answer counts as one that hangs
            log.exception("plan failed connector=%s", connector.name)
            failure = CdcError(INTERNAL, f"{type(exc).__name__} while splitting into tasks")
        with self._lock:
            in_time = self._running.pop(key, None) is not None
            if not in_time:
                self._hung -= 1
        self._start_waiting()
        if in_time:
            self._answer(key, tuple(tasks), failure)

    def _answer(self, key: Key, tasks: tuple[Mapping[str, str], ...] = (), error: CdcError | None = None) -> None:
        name, incarnation, version = key
        self._post(TasksPlanned(name, incarnation, version, tasks, short_error(error.to_dict()) if error else None))

    # --- topics -----------------------------------------------------------------------------------------------------

    def _matching(self, connector: Connector, key: Key) -> frozenset[str]:
        if not connector.config.get(TOPICS_PATTERN):
            return frozenset()
        topics = matching_topics(connector, self._topics())
        with self._lock:
            self._matched[key] = topics
        return topics

    def _watch(self, state: ClusterState) -> None:
        wanted = {}
        for connector in state.connectors.values():
            tasks = state.task_sets.get(connector.name)
            if connector.config.get(TOPICS_PATTERN) and tasks and tasks.incarnation == connector.incarnation:
                wanted[(connector.name, connector.incarnation, tasks.config_version)] = connector
        with self._lock:
            self._matched = {key: topics for key, topics in self._matched.items() if key in wanted}
        if wanted:
            self._watching = True
            threading.Thread(target=self._look, args=(wanted,), name="plan-topics", daemon=True).start()

    def _look(self, wanted: Mapping[Key, Connector]) -> None:
        try:
            there = self._topics()
            for key, connector in wanted.items():
                # A leader that has just been elected has matched nothing yet: it plans once, and an equal plan
                # changes nothing.
                with self._lock:
                    before = self._matched.get(key)
                if before != matching_topics(connector, there):
                    self.request(connector, key[2])
        except CdcError as exc:
            log.warning("topics not listed error=%s", exc)
        finally:
            self._watching = False


def _share(share: Mapping[str, str]) -> Mapping[str, str]:
    """As it can be written down: a connector's own code has made it."""
    for text in (*share, *share.values()):
        if not isinstance(text, str):
            raise TypeError(f"a task's share holds a {type(text).__name__}")
        text.encode()
    return dict(share)


def _busy(name: str) -> CdcError:
    return CdcError(PLANS_BUSY, "no thread is free", where={"connector": name})


def matching_topics(connector: Connector, topics: frozenset[str]) -> frozenset[str]:
    """The topics that the connector's pattern matches as a whole, as in Connect."""
    try:
        pattern = re.compile(connector.config[TOPICS_PATTERN])
    except re.error:
        # The validator says what is wrong with it; a pattern that slipped through matches nothing.
        return frozenset()
    return frozenset(name for name in topics if pattern.fullmatch(name))
