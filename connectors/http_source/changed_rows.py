"""Which items are news: those behind a mark, or those of a list that are new, other or gone since it was read last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.api.plugin_errors import RecordRefused
from cdcworker.connectors.api.small_source import SourceRecord
from cdcworker.connectors.http_source.items import ItemTable, moment
from cdcworker.connectors.kit.list_comparison import compared, digests_of
from cdcworker.schemas.change import JsonObject

EDGE_MAX: Final = 3_000
"""So many items with one value of the cursor field are remembered: the position is bounded."""
NUMBER_CHARS_MAX: Final = 100
MARK_CHARS_MAX: Final = 1_000
Rank = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Marks:
    """How far items were read. `since` is the highest value of the rounds before, `seen` are the items that had it; `high` and
    `edge` are the same with the round that is under way."""

    since: Any = None
    seen: frozenset[str] = frozenset()
    high: Any = None
    edge: frozenset[str] = frozenset()

    def ended(self) -> Marks:
        """Returns the marks behind the last page of a round."""
        return Marks(self.high, self.edge, self.high, self.edge)

    def again(self) -> Marks:
        """Returns the marks before the first page of the round."""
        return Marks(self.since, self.seen, self.since, self.seen)

    def stored(self) -> JsonObject:
        seen, edge = ("".join(sorted(found)) for found in (self.seen, self.edge))
        return {"since": self.since, "seen": seen, "high": self.high, "edge": edge}


def marks_of(cursor: JsonObject) -> Marks:
    """Returns the marks of a stored cursor; those of another kind of cursor are none. ValueError for what is no cursor."""
    seen, edge = (digests_of(cursor.get(name, "")) for name in ("seen", "edge"))
    return Marks(cursor.get("since"), seen, cursor.get("high"), edge)


def behind(marks: Marks, found: Sequence[tuple[Any, str]]) -> tuple[Marks, Sequence[bool]]:
    """Returns the marks behind items, each a value of the cursor field and a digest, and which of the items are news. RecordRefused
    for a value that has no place among the others."""
    since = None if marks.since is None else rank(marks.since)
    high, top = marks.high, None if marks.high is None else rank(marks.high)
    edge, news = set(marks.edge), list[bool]()
    for value, mark in found:
        place = rank(value)
        if any(known is not None and known[0] != place[0] for known in (since, top)):
            raise RecordRefused("an item's cursor field is of another kind than those before")
        is_news = since is None or place > since or (place == since and mark not in marks.seen)
        if top is None or place > top:
            high, top, edge = value, place, set()
        if place == top and mark in edge:
            is_news = False
        if place == top and len(edge) < EDGE_MAX:
            edge.add(mark)
        news.append(is_news)
    return Marks(marks.since, marks.seen, high, frozenset(edge)), news


def rank(value: Any) -> Rank:
    """Returns the place of a value among others: numbers, texts of digits among them, then moments, then texts. RecordRefused."""
    if isinstance(value, str) and len(value) <= MARK_CHARS_MAX and value.isprintable():
        if value.isascii() and value.isdigit() and len(value) <= NUMBER_CHARS_MAX:
            return "number", int(value)
        at = moment(value)
        return ("text", value) if at is None else ("moment", at)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return "number", value
    raise RecordRefused("an item has no cursor: the field is neither a number nor a short text")


def changes_of_list(
    table: ItemTable, known: Mapping[str, str] | None, items: Sequence[Any]
) -> tuple[Mapping[str, str], Sequence[SourceRecord]]:
    """Returns the digests of a whole list by key, and what has changed since `known`; None: it was never read."""
    raws = [table.raw(item) for item in items]
    found, changes = compared(known, [(table.raw_key(item), raw) for item, raw in zip(items, raws, strict=True)])
    rows = [table.key_row(change.key) if change.at is None else table.row(raws[change.at]) for change in changes]
    return found, [SourceRecord(table.name, row, change.op) for row, change in zip(rows, changes, strict=True)]
