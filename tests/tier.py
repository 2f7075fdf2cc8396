"""Runs a test tier: `ci` (make test; `--fast`: the unit tests), `long` (what CI leaves out, in parts, result kept), `age` (of that).

Seeds rotate by commit, so that each commit tries other orders and other examples and any of them can be repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .lanes import ENDED_FROM_OUTSIDE, SLOWEST, Lane, Timing, failures, run, slowest

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "tests" / "results" / "long.json"
PYTEST = Path(sys.executable).parent / "pytest"
STALE_DAYS = 14
PASSED = (0, 5)
"""Exit codes of pytest: all passed, and no test was chosen (all of a file skipped or none there)."""


def git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """HEAD, marked when tracked files differ from it; the result file itself does not count."""
    changed = [line for line in git("status", "--porcelain", "-uno").splitlines() if "tests/results/" not in line]
    return (git("rev-parse", "HEAD") or "unknown") + ("-dirty" if changed else "")


def same_code(earlier: str | None, later: str) -> bool:
    """Whether two commits differ in nothing but kept results, as a commit of a part's result does."""
    if earlier is None or earlier == later:
        return earlier is not None
    if "-dirty" in earlier + later or "unknown" in (earlier, later):
        return False
    argv = ["git", "diff", "--quiet", earlier, later, "--", ".", ":!tests/results"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, check=False).returncode == 0


def seed_of(name: str) -> int:
    given = os.environ.get("CDC_TEST_SEED")
    return int(given) if given else int((name[:8] if name[:8].isalnum() and name != "unknown" else "1"), 16)


def pytest_argv(seed: int, *extra: str) -> list[str]:
    return [str(PYTEST), "-p", "randomly", f"--randomly-seed={seed}", f"--hypothesis-seed={seed}", *extra]


FAST = ("tests/unit",)
"""What the daily loop runs; the house tests are among them."""
FAST_ENVIRONMENT = {"CDC_FUZZ_INPUTS": "4000", "CDC_FUZZ_REQUESTS": "60"}
"""Repetitions of the slowest unit tests in the daily loop."""
CI_ENVIRONMENT = {"CDC_FUZZ_REQUESTS": "150"}
"""Repetitions in CI, whose requests are others at each commit: the long tier runs them in full."""
QUICK = ("tests/unit", "tests/simulation", "tests/planted")
"""These compute; the others mostly wait, for sessions to end and servers to start."""
WAITING = ("tests/integration", "tests/e2e")
AFTER_QUICK = ("tests/integration/connectors/warehouses", "tests/contract", "tests/security")
"""These wait too, and begin when the quick ones have ended: what waits leaves a third of two processors idle by then."""
NICE = 5
"""Of what computes: it leaves the processor to what waits, but is never kept from it for tens of seconds."""
LANES_AT_ONCE = 2
FILES_AT_ONCE = 4
"""Of the long tier, where one waits while others compute."""
FEWER_IN_CI = ("tests/unit/worker/rest/openapi/test_document.py",)
"""Files of which CI runs every test, but not in full: `CI_ENVIRONMENT`."""


def side_by_side(processes: int) -> tuple[str, ...]:
    """Processes with servers of their own; a module's tests stay together, for the sake of what they share, and modules
    begin in the order of `conftest.py`, not of their number of tests."""
    return ("-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder")


@contextlib.contextmanager
def class_archive() -> Iterator[None]:
    """Makes the archive that halves each start of Spark beside the first tests: it costs as much as a dozen of them save."""
    argv = [str(PYTEST.with_name("cdcworker")), "jars", "archive"]
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, cwd=ROOT, process_group=0, **silent) as process:
        try:
            yield
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def ended(began: float, codes: Sequence[int], lanes: Sequence[Lane], found: Sequence[Timing]) -> int:
    """Prints the slowest tests, why tests failed and which lanes did; returns the exit code of the whole."""
    print("\n".join(filter(None, (slowest(found), failures(found)))), flush=True)
    failed = [lane.name for lane, code in zip(lanes, codes, strict=True) if code]
    print(f"{time.monotonic() - began:.0f} s; failed: {' and '.join(failed) or 'nothing'}", flush=True)
    return next((code for code in codes if code), 0)


