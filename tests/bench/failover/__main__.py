"""How long work stands still when a worker, the leader, or the worker with the sink is killed, and when one drains.

Real broker, real PostgreSQL, real worker processes (`cdcworker start`) with a session of 10 s, internal topics aged by
millions of records. Workers are killed one after the other and started again under the same id. No trial is
discarded: one that does not end in time counts with the time that was waited for it, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from ..aging import age
from ..measure import finish
from .report import figures, percentile, show, summary
from .stage import Stage, stage, start_workers
from .trials import Results, Trials
from .watch import Watcher

BARS = {
    "worker_kill_p99_s": 12.0,
    "leader_kill_p99_s": 12.0,
    "sink_kill_p99_s": 20.0,
    "drain_gap_p99_s": 3.0,
    "drain_exit_max_s": 20.0,
    "unmoved_task_restarts": 0,
    "duplicate_records": 0,
    "missing_records": 0,
}
QUICK = {"rounds": 3, "drains": 3, "sinks": 2, "age": 200_000}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds of each kind, a few minutes")
    parser.add_argument("--rounds", type=int, default=50, help="kills of a leader, and as many of a follower")
    parser.add_argument("--drains", type=int, default=20)
    parser.add_argument("--sinks", type=int, default=10, help="kills of the worker that runs the Spark sink")
    parser.add_argument("--age", type=int, default=5_000_000, help="records in the internal topics before the start")
    parser.add_argument("--session", type=float, default=10.0, help="session time-out in seconds")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--tables", type=int, default=3, help="PostgreSQL sources")
    parser.add_argument("--generators", type=int, default=3, help="datagen sources")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.quick:
        for name, value in QUICK.items():
            if getattr(given, name) == parser.get_default(name):
                setattr(given, name, value)
    return given


def say(began: float, text: str) -> None:
    print(f"[{time.monotonic() - began:6.0f} s] {text}", flush=True)


def run(found: Stage, given: argparse.Namespace, began: float) -> tuple[Results, Watcher]:
    say(began, f"aging the internal topics by {given.age:,} records")
    if given.age:
        found.aged = age(found.kafka.bootstrap, found.topics, given.age, settle_s=20.0 if given.quick else 180.0)
        print("  " + " ".join(f"{name}={value}" for name, value in found.aged.items()), flush=True)
    say(began, f"starting {given.workers} workers")
    start_workers(found, given.workers)
    found.add_sources(given.tables, given.generators)
    found.await_topics()
    names = {topic: name for name, topic in found.sources.items()}
    logs = {found.topics.configs: "configs", found.topics.status: "status"}
    watcher = Watcher(found.kafka.bootstrap, names, logs)
    watcher.start()
    trials = Trials(found, watcher, given.seed)
    try:
        for number in range(given.rounds):
            say(began, f"kills, round {number + 1} of {given.rounds}")
            trials.kill("leader")
            trials.kill("follower")
        for number in range(given.drains):
            say(began, f"drain {number + 1} of {given.drains}")
            trials.drain()
        if given.sinks:
            found.add_sink()
        for number in range(given.sinks):
            say(began, f"kill of the sink {number + 1} of {given.sinks}")
            trials.kill_sink(warm=number % 2 == 0)
        trials.settle()
    finally:
        watcher.stop()
    return trials.results, watcher


def report(
    results: Results, watcher: Watcher, given: argparse.Namespace, aged: dict[str, float], elapsed_s: float
) -> int:
    show("SIGKILL of a worker → first new record committed, slowest of its tasks", results.worker_kills)
    show("  of these, the leader", results.leader_owner_kills)
    show("  of these, a follower", results.follower_kills)
    show("SIGKILL of the leader → config write accepted", results.leader_kills)
    show("SIGKILL of the worker with the sink → first batch committed", results.sink_kills)
    show("SIGTERM → silence of each task", results.drain_gaps)
    show("SIGTERM → exit", results.drain_exits)
    print("\neach task of a killed worker, by kind of source")
    for name, values in sorted(results.by_source.items()):
        print(f"  {name:<10} {summary(values)}")
    print("\nwhere the time goes: the slowest task's steps, one after the other")
    for name, values in results.steps.items():
        print(f"  {name:<24} {summary(values)}")
    tallies = watcher.tallies.values()
    out: dict[str, float | int | str] = {"session_s": given.session, "aged_records": given.age, **aged}
    out |= figures("worker_kill", results.worker_kills) | figures("leader_kill", results.leader_kills)
    out |= figures("leader_with_tasks_kill", results.leader_owner_kills)
    out |= figures("follower_kill", results.follower_kills)
    out |= figures("sink_kill", results.sink_kills) | figures("drain_gap", results.drain_gaps)
    for name, values in sorted(results.by_source.items()):
        out[f"{name}_task_kill_p99_s"] = round(percentile(values, 0.99), 3)
    out |= {
        "drain_exit_max_s": round(max(results.drain_exits, default=0.0), 3),
        "drain_exits_not_zero": results.bad_exits,
        "unmoved_task_restarts": results.unmoved_restarts,
        "unmoved_tasks_checked": results.unmoved_tasks,
        "records_read": sum(tally.rows for tally in tallies),
        "duplicate_records": sum(tally.duplicates for tally in tallies),
        "missing_records": sum(tally.missing for tally in tallies),
        "trials_given_up": results.gave_up,
        "elapsed_s": round(elapsed_s),
    }
    missed = [f"{name} {out[name]} > {bar}" for name, bar in BARS.items() if float(out.get(name, 0)) > bar]
    print(f"\nbars missed: {', '.join(missed) or 'none'}")
    finish(out)
    return 1 if results.gave_up else 0


def main() -> int:
    given, began = options(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdc-failover-") as folder, stage(Path(folder), given.session) as found:
        results, watcher = run(found, given, began)
    return report(results, watcher, given, found.aged, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
