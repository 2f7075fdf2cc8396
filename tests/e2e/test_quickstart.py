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

from .cluster import wait

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.timeout(900)]

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


def quickstart(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    env = {**os.environ, "CDC_TEST_MARK": tmp_path.name + "-mark", "NO_COLOR": "1", "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [COMMAND, "quickstart", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )


def test_once_proves_both_sides_equal_through_the_kill_of_the_leader(tmp_path: Path) -> None:
    with quickstart(tmp_path, "--once") as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    numbers = {name: int(count.replace(",", "")) for name, count in re.findall(r"(\w+)[=: ]+([\d,]{2,})\b", output)}
    assert numbers, output
    assert "equal" in output
    wait("no process is left", lambda: not left_behind(tmp_path.name + "-mark"), 20)
    assert list(tmp_path.iterdir()) == []


def test_sabotage_is_found(tmp_path: Path) -> None:
    with quickstart(tmp_path, "--once", "--sabotage") as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    assert "differ" in output.lower()


def test_ctrl_c_drains_and_removes_everything(tmp_path: Path) -> None:
    with quickstart(tmp_path) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        deadline = time.monotonic() + 120
        for line in lines:
            assert time.monotonic() < deadline
            if "http://127.0.0.1" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        process.wait(timeout=60)
    assert process.returncode in (0, 130), rest
    wait("no process is left", lambda: not left_behind(tmp_path.name + "-mark"), 20)
    assert list(tmp_path.iterdir()) == []
