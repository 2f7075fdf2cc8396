"""A SQLite file as the outside of the source of a query."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any


class QueryFile:
    """Orders in a file; its cursor is their number. While it is stopped the file has another name."""

    unfit: Mapping[str, str] = {"connection.url": "nowhere"}

    def __init__(self, folder: Path) -> None:
        self.path = folder / "orders.db"
        self._away = folder / "away.db"
        self._file = self.path
        self._texts: list[str] = []
        self.run("create table orders (id integer primary key, customer text, extra blob, at datetime)")

    @property
    def config(self) -> Mapping[str, str]:
        return {
            "connection.url": f"jdbc:sqlite:{self.path}", "query": "select * from orders", "query.table": "orders",
            "query.key": "id", "mode": "incrementing", "incrementing.column.name": "id",
        }  # fmt: skip

    def run(self, text: str, *values: Any) -> None:
        with closing(sqlite3.connect(self._file)) as session, session:
            session.execute(text, values)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.write_text(f"customer {len(self._texts)}")

    def write_text(self, text: str) -> None:
        self._texts.append(text)
        self.run("insert into orders (id, customer) values (?, ?)", len(self._texts), text)

    def rows(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [("orders", {"id": at, "customer": text}) for at, text in enumerate(self._texts, 1)]

    def stop(self) -> None:
        self._file = self.path.rename(self._away)

    def start(self) -> None:
        self._file = self._away.rename(self.path)

    def close(self) -> None:
        """Nothing runs."""
