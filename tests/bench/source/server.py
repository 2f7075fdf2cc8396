"""What a source benchmark asks of the database, whichever it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

RATE = 1_000
WRITERS = 4


class Server(Protocol):
    """A running database server with the tables of a benchmark."""

    def config(self, name: str, table: str, options: Mapping[str, str]) -> dict[str, str]:
        """Of our connector `name`, which reads the table from the log alone."""
        ...

    def topic(self, name: str, table: str) -> str: ...

    def row(self, table: str, number: int) -> Mapping[str, Any]:
        """The row of this id, empty where there is none."""
        ...

    def numbers(self, table: str) -> set[int]:
        """The ids of all rows."""
        ...

    def make_paced(self, table: str) -> None:
        """Makes an empty table of an id and a time, and what a connector needs that reads it."""
        ...

    def paced_writer(self, table: str, rows: int, number: int) -> Sequence[str]:
        """The arguments of a program that writes transactions of so many rows to it, by `write_paced`."""
        ...

    def forget(self, name: str) -> None:
        """Removes what the server has kept for a connector that is gone."""
        ...


def write_paced(write: Callable[[int, int], Any], number: int, is_over: Callable[[], bool]) -> None:
    """Transactions at an even pace; `write` gets the transaction's number and the time just before it, in microseconds. `number`
    is the writer's."""
    row, start = 0, time.monotonic()
    while not is_over():
        due = start + row * WRITERS / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        write(row * WRITERS + number, time.time_ns() // 1000)
        row += 1
