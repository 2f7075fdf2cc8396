"""What a warehouse's driver can do: a connection on which statements run, whatever server is behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Parameters = Sequence[Any] | Mapping[str, Any]


class SqlConnection(Protocol):
    """One connection to a warehouse, used by one thread. Without parameters a % in a statement has no meaning."""

    def ask(self, statement: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        """Executes a statement and returns its rows."""

    def one(self, statement: str, parameters: Parameters | None = None) -> tuple[Any, ...] | None:
        """Returns the first row of a statement; None: there is none."""

    def do(self, statement: str, parameters: Parameters | None = None) -> int:
        """Executes a statement and returns how many rows it changed, or less than nothing where it changes none."""

    def close(self) -> None:
        """Ends the session; a transaction that is open is undone."""
