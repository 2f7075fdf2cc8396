"""Which rows behind a cursor column are news: those that were not among the rows of the look-back before."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cdcworker.connectors.api.plugin_errors import RecordRefused
from cdcworker.connectors.kit.list_comparison import digest, digests_of
from cdcworker.connectors.query_source.database import Mark, QueryRow
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
            # The least text of the moment: those of one with fewer digits come before it.
            return self.high.rstrip("0").rstrip(".") if "." in self.high else self.high
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


class Reading:
    """Rows as they come, from `Window.low` on in the order of the cursor column."""

    def __init__(self, window: Window, lookback: int) -> None:
        self._window = window
        self._lookback = lookback
        self._counts = Counter[str]()
        self._marks: list[str] = []
        self._order: list[Any] = []
        self._last: Any = None

    @property
    def count(self) -> int:
        """How many rows have come."""
        return len(self._order)

    def take(self, row: QueryRow) -> bool:
        """Returns whether a row is news. RecordRefused for a value of the cursor column without a place."""
        at = _order(row.mark, self._window.high)
        if self._order and at < self._order[-1]:
            raise RecordRefused("values of the cursor column are of several forms: they have no order")
        mark = digest(row.values)
        self._counts[mark] += 1
        # Rows that are equal in all columns are told apart by their number.
        mark = mark if self._counts[mark] == 1 else digest([mark, self._counts[mark]])
        self._marks.append(mark)
        self._order.append(at)
        self._last = row.mark
        return mark not in self._window.seen

    def after(self, *, whole: bool) -> Window:
        """Returns the window behind the rows; `whole`: there are no more of them. CdcError for more rows than a position has room for."""
        before = self._window
        if not self._order:
            return before
        is_ahead = before.high is None or self._order[-1] >= _order(before.high, self._last)
        high = self._last if is_ahead else before.high
        low = Window(high).low(self._lookback)
        assert low is not None
        edge = _order(low, high)
        seen = frozenset(mark for mark, at in zip(self._marks, self._order, strict=True) if at >= edge)
        if not whole and not is_ahead:
            # Rows behind the last one were read before.
            seen |= before.seen
        if len(seen) > WINDOW_ROWS_MAX:
            raise CdcError(
                WINDOW_TOO_LARGE, f"there are more than {WINDOW_ROWS_MAX} of them", where={"key": "query.lookback"}
            )
        return Window(high, seen)


def _order(value: Any, other: Mark | None) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not isinstance(other, str):
        return value
    if isinstance(other, int) or (isinstance(other, str) and isinstance(value, str) and value[10:11] != other[10:11]):
        raise RecordRefused("a value of the cursor column is of another form than those before")
    return moment(value)
