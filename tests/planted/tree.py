"""The production code with one planted bug, and pytest over it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("schemas", "coordinator", "connectors", "worker")
PYTEST = Path(sys.executable).parent / "pytest"
CAUGHT = 1
"""What pytest exits with when tests ran and some failed. Anything else is no catch: no such test, a broken import."""

_GUARD = """
import importlib, pathlib

def pytest_configure(config):
    found = pathlib.Path(importlib.import_module({module!r}).__file__).resolve()
    if found != pathlib.Path({path!r}):
        raise SystemExit("the planted bug is not what would be tested: " + str(found))
"""


@dataclass(frozen=True)
class Bug:
    """One change. `old` stands exactly once in `file`, or has moved to another module of the same room.

    `tests` is where its catcher is looked for first.
    """

    id: str
    file: str
    old: str
    new: str
    why: str
    tests: str = "tests/unit/coordinator"
    deep: bool = False
    """Only real parts can notice it: the mock would lie."""
    modelled: bool = False
    """The models call this very rule."""


class Unplantable(Exception):
    """The code has changed: the line to break is not there, or more than once."""


def mutate(bug: Bug) -> tuple[str, str]:
    """The file that has the line (it may have moved within its room), and what becomes of it."""
    room = bug.file.partition("/")[0]
    texts = {bug.file: (ROOT / bug.file).read_text()} if (ROOT / bug.file).exists() else {}
    if bug.old not in "".join(texts.values()):
        texts = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / room).rglob("*.py"))}
    count = sum(text.count(bug.old) for text in texts.values())
    if count != 1:
        raise Unplantable(f"{bug.id}: its line stands {count} times in {bug.file if count else room}")
    return next((file, text.replace(bug.old, bug.new)) for file, text in texts.items() if bug.old in text)


@contextmanager
def planted(bug: Bug, *, really: bool = True) -> Iterator[Path]:
    """A folder to be put first on the module path: all rooms under their package names, one file changed.

    Not `really`: the same without the change, to see that a test fails for the bug and for nothing else.
    """
    file, changed = mutate(bug)
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name).resolve()
        path = folder / "cdcworker" / file
        (folder / "cdcworker").mkdir()
        _link(folder / "cdcworker", ROOT, ROOMS, Path(file).parts)
        path.write_text(changed if really else (ROOT / file).read_text())
        module = "cdcworker." + file.removesuffix(".py").replace("/", ".")
        (folder / "planted_guard.py").write_text(_GUARD.format(module=module, path=str(path)))
        yield folder


def _link(folder: Path, original: Path, names: Iterable[str], path: Sequence[str]) -> None:
    """Links `names` of `original` into `folder`, but for the file at `path` below it, whose folders are made.

    Linked modules are compiled once for all bugs.
    """
    for name in names:
        if name != path[0]:
            (folder / name).symlink_to(original / name)
        elif len(path) > 1:
            (folder / name).mkdir()
            inside = (entry.name for entry in (original / name).iterdir() if entry.name != "__pycache__")
            _link(folder / name, original / name, inside, path[1:])


@dataclass(frozen=True)
class Outcome:
    """What a run of tests over a planted bug came to."""

    code: int
    failed: tuple[str, ...]
    output: str

    @property
    def caught(self) -> bool:
        return self.code == CAUGHT and bool(self.failed)


def run_tests(folder: Path, tests: Sequence[str], *extra: str, timeout_s: float = 600.0) -> Outcome:
    """pytest with the planted code; child processes see it too."""
    env = {**os.environ, "PYTHONPATH": str(folder), "CDC_PLANTED": "1"}
    argv = [str(PYTEST), "-q", "-p", "planted_guard", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=line"]
    argv += ["--hypothesis-seed=1", "--timeout=60", *extra, *tests]
    with subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            return Outcome(-1, (), output + "\ntimed out")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
    return Outcome(process.returncode, tuple(failed), output)
