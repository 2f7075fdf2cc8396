"""A SQLite file with a table of orders, as the outside of the source of a query."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.contract.query_source.outside import Outside


class QueryFile(Outside):
    """Orders in a file; its cursor is their number. While it is stopped the file has another name."""

    orders = "create table orders (id integer primary key, customer text, extra blob, changed datetime)"
    other_type = ""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "orders.db"
        self.roots = (str(folder),)
        self._away = folder / "away.db"
        self._file = self.path
        super().__init__()

    @property
    def database_config(self) -> Mapping[str, str]:
        return {"connection.url": f"jdbc:sqlite:{self.path}"}

    def run(self, text: str, *values: Any) -> None:
        with closing(sqlite3.connect(self._file)) as session, session:
            session.execute(text, values)

    def write(self, count: int) -> None:
        with closing(sqlite3.connect(self._file)) as session, session:
            # One commit, however many rows there are.
            session.executemany("insert into orders (id, customer) values (?, ?)", self.further(count))

    def write_text(self, text: str) -> None:
        # A statement's own text ends at a NUL.
        self.texts.append(text)
        self.run("insert into orders (id, customer) values (?, ?)", len(self.texts), text)

    def stop(self) -> None:
        self._file = self.path.rename(self._away)

    def start(self) -> None:
        self._file = self._away.rename(self.path)
