"""Statements around the query of a config, which is a table in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ALIAS: Final = "cdcworker_rows"


@dataclass(frozen=True, slots=True)
class QueryTable:
    """The rows of a query as a table `ALIAS` of further statements. `quote` quotes a name."""

    table: str
    quote: Callable[[str], str]

    def described(self) -> str:
        """Returns a statement whose result has the columns and no row."""
        return f"select * from {self.table} limit 0"

    def explained(self) -> str:
        """Returns the statement of databases that list columns with their types in words."""
        return f"describe {self.described()}"

    def rows(self, listed: str, limit: str, column: str = "", low: str = "") -> str:
        """Returns the statement that reads rows; `limit` and `low` are expressions, and an empty `low` leaves none out."""
        # What is listed may have the column's name and be its text.
        name = f"{ALIAS}.{self.quote(column)}"
        where = f" where {name} >= {low}" if low else ""
        order = f" order by {name}" if column else ""
        return f"select {listed} from {self.table}{where}{order} limit {limit}"

    def some(self, condition: str) -> str:
        """Returns the statement that has a row where some row of the query fulfils a condition."""
        return f"select 1 from {self.table} where {condition} limit 1"


def quoted(name: str) -> str:
    """Returns a name in the quotes of the standard."""
    return '"' + name.replace('"', '""') + '"'


def derived(query: str) -> str:
    """Returns a query as a table in brackets. A comment at its end does not reach the bracket."""
    return f"(\n{query.strip().removesuffix(';')}\n) as {ALIAS}"
