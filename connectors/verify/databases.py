"""The two databases of a comparison as the core sees them, and PostgreSQL as either of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cdcworker.connectors.api.table_batch import POSITION
from cdcworker.connectors.verify import sql
from cdcworker.connectors.verify.canonical_text import SESSION, VerifiedColumn
from cdcworker.connectors.verify.errors import BEHIND, TABLE
from cdcworker.connectors.verify.plan import ComparisonPlan, Key, SideTable
from cdcworker.connectors.verify.sql import KeySpan, Statement, StatementBuilder
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

MODULUS: Final = 1 << 64
POLL_S: Final = 0.1
ABOUT_TABLE: Final = ("22", "42", "55", "54", "57014")
"""SQLSTATE classes that concern a table alone: its data, its shape, its locks, its size, and time that ran out."""


class SpanSum(NamedTuple):
    rows: int
    hash: int


class KeyState(NamedTuple):
    """The rows of a key: their number (more than one: no key holds them apart), the sum of their hashes, the version."""

    rows: int
    hash: int
    version: str
    columns: tuple[str, ...] = ()

    @property
    def content(self) -> tuple[int, int]:
        return self.rows, self.hash


class LedgerGoal(Protocol):
    """A position of the source as the warehouse's ledger knows it."""

    def reached(self, ledger: Mapping[tuple[str, int], int]) -> bool: ...

    def lagging(self, ledger: Mapping[tuple[str, int], int]) -> str:
        """Returns in words what the ledger lacks to reach the position."""


class ComparedSide(Protocol):
    @property
    def keys_at_once(self) -> int:
        """The number of keys that `rows_of` takes at once."""

    def sums(
        self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int] | None = None
    ) -> Mapping[int, SpanSum]: ...

    def rows(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int]) -> Mapping[Key, KeyState]: ...

    def rows_of(self, plan: ComparisonPlan, keys: Sequence[Key]) -> Mapping[Key, KeyState]: ...

    def end(self) -> None:
        """The snapshot is let go."""


class SourceSide(ComparedSide, Protocol):
    def begin(self) -> int:
        """A snapshot; everything that it shows was committed before this position of the log."""

    def bound(self, plan: ComparisonPlan, after: Key | None, rows: int) -> Key | None: ...


class TargetSide(ComparedSide, Protocol):
    """The target of a comparison; each kind of warehouse implements it."""

    def prepare(self, limits: VerifyLimits) -> None:
        """Sets the limits of statements; called once, before all else."""

    def table(self, schema: str, name: str) -> SideTable | None:
        """Returns a table as it is now; None when the target has no such table."""

    def ledger(self) -> Mapping[tuple[str, int], int]:
        """Returns the next offset of each partition that the sink's ledger knows."""

    def begin(self, goal: LedgerGoal, deadline: float) -> None:
        """A snapshot that holds everything up to the goal; CdcError when it is not there in time."""


class TableFailed(Exception):
    """A table cannot be read; the others can."""


@dataclass(frozen=True, slots=True)
class VerifyLimits:
    """The load that a comparison may put on the databases."""

    range_rows: int = 50_000
    rows_per_s: int = 100_000
    """0: no limit."""
    statement_timeout_ms: int = 60_000


