"""A seeded load on a source database, and the row-by-row comparison of source and warehouse."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Any

import psycopg

from .cluster import wait

TABLES = ("orders", "notes", "places")
SCHEMA = """
create table orders (id bigint primary key, customer int not null, amount numeric(12,2), state text, at timestamptz not null default now());
create table notes (id int primary key, title varchar(40), body text, tags text[]);
alter table notes alter column body set storage external;
create table places (country text, code int, name text, score double precision, open boolean, primary key (country, code));
"""
COLUMNS = {
    "orders": "id, customer, amount, state, at",
    "notes": "id, title, body, tags",
    "places": "country, code, name, score, open",
}
IDS = 400
"""Few ids: inserts, updates and deletes meet on the same keys."""
REST_S = 0.05


class Load(threading.Thread):
    """Runs small transactions until stopped, `rest_s` apart; `transactions` counts them. A rollback now and then."""

    def __init__(self, dsn: str, seed: int, rest_s: float = REST_S) -> None:
        super().__init__(name="load", daemon=True)
        self.dsn, self.rest_s = dsn, rest_s
        self.random = random.Random(seed)
        self.transactions = 0
        self.error: Exception | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not self._ending.wait(self.rest_s):
                    self.transaction(connection)
                    self.transactions += 1
        except psycopg.Error as error:
            self.error = error

    def more(self, count: int) -> None:
        """Until so many more have ended, however slow the machine is: an error only when none ends for long."""
        wanted = self.transactions + count
        while (before := self.transactions) < wanted:
            wait("another transaction", lambda before=before: self.transactions > before or not self.is_alive())
            assert self.is_alive(), self.error

    def finish(self) -> None:
        self._ending.set()
        self.join(30)
        assert self.error is None, self.error

    def transaction(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for _ in range(self.random.randint(1, 8)):
                sql, values = self.statement()
                connection.execute(sql, values)
            if self.random.random() < 0.05:
                raise psycopg.Rollback

    def statement(self) -> tuple[str, tuple[Any, ...]]:
        rnd = self.random
        key, kind = rnd.randrange(IDS), rnd.random()
        if kind < 0.30:
            return (
                "insert into orders(id, customer, amount, state) values (%s, %s, %s, %s) "
                "on conflict (id) do update set amount = excluded.amount, state = excluded.state",
                (key, rnd.randrange(50), rnd.randrange(10_000_000) / 100, rnd.choice(["new", "paid", "", None])),
            )
        if kind < 0.40:
            return "delete from orders where id = %s", (key,)
        if kind < 0.45:
            free = "not exists (select from orders where id = %s)"
            return f"update orders set id = %s where id = %s and {free}", (key + IDS, key, key + IDS)
        if kind < 0.55:
            body = rnd.randbytes(1500).hex()
            return (
                "insert into notes values (%s, %s, %s, %s) on conflict (id) do update set body = excluded.body",
                (key, f"note {key}", body, ["a", "b c", None, 'q"uote']),
            )
        if kind < 0.68:
            return "update notes set title = %s where id = %s", (f"title {rnd.randrange(1000)}", key)
        if kind < 0.71:
            free = "not exists (select from notes where id = %s)"
            return f"update notes set id = %s where id = %s and {free}", (key + IDS, key, key + IDS)
        if kind < 0.75:
            return "delete from notes where id = %s", (key,)
        if kind < 0.95:
            return (
                "insert into places values (%s, %s, %s, %s, %s) on conflict (country, code) do update "
                "set name = excluded.name, score = excluded.score, open = excluded.open",
                (
                    rnd.choice(["de", "fr", "é\t\\n"]),
                    key,
                    rnd.choice(["", "tab\there", "back\\slash", "line\nfeed", "NULL", "\\N", "ü"]),
                    rnd.choice([None, 0.1, -1e300, float("inf"), float("nan")]),
                    rnd.choice([True, False, None]),
                ),
            )
        return "delete from places where code = %s", (key,)


def rows(dsn: str, table: str, columns: str) -> list[tuple[Any, ...]]:
    """All rows as text, in key order; an absent table has none."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select to_regclass(%s)", (f"public.{table}",)).fetchone()
        if not found or found[0] is None:
            return []
        as_text = ", ".join(f"{column.strip()}::text" for column in columns.split(","))
        return connection.execute(f"select {as_text} from public.{table} order by 1, 2").fetchall()


def differences(source: str, warehouse: str, tables: Mapping[str, str] = COLUMNS) -> dict[str, tuple[int, int, int]]:
    """Per unequal table: rows on each side and how many of them have no equal on the other side."""
    found = {}
    for table, columns in tables.items():
        left, right = rows(source, table, columns), rows(warehouse, table, columns)
        if left != right:
            found[table] = (len(left), len(right), len(set(left) ^ set(right)))
    return found
