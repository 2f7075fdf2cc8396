"""The shop's load: seeded, with the same statements for the same seed, and every kind of change that matters."""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

TABLES = ("customers", "orders", "items")
SEED = 20260101
FIRST_CUSTOMERS = 200
PROFILE_CHARS = 3000
"""The length of a long value: above PostgreSQL's 2 kB it is stored out of line (TOAST) and not sent again while it is
unchanged."""
KEY_STEP = 1_000_000_000
"""Added to a key by a key change, so that new keys never meet those of inserts."""
STATUSES = ("new", "paid", "packed", "shipped", "returned")
LETTERS = string.ascii_letters + string.digits + " äöüß€"
KEY_CHANGE = "key change"
UNCHANGED_TOAST = "unchanged TOAST value"
ADDED_COLUMN = "added column"

ADD_COLUMN = "ALTER TABLE customers ADD COLUMN loyalty integer"


class Dialect(NamedTuple):
    """What is written otherwise for each database."""

    schema: tuple[str, ...]
    placed_at: str
    """The time of an order, of its number."""
    unchanged: str
    """What is notable about an update that leaves the long profile unchanged; empty: the source sends it all the same."""


POSTGRES = Dialect(
    schema=(
        """CREATE TABLE customers (
            id bigint PRIMARY KEY,
            name text NOT NULL,
            email text,
            balance numeric(12, 2) NOT NULL,
            active boolean NOT NULL,
            born date,
            profile text
        )""",
        "ALTER TABLE customers ALTER COLUMN profile SET STORAGE EXTERNAL",
        """CREATE TABLE orders (
            id bigint PRIMARY KEY,
            customer_id bigint NOT NULL,
            status text NOT NULL,
            total numeric(12, 2) NOT NULL,
            weight double precision,
            placed_at timestamptz NOT NULL
        )""",
        """CREATE TABLE items (
            order_id bigint NOT NULL,
            line integer NOT NULL,
            sku text NOT NULL,
            quantity integer NOT NULL,
            price numeric(12, 2) NOT NULL,
            PRIMARY KEY (order_id, line)
        )""",
    ),
    placed_at="timestamptz '2026-01-01 00:00:00Z' + %s * interval '1.000037 s'",
    unchanged=UNCHANGED_TOAST,
)
MARIADB = Dialect(
    schema=(
        """CREATE TABLE customers (
            id bigint PRIMARY KEY,
            name varchar(40) NOT NULL,
            email varchar(80),
            balance decimal(12, 2) NOT NULL,
            active boolean NOT NULL,
            born date,
            profile text
        )""",
        """CREATE TABLE orders (
            id bigint PRIMARY KEY,
            customer_id bigint NOT NULL,
            status varchar(20) NOT NULL,
            total decimal(12, 2) NOT NULL,
            weight double,
            placed_at timestamp(6) NOT NULL
        )""",
        """CREATE TABLE items (
            order_id bigint NOT NULL,
            line int NOT NULL,
            sku varchar(40) NOT NULL,
            quantity int NOT NULL,
            price decimal(12, 2) NOT NULL,
            PRIMARY KEY (order_id, line)
        )""",
    ),
    placed_at="'2026-01-01 00:00:00' + INTERVAL (%s * 1000037) MICROSECOND",
    unchanged="",
)


class LoadStatement(NamedTuple):
    """One SQL statement that changes `changes` rows; `special` names what is notable about it."""

    operation: str
    """One of insert, update, delete and ddl."""
    sql: str
    parameters: tuple[Any, ...] = ()
    changes: int = 1
    special: str = ""


