"""The tables that rows events refer to by number: those of the statement that goes on, and what was read of each before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader
from cdcworker.connectors.mysql.binlog.rows import RowReader
from cdcworker.connectors.mysql.binlog.table_map import MARIADB, MYSQL, TableMap, read_table_map
from cdcworker.connectors.mysql.errors import MalformedError

STATEMENT_TABLES_MAX: Final = 4096
KNOWN_TABLES_MAX: Final = 1024


class Tables:
    """Table maps by number. Each statement sends the maps of its tables again, mostly the same bytes as before: these are read once."""

    def __init__(self, complete: Callable[[TableMap], TableMap] | None = None) -> None:
        self._complete = complete
        self._current: dict[int, tuple[TableMap, RowReader]] = {}
        self._known: dict[bytes, tuple[TableMap, RowReader]] = {}
        self._collated = MYSQL
        self.last: TableMap | None = None
        """The table of the rows that were read last."""

    def add(self, event: bytes, at: int, table_id_bytes: int) -> TableMap:
        """Takes the map in an event from `at` on."""
        raw = event[at:]
        found = self._known.get(raw)
        if found is None:
            table = read_table_map(ByteReader(raw), table_id_bytes, self._collated)
            if self._complete:
                table = self._complete(table)
            if len(self._known) >= KNOWN_TABLES_MAX:
                self._known.clear()
            found = self._known[raw] = table, RowReader(table)
        if len(self._current) >= STATEMENT_TABLES_MAX:
            raise MalformedError("a statement with more tables than a statement can have")
        self._current[found[0].table_id] = found
        return found[0]

    def reader(self, table_id: int) -> RowReader:
        found = self._current.get(table_id)
        if found is None:
            raise MalformedError("rows of a table that no table map has named")
        self.last, reader = found
        return reader

    def end_statement(self) -> None:
        self._current.clear()

    def begin_file(self, *, is_mariadb: bool) -> None:
        """Forgets everything, and takes table maps for those of one of the two servers from here on."""
        self._collated = MARIADB if is_mariadb else MYSQL
        self._current.clear()
        self._known.clear()
