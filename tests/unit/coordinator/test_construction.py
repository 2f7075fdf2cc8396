"""Mistakes that cannot be made because there is no code that could: looked up in the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from cdcworker import coordinator, worker

ROOMS = [Path(next(iter(room.__path__))) for room in (coordinator, worker)]


def calls_of(name: str) -> list[str]:
    """`module.function` of everything that calls a method of this name."""
    found = []
    for room in ROOMS:
        for path in sorted(room.rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text())):
                if not isinstance(function, ast.FunctionDef):
                    continue
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                        found.append(f"{path.stem}.{function.name}")
    return found


def test_a_proof_is_fetched_where_the_partition_is_assigned_and_nowhere_else():
    """Fetched when writing, it would be taken from any member of the group, owner or not."""
    assert calls_of("consumer_group_metadata") == ["leadership._capture"]
    assert calls_of("_capture") == ["leadership._on_assign"]


@pytest.mark.parametrize("name", ["coordinator/kafka/leader_writer.py", "worker/producers/transactional.py"])
def test_a_transactional_producer_has_no_delivery_callback(name):
    """One that raises makes a commit raise that has happened."""
    path = next(room for room in ROOMS if room.name == name.partition("/")[0]) / name.partition("/")[2]
    keywords = {node.arg for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.keyword)}
    assert not keywords & {"on_delivery", "callback"}


def core_modules() -> list[str]:
    """What the herd core is made of: everything of the room that its state machine imports, directly or not."""
    seen, queue = set(), ["core.state_machine"]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(source_of(name).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cdcworker.coordinator"):
                stem = (node.module or "").removeprefix("cdcworker.coordinator").strip(".")
                named = [f"{stem}.{alias.name}".strip(".") for alias in node.names]
                queue += [name if source_of(name).exists() else stem for name in named]
    assert all(source_of(name).exists() for name in seen)
    return sorted(seen)


def source_of(name: str) -> Path:
    return ROOMS[0] / f"{name.replace('.', '/')}.py"


@pytest.mark.parametrize("name", core_modules())
def test_the_core_reads_no_clock_draws_no_lot_and_does_no_io(name):
    tree = ast.parse(source_of(name).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    barred = {"time", "random", "secrets", "datetime", "threading", "queue", "socket", "os", "subprocess", "asyncio"}
    assert not {module.partition(".")[0] for module in imported} & (barred | {"confluent_kafka", "kazoo"})


def test_the_core_is_made_of_more_than_one_module():
    parts = ("state_machine", "leader", "placement", "supervisor", "membership", "events")
    assert {*(f"core.{part}" for part in parts), "log.status_fold", "log.config_fold"} <= set(core_modules())
