"""Many connectors with real task processes: start, config change of one, loss of one worker.

Configs are submitted without live checks: what is measured is the cluster, not how fast checks start.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cdcworker.worker.devstack.kafka import EmbeddedKafka

from tests.bench.failover.stage import Held, Stage, start_workers

from ..measure import cpu_s, rss_mb, tree, wait

SUBMITS_AT_ONCE = 4
TIMEOUT_S = 600.0
ROWS_PER_S = 0.5


def config(name: str, rows_per_s: float = ROWS_PER_S) -> dict[str, str]:
    return {"connector.class": "datagen", "topic.prefix": name, "rows.per.second": str(rows_per_s)}


def real(kafka: EmbeddedKafka, folder: Path, connectors: int, workers: int, session_s: float) -> dict[str, float]:
    stage = Stage(folder, session_s, None, kafka, group="scale-real")  # type: ignore[arg-type]
    stage.make_internal_topics()
    try:
        at = time.monotonic()
        start_workers(stage, workers)
        figures: dict[str, float] = {"connectors": connectors, "workers_ready_s": time.monotonic() - at}
        return figures | _steps(stage, [f"g{number}" for number in range(connectors)])
    finally:
        stage.close()


def _steps(stage: Stage, names: list[str]) -> dict[str, float]:
    at = time.monotonic()
    with ThreadPoolExecutor(SUBMITS_AT_ONCE) as pool:
        list(pool.map(lambda name: stage.put(name, config(name), checked=False), names))
    submitted = time.monotonic() - at
    wait("all tasks run", lambda: _complete(stage, names), TIMEOUT_S, 0.2)
    start = time.monotonic() - at
    before = _quiet(stage, names)
    at = time.monotonic()
    stage.put(names[0], config(names[0], 2 * ROWS_PER_S), checked=False)
    task = f"{names[0]}-0"
    wait("the changed task runs", lambda: _newer(stage, before, [task]), TIMEOUT_S, 0.05)
    change = time.monotonic() - at
    after = _quiet(stage, names)
    change_restarts = _restarts(before, after, {task})
    leader = stage.leader()
    victim = next(worker for worker in stage.living() if worker is not leader)
    lost = [name for name, owner in after.items() if owner.worker == victim.id]
    at = time.monotonic()
    stage.kill(victim)
    wait("the lost tasks run", lambda: _newer(stage, after, lost), TIMEOUT_S, 0.05)
    loss = time.monotonic() - at
    idle = _idle(stage)
    return {
        "submit_s": submitted,
        "start_s": start,
        "change_s": change,
        "change_restarts": change_restarts,
        "loss_s": loss,
        "loss_tasks": len(lost),
        "loss_restarts": _restarts(after, stage.held(), set(lost)),
        **idle,
    }


def _complete(stage: Stage, names: list[str]) -> bool:
    return len(stage.held()) == len(names)


def _newer(stage: Stage, before: dict[str, Held], tasks: list[str]) -> bool:
    held = stage.held()
    return all(task in held and held[task].epoch > before[task].epoch for task in tasks)


def _restarts(before: dict[str, Held], after: dict[str, Held], expected: set[str]) -> int:
    return sum(after.get(task) != owner for task, owner in before.items() if task not in expected)


def _quiet(stage: Stage, names: list[str], calm_s: float = 3.0) -> dict[str, Held]:
    """Until every task runs and nothing has moved for a while."""
    last: dict[str, Any] = {}
    since = time.monotonic()

    def calm() -> bool:
        nonlocal last, since
        held = stage.held()
        if held != last or len(held) != len(names):
            last, since = held, time.monotonic()
        return time.monotonic() - since >= calm_s

    wait("calm", calm, TIMEOUT_S, 0.2)
    return last


def _idle(stage: Stage, seconds: float = 5.0) -> dict[str, float]:
    """CPU and memory of the living workers, with and without their tasks."""
    pids = [worker.process.pid for worker in stage.living()]
    trees = [pid for worker in pids for pid in tree(worker)]
    own, whole = cpu_s(pids), cpu_s(trees)
    time.sleep(seconds)
    return {
        "workers_cpu_ratio": (cpu_s(pids) - own) / seconds,
        "workers_and_tasks_cpu_ratio": (cpu_s(trees) - whole) / seconds,
        "workers_and_tasks_rss_mb": rss_mb(trees),
    }