def ci(args: Sequence[str]) -> int:
    """Two lanes side by side: what computes (`make lint` among it) takes what the processor has left beside what waits, and
    then the rest of that."""
    age([])
    seed = seed_of(commit())
    print(f"seed of this commit: {seed} (repeat with CDC_TEST_SEED={seed})", flush=True)
    if "--fast" in args:
        os.environ.update({**FAST_ENVIRONMENT, **os.environ})
        rest = [arg for arg in args if arg != "--fast"]
        lanes = [Lane("the fast tier", pytest_argv(seed, "-q", *side_by_side(2), *FAST, *rest))]
    elif args:
        lanes = [Lane("the tests asked for", pytest_argv(seed, *args))]
    else:
        os.environ.update({**CI_ENVIRONMENT, **os.environ})
        lanes = [
            Lane(
                " ".join(WAITING),
                pytest_argv(seed, *side_by_side(3), *WAITING, *(f"--ignore={path}" for path in AFTER_QUICK)),
            ),
            Lane("make lint", ("make", "--no-print-directory", "lint"), nice=NICE, quiet=True, is_pytest=False),
            Lane(" ".join(QUICK), pytest_argv(seed, *side_by_side(2), *QUICK), nice=NICE, quiet=True),
            Lane(" ".join(AFTER_QUICK), pytest_argv(seed, *side_by_side(3), *AFTER_QUICK), quiet=True),
        ]
    began = time.monotonic()
    with contextlib.nullcontext() if args else class_archive():
        codes, found = run(ROOT, lanes, LANES_AT_ONCE)
    return ended(began, codes, lanes, found)


def load(name: str, seed: int, *, keep_passed: bool) -> dict[str, Any]:
    """The unfinished result of the same commit, or with `keep_passed` of any, or a new one."""
    try:
        found: dict[str, Any] = json.loads(RESULT.read_text())
    except (OSError, ValueError):
        found = {}
    if not found.get("finished") and (same_code(found.get("commit"), name) or (found and keep_passed)):
        return found | {"commit": name}
    return {"commit": name, "seed": seed, "started": now(), "finished": None, "files": {}}


