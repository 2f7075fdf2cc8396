"""How start, a config change and the loss of a worker grow with the number of connectors.

Two parts on a real broker. `real`: 100 connectors with one generator task each on five workers (`cdcworker start`),
every task a process of its own. `stub`: 10, 100 and 1,000 connectors of three tasks on five production herders whose
task processes are stubbed at their pipe, so that what is measured is the coordination. Each size is taken several times,
in turn with the others, and its figures are medians. Growth is given as the exponent between two sizes: 1 is linear, 0 is
no growth; of seconds, and of the processor seconds of all herders together, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.worker.devstack.kafka import EmbeddedKafka

from ..measure import cpu_s, finish, median, rss_mb, tree, wait
from .real import real

CHILD = Path(__file__).with_name("child.py")
TASKS = 3
TIMEOUT_S = 300.0
CALM_S = 2.0
FLOOR_S = 0.05
"""Times below this say nothing about growth: exponents are taken of no less."""
LINEAR = 1.05
"""What still counts as linear: an eighth more than tenfold for ten times as many."""
STEPS = ("start_s", "change_s", "loss_move_s", "loss_s", "start_cpu_s", "change_cpu_s", "loss_cpu_s")


class Member:
    """A herder in a process of its own, and what it has said."""

    def __init__(self, bootstrap: str, group: str, worker: str, session_s: float, folder: Path, profile: bool) -> None:
        argv = [sys.executable, str(CHILD), bootstrap, group, worker, str(session_s)]
        argv += [str(folder / f"{group}-{worker}.profile")] if profile else []
        self.id = worker
        self.leads = self.ready = False
        self.workers = 0
        self.running: dict[str, int] = {}
        self.starts: Counter[str] = Counter()
        self.refused: deque[str] = deque()
        self.changed = 0.0
        self.log = (folder / f"{group}-{worker}.log").open("wb")
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1
        )
        self._reader = threading.Thread(target=self._read, name=worker, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "start" in message:
                self.running[message["start"]] = message["epoch"]
                self.starts[message["start"]] += 1
                self.changed = time.monotonic()
            elif "stop" in message:
                self.running.pop(message["stop"], None)
            elif "outcome" in message:
                if message["outcome"] != "ok":
                    self.refused.append(message["put"])
            else:
                self.leads = message.get("leads", self.leads)
                self.workers = message.get("workers", self.workers)
                self.ready = self.ready or "ready" in message

    def put(self, name: str, config: Mapping[str, str]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"put": name, "tasks": TASKS, "config": dict(config)}) + "\n")

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.leads, self.running = False, {}

    def end(self) -> None:
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(10)
        self.log.close()


class Herd:
    """Five members of one group."""

    def __init__(self, bootstrap: str, group: str, size: int, given: argparse.Namespace, folder: Path) -> None:
        self.size = size
        self.retries = 0
        self._configs: dict[str, Mapping[str, str]] = {}
        ensure_topics({"bootstrap.servers": bootstrap}, internal_topics(TopicNames.of_group(group)), client_id="bench")
        self.members = [
            Member(bootstrap, group, f"w{number}", given.session, folder, given.profile)
            for number in range(given.workers)
        ]
        wait("herders", lambda: all(member.ready for member in self.members), TIMEOUT_S)
        wait("a leader that sees all", lambda: any(m.leads and m.workers == given.workers for m in self.members), 60)

    def leader(self) -> Member | None:
        return next((member for member in self.members if member.leads), None)

    def put(self, name: str, config: Mapping[str, str]) -> None:
        leader = self.leader()
        assert leader is not None
        self._configs[name] = config
        leader.put(name, config)

    def put_again(self) -> None:
        """What was refused because the lead changed hands, as a client of REST would."""
        leader = self.leader()
        for member in self.members:
            while leader is not None and member.refused:
                name = member.refused.popleft()
                self.retries += 1
                leader.put(name, self._configs[name])

    def running(self) -> dict[str, tuple[str, int]]:
        return {task: (m.id, epoch) for m in self.members for task, epoch in list(m.running.items())}

    def epoch(self, task: str) -> int:
        """Of the start that runs now; asked for often, so without a picture of everything."""
        return max(member.running.get(task, 0) for member in self.members)

    def starts(self) -> Counter[str]:
        return sum((member.starts for member in self.members), Counter())

    def last_change(self) -> float:
        return max(member.changed for member in self.members)

    def complete(self) -> bool:
        wanted = self.size * TASKS
        return sum(len(member.running) for member in self.members) == wanted and len(self.running()) == wanted

    def settle(self) -> None:
        """Until every task runs and nothing has moved for a while."""
        wait("calm", lambda: self.complete() and time.monotonic() - self.last_change() > CALM_S, TIMEOUT_S)

    def cpu_s(self) -> tuple[float, float]:
        """Of the leader, and of all that are alive."""
        leader = self.leader()
        pids = [member.process.pid for member in self.members if member.process.poll() is None]
        return cpu_s([leader.process.pid] if leader else []), cpu_s(pids)

    def end(self) -> None:
        for member in self.members:
            member.end()


@dataclass(frozen=True)
class Step:
    """What one step took."""

    seconds: float
    starts: Counter[str]
    leader_cpu_s: float
    cpu_s: float

    def figures(self, name: str, restarts: int) -> dict[str, float]:
        return {
            f"{name}_s": self.seconds,
            f"{name}_restarts": restarts,
            f"{name}_leader_cpu_s": self.leader_cpu_s,
            f"{name}_cpu_s": self.cpu_s,
        }


def timed(
    herd: Herd, what: str, act: Callable[[], None], done: Callable[[], bool], victim: Member | None = None
) -> Step:
    """Until `done`. `victim`: a member that dies in it, so its processor seconds do not count."""
    gone = cpu_s([victim.process.pid]) if victim else 0.0
    before, (leader, everybody), at = herd.starts(), herd.cpu_s(), time.monotonic()
    act()

    def really() -> bool:
        herd.put_again()
        return done()

    wait(what, really, TIMEOUT_S, 0.005)
    seconds = time.monotonic() - at
    leader_after, everybody_after = herd.cpu_s()
    print(f"  {what}: {seconds:.2f} s", flush=True)
    return Step(seconds, herd.starts() - before, leader_after - leader, everybody_after - everybody + gone)


def stub_round(bootstrap: str, size: int, given: argparse.Namespace, folder: Path, number: int) -> dict[str, float]:
    herd = Herd(bootstrap, f"scale-{size}-{number}", size, given, folder)
    try:
        names = [f"c{number}" for number in range(size)]
        start = timed(herd, f"start of {size}", lambda: [herd.put(n, {}) for n in names] and None, herd.complete)
        herd.settle()
        restarts = sum(herd.starts().values()) - size * TASKS
        counts = sorted(len(member.running) for member in herd.members)
        before = herd.running()
        mine = [f"c0-{number}" for number in range(TASKS)]
        change = timed(
            herd,
            "a config change",
            lambda: herd.put("c0", {"changed": "1"}),
            lambda: all(herd.epoch(task) > before[task][1] for task in mine),
        )
        herd.settle()
        idle_at, idle_cpu = time.monotonic(), herd.cpu_s()[0]
        time.sleep(given.idle)
        idle = (herd.cpu_s()[0] - idle_cpu) / (time.monotonic() - idle_at)
        before = herd.running()
        leader = herd.leader()
        assert leader is not None
        victim = next(member for member in herd.members if member is not leader)
        lost = [task for task, (worker, _) in before.items() if worker == victim.id]
        first: list[float] = []
        still = set(lost)

        def moved() -> bool:
            done = {task for task in still if herd.epoch(task) > before[task][1]}
            if done and not first:
                first.append(time.monotonic())
            still.difference_update(done)
            return not still

        at = time.monotonic()
        loss = timed(herd, "the loss of a worker", victim.kill, moved, victim)
        return {
            **start.figures("start", restarts),
            "tasks_per_worker_min": counts[0],
            "tasks_per_worker_max": counts[-1],
            **change.figures("change", sum(change.starts.values()) - TASKS),
            **loss.figures("loss", sum(loss.starts.values()) - len(lost)),
            "loss_move_s": at + loss.seconds - first[0],
            "loss_tasks": len(lost),
            "requests_repeated": herd.retries,
            "idle_leader_cpu_ratio": idle,
            "leader_rss_mb": rss_mb(tree(leader.process.pid)),
        }
    finally:
        herd.end()


def stub(bootstrap: str, given: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """The figures of each size: medians over the rounds, of restarts the sum."""
    rounds: dict[int, list[dict[str, float]]] = {size: [] for size in given.sizes}
    for number in range(given.rounds):
        for size in given.sizes:
            rounds[size].append(stub_round(bootstrap, size, given, folder, number))
            shown = " ".join(f"{key}={value:.2f}" for key, value in rounds[size][-1].items())
            print(f"stub, {size} connectors of {TASKS} tasks, round {number + 1}: {shown}", flush=True)
            if given.profile:
                for path in sorted(folder.glob(f"scale-{size}-{number}-*.profile")):
                    print(f"--- {path.name}\n{path.read_text()[:6000]}")
    return [
        median(rows) | {key: sum(row[key] for row in rows) for key in rows[0] if key.endswith("restarts")}
        for rows in rounds.values()
    ]


def exponents(sizes: Sequence[int], rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each step between each two neighbouring sizes."""
    out = {}
    for (small, a), (large, b) in zip(
        zip(sizes, rows, strict=True), list(zip(sizes, rows, strict=True))[1:], strict=False
    ):
        for step in STEPS:
            growth = max(b[step], FLOOR_S) / max(a[step], FLOOR_S)
            out[f"{step.removesuffix('_s')}_exponent_{small}_{large}"] = round(math.log(growth, large / small), 3)
    return out


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 100, 1_000], help="connectors of the stub part")
    parser.add_argument("--real", type=int, default=100, help="connectors of the real part; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3, help="of the stub part")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--session", type=float, default=10.0)
    parser.add_argument("--idle", type=float, default=5.0, help="seconds for which an idle leader is watched")
    parser.add_argument("--profile", action="store_true", help="profile the herders' threads (slower)")
    return parser.parse_args()


