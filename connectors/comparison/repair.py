"""The repair of what a comparison has found: for each table the keys by which the source is asked for its rows."""

from __future__ import annotations

from collections import Counter
from typing import Final

from cdcworker.connectors.comparison.opening import OpenedComparison
from cdcworker.connectors.comparison.postgres_source import PostgresSourceSide
from cdcworker.connectors.verify.repair import REPAIRED, TableRepair, table_repairs
from cdcworker.connectors.verify.report import Tally
from cdcworker.schemas.change import JsonObject

ROWS_MAX: Final = 50_000
"""Rows of one comparison that can be repaired after it; what is left is found again by the next one. # INV-10"""
NO_VALUE: Final = "their keys are no values of the types that the source's columns have"


def repair_json(both: OpenedComparison, tally: Tally) -> JsonObject:
    """Returns the repair of all tables, with keys of rows as the source's database writes them."""
    left, tables = ROWS_MAX, list[JsonObject]()
    for one in table_repairs(tally.tables, hands_on_deletions=both.hands_on_deletions):
        found = _table(one, both.source, left)
        left -= len(found["rows"])
        tables.append(found)
    return {"tables": tables}


def _table(one: TableRepair, source: PostgresSourceSide, rows_max: int) -> JsonObject:
    taken = one.keys[:rows_max]
    texts = source.key_texts(one.verdict.plan, [key for _, key in taken])
    rows = [(kind, key) for (kind, _), key in zip(taken, texts, strict=True) if key is not None]
    if len(rows) < len(taken):
        one.refuse(len(taken) - len(rows), NO_VALUE)
    counts = Counter(kind for kind, _ in rows)
    return {
        "table": one.name,
        "key": [item.name for item in one.verdict.plan.key],
        "rows": [list(key) for _, key in rows],
        "counts": {kind: counts[kind] for kind in REPAIRED},
        "refused": [{"rows": item.rows, "why": item.why} for item in one.refused],
        "complete": one.is_complete and len(taken) == len(one.keys),
    }
