"""Runs histories of a simulated cluster by seed: `python -m tests.simulation.run --seed 123 --trace`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cdcworker.coordinator.model import DeleteConnector, PutConnector, Request, Restart

from .checks import Checks
from .faults import KINDS, Faults
from .rest import Op, Rest
from .sources import topic_of
from .stage import stage
from .workers import Node, Setting, Sim

START_S_MAX = 30.0
SETTLE_S_MAX = 60.0
STEADY_S_MAX = 60.0
QUIET_S = 3.0


@dataclass(frozen=True)
class Profile:
    """The length of a history, and how much happens in it."""

    fault_s: float = 20.0
    faults: tuple[int, int] = (4, 12)
    kinds: tuple[int, int] = (2, 8)
    workers: tuple[int, int] = (2, 3)
    sources: tuple[int, int] = (1, 2)
    sink_share: float = 0.3
    ops: tuple[int, int] = (2, 8)
    only: tuple[str, ...] = ()


PROFILES = {
    "ci": Profile(),
    "long": Profile(fault_s=60.0, faults=(10, 40), workers=(2, 4), sources=(1, 3), ops=(5, 25), kinds=(3, 14)),
    "calm": Profile(faults=(0, 0)),
}


@dataclass
class Result:
    """The result of one history."""

    seed: int
    hash: str
    violations: list[str]
    stats: dict[str, Any] = field(default_factory=dict)


class History:
    """One run: a cluster starts, things go wrong, they heal, and everything has to be as it should."""

    def __init__(self, sim: Sim, profile: Profile) -> None:
        self.sim, self.profile = sim, profile
        self.world, self.random = sim.world, sim.world.random
        self.rest = Rest(sim)
        self.checks = Checks(sim, self.rest)
        self.faults = Faults(sim)
        self.number = 0
        self.is_writing = True
        self.restarts = 0
        self.settled_s = 0.0
        self.calm_since, self.calm_starts = 0.0, 0

    def run(self) -> None:
        for phase in (self._start, self._break, self._heal, self._rest, self._finish):
            phase()
            if self.world.violations:
                return

    # --- phases -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        profile = self.profile
        for n in range(self.random.randint(*profile.workers)):
            node = Node(self.sim, f"w{n}")
            self.world.at(self.random.uniform(0.0, 0.5), node.boot)
        for n in range(self.random.randint(*profile.sources)):
            self._create(PutConnector(f"c{n}", self._config(self.random.randint(1, 2)), "source"))
        if self.random.random() < profile.sink_share:
            self._create(PutConnector("s0", self._sink_config(), "sink"))
        self._load()
        self._until(self._has_started, START_S_MAX, "the cluster does not start")

    def _has_started(self) -> bool:
        count = self.number
        return len(self.checks.versions) == count and self.checks.is_settled()

    def _break(self) -> None:
        profile, end = self.profile, self.profile.fault_s
        chosen = profile.only or self.random.sample(KINDS, self.random.randint(*profile.kinds))
        for _ in range(self.random.randint(*profile.faults)):
            kind = self.random.choice(chosen)
            self.faults.later(self.random.uniform(0.0, end), self.faults.strike, kind)
        for _ in range(self.random.randint(*profile.ops)):
            self.faults.later(self.random.uniform(0.0, end), self._write)
        self.world.run(self.world.now + end)

    def _heal(self) -> None:
        self.world.trace("heal", "")
        self.faults.heal()
        self.world.at(SETTLE_S_MAX * 0.5, self._restart_failed)
        begun = self.world.now
        self._until(self.checks.is_settled, SETTLE_S_MAX, "not every task runs after the last fault")
        self.settled_s = self.world.now - begun

    def _rest(self) -> None:
        """Waits until a new connector runs, then stops writing rows and waits until all have arrived."""
        self._create(PutConnector("last", self._config(1), "source"))
        self._until(lambda: "last" in self.checks.versions, 30.0, "no write is taken after the last fault")
        self._until(self.checks.is_settled, SETTLE_S_MAX, "the last connector does not run")
        self.is_writing = False
        self._until(self.checks.is_quiet, 60.0, "rows do not arrive")

    def _finish(self) -> None:
        """Waits for a time in which no task is started any more and all tasks run."""
        self.calm_since, self.calm_starts = self.world.now, self.sim.starts.total()
        self._until(self._is_steady, STEADY_S_MAX, "I15 tasks go on moving or are not spread evenly")

    def _is_steady(self) -> bool:
        starts = self.sim.starts.total()
        holds = self.checks.is_settled() and self.checks.is_balanced() and starts == self.calm_starts
        if not holds or any(a.revoke for a in self.checks.state().assignments.values()):
            self.calm_since, self.calm_starts = self.world.now, starts
        return self.world.now - self.calm_since >= QUIET_S

    def _until(self, condition: Callable[[], bool], within_s: float, complaint: str) -> None:
        end = self.world.now + within_s
        while not condition():
            if self.world.violations:
                return
            if self.world.now >= end:
                self.world.violate("liveness", f"{complaint}: {self.checks.describe()} {self.checks.unread()}")
                return
            self.world.run(min(end, self.world.now + 0.25))

    def _restart_failed(self) -> None:
        """Restarts tasks that used up their restart budget, as an operator would."""
        failed = {
            child.task.connector
            for node in self.faults.up()
            if node.herder is not None
            for task_id, child in node.herder._state.work.local.items()
            if child.phase == "failed"
        }
        for name in sorted(failed):
            self.restarts += 1
            self._create(Restart(name, include_tasks=True, only_failed=True))

    # --- load -------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Writes transactions at the source, for all tables that ever had a task."""
        if self.is_writing:
            for name in sorted(self.sim.database.slots):
                if self.random.random() < 0.5:
                    self.sim.database.commit(name, self.random.choice((1, 1, 2, 3, 9)))
            self.world.at(self.random.uniform(0.2, 1.0), self._load)

    def _config(self, width: int) -> dict[str, str]:
        self.number += 1
        return {
            "connector.class": "sim",
            "topic.prefix": "t",
            "width": str(width),
            "n": str(self.number),
            "transaction.timeout.ms": str(self.sim.setting.transaction_timeout_ms),
        }

    def _sink_config(self) -> dict[str, str]:
        topics = [topic_of("c0.0"), topic_of("c0.1")]
        return {**self._config(1), "topics": ",".join(topics)}

    def _create(self, request: Request) -> None:
        """Repeats a request until it succeeds, as a person would."""
        up = self.faults.up()
        if not up:
            self.world.at(0.5, self._create, request)
            return
        op = self.rest.ask(request, self.random.choice(up))
        self._again_unless_done(op, request)

    def _again_unless_done(self, op: Op, request: Request) -> None:
        def look() -> None:
            if op.reply is None and not op.is_over:
                self.world.at(0.3, look)
            elif op.reply is None or op.reply.outcome not in ("ok", "exists"):
                self.world.at(0.3, self._create, request)

        self.world.at(0.1, look)

    def _write(self) -> None:
        """A change by a client: of the config, of the number of tasks, of the target state; deletion, restart."""
        nodes = list(self.sim.nodes.values())
        name = self.random.choice(sorted(n for n in self.checks.versions if n[0] == "c") or ["c0"])
        known = self.checks.versions.get(name, [(0, 0)])[-1][1]
        if_version = self.random.choice((None, None, known or None))
        kind = self.random.choice(("put", "put", "put", "wide", "state", "delete", "restart", "create", "none"))
        requests: dict[str, Request] = {
            "put": PutConnector(name, self._config(self.random.randint(1, 3)), "source", if_version=if_version),
            "wide": PutConnector(name, self._config(self.random.randint(1, 4)), "source"),
            "state": PutConnector(name, None, target_state=self.random.choice(("RUNNING", "PAUSED", "STOPPED"))),
            "delete": DeleteConnector(name, if_version=if_version),
            "restart": Restart(name, include_tasks=True, only_failed=self.random.random() < 0.3),
            "create": PutConnector(name, self._config(1), "source", create_only=True),
            "none": PutConnector(name, None, target_state="RUNNING"),
        }
        self.rest.ask(requests[kind], self.random.choice(nodes))


