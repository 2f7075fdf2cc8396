"""Values of a database's texts: as a record has them, and as the cursor has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.api.plugin_errors import RecordRefused
from cdcworker.connectors.query_source.database import Mark, Order, QueryColumn
from cdcworker.connectors.query_source.window import moment

_MARK_CHARS: Final = len("YYYY-MM-DD HH:MM:SS.ffffff")


def value_of(value: Any, parse: Callable[[Any], Any], column: QueryColumn) -> Any:
    """Returns what `parse` makes of a value; of NULL that. RecordRefused, without the value, for one that has no form."""
    if value is None:
        return None
    try:
        return parse(value)
    except (ValueError, ArithmeticError, LookupError):
        raise RecordRefused("a value has no form in its column's type", field=column.name) from None


def mark_of(text: str, order: Order) -> Mark:
    """Returns a value of a cursor column by its text, in UTC: a number, or a time to the microsecond. RecordRefused for one that has
    no place among others: no number, or a time that is infinite, or of a year without four digits."""
    if order == "time":
        return moment(text.removesuffix("+00")[:_MARK_CHARS]).isoformat(" ", "microseconds")
    try:
        return int(text)
    except ValueError:
        raise RecordRefused("a value of incrementing.column.name is no whole number") from None
