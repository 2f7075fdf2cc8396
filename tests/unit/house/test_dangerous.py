"""What no module may do: run text as code, read objects from bytes, start shells, import what a config names."""

from __future__ import annotations

import ast
import re
import tomllib

from .parsed_code import ROOMS, ROOT, nodes

MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "telnetlib"})
CALLS = frozenset({"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "subprocess.getoutput"})
IMPORTERS = {
    "connectors/registry/plugin.py": "the connectors that shipped.py lists",
    "worker/generators/reference.py": "every module of the four rooms",
    "worker/cli/main.py": "the commands that it lists itself",
    "worker/children/fork_server.py": "the module that its caller names, which is in the code there",
    "worker/task/fork_server.py": "what it lists itself, before there is any config",
    "worker/validation/child.py": "what it and the registry list themselves",
    "connectors/spark/runtime/session.py": "what it lists itself",
    "connectors/spark/runtime/warm_session.py": "what it lists itself",
}
"""Modules that import by a name that is not in the code, and where the name comes from."""
EXCEPTION = re.compile(r"# noqa: [^#]*\bS\d{3}\b,?(.*)")
"""An exception of the security linter, and its reason."""
QUOTING = ("ident", "quote", "literal", "join")
QUOTED = frozenset({"target.name"})
"""Composed of quoted parts where it is defined."""
USERS_OWN = {
    (
        "connectors/query_source/sqlite.py",
        "self._query",
    ): "the query that the source is to run; a view takes one SELECT and nothing else",
    (
        "connectors/query_source/statements.py",
        "query",
    ): "the same in brackets; it goes as one statement, within a transaction or a file that is only read",
}
"""Texts of SQL that a config gives to be run, and what bounds them."""


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{name_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def test_nothing_runs_text_or_reads_objects() -> None:
    found = []
    for place, node in nodes(ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        found += [f"{place}:{node.lineno} {name}" for name in names if name.split(".")[0] in MODULES]
    for place, node in nodes(ast.Call):
        if name_of(node.func) in CALLS:
            found.append(f"{place}:{node.lineno} {name_of(node.func)}")
        for keyword in node.keywords:
            if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                found.append(f"{place}:{node.lineno} shell")
    assert found == []


def test_modules_are_imported_by_names_in_the_code() -> None:
    found = {
        place
        for place, node in nodes(ast.Call)
        if name_of(node.func) in ("importlib.import_module", "import_module", "__import__")
        and not (node.args and isinstance(node.args[0], ast.Constant))
    }
    assert found <= set(IMPORTERS), found - set(IMPORTERS)


def test_the_security_linter_runs_and_each_exception_says_why() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert set(lint["ignore"]) & {f"S{number}" for number in range(1000)} == {"S101"}
    open_ = [pattern for pattern, codes in lint["per-file-ignores"].items() if any(code[0] == "S" for code in codes)]
    assert all(lint["per-file-ignores"][pattern] == ["S608"] for pattern in open_ if pattern != "tests/**"), open_
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if excepted := EXCEPTION.search(line):
                    found += [] if len(excepted[1].split()) >= 3 else [f"{path}:{number}"]
    assert found == []


def test_sql_is_not_put_together_from_bare_values() -> None:
    """A formatted text that is executed holds calls that quote, names of constants, and nothing else."""
    found = []
    for place, node in nodes(ast.Call):
        is_execute = isinstance(node.func, ast.Attribute) and node.func.attr == "execute"
        if not is_execute or not node.args or place.startswith(("worker/quickstart/", "worker/devstack/")):
            continue
        for part in ast.walk(node.args[0]):
            if isinstance(part, ast.FormattedValue):
                value = part.value
                called = name_of(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
                constant = name_of(value).rpartition(".")[2].isupper()
                if (place, name_of(value)) in USERS_OWN:
                    continue
                if not (constant or name_of(value) in QUOTED or any(word in called for word in QUOTING)):
                    found.append(f"{place}:{part.lineno}")
    assert found == []
