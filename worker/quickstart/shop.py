"""What the demo asks of the shop's database, whichever product it is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

from cdcworker.worker.quickstart.catch_up import CatchUpDeadline
from cdcworker.worker.quickstart.proof import SourceState, TableResult
from cdcworker.worker.quickstart.workload import TABLES, Dialect, LoadStatement

PREFIX = "shop"
SOURCE = "shop-source"
WATERMARK_TOPIC = f"{PREFIX}.watermark"


class ShopSession(Protocol):
    """One connection of the load."""

    def run(self, statements: Sequence[LoadStatement]) -> None:
        """Executes the statements as one transaction."""


class Shop(Protocol):
    """The database of the shop. `url` is the connection string of its owner."""

    title: ClassVar[str]
    dialect: ClassVar[Dialect]
    schema: str
    """Where its tables stand, in the names of topics and in the warehouse."""
    url: str

    def prepared(self) -> tuple[int, int, bool] | None:
        """Returns the numbers of the last customer and the last order, and whether the load's column was added; None: there are no
        tables yet."""

    def session(self) -> AbstractContextManager[ShopSession]: ...

    def counts(self) -> Mapping[str, int | None]:
        """Returns the rows of each table; None for a table that does not exist yet."""

    def make_reader(self, password: str) -> None:
        """Creates the source's user with the rights that it needs; the tables exist before."""

    def source_config(self, password: str) -> dict[str, str]:
        """Returns the source's config. `password` is its user's password or a reference to it."""

    def state(self) -> SourceState:
        """Reads position, columns and checksums of all tables. The load has stopped before."""

    def wait_until_read(self, kafka: str, workers: Sequence[str], state: SourceState, deadline: CatchUpDeadline) -> str:
        """Waits until the source has handed on all that is in this state; returns its position as people write it."""

    def compare(self, warehouse: str, state: SourceState) -> list[TableResult]:
        """Compares the warehouse's tables with the source."""


def data_topics(schema: str) -> tuple[str, ...]:
    return tuple(f"{PREFIX}.{schema}.{table}" for table in TABLES)
