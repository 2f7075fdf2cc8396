"""The repair of what a comparison has found: for each table the keys by which the source is asked for its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from cdcworker.connectors.capture.tables.compared_source import ComparedSource
from cdcworker.connectors.comparison.opening import OpenedComparison
from cdcworker.connectors.verify.plan import ComparisonPlan
from cdcworker.connectors.verify.repair import REPAIRED, TableRepair, repaired_kinds, table_repairs
from cdcworker.connectors.verify.report import Tally
from cdcworker.schemas.change import JsonObject

NO_VALUE: Final = "their keys are no values of the types that the source's columns have"


def repaired_kinds_of(both: OpenedComparison) -> Callable[[ComparisonPlan], Collection[str]]:
    """Returns what tells of a table the kinds of differences that can be repaired."""
    return partial(repaired_kinds, hands_on_deletions=both.hands_on_deletions)


def repair_json(both: OpenedComparison, tally: Tally) -> JsonObject:
    """Returns the repair of all tables, with keys of rows as the source's database writes them."""
    found = table_repairs(tally.tables, hands_on_deletions=both.hands_on_deletions)
    return {"tables": [_table(one, both.source) for one in found]}


def _table(one: TableRepair, source: ComparedSource) -> JsonObject:
    texts = source.key_texts(one.verdict.plan, [key for _, key in one.keys])
    rows = [(kind, key) for (kind, _), key in zip(one.keys, texts, strict=True) if key is not None]
    if len(rows) < len(one.keys):
        one.refuse(len(one.keys) - len(rows), NO_VALUE)
    counts = Counter(kind for kind, _ in rows)
    return {
        "table": one.name,
        "key": [item.name for item in one.verdict.plan.key],
        "rows": [list(key) for _, key in rows],
        "deletes": one.deletes,
        "counts": {kind: counts[kind] for kind in REPAIRED},
        "refused": [{"rows": item.rows, "why": item.why} for item in one.refused],
        "complete": one.is_complete,
    }