@dataclass(slots=True)
class Workload:
    """Knows which rows exist, so that every statement changes exactly the rows that it is counted with."""

    seed: int = SEED
    dialect: Dialect = POSTGRES
    column_after: int = 800
    """The number of transactions before the one that adds the column."""
    transactions: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    """Rows changed by operation, without the first rows."""
    specials: Counter[str] = field(default_factory=Counter)
    _random: random.Random = field(init=False)
    _customers: list[int] = field(default_factory=list)
    _long: list[int] = field(default_factory=list)
    """Indexes of the customers whose profile is stored out of line."""
    _orders: dict[int, int] = field(default_factory=dict)
    """The number of lines of each order."""
    _order_ids: list[int] = field(default_factory=list)
    _next_customer: int = 1
    _next_order: int = 1
    _has_loyalty: bool = False

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311  rows of a demo

    @property
    def changes(self) -> int:
        return sum(self.operations[name] for name in ("insert", "update", "delete"))

    def continue_from(self, customer: int, order: int, *, has_loyalty: bool) -> None:
        """Leaves existing rows alone: new ones start at these ids."""
        self._next_customer, self._next_order = customer, order
        if has_loyalty:
            self._has_loyalty, self.column_after = True, -1

    def first_rows(self) -> Iterator[LoadStatement]:
        """Yields the rows that exist before the connector starts: the snapshot reads them."""
        for _ in range(FIRST_CUSTOMERS):
            yield self._insert_customer()
        for _ in range(FIRST_CUSTOMERS):
            yield from self._insert_order()

    def transaction(self) -> list[LoadStatement]:
        """Returns the next transaction, about eleven changes; counted as committed."""
        statements: list[LoadStatement] = []
        if self.transactions == self.column_after:
            self._has_loyalty = True
            statements.append(LoadStatement("ddl", ADD_COLUMN, changes=1, special=ADDED_COLUMN))
        statements += [*self._insert_order(), *self._insert_order(), self._update_order(), self._update_order()]
        statements.append(self._update_customer())
        draw = self._random.random()
        if draw < 0.35:
            statements.append(self._insert_customer())
        elif draw < 0.55:
            statements.append(self._update_profile())
        elif draw < 0.60:
            statements.append(self._change_key())
        if self._random.random() < 0.30:
            statements += self._delete_order()
        self.transactions += 1
        for statement in statements:
            self.operations[statement.operation] += statement.changes
            if statement.special:
                self.specials[statement.special] += statement.changes
        return statements

    def _text(self, length: int) -> str:
        return "".join(self._random.choices(LETTERS, k=length))

    def _money(self, top: int) -> Decimal:
        return Decimal(self._random.randrange(100, top * 100)).scaleb(-2)

    def _insert_customer(self) -> LoadStatement:
        number, self._next_customer = self._next_customer, self._next_customer + 1
        is_long = number % 2 == 1
        if is_long:
            self._long.append(len(self._customers))
        self._customers.append(number)
        draw = self._random
        email = None if draw.random() < 0.1 else f"{number}@example.org"
        born = f"{draw.randrange(1940, 2008)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
        profile = self._text(PROFILE_CHARS if is_long else 40)
        values = [number, self._text(12), email, self._money(1000), draw.random() < 0.8, born, profile]
        columns = "id, name, email, balance, active, born, profile"
        if self._has_loyalty:
            columns += ", loyalty"
            values.append(draw.randrange(100))
        marks = ", ".join(["%s"] * len(values))
        return LoadStatement("insert", f"INSERT INTO customers ({columns}) VALUES ({marks})", tuple(values))

    def _insert_order(self) -> list[LoadStatement]:
        number, self._next_order = self._next_order, self._next_order + 1
        draw = self._random
        lines = draw.randrange(1, 5)
        self._orders[number] = lines
        self._order_ids.append(number)
        weight = None if draw.random() < 0.1 else draw.random() * 40
        order = (number, draw.choice(self._customers), "new", self._money(500), weight, number)
        rows: list[Any] = []
        for line in range(1, lines + 1):
            rows += [number, line, f"SKU-{draw.randrange(5000)}", draw.randrange(1, 9), self._money(90)]
        marks = ", ".join(["(%s, %s, %s, %s, %s)"] * lines)
        return [
            LoadStatement("insert", f"INSERT INTO orders VALUES (%s, %s, %s, %s, %s, {self.dialect.placed_at})", order),
            LoadStatement("insert", f"INSERT INTO items VALUES {marks}", tuple(rows), lines),
        ]

    def _update_order(self) -> LoadStatement:
        number = self._random.choice(self._order_ids)
        sql = "UPDATE orders SET status = %s, total = total + %s WHERE id = %s"
        return LoadStatement("update", sql, (self._random.choice(STATUSES), self._money(9), number))

    def _update_customer(self) -> LoadStatement:
        """Leaves the long profile unchanged."""
        number = self._customers[self._random.choice(self._long)]
        value: int | Decimal
        if self._has_loyalty and self._random.random() < 0.5:
            change, value = "loyalty = %s", self._random.randrange(1000)
        else:
            change, value = "balance = balance + %s", self._money(20)
        return LoadStatement(
            "update", f"UPDATE customers SET {change} WHERE id = %s", (value, number), special=self.dialect.unchanged
        )

    def _update_profile(self) -> LoadStatement:
        number = self._customers[self._random.choice(self._long)]
        sql = "UPDATE customers SET profile = %s WHERE id = %s"
        return LoadStatement("update", sql, (self._text(PROFILE_CHARS), number))

    def _change_key(self) -> LoadStatement:
        index = self._random.randrange(len(self._customers))
        old = self._customers[index]
        self._customers[index] = old + KEY_STEP
        sql = "UPDATE customers SET id = %s WHERE id = %s"
        return LoadStatement("update", sql, (old + KEY_STEP, old), special=KEY_CHANGE)

    def _delete_order(self) -> list[LoadStatement]:
        index = self._random.randrange(len(self._order_ids))
        number = self._order_ids[index]
        self._order_ids[index] = self._order_ids[-1]
        self._order_ids.pop()
        lines = self._orders.pop(number)
        return [
            LoadStatement("delete", "DELETE FROM items WHERE order_id = %s", (number,), lines),
            LoadStatement("delete", "DELETE FROM orders WHERE id = %s", (number,)),
        ]
