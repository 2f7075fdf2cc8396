"""What may be asked of a connector's tasks beside their usual work: reading rows of tables once more, and maintenance of the
tables of a lake."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.schemas import patterns
from cdcworker.schemas.change import JsonObject

SNAPSHOT: Final = "snapshot"
MAINTENANCE: Final = "maintenance"
TABLES_MAX: Final = 100
PATTERN_MAX: Final = 500
FILTER_MAX: Final = 2_000
RATE_MAX: Final = 10_000_000
MEMBERS: Final = ("tables", "filters", "rows_per_s")
REPAIR: Final = "repair"
"""The member of a request for a repair: by table, its `RepairedRows`."""
REPAIR_ROWS_MAX: Final = 2_000
REPAIR_BYTES_MAX: Final = 64 * 1024
"""Of the keys as JSON: the position of the source holds them until their rows are handed on. # INV-10"""


class BadJobRequest(ValueError):
    """`path` leads to the member that is wrong."""

    def __init__(self, text: str, *path: str) -> None:
        super().__init__(text)
        self.path = path


def snapshot_spec(given: Mapping[str, Any]) -> JsonObject:
    """The request in its one form, so that equal requests are equal; BadRequest says what is wrong."""
    unknown = next((name for name in given if name not in MEMBERS), None)
    if unknown is not None:
        raise BadJobRequest(f"Unknown member {unknown!r}: {', '.join(MEMBERS)} exist", unknown)
    tables = given.get("tables")
    if not isinstance(tables, list) or not 0 < len(tables) <= TABLES_MAX:
        raise BadJobRequest(f"`tables` must be a list of 1 to {TABLES_MAX} names or regular expressions", "tables")
    for number, pattern in enumerate(tables):
        problem = pattern_problem(pattern)
        if problem:
            raise BadJobRequest(problem, "tables", str(number))
    out: JsonObject = {"tables": sorted(set(tables))}
    if filters := given.get("filters"):
        out["filters"] = _filters(filters, tables)
    if (rate := given.get("rows_per_s")) is not None:
        if isinstance(rate, bool) or not isinstance(rate, int) or not 0 <= rate <= RATE_MAX:
            raise BadJobRequest(f"`rows_per_s` must be a number from 0 to {RATE_MAX}", "rows_per_s")
        if rate:
            out["rows_per_s"] = rate
    return out


class RepairedRows(NamedTuple):
    """The rows of one table that are repaired."""

    columns: Sequence[str]
    """Of the table's key."""
    keys: list[Sequence[str]]
    deletes: bool
    """A key of which there is no row is handed on as deleted; else nothing comes of it."""


def repair_spec(tables: Mapping[str, RepairedRows]) -> JsonObject:
    """Returns the request to read these rows, by full name of their table."""
    rows = {
        name: {"key": list(item.columns), "rows": [list(key) for key in item.keys], "deletes": item.deletes}
        for name, item in sorted(tables.items())
    }
    return {"tables": list(rows), REPAIR: rows}


def repaired_rows(spec: Mapping[str, Any]) -> dict[str, RepairedRows]:
    """Returns what `repair_spec` was given. BadJobRequest for another form, or for too many keys."""
    found: dict[str, RepairedRows] = {}
    given = spec.get(REPAIR)
    if not isinstance(given, Mapping) or not given or set(spec) != {"tables", REPAIR}:
        raise BadJobRequest("a repair names tables and the keys of their rows, and nothing else", REPAIR)
    for name, item in given.items():
        found[str(name)] = _rows_of(str(name), item)
    if sum(len(rows.keys) for rows in found.values()) > REPAIR_ROWS_MAX:
        raise BadJobRequest(f"a repair is of at most {REPAIR_ROWS_MAX} rows", REPAIR)
    if len(json.dumps(given)) > REPAIR_BYTES_MAX:
        raise BadJobRequest(f"the keys of a repair have at most {REPAIR_BYTES_MAX} bytes", REPAIR)
    return found


def _rows_of(name: str, item: Any) -> RepairedRows:
    given = item if isinstance(item, Mapping) else {}
    columns, keys, deletes = given.get("key"), given.get("rows"), given.get("deletes")
    if not _are_texts(columns) or not columns or not isinstance(keys, list) or not keys:
        raise BadJobRequest("a table's entry has the columns of its key and the keys of its rows", REPAIR, name)
    if not all(_are_texts(key) and len(key) == len(columns) for key in keys):
        raise BadJobRequest("a key has a text for each of its columns", REPAIR, name)
    if not isinstance(deletes, bool):
        raise BadJobRequest("a table's entry says whether keys without a row are deleted", REPAIR, name)
    return RepairedRows(columns, keys, deletes)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def pattern_problem(pattern: Any) -> str:
    """Why it cannot name tables; empty when it can."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= PATTERN_MAX:
        return f"A table is named by 1 to {PATTERN_MAX} characters"
    wrong = patterns.problem(pattern)
    return f"A table's pattern {wrong}" if wrong else ""


def _filters(filters: Any, tables: list[str]) -> dict[str, str]:
    if not isinstance(filters, Mapping):
        raise BadJobRequest("`filters` must be an object of conditions by table", "filters")
    for name, text in filters.items():
        if name not in tables:
            raise BadJobRequest("A filter is for one of `tables`", "filters", str(name))
        if not isinstance(text, str) or not 0 < len(text.strip()) <= FILTER_MAX:
            raise BadJobRequest(f"A condition has 1 to {FILTER_MAX} characters", "filters", name)
        if problem := condition_problem(text):
            raise BadJobRequest(problem, "filters", name)
    return {name: filters[name].strip() for name in sorted(filters)}


_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--|/\*|\$[A-Za-z_0-9]*\$|[\\;\x00'"]|[()]""")


def condition_problem(text: str) -> str:
    """Why a text could be more than one condition of SQL in parentheses; empty when it cannot.

    What opens inside must close inside: quotes and parentheses. Comments, statements' ends, backslashes (which have
    meanings of their own in some literals) and dollar quotes are not taken at all.
    """
    depth = 0
    for found in _TOKENS.finditer(text):
        token = found.group()
        if token == "(":  # noqa: S105  the name of a field, no secret
            depth += 1
        elif token == ")":  # noqa: S105  the name of a field, no secret
            depth -= 1
            if depth < 0:
                return "A parenthesis is closed that was not opened"
        elif len(token) == 1 or token in ("--", "/*") or token.startswith("$"):
            return f"{token!r} cannot be part of a condition"
        elif "\\" in token:
            return "A backslash cannot be part of a condition"
    return "" if depth == 0 else "A parenthesis is not closed"
