"""The demo as a new user runs it: it ends by itself, its exit code tells the truth, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.timeout(900)]

ENDED_S_MAX = 120.0
"""Servers that are told to end on a machine with much else to do."""
COMMAND = str(Path(sys.executable).parent / "cdcworker")


def left_behind(marker: str) -> list[str]:
    """Command lines of processes that carry the run's environment mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


def wait_for_all(marker: str) -> None:
    """Waits until no process is left whose environment has the marker."""
    deadline = time.monotonic() + ENDED_S_MAX
    while left := left_behind(marker):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


def quickstart(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    env = {**os.environ, "CDC_TEST_MARK": tmp_path.name + "-mark", "NO_COLOR": "1", "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [COMMAND, "quickstart", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )


@pytest.mark.long
@pytest.mark.parametrize("source", ["postgres", pytest.param("mysql", marks=pytest.mark.mysql)])
def test_once_proves_both_sides_equal_through_the_kill_of_the_leader(tmp_path: Path, source: str) -> None:
    with quickstart(tmp_path, "--once", "--source", source) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    numbers = {name: int(count.replace(",", "")) for name, count in re.findall(r"(\w+)[=: ]+([\d,]{2,})\b", output)}
    assert numbers, output
    assert "equal" in output
    wait_for_all(tmp_path.name + "-mark")
    assert list(tmp_path.iterdir()) == []


def read_to(process: subprocess.Popen[str], text: str) -> str:
    """What it prints up to the line that holds `text`, or to its end."""
    assert process.stdout is not None
    found = []
    for line in iter(process.stdout.readline, ""):
        found.append(line)
        if text in line:
            break
    return "".join(found)


def interrupt(process: subprocess.Popen[str]) -> str:
    """Returns the rest of its output."""
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=240)
    return output


VERDICT = re.compile(r"\b(customers|orders|items) +([\d,]+) +([\d,]+) +\w+ +\w+ +(equal|differs)")
"""Of a table: its rows at the source and in the warehouse, both checksums, and what follows from them."""


def test_sabotage_is_found(tmp_path: Path) -> None:
    """All but the sabotaged row has come through the kill of the leader. The difference is in the exit code of a demo that
    runs on until it is interrupted."""
    with quickstart(tmp_path, "--sabotage", "--seconds", "5") as process:
        output = read_to(process, "everything keeps running")
        output += interrupt(process)
    assert process.returncode == 1, output
    assert "DIFFERENT: orders differ" in output, output
    found = {table: (there == here != "0", verdict) for table, there, here, verdict in VERDICT.findall(output)}
    assert found == {"customers": (True, "equal"), "orders": (True, "differs"), "items": (True, "equal")}, output
    assert "leads after" in output, output
    wait_for_all(tmp_path.name + "-mark")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_ctrl_c_drains_and_removes_everything(tmp_path: Path) -> None:
    with quickstart(tmp_path) as process:
        output = read_to(process, "http://127.0.0.1")
        output += interrupt(process)
    assert process.returncode in (0, 130), output
    wait_for_all(tmp_path.name + "-mark")
    assert list(tmp_path.iterdir()) == []
