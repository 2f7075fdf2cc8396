"""`python -m tests.planted.run check|derive [layers] [ids]`: do the noted tests still catch each bug; find what does.

Layers from cheap to dear: unit tests, the models, histories of the simulator by seed, integration tests with real parts.
`derive` notes in every layer (or those that are named) what catches a bug; `check` runs the cheapest that is noted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bugs_leader import BUGS as LEADER_BUGS
from .bugs_tasks import BUGS as TASK_BUGS
from .tree import ROOT, Bug, Outcome, Unplantable, planted, run_tests

BUGS: tuple[Bug, ...] = (*LEADER_BUGS, *TASK_BUGS)
CAUGHT = Path(__file__).with_name("caught.json")
AT_ONCE = 2
NOTED_MAX = 3
"""Catchers of one layer that are noted; `check` runs the first."""
LAYERS = ("unit", "model", "simulator", "integration")
UNIT = ("tests/unit/coordinator", "tests/unit/worker")
CLUSTER = [f"tests/unit/coordinator/core/test_herd_{name}.py" for name in ("cluster", "changes", "faults")]
MODEL = "tests/simulation/test_model.py"
LIKELY = {
    "membership": ("supervisor", "clocks"),
    "ownership": ("leader", "lost_workers"),
    "placement": ("leader", "lost_workers"),
    "lost_workers": ("lost_workers",),
    "fences": ("lost_workers",),
    "liveness": ("lost_workers",),
    "state_machine": ("leader", "supervisor"),
    "leader": ("leader", "lost_workers"),
    "status_fold": ("status_fold", "fold_properties"),
    "control": ("task_parts",),
    "error_policy": ("task_parts", "runner"),
    "session": ("session_lease", "runner"),
}
"""Test files that know a module besides, or instead of, one of its own name."""
SEEDS = int(os.environ.get("CDC_PLANTED_SEEDS", "150"))
"""Histories that are tried for each bug."""
HISTORIES_S_MAX = 600.0

Catchers = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Verdict:
    bug: Bug
    caught: bool
    by: str
    seconds: float
    output: str = ""


def load(path: Path = CAUGHT) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def save(caught: Mapping[str, Catchers], path: Path) -> None:
    ordered = {bug.id: caught[bug.id] for bug in BUGS if bug.id in caught}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def run_histories(folder: Path, seed: int, count: int = 1) -> Outcome:
    """Histories of the simulator; `failed` names the seeds in which an invariant broke, or that did not end."""
    env = {**os.environ, "PYTHONPATH": str(folder)}
    argv = [sys.executable, "-m", "tests.simulation.run", "--seed", str(seed), "--count", str(count), "--most", "1"]
    with subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=HISTORIES_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
    return Outcome(process.returncode, tuple(re.findall(r"^FAILED seed (\d+)", output, re.MULTILINE)), output)


# --- check ------------------------------------------------------------------------------------------------------------


def cheapest(catchers: Catchers) -> tuple[str, Any] | None:
    return next(((layer, catchers[layer][0]) for layer in LAYERS if catchers.get(layer)), None)


def check_one(bug: Bug, catchers: Catchers) -> Verdict:
    """Run what is noted to catch the bug."""
    begun = time.monotonic()
    first = cheapest(catchers)
    if first is None:
        return Verdict(bug, False, "nothing is noted to catch it", 0.0)
    layer, catcher = first
    try:
        with planted(bug) as folder:
            outcome = run_histories(folder, catcher) if layer == "simulator" else run_tests(folder, [catcher], "-x")
    except Unplantable as exc:
        return Verdict(bug, False, str(exc), 0.0)
    return Verdict(bug, outcome.caught, f"{layer} {catcher}", time.monotonic() - begun, outcome.output)


def check(bugs: Iterable[Bug]) -> list[Verdict]:
    noted = load()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda bug: check_one(bug, noted.get(bug.id, {})), bugs))


# --- derive -----------------------------------------------------------------------------------------------------------


def derive_one(bug: Bug, layers: Collection[str]) -> dict[str, list[Any]]:
    """What catches it in each layer. Integration tests only where nothing else can."""
    found: dict[str, list[Any]] = {}
    with planted(bug) as folder, planted(bug, really=False) as clean:
        if "unit" in layers and not bug.deep:
            stages = (_failed(folder, clean, tests, "--maxfail=3") for tests in _unit_stages(bug))
            found["unit"] = next(filter(None, stages), [])
        if "model" in layers and bug.modelled:
            found["model"] = _failed(folder, clean, [MODEL], "--maxfail=1")
        if "simulator" in layers and bug.file.startswith(("coordinator/", "worker/")):
            found["simulator"] = _seeds(folder, clean)
        if "integration" in layers and (bug.deep or not any(found.values())):
            tests = [bug.tests if bug.deep else "tests/integration/coordinator/kafka/test_coordination.py"]
            found["integration"] = _failed(folder, clean, tests, "--maxfail=3")
    return found


def _unit_stages(bug: Bug) -> Iterable[list[str]]:
    """Where a catcher is likely first: the tests of the file, then the room's, the whole cluster's, all of them."""
    room, name = bug.file.partition("/")[0], Path(bug.file).stem
    names = LIKELY.get(name, (name,))
    own = [str(path.relative_to(ROOT)) for n in names for path in (ROOT / "tests/unit").rglob(f"test_{n}.py")]
    if own:
        yield own
    if bug.tests != UNIT[0]:
        yield [bug.tests]
    if room == "coordinator":
        yield [UNIT[0], *(f"--ignore={path}" for path in CLUSTER)]
        yield CLUSTER
    if not own:
        yield [*UNIT]


def _failed(folder: Path, clean: Path, tests: Sequence[str], *extra: str) -> list[Any]:
    """The tests that fail with the bug, twice, and pass without it."""
    outcome = run_tests(folder, tests, *extra, timeout_s=1200)
    if outcome.code not in (0, 1):
        print(outcome.output[-2000:], file=sys.stderr)
    names = [name for name in outcome.failed if "::" in name] if outcome.caught else []
    if not names:
        return []
    wrong, again = run_tests(clean, names), run_tests(folder, names)
    sure = (set(names) - set(wrong.failed)) & set(again.failed)
    # A property test finds its example by chance, and an odd name is hard to read: plain ones come first.
    return sorted(sure, key=lambda name: ("propert" in name, "\\" in name, name))[:NOTED_MAX]


def _seeds(folder: Path, clean: Path) -> list[Any]:
    """Histories that go wrong with the bug only."""
    outcome = run_histories(folder, 1, SEEDS)
    seeds = [int(seed) for seed in outcome.failed[:NOTED_MAX]]
    return [seed for seed in seeds if not run_histories(clean, seed).failed]


def derive(bugs: Sequence[Bug], layers: Collection[str] = LAYERS, into: Path = CAUGHT) -> list[Bug]:
    """Note what catches each; the bugs that nothing catches."""
    survivors = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for bug, found in zip(bugs, pool.map(lambda bug: derive_one(bug, layers), bugs), strict=True):
            noted = load(into)
            both = {**noted.get(bug.id, {}), **found}
            noted[bug.id] = {layer: both[layer] for layer in LAYERS if both.get(layer)}
            save(noted, into)
            shown = " ".join(f"{layer}:{catchers[0]}" for layer, catchers in noted[bug.id].items())
            print(f"{bug.id}: {shown or 'SURVIVES'}", flush=True)
            if not noted[bug.id]:
                survivors.append(bug)
    return survivors


def main() -> int:
    what, names = sys.argv[1], sys.argv[2:]
    layers = [name for name in names if name in LAYERS] or LAYERS
    ids = [name for name in names if name not in LAYERS]
    bugs = [bug for bug in BUGS if not ids or bug.id in ids]
    if what == "derive":
        survivors = derive(bugs, layers)
        print(f"{len(bugs) - len(survivors)} of {len(bugs)} planted bugs are caught")
        return 1 if survivors else 0
    verdicts = check(bugs)
    for verdict in verdicts:
        print(f"{'caught  ' if verdict.caught else 'SURVIVES'} {verdict.bug.id}: {verdict.by} {verdict.seconds:.1f} s")
    return 0 if all(verdict.caught for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
