"""Runs pytest processes side by side and tells, while they run and when they are ended from outside, which tests run."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

RUNNING_FOLDER = "CDC_TEST_RUNNING"
"""The environment variable that names the folder where each pytest process keeps the name of its current test."""
TOLD_EVERY_S = 120.0
"""How often the current tests are printed: after a kill that no process can answer, the end of the log names them."""
END_S = 20.0
"""How long lanes have to remove their servers before they are killed: CI waits about half a minute."""
SLOWEST = 10
FAILURE_CHARS = 3000
ENDED_FROM_OUTSIDE = 128
"""The exit code of lanes that a signal ended."""


class EndedFromOutsideError(Exception):
    """A signal asked the whole run to end."""


@dataclass(frozen=True)
class Lane:
    """One pytest process (with its workers) or another command, its output kept in `output` unless it goes to the terminal."""

    name: str
    argv: Sequence[str]
    nice: int = 0
    quiet: bool = False
    is_pytest: bool = True


@dataclass(frozen=True)
class Timing:
    """Seconds of one test with what was set up for it, and why it failed, if it did."""

    file: str
    test: str
    seconds: float
    failure: str = ""


def running(folder: Path, now: float) -> list[str]:
    """One text per test that runs: its name and for how many seconds it has been running."""
    texts = []
    for path in sorted(folder.glob("*.test")):
        try:
            began, _, name = path.read_text().partition(" ")
        except OSError:
            continue
        if name:
            texts.append(f"{name} (for {now - float(began):.0f} s)")
    return texts


def tell_running(folder: Path, why: str) -> None:
    print(f"\n{why}; running: {', '.join(running(folder, time.time())) or 'no test'}", flush=True)


def timings(report: Path) -> list[Timing]:
    """Reads the seconds of each test from a JUnit report; an absent or broken one has none."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []
    return [
        Timing(case.get("classname", ""), case.get("name", ""), float(case.get("time", "0")), _failure(case))
        for case in cases
    ]


def _failure(case: ElementTree.Element) -> str:
    """The message of a failed test, without its middle if it is long: some quote the whole log of a worker."""
    found = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
    text = "" if found is None else found.get("message", "") or found.text or "failed"
    return (
        text
        if len(text) <= FAILURE_CHARS
        else f"{text[: FAILURE_CHARS // 4]}\n[...]\n{text[-FAILURE_CHARS * 3 // 4 :]}"
    )


def slowest(found: Sequence[Timing]) -> str:
    """The ten slowest tests and the ten slowest modules, as lines."""
    by_module: dict[str, float] = {}
    for one in found:
        by_module[one.file] = by_module.get(one.file, 0.0) + one.seconds
    tests = sorted(found, key=lambda one: -one.seconds)[:SLOWEST]
    modules = sorted(by_module.items(), key=lambda item: -item[1])[:SLOWEST]
    lines = ["slowest tests:", *(f"{one.seconds:8.1f} s  {one.file}::{one.test}" for one in tests)]
    return "\n".join([*lines, "slowest modules:", *(f"{seconds:8.1f} s  {module}" for module, seconds in modules)])


def failures(found: Sequence[Timing]) -> str:
    """Each failed test with why: a CI log is often read from its end, and whole tracebacks stand far above."""
    return "\n".join(
        f"failed: {one.file}::{one.test}\n{textwrap.indent(one.failure, '  ')}" for one in found if one.failure
    )


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP raise `EndedFromOutsideError` in the main thread."""

    def end(number: int, frame: FrameType | None) -> None:
        raise EndedFromOutsideError(signal.Signals(number).name)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(root: Path, lane: Lane, path: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts a lane in a process group of its own; its report is `path`.xml, its output, if it is quiet, `path`.out."""
    report = [f"--junitxml={path}.xml"] if lane.is_pytest else []
    argv = ["nice", "-n", str(lane.nice), *lane.argv, *report]
    with Path(f"{path}.out").open("w") as output:
        stdout, stderr = (output, subprocess.STDOUT) if lane.quiet else (None, None)
        return subprocess.Popen(argv, cwd=root, env=env, stdout=stdout, stderr=stderr, text=True, process_group=0)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Interrupts the lanes, whose fixtures then remove their servers, and kills those that do not end in time."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    deadline = time.monotonic() + END_S
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass
class _Run:
    """The lanes of one run: those that wait for their turn, those that run, and the exit codes of those that have ended."""

    root: Path
    lanes: Sequence[Lane]
    folder: Path
    at_once: int
    ended: Callable[[Lane, int, float], None]
    may_begin: Callable[[], bool]
    begun: dict[int, tuple[subprocess.Popen[str], float]] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)

    @property
    def processes(self) -> list[subprocess.Popen[str]]:
        return [process for process, _ in self.begun.values()]

    @property
    def left(self) -> bool:
        return len(self.begun) < len(self.lanes) and self.may_begin()

    def start_what_may_run(self) -> None:
        env = {**os.environ, RUNNING_FOLDER: str(self.folder)}
        while self.left and len(self.begun) - len(self.codes) < self.at_once:
            number = len(self.begun)
            process = _start(self.root, self.lanes[number], self.folder / str(number), env)
            self.begun[number] = (process, time.monotonic())

    def take_what_has_ended(self) -> None:
        for number, (process, began) in self.begun.items():
            code = process.poll()
            if code is not None and number not in self.codes:
                self.codes[number] = code
                self.ended(self.lanes[number], code, time.monotonic() - began)

    def until_all_have_ended(self) -> None:
        """Names the running tests from time to time."""
        began = told = time.monotonic()
        while self.left or len(self.codes) < len(self.begun):
            self.start_what_may_run()
            self.take_what_has_ended()
            if time.monotonic() - told >= TOLD_EVERY_S:
                told = time.monotonic()
                tell_running(self.folder, f"{(told - began) / 60:.0f} min")
            time.sleep(0.2)


def run(
    root: Path,
    lanes: Sequence[Lane],
    at_once: int | None = None,
    ended: Callable[[Lane, int, float], None] = lambda lane, code, seconds: None,
    may_begin: Callable[[], bool] = lambda: True,
) -> tuple[list[int], list[Timing]]:
    """Runs the lanes, all or so many at once, and returns their exit codes in order, with how long their tests took.

    `ended` is called with each lane that has ended, its exit code and its seconds. Once `may_begin` says no, no further lane
    begins, and the codes are those of the lanes before. A quiet lane's output is printed at the end of all. When a signal
    ends the run, the running tests are printed first."""
    with tempfile.TemporaryDirectory(prefix="lanes-") as name:
        folder = Path(name)
        this = _Run(root, lanes, folder, at_once or len(lanes), ended, may_begin)
        with ended_by_signals():
            try:
                this.until_all_have_ended()
            except EndedFromOutsideError as error:
                tell_running(folder, f"ended from outside by {error}")
                _end(this.processes)
                return [ENDED_FROM_OUTSIDE] * len(lanes), []
            except BaseException:
                _end(this.processes)
                raise
        # Why tests failed is told once more behind all; what another command says is not, and so comes last.
        for number in sorted(this.codes, key=lambda number: not lanes[number].is_pytest):
            if (lane := lanes[number]).quiet:
                print(f"\n{'=' * 30} {lane.name}\n{(folder / f'{number}.out').read_text()}", flush=True)
        found = [one for number in this.codes for one in timings(folder / f"{number}.xml")]
        return [this.codes[number] for number in sorted(this.codes)], found
