"""Comparisons of this worker: one child at a time for each sink, its last word kept as a record that every worker reads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.connectors.verify.errors import BUSY, INTERRUPTED, TIMEOUT, UNFIT
from cdcworker.coordinator.log.connections import as_run
from cdcworker.coordinator.model import ClusterState, Connector, JsonObject, View
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import start_thread, start_timer
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.diagnostics.repair import RepairPlan

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.diagnostics.verify_child")
RUNNING_MAX: Final = 2
"""Comparisons that the schedule has begun, and as many that somebody has asked for."""
PLACES: Final = 3
"""Comparisons in all: neither of the two kinds has every place, so that the other one goes on."""
SHARE_S: Final = 3_600.0
"""Seconds after which a comparison of the schedule gives its place up for others that are due, unless it is the only one that
takes so long: the default of `verify.timeout.ms`."""
SCHEDULE: Final = "schedule"
OUT_OF_TIME_S: Final = 30.0
"""Past its own limit a child ends itself; one that does not is ended."""
FOUND_MAX: Final = 500
"""Differing keys that a record holds in all; a config log is no place for more."""
REPAIRS_BYTES_MAX: Final = 32 << 20
"""Of the keys of all repairs that are kept, but for the last one; the oldest go first. # INV-10"""
Json = dict[str, Any]


@dataclass(slots=True)
class VerifyRun:
    """One comparison. `keys` (hash → key) and those of its `repair` stay in this process."""

    connector: str
    incarnation: str
    source: str
    worker: str
    started_ms: int
    timeout_s: float
    by: str = "request"
    bound: tuple[str, ...] = ()
    """What the names of the sink's topics begin with."""
    compared_version: tuple[str, int] = ("", 0)
    """Incarnation and version of the source's config with which it was compared."""
    gave_way: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    progress: Json = field(default_factory=dict)
    result: Json | None = None
    error: Json | None = None
    keys: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    repair: RepairPlan | None = None
    """What can be repaired, if that was asked for."""
    ended_ms: int = 0
    child: subprocess.Popen[bytes] | None = None

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None

    def record(self) -> Json:
        out: Json = {"v": 1, "id": self.id, "incarnation": self.incarnation, "source": self.source, "by": self.by}
        state = "running" if not self.is_over else "done" if self.result is not None else "failed"
        out |= {"state": state, "worker": self.worker, "started": self.started_ms, "ended": self.ended_ms or None}
        return out | {"progress": self.progress, "result": self.result, "error": self.error}


class NoPlaceError(CdcError):
    """Another comparison has to end before this one can begin."""


