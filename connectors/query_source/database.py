"""What a database has to do for the source. A database is a module that implements this and knows none of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from cdcworker.connectors.api.small_source import AvroType, FieldType
from cdcworker.connectors.jdbc_url import Address
from cdcworker.connectors.query_source.address import FileAddress

Mark = int | str
"""A value of the cursor column: a whole number, or a time as text of the form `YYYY-MM-DD HH:MM:SS.ffffff`."""
Order = Literal["", "number", "time"]
"""What a column can be a cursor of; empty: of nothing."""
_KEY_TYPES: Final = frozenset({"string", "int64", "boolean", "int", "long"})


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """What is asked, and where. `file_roots` are the folders in which files may be read."""

    address: FileAddress | Address
    query: str
    timeout_s: float
    user: str = ""
    password: str = field(default="", repr=False)
    file_roots: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """One column of the result. Two columns are equal that the database describes in the same words."""

    name: str
    declared: str
    """The type in the database's words."""
    type: FieldType | AvroType = field(compare=False)
    order: Order = ""

    @property
    def fits_key(self) -> bool:
        """Whether its values can tell rows apart in a stored position: those that JSON has as they are."""
        if isinstance(self.type, str):
            return self.type in _KEY_TYPES
        avro = self.type.avro
        return (avro["type"] if isinstance(avro, dict) else avro) in _KEY_TYPES


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One row: its values as the fields have them, and with a cursor column the value of that."""

    values: Sequence[Any] = field(repr=False)
    mark: Any = field(default=None, repr=False)
    """A `Mark`. Of a database whose columns hold values of any type it may be anything, which the window refuses."""


class QuerySession(Protocol):
    """A look at a database at one moment. Used by one thread. `rows` is the last that is asked of it."""

    @property
    def columns(self) -> Sequence[QueryColumn]:
        """The columns of the result."""

    def has_unplaced(self, column: str) -> bool:
        """Whether some row has no value in the cursor column, or one below all others that are read: it would never be read again."""

    def rows(self, limit: int, column: str = "", low: Mark | None = None) -> Iterator[QueryRow]:
        """Yields at most `limit` rows, one by one as they come from the database: in the order of a cursor column from a value of it
        on, without a column in any order. Who stops before the end ends the session."""


class QueriedDatabase(Protocol):
    """A database that is only read. Errors are CdcError without values of rows; Unavailable where it does not answer now."""

    def session(self) -> AbstractContextManager[QuerySession]:
        """Opens a session, in which nothing takes longer than the request's time."""
