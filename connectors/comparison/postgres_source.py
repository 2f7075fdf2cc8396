"""A PostgreSQL source as one side of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.verify.databases import PostgresSide, TableFailed
from cdcworker.connectors.verify.plan import ComparisonPlan, Key
from cdcworker.connectors.verify.sql import Statement
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

PAGE: Final = 8192
PAGE_HEAD_MAX: Final = 40
"""Bytes of a log page's head at most: where the next record begins right behind it, nothing has been written since the
page's start."""


class PostgresSourceSide(PostgresSide):
    """The source of a comparison. `end_of_log` is the SQL expression for the end of the server's log, which differs on a standby."""

    def __init__(self, connection: Connection, translate: Callable[[Exception], CdcError], end_of_log: str) -> None:
        super().__init__(connection, "source", translate)
        self._end_of_log = end_of_log

    def begin(self) -> int:
        """Begins a snapshot and returns the log position before which everything that it shows was committed."""
        self.begin_snapshot()
        ((position,),) = self.ask(Statement(f"SELECT ({self._end_of_log}::pg_lsn - '0/0')::bigint", ()))
        return settled(int(position))

    def publishes_deletions(self, publication: str) -> bool:
        """Returns whether a publication lets deletions through; one that is not there keeps none back."""
        found = self.ask(Statement("SELECT pubdelete FROM pg_publication WHERE pubname = %s", (publication,)))
        return all(is_published for (is_published,) in found)

    def key_texts(self, plan: ComparisonPlan, keys: Sequence[Key]) -> list[tuple[str, ...] | None]:
        """Returns the keys as the source's database writes them; None for one that is no value of its columns' types."""
        out: list[tuple[str, ...] | None] = []
        for at in range(0, len(keys), self.keys_at_once):
            out += self._texts_of(plan, keys[at : at + self.keys_at_once])
        return out

    def _texts_of(self, plan: ComparisonPlan, keys: Sequence[Key]) -> list[tuple[str, ...] | None]:
        try:
            found = self._of_table(plan, self._writer(plan).key_texts(keys))
        except TableFailed:
            if len(keys) == 1:
                return [None]
            # One of them fails the statement of all.
            middle = len(keys) // 2
            return [*self._texts_of(plan, keys[:middle]), *self._texts_of(plan, keys[middle:])]
        texts: dict[int, tuple[str, ...]] = {number: tuple(values) for number, values, is_same in found if is_same}
        return [texts.get(number) for number in range(len(keys))]


def settled(position: int) -> int:
    """Returns the position, or its page's start when it is right behind the head of a page, which no record ever reaches."""
    rest = position % PAGE
    return position - rest if rest <= PAGE_HEAD_MAX else position
