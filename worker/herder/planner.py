"""Splits connectors into tasks on threads of their own, and checks whether topics have come or gone that match a sink's
`topics.regex`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cdcworker.coordinator.core.events import TasksPlanned
from cdcworker.coordinator.log.connections import as_run
from cdcworker.coordinator.model import ClusterState, Connector
from cdcworker.schemas.errors import INTERNAL, CdcError, declare
from cdcworker.schemas.patterns import required
from cdcworker.schemas.threads import start_thread
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.protocol.messages import short_error

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
    "Check that the sources answer: earlier plans have not ended and hold all threads.",
)

PLAN_TIMEOUT_S = 30.0
PLANS_AT_ONCE_MAX = 8
CHECK_PATTERNS_EVERY_S = 5.0
TOPICS_PATTERN = "topics.regex"
NO_THREAD = "all planning threads wait for sources"

Plan = Callable[[Connector, frozenset[str]], Sequence[Mapping[str, str]]]
"""Splits a connector into the configs of its tasks. The second argument holds the existing topics; it is empty unless
the config has `topics.regex`."""

Key = tuple[str, str, int, str]
"""Connector, its incarnation, the version of its config, and the stamp of its connection."""


@dataclass(slots=True)
class _Running:
    connector: Connector
    started: float


@dataclass(frozen=True, slots=True)
class _Matched:
    """The topics that there were, and those of them that the pattern matches; None: matching them took too long."""

    seen: frozenset[str]
    topics: frozenset[str] | None


class TaskPlanner:
    """Plans tasks for the herder, whose thread calls all methods; none of them blocks. A connector's code that hangs
    costs one thread, however often the connector changes."""

    def __init__(
        self,
        plan: Plan,
        topics: Callable[[], frozenset[str]],
        post: Callable[[TasksPlanned], None],
        *,
        timeout_s: float = PLAN_TIMEOUT_S,
        check_patterns_every_s: float = CHECK_PATTERNS_EVERY_S,
    ) -> None:
        self._plan = plan
        self._topics = topics
        self._post = post
        self._timeout_s = timeout_s
        self._check_patterns_every_s = check_patterns_every_s
        self._lock = threading.Lock()
        self._running: dict[Key, _Running] = {}
        self._waiting: dict[Key, Connector] = {}
        self._matched: dict[Key, _Matched] = {}
        self._hung: set[Key] = set()
        self._checks_patterns = False
        self._patterns_checked_at = 0.0

    def request(self, connector: Connector, config_version: int, connection: str = "") -> None:
        """Plans the tasks in the background and posts the result, in the worst case the error `worker.plan_timeout`."""
        key = (connector.name, connector.incarnation, config_version, connection)
        with self._lock:
            if key in self._running or key in self._waiting:
                return
            own = any(name == connector.name for name, *_ in self._hung)
            is_stuck = own or len(self._hung) >= PLANS_AT_ONCE_MAX
            if not is_stuck:
                self._waiting[key] = connector
        if is_stuck:
            text = "an earlier plan of this connector has not ended" if own else NO_THREAD
            self._answer(key, error=_busy(connector.name, text))
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Starts as many of the waiting plans as may run at once, oldest first."""
        with self._lock:
            free = max(0, PLANS_AT_ONCE_MAX - len(self._running) - len(self._hung))
            begun = list(self._waiting.items())[:free]
            for key, connector in begun:
                del self._waiting[key]
                self._running[key] = _Running(connector, time.monotonic())
        for key, connector in begun:
            name = f"plan-{connector.name}"
            start_thread(self._run, connector, key, name=name, kind="plan")

    def tick(self, state: ClusterState, *, leading: bool) -> None:
        """Gives up plans that hang; on the leader also checks now and then whether patterns match other topics."""
        now = time.monotonic()
        with self._lock:
            late = [key for key, running in self._running.items() if now - running.started > self._timeout_s]
            for key in late:
                del self._running[key]
                self._hung.add(key)
            stuck = list(self._waiting) if len(self._hung) >= PLANS_AT_ONCE_MAX else []
            for key in stuck:
                del self._waiting[key]
        self._start_waiting()
        for key in stuck:
            self._answer(key, error=_busy(key[0]))
        for key in late:
            text = f"no answer within {self._timeout_s:.0f} s"
            self._answer(key, error=CdcError(PLAN_TIMEOUT, text, where={"connector": key[0]}))
        if leading and not self._checks_patterns and now - self._patterns_checked_at >= self._check_patterns_every_s:
            self._patterns_checked_at = now
            self._check_patterns(state)

    def _run(self, connector: Connector, key: Key) -> None:
        tasks: Sequence[Mapping[str, str]] = ()
        failure: CdcError | None = None
        try:
            topics = self._matching(connector, key)
            tasks = [_task_config(share) for share in self._plan(connector, topics)]
        except CdcError as exc:
            failure = exc
        except BaseException as exc:  # also an exit: a plan without an answer counts as one that hangs
            log.exception("plan failed connector=%s", connector.name)
            failure = CdcError(INTERNAL, f"{type(exc).__name__} while splitting into tasks")
        with self._lock:
            in_time = self._running.pop(key, None) is not None
            if not in_time:
                self._hung.discard(key)
        self._start_waiting()
        if in_time:
            self._answer(key, tuple(tasks), failure)

    def _answer(self, key: Key, tasks: tuple[Mapping[str, str], ...] = (), error: CdcError | None = None) -> None:
        name, incarnation, version, connection = key
        failure = short_error(error.to_dict()) if error else None
        self._post(TasksPlanned(name, incarnation, version, tasks, failure, connection))

    # --- topics -----------------------------------------------------------------------------------------------------

    def _matching(self, connector: Connector, key: Key) -> frozenset[str]:
        if not connector.config.get(TOPICS_PATTERN):
            return frozenset()
        there = self._topics()
        topics = None
        try:
            topics = matching_topics(connector, there)
        finally:
            with self._lock:
                self._matched[key] = _Matched(there, topics)
        return topics

    def _check_patterns(self, state: ClusterState) -> None:
        patterned = {}
        for connector in state.connectors.values():
            tasks = state.task_sets.get(connector.name)
            if connector.config.get(TOPICS_PATTERN) and tasks and tasks.incarnation == connector.incarnation:
                key = (connector.name, connector.incarnation, tasks.config_version, tasks.connection)
                patterned[key] = as_run(state, connector)
        with self._lock:
            self._matched = {key: topics for key, topics in self._matched.items() if key in patterned}
        if patterned:
            self._checks_patterns = True
            start_thread(self._plan_changed_matches, patterned, name="plan-topics")

    def _plan_changed_matches(self, patterned: Mapping[Key, Connector]) -> None:
        try:
            there = self._topics()
            for key, connector in patterned.items():
                if self._is_changed(connector, key, there):
                    self.request(connector, *key[2:])
        except CdcError as exc:
            log.warning("topics not listed error=%s", exc)
        finally:
            self._checks_patterns = False

    def _is_changed(self, connector: Connector, key: Key, there: frozenset[str]) -> bool:
        """Returns whether the pattern matches other topics than before; only new topics are matched. A pattern that cannot be
        matched is left alone until the config changes: the tasks go on with the topics that they have."""
        with self._lock:
            before = self._matched.get(key)
        if before is None:
            # A leader that has just been elected has matched nothing yet: it plans once, and an equal plan changes nothing.
            return True
        if before.topics is None:
            return False
        try:
            topics = (before.topics & there) | matching_topics(connector, there - before.seen)
            after = _Matched(there, topics)
        except CdcError as exc:
            log.warning("topics not matched connector=%s error=%s", connector.name, exc)
            after = _Matched(there, None)
        if after.topics is not None and after.topics != before.topics:
            return True  # the plan stores what it has matched
        with self._lock:
            self._matched[key] = after
        return False


def _task_config(share: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the config of a task as a dict. TypeError for one that cannot be stored: it comes from the connector's
    own code."""
    for text in (*share, *share.values()):
        if not isinstance(text, str):
            raise TypeError(f"a task's config holds a {type(text).__name__}, not text")
        text.encode()
    return dict(share)


def _busy(name: str, text: str = NO_THREAD) -> CdcError:
    return CdcError(PLANS_BUSY, text, where={"connector": name})


def matching_topics(connector: Connector, topics: frozenset[str]) -> frozenset[str]:
    """Returns the topics that the connector's `topics.regex` matches as a whole, as in Kafka Connect, within the bound of
    the connector's topics. CdcError when it is no pattern, which an older version may have accepted, or takes too long."""
    granted = TopicAccess(prefixes=connector.topic_prefixes)
    try:
        return frozenset(required(connector.config[TOPICS_PATTERN]).matching(filter(granted.is_granted, topics)))
    except CdcError as exc:
        where = {"connector": connector.name, "key": TOPICS_PATTERN}
        raise CdcError(exc.code, exc.message, where=where) from None