def save(result: dict[str, Any]) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    scratch = RESULT.with_suffix(".tmp")
    scratch.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    scratch.replace(RESULT)


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def of_part(files: Sequence[str], part: str) -> list[str]:
    """Every n-th file for `k/n`, so that the slow ones, which lie together, are dealt out."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise SystemExit(f"--part {part}: want k/n with k from 1 to n, as in --part 1/4")
    return list(files[int(number) - 1 :: int(count)])


def long_arguments(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-long", description="What make test leaves out, file by file; goes on where it ended."
    )
    parser.add_argument("--part", default="1/1", help="only every n-th file: 1/4, 2/4, …")
    parser.add_argument("--minutes", type=float, help="begin no further file after so many minutes")
    parser.add_argument("--left", action="store_true", help="only print what is left")
    parser.add_argument("--at-once", type=int, default=FILES_AT_ONCE, help="how many files run side by side")
    parser.add_argument(
        "--keep-passed",
        action="store_true",
        help="go on with the unfinished result of an earlier commit: run what failed there or is left, after mends",
    )
    return parser.parse_args(args)


def summary(result: Mapping[str, Any], files: Sequence[str]) -> str:
    """How many files have passed, failed and are left, and how long all of them took."""
    rows = {file: result["files"][file] for file in files if file in result["files"]}
    failed = [file for file, row in rows.items() if row["code"] not in PASSED]
    lines = [f"long tier: {len(rows) - len(failed)} files passed, {len(failed)} failed, {len(files) - len(rows)} left"]
    lines += [f"  {row['seconds']:7.1f} s  {file}" for file, row in slowest_files(rows)]
    lines += [f"  failed: {file}" for file in failed]
    return "\n".join([*lines, f"{result.get('minutes', 0.0):.0f} minutes in all"])


def slowest_files(rows: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(rows.items(), key=lambda item: -item[1]["seconds"])[:SLOWEST]


def in_turn(files: Sequence[str]) -> list[str]:
    """By turns one that computes and one that waits, so that of those at once seldom all want the processor."""
    computing = [file for file in files if file.startswith(QUICK)]
    waiting = [file for file in files if not file.startswith(QUICK)]
    longer, shorter = sorted((computing, waiting), key=len, reverse=True)
    every = max(1, len(longer) // max(1, len(shorter)))
    dealt = [[*longer[at * every : (at + 1) * every], file] for at, file in enumerate(shorter)]
    return [file for files in dealt for file in files] + longer[len(shorter) * every :]


def long_files(seed: int) -> list[str]:
    """The files that have a test that CI leaves out with this seed, as pytest collects them, and those of which CI runs less."""
    argv = pytest_argv(seed, "-q", "--collect-only", "-m", "long")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the long tests cannot be collected:\n{done.stdout}{done.stderr}")
    return sorted({line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line} | set(FEWER_IN_CI))


def long_lane(file: str, seed: int) -> Lane:
    return Lane(file, pytest_argv(seed, *(() if file in FEWER_IN_CI else ("-m", "long")), file))


def long(args: Sequence[str]) -> int:
    """Runs what has not passed at this commit, some files at once, and keeps each file's result when it has ended."""
    chosen = long_arguments(args)
    name = commit()
    result = load(name, seed_of(name), keep_passed=chosen.keep_passed)
    every = long_files(int(result["seed"]))
    todo = [file for file in of_part(every, chosen.part) if result["files"].get(file, {}).get("code") not in PASSED]
    began, before = time.monotonic(), result.get("minutes", 0.0)

    def keep(lane: Lane, code: int, seconds: float) -> None:
        print(f"long tier: {lane.name}: exit code {code} after {seconds:.0f} s", flush=True)
        result["files"][lane.name] = {"code": code, "seconds": round(seconds, 1), "commit": name}
        result["minutes"] = round(before + (time.monotonic() - began) / 60, 1)
        save(result)

    def in_time() -> bool:
        return chosen.minutes is None or time.monotonic() - began < 60 * chosen.minutes

    lanes = [long_lane(file, int(result["seed"])) for file in in_turn(todo)]
    with contextlib.nullcontext() if chosen.left else class_archive():
        codes, _ = run(ROOT, [] if chosen.left else lanes, chosen.at_once, keep, in_time)
    if ENDED_FROM_OUTSIDE in codes:
        print(summary(result, every), flush=True)
        return ENDED_FROM_OUTSIDE
    failed = [file for file in every if result["files"].get(file, {}).get("code", 0) not in PASSED]
    if not failed and all(file in result["files"] for file in every):
        result["finished"] = now()
        save(result)
    print(summary(result, every), flush=True)
    return 1 if failed else 0


def age(args: Sequence[str]) -> int:
    try:
        result = json.loads(RESULT.read_text())
    except (OSError, ValueError):
        print("long tier: never run here (make test-long)")
        return 0
    if not result.get("finished"):
        print(f"long tier: unfinished for commit {result['commit'][:12]} (make test-long goes on with it)")
        return 0
    days = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(result["finished"])).days
    warning = f", older than {STALE_DAYS} days: run make test-long" if days > STALE_DAYS else ""
    earlier = sum(row["commit"] != result["commit"] for row in result["files"].values())
    kept = f" ({earlier} of {len(result['files'])} files at earlier ones)" if earlier else ""
    print(f"long tier: passed {days} days ago at commit {result['commit'][:12]}{kept}, seed {result['seed']}{warning}")
    return 0


if __name__ == "__main__":
    # Each of the many processes of a run would compile all its modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit({"ci": ci, "long": long, "age": age}[sys.argv[1]](sys.argv[2:]))
