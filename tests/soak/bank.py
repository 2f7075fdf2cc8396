"""What do clients do? Transfers between accounts whose sum never changes, and rows that move, are long, or have other columns soon.

A bank is on one server. Its statements are the same on both; how a connection is made, and how to wait until a lost one
has ended there, is each server's own.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg
import pymysql
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

from tests.mariadb_server import HOST, USER, MariaDbServer

from .ledger import LedgerFile, Transfer

ACCOUNTS: Final = 60
BALANCE: Final = 1_000
"""Of each account at first."""
CARDS: Final = 80
NOTES: Final = 60
OFFERS: Final = 40
KEPT: Final = 1_000
"""So many transfers of a client are kept, and older ones deleted, so that no table grows."""
DDL_S: Final = 60.0
EXTRA_MAX: Final = 3
"""The table of offers has so many columns besides; the oldest is dropped."""
TABLES: Final = ("accounts", "transfers", "cards", "notes", "offers")
CREATE: Final = (
    "create table accounts (id bigint primary key, balance bigint not null)",
    "create table transfers (id varchar(40) primary key, source bigint not null, target bigint not null, amount bigint not null)",
    "create table cards (id bigint primary key, account bigint not null, uses bigint not null)",
    "create table notes (id bigint primary key, title varchar(40), body {text})",
    "create table offers (id bigint primary key, price bigint not null)",
)
LOST_S: Final = 60.0
Statement = tuple[str, tuple[Any, ...]]


class Bank(ABC):
    """The tables on one server. `errors` are those of its driver."""

    errors: ClassVar[type[Exception]]
    text: ClassVar[str]

    @abstractmethod
    def connect(self, name: str = "") -> Any:
        """Opens a connection with autocommit off. Its server knows it by `name`."""

    @abstractmethod
    def others(self, connection: Any, name: str) -> int:
        """Returns how many other connections of that name the server still has."""

    @abstractmethod
    def columns(self, connection: Any) -> list[str]:
        """Returns the columns of the table of offers that came by statements of clients, oldest first."""

    def create(self) -> None:
        """Makes tables and their first rows."""
        with contextlib.closing(self.connect()) as connection:
            for statement in CREATE:
                run(connection, statement.format(text=self.text))
            for table, count, rest in (
                ("accounts", ACCOUNTS, f"{BALANCE}"),
                ("cards", CARDS, "1, 0"),
                ("offers", OFFERS, "1"),
            ):
                rows = ", ".join(f"({number}, {rest})" for number in range(count))
                run(connection, f"insert into {table} values {rows}")
            # A topic is there from its first row on.
            run(connection, "insert into transfers values ('first', 0, 0, 0)")
            run(connection, "insert into notes values (-1, 'first', null)")
            connection.commit()

    def rows(self, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Returns names of the columns and the rows of a table as they are now."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"select * from {table}")
            return [column[0] for column in cursor.description], [tuple(row) for row in cursor.fetchall()]


class PostgresBank(Bank):
    errors = psycopg.Error
    text = "text"

    def __init__(self, server: EmbeddedPostgres, database: str) -> None:
        self._server, self._database = server, database

    def create(self) -> None:
        super().create()
        with contextlib.closing(self.connect()) as connection:
            run(connection, "alter table notes alter column body set storage external")
            connection.commit()

    def connect(self, name: str = "") -> Any:
        return psycopg.connect(self._server.dsn(self._database), connect_timeout=5, application_name=name or "soak")

    def others(self, connection: Any, name: str) -> int:
        told = "select count(*) from pg_stat_activity where application_name = %s and pid <> pg_backend_pid()"
        return int(run(connection, told, (name,))[0][0])

    def columns(self, connection: Any) -> list[str]:
        told = (
            "select attname from pg_attribute where attrelid = 'offers'::regclass and attname like 'c%%' and attnum > 0"
            " and not attisdropped order by attnum"
        )
        return [name for (name,) in run(connection, told, ())]


class MariaDbBank(Bank):
    errors = pymysql.Error
    text = "longtext"

    def __init__(self, server: MariaDbServer, database: str) -> None:
        self._server, self._database = server, database

    def connect(self, name: str = "") -> Any:
        more: dict[str, Any] = {"database": self._database, "connect_timeout": 5, "program_name": name or "soak"}
        return pymysql.connect(
            host=HOST, port=self._server.port, user=USER, password=self._server.password, ssl_disabled=True, **more
        )

    def others(self, connection: Any, name: str) -> int:
        """A client's connection is lost with its server alone here: nothing of it is left after a restart."""
        return 0

    def columns(self, connection: Any) -> list[str]:
        told = (
            "select column_name from information_schema.columns where table_schema = %s and table_name = 'offers'"
            " and column_name like 'c%%' order by ordinal_position"
        )
        return [name for (name,) in run(connection, told, (self._database,))]


