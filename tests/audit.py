"""Known holes of the locked packages, by pip-audit in an environment of its own; says so where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AUDITOR = "pip-audit==2.10.1"
HOLES = 1
NOT_RUN = 3
IS_CI = ("1", "true", "yes")
INSTALL_S, ANSWER_S = 300, 180


def auditor(folder: Path) -> tuple[list[str] | None, str]:
    """The command, or why there is none. Not among the locked packages: it is no part of what it judges."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    argv = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", AUDITOR]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        return None, f"{AUDITOR} was not installed within {INSTALL_S} s"
    return ([str(folder / "bin" / "pip-audit")], "") if done.returncode == 0 else (None, last_line(done.stderr))


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")


def audit(command: list[str], lock: Path) -> tuple[int, str]:
    """0, HOLES with the list, or NOT_RUN with the reason."""
    argv = [*command, "--requirement", str(lock), "--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return NOT_RUN, f"no answer within {ANSWER_S} s"
    if done.returncode == 0:
        return 0, last_line(done.stderr)
    if "Found " in done.stderr:
        return HOLES, f"{last_line(done.stderr)}\n{done.stdout}"
    return NOT_RUN, last_line(done.stderr)


def main() -> int:
    """1 when a hole is known. What could not be asked is no hole: it is an error in CI, where nobody reads that it was not
    asked, and where every part must be there."""
    worst, must_answer = 0, os.environ.get("CDC_REQUIRE_PARTS") == "1" or os.environ.get("CI", "").lower() in IS_CI
    with tempfile.TemporaryDirectory() as folder:
        command, why = auditor(Path(folder))
        for lock in sorted((ROOT / "locks").glob("*.txt")):
            code, text = audit(command, lock) if command else (NOT_RUN, why)
            print(f"{'NOT RUN: ' if code == NOT_RUN else ''}{lock.name}: {text}", flush=True)
            if code == HOLES or (code == NOT_RUN and must_answer):
                worst = 1
    return worst


if __name__ == "__main__":
    sys.exit(main())