class Verifier:
    """Starts children and reads what they say, each in a thread of its own."""

    def __init__(
        self,
        worker: str,
        surroundings: JsonObject,
        command: Sequence[str] = COMMAND,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`surroundings`: `providers` for references, and `kafka`'s client properties."""
        self._worker = worker
        self._surroundings = dict(surroundings)
        self._command = list(command)
        self._clock = clock
        self._runs: dict[str, VerifyRun] = {}
        self._lock = threading.Lock()

    def start(self, state: ClusterState, connector: Connector, asked: VerifyRequest, timeout_s: float) -> VerifyRun:
        source = source_of(state, connector, asked.source)
        with self._lock:
            hindrance = self.hindrance(connector, asked.by)
            if hindrance is not None:
                raise hindrance
            run = VerifyRun(
                connector=connector.name,
                incarnation=connector.incarnation,
                source=source.name,
                worker=self._worker,
                started_ms=self._now(),
                timeout_s=timeout_s,
                by=asked.by,
                bound=connector.topic_prefixes,
                compared_version=(source.incarnation, source.config_version),
            )
            self._runs[connector.name] = run
        question = {
            **self._surroundings,
            "sink": {
                "name": connector.name,
                "config": dict(as_run(state, connector).config),
                "prefixes": list(connector.topic_prefixes),
            },
            "source": {
                "name": source.name,
                "config": dict(as_run(state, source).config),
                "tasks": asked.source_tasks(state, source),
            },
            "tables": list(asked.tables),
            "held": dict(asked.held),
            "held_by_source": dict(asked.held_by_source),
            "repair": asked.repair,
        }
        start_thread(self._follow, run, question, name=f"verify-{run.id}", kind="verify")
        return run

    def hindrance(self, connector: Connector, by: str) -> CdcError | None:
        """Returns why a comparison of the sink cannot begin now. Sinks of one bound, which are those of one tenant, have one place
        of each kind together."""
        running = [run for run in self.runs() if not run.is_over]
        same = [run for run in running if run.by == by]
        if any(run.connector == connector.name for run in running):
            return CdcError(BUSY, f"{connector.name} is being compared", where={"connector": connector.name})
        if any(run.bound == connector.topic_prefixes for run in same if run.bound):
            return CdcError(BUSY, "another sink whose topics have the same bound is being compared")
        if len(same) >= RUNNING_MAX or len(running) >= PLACES:
            return NoPlaceError(BUSY, f"{len(running)} comparisons run on this worker")
        return None

    def give_way(self) -> None:
        """Ends the comparison that the schedule has begun last, if each of its comparisons takes longer than its share."""
        running = [run for run in self.runs() if run.by == SCHEDULE and not run.is_over]
        late = [run for run in running if self._now() - run.started_ms > SHARE_S * 1000]
        if len(late) == len(running) >= RUNNING_MAX:
            last = max(late, key=lambda run: run.started_ms)
            last.gave_way = True
            _end(last.child)

    def runs(self) -> list[VerifyRun]:
        return list(self._runs.values())

    def get(self, name: str) -> VerifyRun | None:
        return self._runs.get(name)

    def stop(self) -> None:
        """Children end with the worker, or when it leads no more. Nobody asks it for the keys of rows then."""
        for run in self.runs():
            if not run.is_over:
                _end(run.child)
            run.keys, run.repair = {}, None

    def _follow(self, run: VerifyRun, question: JsonObject) -> None:
        """The child dies with this thread, so it is started in it."""
        watch: threading.Event | None = None
        try:
            run.child = child = subprocess.Popen(  # noqa: S603  a command of the product's own; the question goes by its standard input
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            watch = start_timer(run.timeout_s + OUT_OF_TIME_S, _end, child, name="verify-limit")
            with child:
                assert child.stdin is not None
                assert child.stdout is not None
                with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
                    pipe.write(json.dumps(question).encode())
                for line in child.stdout:
                    self.said(run, line)
        finally:
            if watch is not None:
                watch.set()
            _end(run.child)
            if not run.is_over:
                run.ended_ms, run.error = self._now(), self._early_end(run).to_dict()

    def _early_end(self, run: VerifyRun) -> CdcError:
        if run.gave_way:
            return CdcError(TIMEOUT, "others were due, and it had run for an hour: start the comparison over REST")
        late = self._now() - run.started_ms > run.timeout_s * 1000
        return CdcError(TIMEOUT if late else INTERRUPTED, "the process that compared has ended early")

    def said(self, run: VerifyRun, line: bytes) -> None:
        try:
            item = parse_message(line)
        except JsonRefused:
            return  # torn off in the middle
        said = {name: value for name, value in item.items() if isinstance(value, dict)}
        run.progress = said.get("progress", run.progress)
        run.keys = said.get("keys", run.keys)
        run.repair = RepairPlan(said["repair"]["tables"]) if "repair" in said else run.repair
        result = _bounded(said["result"]) if "result" in said else None
        if "error" in said or result is not None:
            run.ended_ms = self._now()
        run.error = said.get("error", run.error)
        run.result = result or run.result
        if "repair" in said:
            self._forget_repairs(run)

    def _forget_repairs(self, last: VerifyRun) -> None:
        """Keeps the repairs of the comparisons that have ended last, as far as there is room."""
        left = REPAIRS_BYTES_MAX
        for run in sorted(self.runs(), key=lambda run: run.ended_ms, reverse=True):
            plan = run.repair
            if plan is None or run is last:
                continue
            left -= plan.size
            if left < 0:
                run.repair = None

    def _now(self) -> int:
        return round(self._clock() * 1000)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is to be compared. An empty `source` means the one whose prefix the sink's topics have, empty `tables`
    all."""

    source: str = ""
    tables: tuple[str, ...] = ()
    by: str = "request"
    held: Mapping[str, str] = field(default_factory=dict)
    """Topics that the sink holds back, and why: nobody waits for them."""
    held_by_source: Mapping[str, str] = field(default_factory=dict)
    """Tables that the source holds back, with the code of the error."""
    repair: bool = False
    """The keys of differing rows are kept, so that they can be repaired."""

    def source_tasks(self, state: ClusterState, source: Connector) -> int:
        from cdcworker.coordinator.log.config_fold import task_set_of

        planned = task_set_of(state, source.name)
        return max(1, len(planned.tasks) if planned is not None else 1)


def held_of(view: View, sink: str) -> dict[str, str]:
    """Topics that tasks of the sink hold back, by their last reports."""
    found = [status.metrics.get("paused") for status in view.statuses.values() if status.connector == sink]
    return {topic: str(why) for paused in found if isinstance(paused, dict) for topic, why in paused.items()}


def held_by_source(view: View, source: str) -> dict[str, str]:
    """Tables that tasks of the source hold back, by their last reports, with the code of the error."""
    found = [status.metrics.get("quarantine") for status in view.statuses.values() if status.connector == source]
    held = [item for tables in found if isinstance(tables, list) for item in tables if isinstance(item, dict)]
    return {str(item["table"]): str(item["code"]) for item in held if "table" in item and item.get("code")}


def source_of(state: ClusterState, sink: Connector, name: str = "") -> Connector:
    """The source that writes the sink's topics; CdcError when there is none, or more than one."""
    if sink.kind != "sink":
        raise CdcError(UNFIT, f"{sink.name} is no sink", where={"connector": sink.name})
    if name:
        found = state.connectors.get(name)
        if found is None or found.kind != "source":
            raise CdcError(UNFIT, f"there is no source {name}", where={"connector": sink.name})
        return found
    return _the_one(sink, [source for source in _writers(state, sink) if _may_read_of(sink, source)])


def scheduled_source(state: ClusterState, sink: Connector) -> Connector:
    """The source with which the schedule may compare the sink: whoever made the sink is asked for no right then, so that
    all topics of the source have to be granted to the sink. CdcError when there is none, or more than one."""
    granted = TopicAccess(prefixes=sink.topic_prefixes)
    fits = [source for source in _writers(state, sink) if granted.is_granted(_beginning(source))]
    if sink.topic_prefixes and not fits:
        text = f"no source of its topics writes only topics that begin with {' or '.join(sink.topic_prefixes)}"
        raise CdcError(UNFIT, f"{text}: start the comparison over REST", where={"connector": sink.name})
    return _the_one(sink, fits)


def _the_one(sink: Connector, fits: Sequence[Connector]) -> Connector:
    if len(fits) != 1:
        text = "no source's topic.prefix begins its topics" if not fits else "several sources may write its topics"
        raise CdcError(UNFIT, f"{text}: name the source", where={"connector": sink.name})
    return fits[0]


def _writers(state: ClusterState, sink: Connector) -> list[Connector]:
    """The sources whose topics the sink's config may mean."""
    topics = [topic.strip() for topic in sink.config.get("topics", "").split(",") if topic.strip()]
    pattern = sink.config.get("topics.regex", "")
    return [
        source
        for source in state.connectors.values()
        if source.kind == "source" and _writes(source.config.get("topic.prefix", ""), topics, pattern)
    ]


def _may_read_of(sink: Connector, source: Connector) -> bool:
    """Whether the sink's bound leaves it any topic of the source."""
    beginning = _beginning(source)
    granted = TopicAccess(prefixes=sink.topic_prefixes).is_granted(beginning)
    return granted or any(prefix.startswith(beginning) for prefix in sink.topic_prefixes)


def _beginning(source: Connector) -> str:
    return f"{source.config.get('topic.prefix', '')}."


def _writes(prefix: str, topics: Sequence[str], pattern: str) -> bool:
    """A pattern names its prefix with or without escaped dots."""
    if not prefix:
        return False
    if topics:
        return any(topic.startswith(f"{prefix}.") for topic in topics)
    return pattern.replace("\\", "").startswith(f"{prefix}.") or pattern.startswith((".*", ".+"))


def _bounded(result: Json) -> Json | None:
    """Returns the result with so many findings as are kept; None for one of another form."""
    left = FOUND_MAX
    try:
        for table in result.get("tables", ()):
            found = list(table["found"])[:left]
            table["found"], left = found, left - len(found)
    except (KeyError, TypeError):
        return None
    return result


def _end(child: subprocess.Popen[bytes] | None) -> None:
    if child is not None and child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
