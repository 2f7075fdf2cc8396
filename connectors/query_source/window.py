"""Which rows behind a cursor column are news: those that were not among the rows of the look-back before."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from cdcworker.connectors.api.plugin_errors import RecordRefused
from cdcworker.connectors.kit.list_comparison import digest, digests_of
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError, declare

WINDOW_TOO_LARGE: Final = declare(
    "query.window_too_large",
    "config",
    "Too many rows lie in the look-back, or have one value of the cursor column",
    "Make query.lookback shorter, or use a column whose values differ more.",
)
WINDOW_ROWS_MAX: Final = 3_000
"""So many rows are remembered: the position is bounded."""
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?")
Mark = int | str


@dataclass(frozen=True, slots=True)
class Window:
    """How far rows were read. `high` is the highest value of the cursor column, `seen` are the rows from `low` on."""

    high: Mark | None = None
    seen: frozenset[str] = frozenset()

    def stored(self) -> JsonObject:
        return {"high": self.high, "seen": "".join(sorted(self.seen))}

    def low(self, lookback: int) -> Mark | None:
        """Returns from where rows are read again. `lookback` is a difference of numbers, or milliseconds."""
        if isinstance(self.high, int) or self.high is None:
            return None if self.high is None else self.high - lookback
        if not lookback:
            return self.high
        # To the second: texts of one moment with more or fewer digits differ.
        return (moment(self.high) - timedelta(milliseconds=lookback)).isoformat(self.high[10])[:19]


def window_of(cursor: JsonObject) -> Window:
    """Returns the window of a stored cursor; that of another kind of cursor is empty. ValueError for what is none."""
    high = cursor.get("high")
    if isinstance(high, bool) or not isinstance(high, int | str | None):
        raise ValueError("no value of a cursor column")
    if isinstance(high, str):
        moment(high)
    return Window(high, digests_of(cursor.get("seen", "")))


def moment(value: Any) -> datetime:
    """Returns the moment that a text names. RecordRefused for one without the form `YYYY-MM-DD HH:MM:SS`, or with a zone."""
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise RecordRefused("a value of timestamp.column.name is no time of the form YYYY-MM-DD HH:MM:SS")


def behind(window: Window, rows: Sequence[Sequence[Any]], place: int, lookback: int) -> tuple[Window, Sequence[bool]]:
    """Returns the window behind rows, which are all from its `low` on in order, and which of them are news. `place` is that of the
    cursor column. CdcError for more rows than a position has room for, RecordRefused for a value without a place."""
    if not rows:
        return window, []
    order = [_order(row[place], window.high) for row in rows]
    if any(after < before for before, after in pairwise(order)):
        raise RecordRefused("values of the cursor column are of several forms: they have no order")
    counts = Counter[str]()
    marks: list[str] = []
    for row in rows:
        mark = digest(row)
        counts[mark] += 1
        # Rows that are equal in all columns are told apart by their number.
        marks.append(mark if counts[mark] == 1 else digest([mark, counts[mark]]))
    top = rows[-1][place]
    high = top if window.high is None or order[-1] >= _order(window.high, top) else window.high
    low = Window(high).low(lookback)
    assert low is not None
    edge = _order(low, high)
    seen = frozenset(mark for mark, at in zip(marks, order, strict=True) if at >= edge)
    if len(seen) > WINDOW_ROWS_MAX:
        raise CdcError(
            WINDOW_TOO_LARGE, f"there are more than {WINDOW_ROWS_MAX} of them", where={"key": "query.lookback"}
        )
    return Window(high, seen), [mark not in window.seen for mark in marks]


def _order(value: Any, other: Mark | None) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not isinstance(other, str):
        return value
    if isinstance(other, int) or (isinstance(other, str) and isinstance(value, str) and value[10:11] != other[10:11]):
        raise RecordRefused("a value of the cursor column is of another form than those before")
    return moment(value)
