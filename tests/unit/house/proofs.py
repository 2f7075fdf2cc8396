"""Looks at a test that something refers to: whether there is one of that name, what it is marked with, whether it can fail."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Proof:
    """A test function with the module that it stands in."""

    module: ast.Module
    function: ast.FunctionDef
    owner: ast.ClassDef | None = None

    @property
    def marks(self) -> list[str]:
        """Its own, its class's and its module's."""
        found = [*self.function.decorator_list, *(self.owner.decorator_list if self.owner else ())]
        for node in self.module.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                found += node.value.elts if isinstance(node.value, ast.List) else [node.value]
        return [ast.unparse(mark) for mark in found]

    def is_marked(self, *names: str) -> bool:
        return any(f"mark.{name}" in mark for mark in self.marks for name in names)

    def is_skipped(self) -> bool:
        """Whatever happens: by a mark, or by a step of its own that nothing stands before."""
        steps = self.function.body
        return self.is_marked("skip", "xfail") or any(
            isinstance(step, ast.Return) or ast.unparse(step).startswith(("pytest.skip(", "pytest.xfail("))
            for step in steps
        )

    def can_fail(self) -> bool:
        """It says what has to be, itself or in functions of its module that it calls."""
        functions = {node.name: node for node in self.module.body if isinstance(node, ast.FunctionDef)}
        seen: set[str] = set()
        waiting = [self.function]
        while waiting:
            for node in ast.walk(waiting.pop()):
                if isinstance(node, ast.Assert):
                    return True
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if name == "pytest.raises":
                    return True
                if name in functions and name not in seen:
                    seen.add(name)
                    waiting.append(functions[name])
        return False


@cache
def _module(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def find(file: str, name: str) -> Proof:
    (found,) = every(_module(file), name)
    return found


def every(module: ast.Module, name: str) -> list[Proof]:
    """Of several of one name pytest takes the last: there should be one."""
    found = [Proof(module, node) for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    for owner in module.body:
        if isinstance(owner, ast.ClassDef):
            found += [
                Proof(module, node, owner)
                for node in owner.body
                if isinstance(node, ast.FunctionDef) and node.name == name
            ]
    return found
