"""What tests of sources need of a database, so that one test runs over each of them: statements, sessions of others, a task that reads it.

Statements are those that all of them understand. What they say in ways of their own are methods.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from cdcworker.schemas.change import Change

from .polled_task import PolledTask, materialise


class WriteRefused(Exception):
    """A statement waited for a lock of others, or met a row that is there; its transaction is to be rolled back."""


class Session(Protocol):
    """A connection of somebody who writes, in transactions. Locks are waited for shortly."""

    def execute(self, statement: str) -> None:
        """Raises WriteRefused."""

    def patient(self, statement: str) -> None:
        """Executes a statement in a transaction of its own, whatever it has to wait for."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class SourceDatabase(ABC):
    """One database, which is a test's own. `code` begins the codes of its source's errors."""

    code: ClassVar[str]
    knows_renames: ClassVar[bool] = True
    """Whether the log tells a column that has another name from one that went while another came."""
    alters_commit: ClassVar[bool] = False
    """Whether a statement that alters a table ends the transaction that it stands in."""

    @abstractmethod
    def run(self, *statements: str) -> None:
        """Executes statements, each in a transaction of its own."""

    @abstractmethod
    def together(self, *statements: str) -> None:
        """Executes statements in one transaction, or, where a statement ends one, as the database does it."""

    @abstractmethod
    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a query."""

    @abstractmethod
    def session(self) -> Session:
        """Opens a connection of another user."""

    @abstractmethod
    def task(self, **config: str) -> PolledTask:
        """Makes a task that reads this database and was not started; `config` has `_` for `.`."""

    @abstractmethod
    def path(self, table: str) -> tuple[str, ...]:
        """Returns a table's place, as its changes have it."""

    @abstractmethod
    def catch_up(self, one: PolledTask, *, loaded: bool = True) -> None:
        """Polls until all that is committed so far was handed on; `loaded`: and all rows were read."""

    @abstractmethod
    def upsert(self, row: str, changed: str) -> str:
        """Returns the statement that inserts a row into `t`, or, where its key is there, sets this column of it as the new row has it.
        `row`: its columns and values as an INSERT has them."""

    @abstractmethod
    def altered(self, kind: str, table: str) -> Sequence[str]:
        """Returns the statements of a kind of schema change of a table (id int primary key, n int not null, v varchar(90)): `add` a column
        `extra`, `widen` n to a bigint, `narrow` it to a smallint, `retype` it to a text, `rename` v to w, `drop` it, or have n in the
        `key`."""

    @abstractmethod
    def count_anew(self, *tables: str) -> None:
        """Has the server know the sizes of tables as they are."""

    @abstractmethod
    def reader_of(self, tables: Sequence[str], **config: str) -> PolledTask:
        """Makes a task whose user may read the rows of these tables and of no others."""

    @abstractmethod
    def show(self, one: PolledTask, table: str) -> None:
        """Lets a task see a table, whose rows its user still may not read."""

    @abstractmethod
    def open(self, one: PolledTask, *tables: str) -> None:
        """Lets a task's user read the rows of tables."""

    def kept_apart(self, table: str, column: str) -> Sequence[str]:
        """Returns the statements by which large values of a column are stored so that the log lacks them where they do not change."""
        return ()

    def name(self, table: str) -> str:
        """Returns a table's whole name."""
        return ".".join(self.path(table))

    def ids(self, one: PolledTask, table: str) -> list[Any]:
        """Returns the keys of the rows that readers have of a table."""
        return sorted(key[0] for key in materialise(one.log).get(self.path(table), {}))

    def of(self, one: PolledTask, table: str) -> list[Change]:
        """Returns a table's changes."""
        return [change for change in one.log if change.table.path == self.path(table)]

    @contextlib.contextmanager
    def reading(self, **config: str) -> Iterator[PolledTask]:
        """A started task, which ends with the block."""
        one = self.task(**config)
        try:
            yield one.start()
        finally:
            one.kill()


def values_of(rows: Sequence[Sequence[object]]) -> str:
    """Returns rows of numbers, and of texts that are written as SQL, as the values of an INSERT."""
    return ", ".join(f"({', '.join(map(str, row))})" for row in rows)
