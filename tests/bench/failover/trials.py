"""One trial of each kind: kill a worker, kill the one with the sink, drain one; each begins and ends in calm."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg

from ..measure import wait
from .stage import PROBE, SINK, Held, Stage, Worker
from .watch import Entry, Watcher

GIVE_UP_S = 90.0
CALM_S = 1.5
SETTLE_S = 120.0
POLL_S = 0.02
PROBE_EVERY_S = 0.05
STANDBY_S = 180.0
SINK_TASK = f"{SINK}-0"
LEDGER = """select f.task_epoch, coalesce(sum(l.next_offset), 0)
            from _cdcworker.fence f left join _cdcworker.ledger l on l.sink = f.sink
            where f.sink = %s and f.task = 0 group by f.task_epoch"""


@dataclass
class Results:
    """Every trial's outcome; a trial that did not end in time counts with the time that was waited."""

    worker_kills: list[float] = field(default_factory=list)
    follower_kills: list[float] = field(default_factory=list)
    leader_owner_kills: list[float] = field(default_factory=list)
    leader_kills: list[float] = field(default_factory=list)
    sink_kills: list[float] = field(default_factory=list)
    drain_gaps: list[float] = field(default_factory=list)
    drain_exits: list[float] = field(default_factory=list)
    by_source: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    unmoved_restarts: int = 0
    unmoved_tasks: int = 0
    gave_up: int = 0
    bad_exits: int = 0


class Prober(threading.Thread):
    """Writes a config over one worker's REST until it is accepted."""

    def __init__(self, worker: Worker, config: Mapping[str, str], number: int) -> None:
        super().__init__(name=f"prober-{worker.id}", daemon=True)
        self.accepted: float | None = None
        self.ending = threading.Event()
        self._worker = worker
        self._config = {**config, "status.update.interval.ms": str(1_000 + number % 5_000)}

    def run(self) -> None:
        path = f"{self._worker.url}/connectors/{PROBE}/config?validate=false"
        with httpx.Client(timeout=30) as client:
            while not self.ending.wait(PROBE_EVERY_S):
                try:
                    if client.put(path, json=self._config).status_code == 200:
                        self.accepted = time.monotonic()
                        return
                except httpx.TransportError:
                    continue


