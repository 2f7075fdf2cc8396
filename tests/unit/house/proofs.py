"""Looks at a test that something refers to: whether there is one of that name, what it is marked with, whether it can fail."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SUITES = "tests.contract"


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
        """It says what has to be, itself or in functions of its module, or of a suite over several implementations, that it calls."""
        seen: set[ast.FunctionDef] = set()
        waiting = [(self.module, self.function)]
        while waiting:
            module, function = waiting.pop()
            functions = _functions(module)
            for node in ast.walk(function):
                if isinstance(node, ast.Assert):
                    return True
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if name == "pytest.raises":
                    return True
                if name in functions and functions[name][1] not in seen:
                    seen.add(functions[name][1])
                    waiting.append(functions[name])
        return False


def _functions(module: ast.Module) -> dict[str, tuple[ast.Module, ast.FunctionDef]]:
    """The functions of a module, and those of suites by the names under which it imports them."""
    found: dict[str, tuple[ast.Module, ast.FunctionDef]] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = module, node
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(SUITES):
            folder = str(node.module).replace(".", "/")
            is_whole = (ROOT / folder).is_dir()
            for name in node.names:
                suite, called = (
                    _module(f"{folder}/{name.name}.py" if is_whole else f"{folder}.py"),
                    name.asname or name.name,
                )
                for one in suite.body:
                    if isinstance(one, ast.FunctionDef) and (is_whole or one.name == name.name):
                        found[f"{called}.{one.name}" if is_whole else called] = suite, one
    return found


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