def main() -> int:
    given = options()
    out: dict[str, Any] = {"workers": given.workers, "session_s": given.session, "rounds": given.rounds}
    with tempfile.TemporaryDirectory(prefix="cdc-scale-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with EmbeddedKafka(folder / "kafka") as kafka:
            rows = stub(kafka.bootstrap, given, folder)
            for size, row in zip(given.sizes, rows, strict=True):
                out |= {f"stub_{size}_{key}": round(value, 3) for key, value in row.items()}
            if given.real:
                figures = real(kafka, folder, given.real, given.workers, given.session)
                print("real: " + " ".join(f"{key}={value:.2f}" for key, value in figures.items()), flush=True)
                out |= {f"real_{key}": round(value, 3) for key, value in figures.items()}
    growth = exponents(given.sizes, rows) if len(rows) > 1 else {}
    for step, exponent in growth.items():
        print(f"{step:<40} {exponent:6.2f}{'   faster than linear' if exponent > LINEAR else ''}")
    restarted = round(sum(row[f"{step}_restarts"] for row in rows for step in ("start", "change", "loss")))
    print(f"tasks restarted that no step concerned: {restarted}")
    out |= growth | {
        "unmoved_task_restarts": restarted,
        "steps_faster_than_linear": sum(exponent > LINEAR for exponent in growth.values()),
    }
    finish(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