class Trials:
    def __init__(self, stage: Stage, watcher: Watcher, seed: int) -> None:
        self.stage = stage
        self.watcher = watcher
        self.results = Results()
        self._random = random.Random(seed)
        self._number = 0

    # --- calm -------------------------------------------------------------------------------------------------------

    def settle(self) -> dict[str, Held]:
        """Until all workers are there with a share each, all tasks run and deliver, and nothing has moved for a while."""
        stage, since, last = self.stage, time.monotonic(), {}
        deadline = since + SETTLE_S
        while True:
            picture = stage.picture()
            held = stage.held(picture)
            unrest = [] if held == last else ["tasks move"]
            unrest += self._unrest(picture, held)
            if unrest:
                last, since = held, time.monotonic()
            if time.monotonic() - since >= CALM_S:
                return held
            if time.monotonic() > deadline:
                sys.exit(f"no calm within {SETTLE_S:.0f} s: {'; '.join(unrest)}; held {held}")
            time.sleep(0.1)

    def _unrest(self, picture: Mapping[str, Any], held: Mapping[str, Held]) -> list[str]:
        """What is not as it should be before a trial."""
        if self.watcher.error is not None:
            sys.exit(f"the watcher ended: {self.watcher.error}")
        stage, now = self.stage, time.monotonic()
        alive = {worker["id"] for worker in picture["workers"] if worker["alive"]}
        wanted = [f"{task['connector']}-{task['task']}" for task in picture["tasks"]]
        # The sink weighs as much as several sources: its worker may have nothing else.
        idle = alive - {owner.worker for name, owner in held.items() if self._source(name) or name == SINK_TASK}
        silent = [name for name in stage.sources if now - self.watcher.last_seen(name) >= 1.0]
        missing = {
            "not seen by the cluster": sorted(set(stage.workers) - alive),
            "ended": sorted(set(stage.workers) - {worker.id for worker in stage.living()}),
            "leading": [] if stage.leader(picture) is not None else ["nobody"],
            "not running": [name for name in wanted if name not in held],
            "without a task": sorted(idle),
            "silent": silent,
        }
        return [f"{what}: {', '.join(names)}" for what, names in missing.items() if names]

    def _source(self, task: str) -> str | None:
        name = task.rpartition("-")[0]
        return name if name in self.stage.sources else None

    def _bring_back(self, victim: Worker, before: Mapping[str, Held]) -> None:
        """The same worker id again; what stays where it is must not notice."""
        wait(f"{victim.id} is gone", lambda: not victim.process.alive(), 30)
        self._count_unmoved(before, self.stage.held(), "loss")
        there = self.stage.held()
        self.stage.restart(victim)
        after = self.settle()
        stayed = {name: owner for name, owner in there.items() if after[name].worker == owner.worker}
        self._count_unmoved(stayed, after, "return")

    def _count_unmoved(self, before: Mapping[str, Held], after: Mapping[str, Held], when: str) -> None:
        for name, owner in before.items():
            self.results.unmoved_tasks += 1
            if after.get(name) != owner:
                self.results.unmoved_restarts += 1
                print(
                    f"  a task that had no reason to move was restarted at the {when}: {name} {owner} {after.get(name)}"
                )

    # --- kill -------------------------------------------------------------------------------------------------------

    def kill(self, role: str) -> None:
        """SIGKILL of the leader or of a follower, both with tasks; all lost sources must deliver something new."""
        before = self.settle()
        leader = self.stage.leader()
        assert leader is not None
        followers = [worker for worker in self.stage.living() if worker is not leader]
        victim = leader if role == "leader" else self._random.choice(followers)
        lost = {name: owner for name, owner in before.items() if owner.worker == victim.id}
        self._number += 1
        probers = [Prober(w, self.stage.postgres_config(0) | {"topic.prefix": PROBE, "slot.name": PROBE}, self._number)
                   for w in self.stage.living() if w is not victim and role == "leader"]  # fmt: skip
        at, at_ms = time.monotonic(), time.time() * 1000
        self.stage.kill(victim)
        for prober in probers:
            prober.start()
        taken = {task: self._first_new(task, at, at_ms) - at for task in lost if self._source(task)}
        slowest = max(taken, key=lambda task: taken[task])
        self.results.worker_kills.append(taken[slowest])
        kinds = self.results.leader_owner_kills if role == "leader" else self.results.follower_kills
        kinds.append(taken[slowest])
        for task, seconds in taken.items():
            self.results.by_source[str(self._source(task)).rstrip("0123456789")].append(seconds)
        accepted = self._accepted(probers, at) if probers else None
        self._trace(role, at, slowest, lost[slowest], taken[slowest])
        text = f" config write {accepted:.2f} s" if accepted else ""
        print(f"  {role} {victim.id}: {len(taken)} tasks back in {taken[slowest]:.2f} s ({slowest}){text}", flush=True)
        self._bring_back(victim, {name: owner for name, owner in before.items() if name not in lost})

    def _first_new(self, task: str, at: float, at_ms: float) -> float:
        """When the first record was seen that the new owner committed for a row of after the kill."""
        name = str(self._source(task))
        assert self.stage.writer is not None
        row = self.stage.writer.first_row_after(at) if name.startswith("pg") else 0
        return self._when(lambda: self.watcher.first_new(name, row, int(at_ms) + 1), at, f"{task} delivers")

    def _when(self, look: Callable[[], float | None], at: float, what: str) -> float:
        while (found := look()) is None:
            if time.monotonic() - at > GIVE_UP_S:
                self.results.gave_up += 1
                print(f"  gave up after {GIVE_UP_S:.0f} s: {what}", flush=True)
                return time.monotonic()
            time.sleep(POLL_S)
        return found

    def _accepted(self, probers: list[Prober], at: float) -> float:
        def first() -> float | None:
            return min((p.accepted for p in probers if p.accepted is not None), default=None)

        seconds = self._when(first, at, "a config write is accepted") - at
        for prober in probers:
            prober.ending.set()
        self.results.leader_kills.append(seconds)
        return seconds

    # --- where the time went ----------------------------------------------------------------------------------------

    def _trace(self, role: str, at: float, task: str, old: Held, taken: float) -> None:
        """The slowest task's way, by what an independent reader saw in the logs."""
        connector, _, number = task.rpartition("-")

        def assigned(entry: Entry) -> bool:
            rows = (entry.value or {}).get("tasks", []) if entry.key.startswith("assignment/") else []
            return any(row[0] == connector and str(row[2]) == number and row[3] > old.epoch for row in rows)

        def running(entry: Entry) -> bool:
            value = entry.value or {}
            is_it = entry.key == f"task/{connector}/{number}"
            return is_it and value.get("state") == "RUNNING" and value.get("task_epoch", 0) > old.epoch

        claim = self.watcher.first_entry("configs", at, lambda entry: entry.key == "leader")
        placed = self.watcher.first_entry("configs", at, assigned)
        runs = self.watcher.first_entry("status", at, running)
        marks = [("claimed", claim)] if role == "leader" else []
        marks += [("assigned", placed), ("running", runs)]
        last = at
        for name, entry in marks:
            if entry is not None:
                self.results.steps[f"{role} {name}"].append(entry.seen - last)
                last = entry.seen
        self.results.steps[f"{role} first record"].append(at + taken - last)
        self.results.steps[f"{role} in all"].append(taken)

    # --- drain ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """SIGTERM under load: how long each of its tasks is silent, and when the process has ended."""
        before = self.settle()
        victim = self._random.choice(self.stage.living())
        lost = [name for name, owner in before.items() if owner.worker == victim.id and self._source(name)]
        at = time.monotonic()
        victim.process.send(signal.SIGTERM)
        self._when(lambda: None if victim.process.alive() else time.monotonic(), at, f"{victim.id} ends")
        exit_s = time.monotonic() - at
        self.results.drain_exits.append(exit_s)
        self.results.bad_exits += victim.process.returncode != 0
        names = [str(self._source(task)) for task in lost]
        for task, name in zip(lost, names, strict=True):
            self._when(lambda task=task: self._elsewhere(task, victim), at, f"{task} runs elsewhere")  # type: ignore[misc]
            self._first_new(task, time.monotonic(), time.time() * 1000)
            gap = self.watcher.longest_gap(name, at)
            self.results.drain_gaps.append(gap)
        gaps = self.results.drain_gaps[-len(lost) :]
        print(
            f"  drain of {victim.id}: exit in {exit_s:.2f} s, gaps {' '.join(f'{g:.2f}' for g in gaps)} s", flush=True
        )
        self._bring_back(victim, {n: o for n, o in before.items() if o.worker != victim.id})

    def _elsewhere(self, task: str, victim: Worker) -> float | None:
        owner = self.stage.held().get(task)
        return time.monotonic() if owner is not None and owner.worker != victim.id else None

    # --- sink -------------------------------------------------------------------------------------------------------

    def kill_sink(self, *, warm: bool) -> None:
        """SIGKILL of the worker that runs Spark; the new owner's first batch is in the warehouse's own ledger. `warm`:
        in a cluster that has been at rest, else right after the last move, when no standby can be there."""
        before = self.settle()
        owner, task = before[SINK_TASK], SINK_TASK
        if warm:
            wait("a standby on each worker", self.stage.standbys, STANDBY_S)
        victim = self.stage.workers[owner.worker]
        with psycopg.connect(self.stage.postgres.dsn("warehouse"), autocommit=True) as connection:
            fenced: list[int] = []

            def committed() -> float | None:
                found = connection.execute(LEDGER, (SINK,)).fetchone()
                if found is None or found[0] <= owner.epoch:
                    return None
                # Behind the fence only the new owner moves offsets.
                fenced.append(found[1])
                return time.monotonic() if found[1] > fenced[0] else None

            leads = self.stage.leader() is victim
            at = time.monotonic()
            self.stage.kill(victim)
            seconds = self._when(committed, at, "a batch in the warehouse") - at
        self.results.sink_kills.append(seconds)
        state = f"{'leader, ' if leads else ''}{'at rest' if warm else 'at once'}"
        print(f"  sink on {victim.id} ({state}): first batch in {seconds:.2f} s", flush=True)
        self._trace(f"sink {'at rest' if warm else 'at once'}{' (leader)' if leads else ''}", at, task, owner, seconds)
        self._start_of_sink(owner)
        self._bring_back(victim, {n: o for n, o in before.items() if o.worker != victim.id})

    def _start_of_sink(self, old: Held) -> None:
        """The steps within the new owner, as it reports them."""
        found: dict[str, Any] = {}

        def told() -> bool:
            for task in self.stage.picture()["tasks"]:
                # What the one before had reported stands until the new one reports.
                if task["connector"] == SINK and task["epoch"] > old.epoch:
                    found.update((task.get("metrics") or {}).get("start_ms") or {})
            return "applied" in found

        wait("the sink's own account", told, 30, 0.2)
        print("  its start: " + " ".join(f"{name}_ms={ms}" for name, ms in found.items()), flush=True)
