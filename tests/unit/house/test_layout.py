"""The house rules that a machine can check: package list, size limits, words that do not belong in the product."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from .parsed_code import ROOMS, ROOT, modules, nodes

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 50
PARAMETERS_MAX = 7
FOLDER_MODULES_MAX = 22
TESTED_TOGETHER = {"connectors/sanitized"}
"""Folders of tests without a package of their name: native decoders of several packages, built with sanitizers."""


def sources() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_every_package_is_listed_so_that_the_wheel_holds_it() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        "cdcworker." + ".".join(path.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(found)


def test_modules_stay_within_their_limit() -> None:
    too_long = {
        str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert too_long == {}


def test_functions_stay_within_their_limit() -> None:
    too_long = {
        f"{place}:{node.lineno} {node.name}": size
        for place, node in nodes(*FUNCTIONS)
        if node.end_lineno is not None and (size := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert too_long == {}


def test_functions_take_few_parameters() -> None:
    too_many = {}
    for place, node in nodes(*FUNCTIONS):
        args = [
            a for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if a.arg not in ("self", "cls")
        ]
        if len(args) > PARAMETERS_MAX and not is_click_command(node):
            too_many[f"{place}:{node.lineno} {node.name}"] = len(args)
    assert too_many == {}


def is_click_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command's parameters are its options."""
    return any("click" in ast.unparse(d) or ".command(" in ast.unparse(d) for d in node.decorator_list)


def test_every_module_says_what_lives_there() -> None:
    assert [place for place, tree in modules() if not ast.get_docstring(tree)] == []


def test_no_registry_host_and_no_machine_path_is_named() -> None:
    words = re.compile(
        r"(^|[^A-Za-z0-9_.])/(wo"
        r"rk|fa"
        r"rm)/|https?://[A-Za-z0-9.-]*(py"
        r"pi|python"
        r"hosted|npm"
        r"js|crates|goproxy)|/mav"
        r"en2/"
    )
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{i}" for i, line in enumerate(text.splitlines(), 1) if words.search(line)]
    assert found == []


def test_dependencies_are_locked_with_hashes() -> None:
    for name in ("build.txt", "all.txt"):
        text = (ROOT / "locks" / name).read_text()
        pins = re.findall(r"^[A-Za-z0-9_.\[\]-]+==\S+", text, re.MULTILINE)
        assert pins
        assert len(re.findall(r"--hash=sha256:", text)) >= len(pins)


def test_tests_do_not_sleep() -> None:
    """A test waits for a condition with a deadline: a sleep stands only in a loop that looks again."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "sleep(" not in text:
            continue
        tree = ast.parse(text)
        polling = {id(inner) for loop in ast.walk(tree) if isinstance(loop, ast.While) for inner in ast.walk(loop)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("time.sleep", "sleep")
                and id(node) not in polling
            ):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_folders_hold_few_modules() -> None:
    """A package's own module says which question it answers, and counts; those of the tests' folders are empty."""
    paths = [path for top in ROOMS for path in (ROOT / top).rglob("*.py")]
    paths += [path for path in (ROOT / "tests").rglob("*.py") if path.name != "__init__.py"]
    counts = Counter(path.parent for path in paths)
    assert {str(folder.relative_to(ROOT)): n for folder, n in counts.items() if n > FOLDER_MODULES_MAX} == {}


@pytest.mark.parametrize("tier", ["unit", "integration"])
def test_tests_lie_where_the_packages_lie_that_they_test(tier: str) -> None:
    """A folder of a room's tests has the path of a package, but for those that test several packages in one way."""
    tests = ROOT / "tests" / tier
    folders = {path.parent.relative_to(tests) for room in ROOMS for path in (tests / room).rglob("test_*.py")}
    assert folders
    astray = {str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()}
    assert astray <= TESTED_TOGETHER


SIBLINGS = (
    re.compile(r"(connectors)/(mysql|postgres)/"),
    re.compile(r"(connectors/warehouses)/([a-z_]+)/"),
    re.compile(r"(connectors/targets)/([a-z_]+)/"),
    re.compile(r"(connectors/transforms)/(debezium/|[a-z_]+)"),
)
"""Databases, warehouses and targets: each has a part of its own of what all of them have. Transforms have the names that Kafka Connect
and Debezium have given them."""


def are_siblings(places: list[str]) -> bool:
    """Returns whether each of the modules is in another of the folders that are made alike."""
    found = [match for place in places for match in (kind.match(place) for kind in SIBLINGS) if match]
    return len(found) == len({match[2] for match in found}) == len(places) and len({match[1] for match in found}) == 1


def test_a_class_has_its_name_to_itself_in_its_room() -> None:
    """Siblings may call the same part by the same name."""
    places: dict[tuple[str, str], list[str]] = {}
    for place, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault((place.partition("/")[0], node.name), []).append(place)
    assert len(places) > 1_000
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert any(map(are_siblings, shared.values()))
    assert {name: found for name, found in shared.items() if not are_siblings(found)} == {}


def folder_of(module: str) -> str:
    """Returns the folder of an imported module, or the folder that is the imported package."""
    path = module.removeprefix("cdcworker.").replace(".", "/")
    return str(Path(path).parent) if (ROOT / f"{path}.py").is_file() else path


def test_no_folders_import_each_other_in_a_circle() -> None:
    """Imports for types count. What lies in a room itself stands on both sides of its packages: contracts order that."""
    below: dict[str, set[str]] = {}
    for place, node in nodes(ast.ImportFrom):
        if (node.module or "").startswith("cdcworker."):
            below.setdefault(str(Path(place).parent), set()).add(folder_of(str(node.module)))
    assert len(below) > 50
    for folder, imported in below.items():
        imported -= {folder, *ROOMS}
    for room in ROOMS:
        below.pop(room, None)
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as exc:
        pytest.fail(f"folders in a circle: {' -> '.join(exc.args[1])}")
