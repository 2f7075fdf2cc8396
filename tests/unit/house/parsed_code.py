"""The modules of the four rooms, parsed once for all house tests of a process, and their nodes by kind."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("schemas", "coordinator", "connectors", "worker")
N = TypeVar("N", bound=ast.AST)


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Each module's path below the root, and its tree."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    # Everything that is made stays: collections in between take three quarters of the time.
    gc.disable()
    try:
        found = tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)
    finally:
        gc.enable()
    gc.freeze()
    return found


@cache
def _by_kind() -> dict[type[ast.AST], list[tuple[str, ast.AST]]]:
    found: dict[type[ast.AST], list[tuple[str, ast.AST]]] = {}
    for place, tree in modules():
        for node in ast.walk(tree):
            found.setdefault(type(node), []).append((place, node))
    return found


def nodes(*kinds: type[N]) -> Iterator[tuple[str, N]]:
    """Each node of these kinds with the path of its module."""
    for kind in kinds:
        yield from _by_kind().get(kind, ())  # type: ignore[misc]
