"""Runs a test tier: `ci` (make test), `long` (everything, resumable, result kept as JSON), `age` (of the last long run).

Seeds rotate by commit, so that each commit tries other orders and other examples and any of them can be repeated.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "tests" / "results" / "long.json"
PYTEST = Path(sys.executable).parent / "pytest"
STALE_DAYS = 14


def git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """HEAD, marked when tracked files differ from it; the result file itself does not count."""
    changed = [line for line in git("status", "--porcelain", "-uno").splitlines() if "tests/results/" not in line]
    return (git("rev-parse", "HEAD") or "unknown") + ("-dirty" if changed else "")


def seed_of(name: str) -> int:
    given = os.environ.get("CDC_TEST_SEED")
    return int(given) if given else int((name[:8] if name[:8].isalnum() and name != "unknown" else "1"), 16)


def pytest_argv(seed: int, *extra: str) -> list[str]:
    return [str(PYTEST), "-p", "randomly", f"--randomly-seed={seed}", f"--hypothesis-seed={seed}", *extra]


QUICK = ("tests/unit", "tests/simulation", "tests/planted")
"""These compute, and nothing in them goes by the clock; the others mostly wait, for sessions to end and servers to start."""
WAITING = ("tests/integration", "tests/e2e")
NICE = 15


def ci() -> int:
    """Two lanes side by side: what computes takes what the processor has left beside what waits."""
    age()
    seed = seed_of(commit())
    print(f"seed of this commit: {seed} (repeat with CDC_TEST_SEED={seed})", flush=True)
    if sys.argv[2:]:
        return subprocess.run(pytest_argv(seed, *sys.argv[2:]), cwd=ROOT, check=False).returncode
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        argv = ["nice", "-n", str(NICE), *pytest_argv(seed, "--durations=15", *QUICK)]
        with subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT) as quick:
            try:
                code = subprocess.run(pytest_argv(seed, "--durations=25", *WAITING), cwd=ROOT, check=False).returncode
            except BaseException:
                quick.terminate()
                raise
            quick_code = quick.wait()
        output.seek(0)
        print("\n".join(["", "=" * 30 + " " + " ".join(QUICK), output.read()]), flush=True)
    failed = [" ".join(lane) for lane, ended in ((WAITING, code), (QUICK, quick_code)) if ended]
    print(f"{time.monotonic() - began:.0f} s; failed: {' and '.join(failed) or 'nothing'}", flush=True)
    return code or quick_code


def load(name: str, seed: int) -> dict[str, Any]:
    """The unfinished result of the same commit, or a new one."""
    try:
        found: dict[str, Any] = json.loads(RESULT.read_text())
    except (OSError, ValueError):
        found = {}
    if found.get("commit") == name and not found.get("finished"):
        return found
    return {"commit": name, "seed": seed, "started": now(), "finished": None, "files": {}}


def save(result: dict[str, Any]) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    scratch = RESULT.with_suffix(".tmp")
    scratch.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    scratch.replace(RESULT)


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def long() -> int:
    name = commit()
    result = load(name, seed_of(name))
    files = sorted({str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py")})
    for file in files:
        if result["files"].get(file, {}).get("code") in (0, 5):
            continue
        start = time.monotonic()
        argv = pytest_argv(int(result["seed"]), "-m", "long or not long", file)
        code = subprocess.run(argv, cwd=ROOT, check=False).returncode
        result["files"][file] = {"code": code, "seconds": round(time.monotonic() - start, 1)}
        save(result)
    failed = [file for file, row in result["files"].items() if row["code"] not in (0, 5)]
    if not failed:
        result["finished"] = now()
        save(result)
    print(f"long tier: {len(files) - len(failed)} files passed, {len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


def age() -> int:
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
    print(f"long tier: passed {days} days ago at commit {result['commit'][:12]}, seed {result['seed']}{warning}")
    return 0


if __name__ == "__main__":
    sys.exit({"ci": ci, "long": long, "age": age}[sys.argv[1]]())
