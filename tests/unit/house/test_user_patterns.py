"""Expressions that users write are compiled in one place only: no other module gives `re` a text that is not its own."""

from __future__ import annotations

import ast

from .parsed_code import nodes

CALLS = frozenset({"compile", "match", "fullmatch", "search", "sub", "subn", "findall", "finditer", "split"})
OWNER = "schemas/patterns.py"
OTHERS = {
    "schemas/untrusted/linear_match.py": "expressions of one character, which it writes itself",
    "connectors/config/place_forms.py": "`text_of`, whose callers give constants",
    "connectors/config/secret_names.py": "parts that are constants",
    "connectors/config/definition.py": "`matches`, whose callers give constants",
    "connectors/capture/config/filters.py": "the system schemas of a connector, which are constants",
    "connectors/postgres/errors.py": "a table of constants",
    "connectors/spark/runtime/client_properties.py": "one of two constants",
    "connectors/warehouses/lake/catalog/catalog_properties.py": "a table of constants",
    "schemas/topic_access.py": "names of the cluster's topics, which are constants",
    "worker/config/config_providers.py": "what the operator sets",
    "worker/config/task_environment.py": "what the operator sets",
    "worker/logs/redaction.py": "values that are escaped",
}
"""Modules that give `re` what is not a constant in place, and what it is."""


def is_own(node: ast.expr) -> bool:
    """A literal, a constant, or text that is put together of these and of escaped parts."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id.lstrip("_").isupper()
    if isinstance(node, ast.BinOp):
        return is_own(node.left) and is_own(node.right)
    if isinstance(node, ast.JoinedStr):
        return all(is_own(value) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return is_own(node.value)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "escape"


def is_foreign(node: ast.Call) -> bool:
    """Whether it gives `re` a text that is not written there."""
    return (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in CALLS
        and not (node.args and is_own(node.args[0]))
    )


def test_no_other_module_compiles_what_it_did_not_write() -> None:
    assert {place for place, node in nodes(ast.Call) if is_foreign(node)} == set(OTHERS)


def test_functions_of_re_are_called_by_its_name() -> None:
    """Else the test above does not see them."""
    found = [
        f"{place}:{node.lineno}"
        for place, node in nodes(ast.ImportFrom)
        if node.module in ("re", "sre_compile", "sre_parse")
        if place not in ("schemas/untrusted/linear_match.py", OWNER)
    ]
    found += [
        f"{place}:{node.lineno}"
        for place, node in nodes(ast.Import)
        if any(alias.name == "re" and alias.asname for alias in node.names)
    ]
    assert found == []


def test_re2_is_used_through_its_one_module() -> None:
    users = {place for place, node in nodes(ast.Import) if any(alias.name == "re2" for alias in node.names)}
    assert users == {OWNER}


def test_the_check_sees_a_compiled_variable() -> None:
    tree = ast.parse("import re\nre.compile(given)\nre.compile('a')\nre.fullmatch(rf'{x}a', y)")
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and is_foreign(node)] == [2, 4]
