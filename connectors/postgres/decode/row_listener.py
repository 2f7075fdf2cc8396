"""Whoever is told of what a decoder cannot settle by itself: rows without a value, tables that are to be planned anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Protocol

from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan


class RowListener(Protocol):
    """Is told of what a decoder cannot settle by itself."""

    def moved(self, plan: TableDecodePlan, data: bytes) -> None:
        """A row was handed on without a value that was not sent, under a key of which readers may not have that value;
        `data` is its message."""

    @property
    def expiring(self) -> Sequence[Sized]:
        """What may expire, for good the same objects: while all are empty, no table is to be planned anew."""

    def expired(self, lsn: int) -> Iterable[int]:
        """OIDs of the tables that are to be planned anew for the transaction that commits at `lsn`."""


class NoListener:
    """A listener that nothing interests."""

    expiring: Sequence[Sized] = ()

    def moved(self, plan: TableDecodePlan, data: bytes) -> None:
        """Takes no notice."""

    def expired(self, lsn: int) -> Iterable[int]:
        """No table is planned anew."""
        return ()
