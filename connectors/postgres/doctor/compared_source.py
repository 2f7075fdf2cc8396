"""A PostgreSQL source as one side of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.capture.tables.compared_source import SentColumns
from cdcworker.connectors.verify.canonical_text import SourceModes
from cdcworker.connectors.verify.databases import PostgresSide, TableFailed
from cdcworker.connectors.verify.plan import ComparisonPlan, Key, SideTable
from cdcworker.connectors.verify.sql import Statement
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg
    from cdcworker.connectors.postgres.config.settings import PostgresSettings

    Connection = psycopg.Connection[tuple[Any, ...]]

APPLICATION: Final = "cdcworker-verify"
PUBLISHED: Final = """
select schemaname::text, tablename::text, attnames::text[],
       coalesce(to_jsonb(p)->>'rowfilter', '') <> ''
from pg_publication_tables p where pubname = %s"""
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


class OpenedPostgresSource(PostgresSourceSide):
    """The source of a connector's configuration, connected."""

    notes: Final[Sequence[str]] = ()

    def __init__(self, settings: PostgresSettings) -> None:
        from cdcworker.connectors.postgres.errors import translate
        from cdcworker.connectors.postgres.server.catalog import SourceCatalog
        from cdcworker.connectors.postgres.transport.connection import connect
        from cdcworker.connectors.postgres.transport.server_functions import END_OF_LOG

        super().__init__(connect(settings, APPLICATION), translate, END_OF_LOG)
        self.settings = settings
        self._catalog = SourceCatalog(self.connection)

    @property
    def modes(self) -> SourceModes:
        return modes_of(self.settings)

    def published(self) -> Mapping[tuple[str, str], SentColumns]:
        found = self.ask(Statement(PUBLISHED, (self.settings.publication,)))
        return {(row[0], row[1]): SentColumns(*row[2:]) for row in found}

    @property
    def is_all_published(self) -> bool:
        """A publication that does not exist yet is made of what the filters choose."""
        from cdcworker.connectors.postgres.server.slot import has_publication

        return not self.published() and not has_publication(self.connection, self.settings)

    def hands_on_deletions(self) -> bool:
        return self.publishes_deletions(self.settings.publication)

    def keyed_table(self, schema: str, name: str) -> SideTable | None:
        table = self.table(schema, name)
        if table is None:
            return None
        info = self._catalog.table(table.oid)
        return table.keyed(info.key if info else ())

    @staticmethod
    def reached(watermark: Mapping[str, Any]) -> int:
        return int(watermark.get("commit_lsn") or -1)

    @staticmethod
    def position_text(position: int) -> str:
        return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def modes_of(settings: PostgresSettings) -> SourceModes:
    given = settings.modes
    return SourceModes(given.time, given.binary, given.interval, given.varbit, given.decimal, given.out_of_range)


def settled(position: int) -> int:
    """Returns the position, or its page's start when it is right behind the head of a page, which no record ever reaches."""
    rest = position % PAGE
    return position - rest if rest <= PAGE_HEAD_MAX else position
