"""What of a comparison's differences the source can repair, and by which keys it is asked for their rows. Pure.

A repair reads the rows of keys in the source once more, and hands them on with the stream. A key of which the source has no
row is handed on as deleted. What a source cannot repair that way is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from cdcworker.connectors.verify.canonical_text import INTEGERS, VerifiedColumn
from cdcworker.connectors.verify.plan import ComparisonPlan, Key
from cdcworker.connectors.verify.report import TableVerdict
from cdcworker.connectors.verify.sent_texts import ONE_TEXT, SENT

REPAIRED: Final = ("missing", "different", "extra")
OTHER_KEY: Final = "message.key.columns gives its records another key than its rows have"
NO_TABLE: Final = "cdcworker snapshots create reads all of it"
MORE_THAN_ONCE: Final = "the warehouse has a key more than once, and a repair cannot tell those rows apart"
NO_DELETIONS: Final = "the source hands on no deletions (skipped.operations, or its publication)"
_ONE_TEXT: Final = frozenset(
    (*INTEGERS, "uuid", "date", "time", "timestamp", "timestamptz", "bytea", "bool", "text", "varchar", "name")
)
"""Types of which equal values have one text. Of others (5.0 and 5.00) a row that the stream has just brought might not be
recognised as the one that is to be deleted."""


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows that are not repaired; 0 rows: what concerns the table as a whole."""

    rows: int
    why: str


@dataclass(slots=True)
class TableRepair:
    """The repair of one table. `keys` are of the kinds `REPAIRED`."""

    verdict: TableVerdict
    keys: list[tuple[str, Key]] = field(default_factory=list)
    refused: list[RefusedRows] = field(default_factory=list)
    deletes: bool = True
    """A row that is not in the source is deleted in the warehouse."""

    @property
    def name(self) -> str:
        return self.verdict.plan.name

    @property
    def is_complete(self) -> bool:
        """Returns whether every difference is a part of this repair, or refused."""
        return not self.verdict.is_full and not self.verdict.left_keys

    def refuse(self, rows: int, why: str) -> None:
        self.refused.append(RefusedRows(rows, why))


def repaired_kinds(plan: ComparisonPlan, *, hands_on_deletions: bool) -> Collection[str]:
    """Returns the kinds of differences of a table that can be repaired: a comparison keeps their keys."""
    if plan.reason or _has_other_key(plan):
        return ()
    return tuple(kind for kind in REPAIRED if kind != "extra" or not _no_deletion(plan, hands_on_deletions))


def table_repair(verdict: TableVerdict, *, hands_on_deletions: bool) -> TableRepair | None:
    """Returns the repair of a table that was compared with its `repaired_kinds`; None where nothing differs."""
    plan, out = verdict.plan, TableRepair(verdict)
    if verdict.verdict in ("equal", "undecided"):
        return None
    if plan.target is None and not plan.is_held:
        out.refuse(0, f"{verdict.reason}: {NO_TABLE}")
        return out
    if verdict.verdict == "impossible":
        out.refuse(0, verdict.reason)
        return out
    if plan.lacking:
        out.refuse(0, f"columns are not in the warehouse: {', '.join(plan.lacking)}")
    if _has_other_key(plan):
        out.refuse(verdict.differences, OTHER_KEY)
        return out
    refused = {"duplicate": MORE_THAN_ONCE}
    if why := _no_deletion(plan, hands_on_deletions):
        refused["extra"], out.deletes = why, False
    for kind, why in refused.items():
        if verdict.counts[kind]:
            out.refuse(verdict.counts[kind], why)
    out.keys = verdict.keys
    return out


def table_repairs(verdicts: list[TableVerdict], *, hands_on_deletions: bool) -> Iterator[TableRepair]:
    found = (table_repair(verdict, hands_on_deletions=hands_on_deletions) for verdict in verdicts)
    return (one for one in found if one is not None)


def _has_other_key(plan: ComparisonPlan) -> bool:
    """Returns whether the source reads rows by other columns than the comparison, or than the warehouse knows them by."""
    source = plan.source
    names = tuple(item.name for item in plan.key)
    return names != source.key or bool(source.record_key and set(source.record_key) != set(source.key))


def _no_deletion(plan: ComparisonPlan, hands_on_deletions: bool) -> str:
    """Returns why rows that the warehouse has alone cannot be deleted; empty: they can."""
    if not hands_on_deletions:
        return NO_DELETIONS
    unfit = next((item.name for item in plan.key if not has_one_text(item.source)), None)
    return "" if unfit is None else f"equal values of the key column {unfit} may have different texts"


def has_one_text(column: VerifiedColumn) -> bool:
    """Returns whether equal values of the column have one text."""
    if column.kind == SENT:
        return column.type in ONE_TEXT
    if column.type == "numeric":
        # With a scale all values have it.
        return "(" in column.declared
    if column.type == "bpchar":
        return column.declared.startswith("character(")
    return column.kind == "e" or column.type in _ONE_TEXT
