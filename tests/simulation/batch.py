"""Runs many histories on all cores, each of them twice: `python -m tests.simulation.batch --seed 1 --count 1000`."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TextIO

from .run import PROFILES, Result, run_seed

CHUNK = 20
"""The number of seeds that a process runs at a time."""
CHUNKS_PER_POOL = 10
"""The number of chunks after which a process is replaced. Some histories leak objects (a killed greenlet refers to
itself) that slow down each garbage collection: a thousand in one process take more than twice as long as in ten."""


@dataclass(frozen=True)
class Finding:
    """A seed whose history went wrong, or whose two runs differ."""

    seed: int
    profile: str
    what: str

    def __str__(self) -> str:
        command = f"python -m tests.simulation.run --seed {self.seed} --profile {self.profile} --trace"
        return f"FAILED seed {self.seed}: {self.what}\n  replay: {command}"


@dataclass
class Summary:
    """The results of a batch."""

    histories: int = 0
    findings: list[Finding] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    settled_s_max: float = 0.0
    hashes: dict[int, str] = field(default_factory=dict)
    """The digest of each seed that was run."""

    def take(self, result: Result, profile: str) -> None:
        known = self.hashes.setdefault(result.seed, result.hash)
        if known != result.hash:
            self.findings.append(Finding(result.seed, profile, f"two runs differ: {known} and {result.hash}"))
        self.histories += 1
        if result.violations and not any(f.seed == result.seed for f in self.findings):
            self.findings.append(Finding(result.seed, profile, result.violations[0]))
        self.faults.update(result.stats.get("faults", {}))
        self.totals.update({name: result.stats.get(name, 0) for name in ("steps", "starts", "records", "rows", "ops")})
        self.settled_s_max = max(self.settled_s_max, float(result.stats.get("settled_s", 0.0)))


def _freeze() -> None:
    gc.freeze()


def _chunk(seeds: Sequence[int], profile: str) -> list[Result]:
    out = []
    for seed in seeds:
        out.append(run_seed(seed, profile))
        gc.collect()
    return out


def _results(seeds: Sequence[int], profile: str, times: int, processes: int) -> Iterator[Sequence[Result]]:
    """Yields the results; the two runs of a seed are usually in different processes, with different hash seeds."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    todo = [chunk for again in range(times) for chunk in (chunks if again % 2 == 0 else chunks[1:] + chunks[:1])]
    for at in range(0, len(todo), CHUNKS_PER_POOL):
        yield from _of_pool(todo[at : at + CHUNKS_PER_POOL], profile, processes)


def _of_pool(todo: list[Sequence[int]], profile: str, processes: int) -> Iterator[Sequence[Result]]:
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_freeze) as pool:
        waiting: set[Future[list[Result]]] = set()
        while todo or waiting:
            while todo and len(waiting) < 2 * processes:
                waiting.add(pool.submit(_chunk, todo.pop(0), profile))
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            try:
                yield from (future.result() for future in done)
            except GeneratorExit:
                pool.shutdown(cancel_futures=True)
                raise


def run_batch(seeds: Sequence[int], profile: str, times: int, most: int) -> Summary:
    """Runs all histories, or until `most` of them have failed."""
    summary = Summary()
    results = _results(seeds, profile, times, os.cpu_count() or 1)
    for chunk in results:
        for result in chunk:
            summary.take(result, profile)
        if len(summary.findings) >= most:
            results.close()  # type: ignore[attr-defined]
            break
    return summary


def show(summary: Summary, seconds: float, out: TextIO = sys.stdout) -> None:
    for finding in summary.findings:
        print(finding, file=out)
    faults = " ".join(f"{name}={count}" for name, count in sorted(summary.faults.items()))
    totals = " ".join(f"{name}={count}" for name, count in sorted(summary.totals.items()))
    print(f"faults: {faults}\ntotals: {totals}", file=out)
    print(
        f"{summary.histories} histories of {len(summary.hashes)} seeds in {seconds:.0f} s, "
        f"{len(summary.findings)} failed, settled within {summary.settled_s_max:.1f} s after the last fault",
        file=out,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--times", type=int, default=2, help="runs of each seed, whose traces must be the same")
    parser.add_argument("--profile", default="ci", choices=sorted(PROFILES))
    parser.add_argument("--most", type=int, default=10, help="failed histories after which to stop")
    args = parser.parse_args()
    begun = time.monotonic()
    seeds = range(args.seed, args.seed + args.count)
    summary = run_batch(seeds, args.profile, args.times, args.most)
    show(summary, time.monotonic() - begun)
    return 1 if summary.findings else 0


if __name__ == "__main__":
    sys.exit(main())
