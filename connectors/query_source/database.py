"""What a database has to do for the source, and the errors that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cdcworker.connectors.api.small_source import FieldType
from cdcworker.schemas.errors import declare

QUERY_REFUSED: Final = declare(
    "query.refused",
    "config",
    "The database refuses the query",
    "Run the query by hand in the same database. It has to be one SELECT that changes nothing.",
)
QUERY_TOO_SLOW: Final = declare(
    "query.too_slow",
    "config",
    "The query takes longer than query.timeout.ms",
    "Give the database an index of the cursor column, ask for less, or raise query.timeout.ms.",
)


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """One column of the result."""

    name: str
    type: FieldType


class Database(Protocol):
    """A database that is only read. Errors are CdcError without values of rows; Unavailable where it does not answer now."""

    def columns(self) -> Sequence[QueryColumn]:
        """Returns the columns of the result."""

    def rows(self, limit: int, column: str = "", low: int | str | None = None) -> Sequence[Sequence[Any]]:
        """Returns rows in the order of a column, from a value of it on; without a column in any order. At most `limit`."""

    def has_null(self, column: str) -> bool:
        """Whether some row has no value in a column."""
