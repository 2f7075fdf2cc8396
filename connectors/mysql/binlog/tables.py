"""The tables that rows events refer to by number: those of the statement that goes on, and what was read of each before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader
from cdcworker.connectors.mysql.binlog.rows import RowsEventReader
from cdcworker.connectors.mysql.binlog.table_map import MARIADB, MYSQL, TableMap, read_table_map
from cdcworker.connectors.mysql.errors import MalformedError

TABLE_ID_BYTES: Final = 6
"""Of a table's number, in the log of all but very old servers."""
STATEMENT_TABLES_MAX: Final = 4096
KNOWN_TABLES_MAX: Final = 1024


class Tables:
    """Table maps by number. Each statement sends the maps of its tables again, mostly the same bytes as before: these are read once."""

    def __init__(self, complete: Callable[[TableMap], TableMap] | None = None) -> None:
        self._complete = complete
        self._current: dict[int, tuple[TableMap, RowsEventReader, bytes]] = {}
        self._known: dict[bytes, tuple[TableMap, RowsEventReader]] = {}
        self._collated = MYSQL
        self.files = 0
        """How many files were begun."""
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
            found = self._known[raw] = table, RowsEventReader(table)
        if len(self._current) >= STATEMENT_TABLES_MAX:
            raise MalformedError("a statement with more tables than a statement can have")
        self._current[found[0].table_id] = found[0], found[1], raw
        return found[0]

    def reader(self, table_id: int) -> RowsEventReader:
        found = self._current.get(table_id)
        if found is None:
            raise MalformedError("rows of a table that no table map has named")
        self.last, reader, _ = found
        return reader

    @property
    def current(self) -> list[bytes]:
        """The maps of the statement that goes on, as the log has them."""
        return [raw for _, _, raw in self._current.values()]

    def go_on(self, current: Sequence[bytes]) -> None:
        """Makes these the maps of the statement that goes on; their tables have numbers of six bytes."""
        self._current.clear()
        for raw in current:
            self.add(raw, 0, TABLE_ID_BYTES)

    def read_from(self, raw: bytes) -> TableMap | None:
        """Returns what was read of a map of the statement that goes on."""
        return next((table for table, _, known in self._current.values() if known == raw), None)

    def end_statement(self) -> None:
        self._current.clear()

    def begin_file(self, *, is_mariadb: bool) -> None:
        """Forgets everything, and takes table maps for those of one of the two servers from here on."""
        self._collated = MARIADB if is_mariadb else MYSQL
        self.files += 1
        self._current.clear()
        self._known.clear()