def run(connection: Any, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    """Executes a statement; returns its rows, if it has any."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


class Client(threading.Thread):
    """One client of a bank, until stopped. `held` stops it between two transactions whose ends are known."""

    def __init__(self, name: str, bank: Bank, path: Path, seed: int, rest_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.file = LedgerFile(path)
        self.error: BaseException | None = None
        self._bank = bank
        self._rest_s = rest_s
        self._random = random.Random(f"{seed} {name} {self.file.ledger.invoked}")
        self._ending = threading.Event()
        self._turn = threading.Lock()
        self._connection: Any = None
        self._columns: list[str] = []
        self._ddl_at = time.monotonic() + DDL_S

    def run(self) -> None:
        try:
            while not self._ending.wait(self._rest_s):
                with self._turn:
                    self._step()
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            self._disconnect()
            self.file.close()

    def stop(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join(LOST_S)

    @contextlib.contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """TimeoutError where the end of a transfer stays unknown for so long."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._turn:
                if self.file.ledger.open is None:
                    yield
                    return
            if time.monotonic() > deadline or not self.is_alive():
                raise TimeoutError(f"the end of a transfer of {self.name} is not known within {timeout_s:.0f} s")
            self._ending.wait(0.2)

    def _step(self) -> None:
        try:
            if self._connection is None:
                self._connection = self._bank.connect(self.name)
                self._settle()
                self._columns = self._bank.columns(self._connection)
                self._connection.commit()
            if time.monotonic() >= self._ddl_at:
                self._alter()
            else:
                self._transact()
        except self._bank.errors:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

    def _settle(self) -> None:
        """Asks the server whether the open transfer is there, once no connection could commit it any more."""
        if (one := self.file.ledger.open) is None:
            return
        if self._bank.others(self._connection, self.name):
            self._disconnect()
            raise self._bank.errors("an earlier connection is still there")
        found = run(self._connection, "select id from transfers where id = %s", (one.id,))
        self._connection.commit()
        self.file.settle(bool(found))

    def _transact(self) -> None:
        rnd, number = self._random, self.file.ledger.invoked + 1
        source, target = rnd.sample(range(ACCOUNTS), 2)
        one = Transfer(f"{self.name}-{number}", source, target, rnd.randint(1, 9))
        self.file.invoke(one)
        outcome = "fail"
        try:
            for statement, values in [*self._transfer(one, number), *self._others()]:
                run(self._connection, statement, values)
            if rnd.random() < 0.05:
                self._connection.rollback()
            else:
                outcome = "unknown"
                self._connection.commit()
                outcome = "ok"
        finally:
            self.file.end(outcome)

    def _transfer(self, one: Transfer, number: int) -> list[Statement]:
        update = "update accounts set balance = balance + %s where id = %s"
        return [
            ("insert into transfers values (%s, %s, %s, %s)", (one.id, one.source, one.target, one.amount)),
            (update, (-one.amount, one.source)),
            (update, (one.amount, one.target)),
            ("delete from transfers where id = %s", (f"{self.name}-{number - KEPT}",)),
        ]

    def _others(self) -> Iterator[Statement]:
        rnd = self._random
        draw, card, note = rnd.random(), rnd.randrange(CARDS), rnd.randrange(NOTES)
        if draw < 0.2:
            yield "update cards set uses = uses + 1 where id in (%s, %s)", (card, card + CARDS)
        elif draw < 0.4:
            here, there = rnd.sample((card, card + CARDS), 2)
            # The key is in one of the two places only.
            yield "update cards set id = %s where id = %s", (there, here)
        elif draw < 0.5:
            yield "delete from notes where id = %s", (note,)
            yield "insert into notes values (%s, %s, %s)", (note, f"note {note}", rnd.randbytes(3_000).hex())
        elif draw < 0.65:
            yield "update notes set title = %s where id = %s", (f"title {rnd.randrange(1_000)}", note)
        elif draw < 0.7:
            yield "delete from notes where id = %s", (note,)
        else:
            names = ["price", *self._columns]
            name = rnd.choice(names)
            yield f"update offers set {name} = %s where id = %s", (rnd.randrange(10_000), rnd.randrange(OFFERS))

    def _alter(self) -> None:
        """Adds a column with a name that was never there, and drops the oldest."""
        self._ddl_at = time.monotonic() + DDL_S
        newest = int(self._columns[-1][1:]) if self._columns else 0
        run(self._connection, f"alter table offers add column c{newest + 1} bigint")
        if len(self._columns) >= EXTRA_MAX:
            run(self._connection, f"alter table offers drop column {self._columns[0]}")
        self._connection.commit()
        self._columns = self._bank.columns(self._connection)
        self._connection.commit()