class PostgresSide:
    """A PostgreSQL database over one connection; each statement in a savepoint, so that a table that fails takes no other with it."""

    keys_at_once: Final = 500
    position = ""
    """The name of a column of positions, in tables that have one."""

    def __init__(self, connection: Connection, side: sql.Side, translate: Callable[[Exception], CdcError]) -> None:
        self.connection = connection
        self._side = side
        self._translate = translate
        self._writers: dict[str, StatementBuilder] = {}
        self._encoding = str(connection.info.parameter_status("server_encoding") or "UTF8")
        self._snapshot: Any = None

    def prepare(self, limits: VerifyLimits) -> None:
        for name, value in {**SESSION, "statement_timeout": str(limits.statement_timeout_ms)}.items():
            self._run(Statement("SELECT set_config(%s, %s, false)", (name, value)))
        # A checksum must not take all processors of a database that has other work.
        self._run(Statement("SELECT set_config('max_parallel_workers_per_gather', '0', false)", ()))

    def table(self, schema: str, name: str, key: Sequence[str] = ()) -> SideTable | None:
        """Returns a table as the catalog has it now; None when there is none."""
        found = self._run(Statement(sql.RELATION, (schema, name)))
        if not found:
            return None
        oid, is_plain, rows = found[0]
        columns = self._run(Statement(sql.CATALOG, (oid,)))
        some = self._run(Statement(f"SELECT 1 FROM {sql.quoted(schema)}.{sql.quoted(name)} LIMIT 1", ()))
        nullable = frozenset(row[0] for row in columns if not row[6])
        position = next((row[0] for row in columns if row[0] == self.position), "")
        kept = tuple(VerifiedColumn(*row[:6]) for row in columns)
        return SideTable(
            schema, name, kept, tuple(key), max(1, int(rows)) if some else 0, is_plain, nullable, position, int(oid)
        )

    def has_values(self, table: SideTable, column: str) -> bool:
        """Returns whether any row has a value in the column; False for a table that cannot be read, which is reported
        elsewhere."""
        place = f"{'ONLY ' if table.only else ''}{sql.quoted(table.schema)}.{sql.quoted(table.name)}"
        text = f"SELECT EXISTS (SELECT FROM {place} WHERE {sql.quoted(column)} IS NOT NULL)"
        try:
            return bool(self._run(Statement(text, ()))[0][0])
        except CdcError:
            if self.connection.closed:
                raise
            return False

    def ask(self, statement: Statement) -> list[Any]:
        return self._run(statement)

    def sums(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int] | None = None) -> Mapping[int, SpanSum]:
        found = self._of_table(plan, self._writer(plan).sums(span, chosen))
        return sums_of(found)

    def rows(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int]) -> Mapping[Key, KeyState]:
        return states_of(self._of_table(plan, self._writer(plan).rows(span, chosen)))

    def rows_of(self, plan: ComparisonPlan, keys: Sequence[Key]) -> Mapping[Key, KeyState]:
        return states_of(self._of_table(plan, self._writer(plan).rows_of(keys)))

    def bound(self, plan: ComparisonPlan, after: Key | None, rows: int) -> Key | None:
        found = self._of_table(plan, self._writer(plan).bound(after, rows))
        return tuple(found[0][0]) if found else None

    def end(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.__exit__(None, None, None)

    def close(self) -> None:
        self._snapshot = None
        self.connection.close()

    def begin_snapshot(self) -> None:
        """Begins a transaction that shows the database at one moment; one that runs already ends."""
        self.end()
        transaction = self.connection.transaction()
        with self._translated():
            transaction.__enter__()
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        self._snapshot = transaction

    def _writer(self, plan: ComparisonPlan) -> StatementBuilder:
        known = self._writers.get(plan.topic)
        if known is None:
            known = self._writers[plan.topic] = StatementBuilder(plan, self._side, self._encoding)
        return known

    def _of_table(self, plan: ComparisonPlan, statement: Statement) -> list[Any]:
        import psycopg

        try:
            with self.connection.transaction():
                return self.connection.execute(statement.text, statement.parameters).fetchall()
        except psycopg.Error as exc:
            if not self.connection.closed and (exc.sqlstate or "").startswith(ABOUT_TABLE):
                # The name of the SQL state only: a message may hold a row's value.
                raise TableFailed(f"not readable in the {_place(self._side)} ({type(exc).__name__})") from None
            raise self._translate(exc) from exc

    def _run(self, statement: Statement) -> list[Any]:
        with self._translated():
            return self.connection.execute(statement.text, statement.parameters).fetchall()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as exc:
            raise self._translate(exc) from exc


class PostgresTargetSide(PostgresSide):
    """`sink` is the name under which the ledger knows it."""

    def __init__(
        self, connection: Connection, translate: Callable[[Exception], CdcError], sink: str, position: str = POSITION
    ) -> None:
        super().__init__(connection, "target", translate)
        self.position = position
        self._sink = sink

    def begin(self, goal: LedgerGoal, deadline: float) -> None:
        begin_at_goal(self, goal, deadline, self._sink)

    def ledger(self) -> Mapping[tuple[str, int], int]:
        there = self._run(Statement("SELECT to_regclass('_cdcworker.ledger') IS NOT NULL", ()))
        if not there[0][0]:
            return {}
        text = "SELECT topic, partition, next_offset FROM _cdcworker.ledger WHERE sink = %s"
        return {(str(topic), int(number)): int(at) for topic, number, at in self._run(Statement(text, (self._sink,)))}


class SnapshotSide(Protocol):
    """A target whose tables and ledger are read in one snapshot."""

    def begin_snapshot(self) -> None:
        """Begins a transaction that shows the database at one moment; one that runs already ends."""

    def ledger(self) -> Mapping[tuple[str, int], int]: ...

    def end(self) -> None: ...


def begin_at_goal(side: SnapshotSide, goal: LedgerGoal, deadline: float, sink: str) -> None:
    """Begins snapshots until one has reached the goal, which stays open. CdcError BEHIND where none has in time."""
    while True:
        side.begin_snapshot()
        ledger = side.ledger()
        if goal.reached(ledger):
            return
        side.end()
        if time.monotonic() > deadline:
            raise CdcError(BEHIND, goal.lagging(ledger), where={"sink": sink})
        time.sleep(POLL_S)


def sums_of(found: Iterable[Sequence[Any]]) -> dict[int, SpanSum]:
    """Returns the sums of each part: part, number of rows, sum of their hashes; a part may come in pieces."""
    out: dict[int, SpanSum] = {}
    for part, rows, total in found:
        known = out.get(int(part), SpanSum(0, 0))
        out[int(part)] = SpanSum(known.rows + int(rows), (known.hash + int(total)) % MODULUS)
    return out


def states_of(found: Iterable[Sequence[Any]]) -> dict[Key, KeyState]:
    """Returns the states of keys by their rows: key, hash, version and, where it is asked for, what tells the columns apart."""
    out: dict[Key, KeyState] = {}
    for key, hashed, version, *columns in found:
        row = KeyState(1, int(hashed) % MODULUS, str(version), tuple(columns[0]) if columns else ())
        name, known = tuple(key), out.get(tuple(key))
        if known is not None:
            versions = ",".join(sorted({*known.version.split(","), row.version}))
            row = KeyState(known.rows + 1, (known.hash + row.hash) % MODULUS, versions, known.columns)
        out[name] = row
    return out


def _place(side: sql.Side) -> str:
    return "source" if side == "source" else "warehouse"


__all__ = [
    "TABLE",
    "ComparedSide",
    "KeyState",
    "LedgerGoal",
    "PostgresSide",
    "PostgresTargetSide",
    "SpanSum",
    "TableFailed",
    "VerifyLimits",
    "begin_at_goal",
    "states_of",
    "sums_of",
]
