"""A database as the outside of the source of a query: a table that tests write into, which can be away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Outside:
    """A database with a table `orders`. `database_config` is what leads to it."""

    unfit: Mapping[str, str] = {"connection.url": "nowhere"}
    orders = "create table orders (id bigint primary key, customer text, changed timestamp)"
    unplaced: tuple[str, ...] = ("null",)
    """Expressions of times without a place."""
    slow = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
    """A query of one number that takes longer than anybody waits."""
    other_type = "alter table orders alter column customer type varchar(7)"
    roots: tuple[str, ...] = ()
    has_nul = True
    """Whether texts may hold a NUL."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.run(self.orders)

    @property
    def database_config(self) -> Mapping[str, str]:
        raise NotImplementedError

    def run(self, text: str) -> None:
        """Executes a statement and commits it."""
        raise NotImplementedError

    @property
    def config(self) -> Mapping[str, str]:
        return {
            **self.database_config, "query": "select * from orders", "query.table": "orders", "query.key": "id",
            "mode": "incrementing", "incrementing.column.name": "id",
        }  # fmt: skip

    def add(self, number: int, at: str = "null", customer: str = "c") -> None:
        at = at if at == "null" or "'" in at else f"'{at}'"
        self.run(f"insert into orders (id, customer, changed) values ({number}, '{customer}', {at})")

    def write(self, count: int) -> None:
        for _ in range(count):
            self.write_text(f"customer {len(self.texts)}")

    def further(self, count: int) -> list[tuple[int, str]]:
        """Returns keys and texts of rows that are to be written at once."""
        before = len(self.texts)
        self.texts += [f"customer {at}" for at in range(before, before + count)]
        return list(enumerate(self.texts[before:], before + 1))

    def write_text(self, text: str) -> None:
        self.texts.append(text)
        self.add(len(self.texts), customer=text.replace("'", "''"))

    def rows(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [("orders", {"id": at, "customer": text}) for at, text in enumerate(self.texts, 1)]

    def close(self) -> None:
        """Ends what was started."""