def run_seed(seed: int, profile: str = "ci", trace: Callable[[str], None] | None = None, **over: Any) -> Result:
    """One history. The same seed and the same code give the same hash."""
    begun = time.process_time()
    chosen = PROFILES[profile]
    if over:
        chosen = Profile(**{**vars(chosen), **over})
    with stage(seed, Setting(), trace) as sim:
        sim.setting.transaction_timeout_ms = sim.world.random.choice((15_000, 900_000))
        sim.setting.crash_delay_s = sim.world.random.choice((0.0, 0.0, 3.0))
        history = History(sim, chosen)
        history.run()
        world = sim.world
        result = Result(seed, world.digest(), list(world.violations))
        result.stats = {
            "faults": Counter(world.faults),
            "steps": world.steps,
            "simulated_s": round(world.now, 1),
            "requests": sim.cluster.network.sent,
            "records": len(history.checks.history),
            "rows": history.checks.rows.total(),
            "starts": sim.starts.total(),
            "ops": len(history.rest.ops),
            "settled_s": round(history.settled_s, 1),
            "operator_restarts": history.restarts,
        }
    result.stats["real_s"] = time.process_time() - begun
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--profile", default="ci", choices=sorted(PROFILES))
    parser.add_argument("--only", default="", help="kinds of faults, separated by commas")
    parser.add_argument("--most", type=int, default=10, help="failed histories after which to stop")
    parser.add_argument("--trace", action="store_true")
    args = parser.parse_args()
    over = {"only": tuple(args.only.split(","))} if args.only else {}
    gc.freeze()
    failed, total, longest, settled = 0, Counter[str](), 0.0, []
    for seed in range(args.seed, args.seed + args.count):
        result = run_seed(seed, args.profile, print if args.trace else None, **over)
        total.update({k: v for k, v in result.stats.items() if isinstance(v, int | float)})
        total.update(result.stats["faults"])
        longest = max(longest, result.stats["real_s"])
        settled.append(result.stats["settled_s"])
        if result.violations:
            failed += 1
            print(f"FAILED seed {seed}: {result.violations[0]}")
            print(f"  replay: python -m tests.simulation.run --seed {seed} --profile {args.profile} --trace")
        gc.collect()
        if failed >= args.most:
            break
    print({k: round(v, 2) for k, v in sorted(total.items())})
    print(f"{args.count} histories, {failed} failed, longest {longest:.2f} s, settled max {max(settled)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
