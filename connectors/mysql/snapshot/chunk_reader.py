"""Reading rows for a snapshot: one short transaction per chunk, in the order of the key, and without a lock that writers notice."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.capture.snapshot.chunks import (
    ChunkRequest,
    KeyChanged,
    NotVisibleYet,
    ReadChunk,
    ReadView,
    TableGone,
    TableKeyless,
    TableLocked,
    TableSurvey,
)
from cdcworker.connectors.capture.snapshot.row_identity import Identity, KeyTexts, identity
from cdcworker.connectors.mysql.catalog.tables import read_table
from cdcworker.connectors.mysql.decode.captured_plans import map_of
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, TablePlanner
from cdcworker.connectors.mysql.errors import TABLE_CLOSED, TYPE_UNKNOWN, VALUE
from cdcworker.connectors.mysql.server.connection import translate
from cdcworker.connectors.mysql.server.facts import read_facts
from cdcworker.connectors.mysql.server.grants import quoted
from cdcworker.connectors.mysql.snapshot.read_view import ReadViews
from cdcworker.connectors.mysql.snapshot.selected_rows import SelectedRows, form_of, selected_rows
from cdcworker.connectors.mysql.snapshot.selected_values import beyond, compared, literal, selected, value_of
from cdcworker.connectors.mysql_client.error_numbers import RIGHTS, number_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from types import ModuleType

    from cdcworker.connectors.mysql_client.client import MySqlConnection

NameOf = Callable[[int], tuple[str, str] | None]
"""From a table's number to database and name; None: it is not captured any more."""
_WAITED: Final = frozenset({1205, 3024, 1969})
"""A lock was not had in time."""
_CHANGED: Final = 1412
"""The table was altered after the read began."""
_GONE: Final = frozenset({1146, 1049})
_KEYS_ASKED: Final = 100
"""Keys that one statement asks for."""
PIECE_BYTES: Final = 256 * 1024
"""Of a table that is read whole, what is handed on at a time."""


@dataclass(slots=True)
class SelectedChunk(ReadChunk):
    """Rows of a range as the server sent them."""

    plan: TablePlan
    rows: SelectedRows


class ChunkReader:
    """Reads rows over a connection of its own; used by one thread at a time. `lock_ms`: how long a read waits for a lock on a table, in
    milliseconds, of which the server counts whole seconds."""

    def __init__(
        self,
        connection: MySqlConnection,
        planner: TablePlanner,
        name_of: NameOf,
        lock_ms: int,
        module: ModuleType | None = None,
    ) -> None:
        """`module`: the native core; None has all read in Python."""
        self._connection = connection
        self._module = module
        self._planner = planner
        self._name_of = name_of
        self._facts = read_facts(connection)
        self._views = ReadViews(connection, self._facts)
        self._broken = False
        connection.do(f"set session lock_wait_timeout = {-(-lock_ms // 1000)}, innodb_lock_wait_timeout = 1")

    def survey(self, table_id: int, parts_max: int, bytes_min: int) -> TableSurvey:
        """Divides a table whose key begins with a whole number by the least and the greatest of them."""
        path = self._name(table_id)
        with self._errors(path):
            plan = self._plan(*path)
            if not plan.table.key:
                return TableSurvey(keyless=True)
            size = self._size(plan)
            if parts_max < 2 or size < bytes_min or len(plan.table.key) != 1:
                return TableSurvey(False, (), size)
            return TableSurvey(False, self._bounds(plan, parts_max), size)

    def chunk(self, want: ChunkRequest) -> SelectedChunk:
        """One short transaction; raises what keeps it from being read now."""
        path = self._name(want.table_id)
        with self._errors(path):
            view = self._views.begin()
            try:
                # The table cannot be altered from here on until the end; one that was altered since the beginning is told.
                self._connection.ask(f"select 1 from {quoted(*path)} limit 0")
                plan = self._plan(*path)
                if not plan.table.key:
                    raise TableKeyless
                names = tuple(column.name for column in plan.table.key_columns)
                if want.key_names and want.key_names != names:
                    raise KeyChanged
                if not want.must_see.met(view.snap):
                    raise NotVisibleYet
                hit("snapshot.snapshot_taken")
                is_told = want.tells_absent and want.keys and self._hands_on_deletions(plan)
                absent = self._absent(plan, want.keys) if is_told else {}
                chunk = self._read(SelectedChunk(view, plan, self._rows(plan, want), absent=absent), want)
                hit("snapshot.rows_read")
            finally:
                self._end()
        hit("snapshot.read_ended")
        if len(want.keys) > 1 and len(chunk.unread) == len(want.keys):
            # Equal to them, but in other words (5.0 and 5.00): one by one it is plain whose row came.
            chunk = self.chunk(replace(want, keys=want.keys[:1]))
            chunk.unread = [list(texts) for texts in want.keys[1:]]
        return chunk

    # -- tables without a key, which are read whole -----------------------------------------------------------------

    def begin(self, table_id: int) -> tuple[ReadView, TablePlan]:
        """Begins to read a table in a transaction that lasts until `end`. Raises what keeps it from being read now."""
        path = self._name(table_id)
        with self._errors(path):
            view = self._views.begin()
            try:
                self._connection.ask(f"select 1 from {quoted(*path)} limit 0")
                return view, self._plan(*path)
            except BaseException:
                self.end()
                raise

    def table_bytes(self, plan: TablePlan) -> int:
        """Returns the size of a table, by what the server remembers of it."""
        with self._errors(plan.table.path):
            return self._size(plan)

    def whole(self, plan: TablePlan) -> Generator[SelectedRows]:
        """Yields the rows of the table that `begin` was called for, in pieces."""
        statement = f"select {_columns(plan)} from {quoted(*plan.table.path)}"
        with self._errors(plan.table.path):
            yield from selected_rows(
                self._connection, statement, form_of(plan, self._module), self._module, PIECE_BYTES
            )

    def end(self) -> None:
        """Ends the transaction that `begin` began."""
        with contextlib.suppress(Exception):
            self._end()

    def _end(self) -> None:
        """A connection that was given up has no transaction any more."""
        if self._connection.open:
            self._connection.rollback()

    def is_broken(self) -> bool:
        return self._broken or not self._connection.open

    def cancel(self) -> None:
        """Breaks off what is being read, called by another thread."""
        self._broken = True
        with contextlib.suppress(Exception):
            # Whoever reads from it holds it: closing alone would wait for that.
            self._connection._sock.shutdown(socket.SHUT_RDWR)
            self._connection._force_close()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.close()

    # -- statements -------------------------------------------------------------------------------------------------

    def _name(self, table_id: int) -> tuple[str, str]:
        found = self._name_of(table_id)
        if found is None:
            raise TableGone
        return found

    def _plan(self, database: str, name: str) -> TablePlan:
        """Returns the plan of the table as the catalog has it now."""
        found = read_table(self._connection, database, name, is_mariadb=self._facts.is_mariadb)
        if found is None:
            raise TableGone
        known = map_of(found)
        if known is None:
            where = {"table": f"{database}.{name}"}
            raise CdcError(TYPE_UNKNOWN, "the table has a column of a type that is not known", where=where)
        # What the log's reader knows of the table may be older, and belongs to another thread.
        plan = replace(self._planner, catalog=lambda *_: found).plan(known)
        if plan is None:
            raise TableGone
        return plan

    def _size(self, plan: TablePlan) -> int:
        found = self._connection.one(
            "select data_length from information_schema.tables where table_schema = %s and table_name = %s",
            plan.table.path,
        )
        return int(found[0] or 0) if found else 0

    def _bounds(self, plan: TablePlan, parts_max: int) -> tuple[KeyTexts, ...]:
        (place,) = plan.table.key
        if plan.table.columns[place].type not in ("int", "long"):
            return ()
        name = quoted(plan.table.columns[place].name)
        found = self._connection.one(f"select min({name}), max({name}) from {quoted(*plan.table.path)}")
        if not found or found[0] is None:
            return ()
        low, high = int(found[0]), int(found[1])
        bounds = sorted({low + (high - low) * part // parts_max for part in range(1, parts_max)})
        return tuple((str(bound),) for bound in bounds)

    def _rows(self, plan: TablePlan, want: ChunkRequest) -> SelectedRows:
        """Returns the first rows of a range, up to so many bytes."""
        # Wider than was guessed: the rows so far are a chunk, the next one begins behind them. # INV-10
        form, statement = form_of(plan, self._module), _statement(plan, want)
        reads_all = bool(want.keys)
        pieces = selected_rows(self._connection, statement, form, self._module, want.bytes_max, reads_all=reads_all)
        with contextlib.closing(pieces):
            return next(pieces)

    def _read(self, chunk: SelectedChunk, want: ChunkRequest) -> SelectedChunk:
        """Notes what rows have come, and which have not."""
        rows = chunk.rows
        chunk.size, chunk.count = rows.size, rows.count
        if rows.count:
            chunk.last = rows.key_texts(rows.last)
        chunk.ended = rows.whole and not want.keys and chunk.count < want.limit
        if len(want.keys) > 1 and not rows.whole:
            found = {*map(rows.key_texts, rows.offsets()), *chunk.absent.values()}
            chunk.unread = [list(texts) for texts in want.keys if texts not in found]
        return chunk

    def _hands_on_deletions(self, plan: TablePlan) -> bool:
        """Returns whether a deletion of which only the key is known can be handed on: records under other columns cannot be deleted
        by it."""
        return "d" not in self._planner.settings.skipped and set(plan.out.key) <= set(plan.table.key)

    def _absent(self, plan: TablePlan, keys: Sequence[KeyTexts]) -> dict[Identity, KeyTexts]:
        """Returns those of the keys of which the table has no row: the server compares, not the texts."""
        out: dict[Identity, KeyTexts] = {}
        for at in range(0, len(keys), _KEYS_ASKED):
            asked = keys[at : at + _KEYS_ASKED]
            each = (
                f"select {number} from dual where not exists (select 1 from {quoted(*plan.table.path)} where {_is(plan, key)})"
                for number, key in enumerate(asked)
            )
            for (number,) in self._connection.ask(" union all ".join(each)):
                key = asked[int(number)]
                out[identity(key_values(plan, key))] = key
        return out

    @contextlib.contextmanager
    def _errors(self, path: tuple[str, ...]) -> Iterator[None]:
        """Raises what keeps the table from being read now, or CdcError with the table."""
        import pymysql

        where = {"table": ".".join(path)}
        try:
            with value_errors(path):
                yield
        except pymysql.Error as exc:
            number = number_of(exc)
            if number in _GONE:
                raise TableGone from exc
            if number in _WAITED:
                raise TableLocked from exc
            if number == _CHANGED:
                raise NotVisibleYet from exc
            if number in RIGHTS:
                raise CdcError(TABLE_CLOSED, f"error {number}", where=where) from exc
            self._broken = True
            raise translate(exc, where) from exc


@contextlib.contextmanager
def value_errors(path: tuple[str, ...]) -> Iterator[None]:
    """Raises errors of values as CdcError with the table."""
    try:
        yield
    except (ValueError, ArithmeticError, TypeError, LookupError) as exc:
        # Their texts may quote a value.
        text = f"a row cannot be read ({type(exc).__name__})"
        raise CdcError(VALUE, text, where={"table": ".".join(path)}) from None


def _statement(plan: TablePlan, want: ChunkRequest) -> str:
    """Returns the SELECT of a chunk. A condition of a user has been checked by whoever asks for it."""
    table = plan.table
    kinds = [plan.types[i] for i in table.key]
    names = [compared(table.columns[i].name, kind) for i, kind in zip(table.key, kinds, strict=True)]

    def literals(texts: KeyTexts) -> list[str]:
        return [literal(kind, text) for kind, text in zip(kinds, texts, strict=True)]

    conditions = [f"({want.filter})"] if want.filter else []
    if want.keys:
        conditions.append(f"({' or '.join(f'({_is(plan, key)})' for key in want.keys)})")
    if want.after is not None:
        conditions.append(beyond(names, literals(want.after), ">", last=">"))
    if want.upto is not None:
        conditions.append(beyond(names, literals(want.upto), "<", last="<="))
    where = f" where {' and '.join(conditions)}" if conditions else ""
    order = "" if want.keys else f" order by {', '.join(names)} limit {int(want.limit)}"
    return f"select {_columns(plan)} from {quoted(*table.path)}{where}{order}"


def _columns(plan: TablePlan) -> str:
    return ", ".join(selected(c.name, kind) for c, kind in zip(plan.table.columns, plan.types, strict=True))


def _is(plan: TablePlan, texts: KeyTexts) -> str:
    """Returns the condition of the row of a key."""
    parts = ((plan.table.columns[i].name, plan.types[i], text) for i, text in zip(plan.table.key, texts, strict=True))
    return " and ".join(f"{compared(name, kind)} = {literal(kind, text)}" for name, kind, text in parts)


def key_values(plan: TablePlan, texts: KeyTexts) -> tuple[Any, ...]:
    """Returns the values of a key as rows of records have them. Raises ValueError for texts that are none of its types."""
    key = plan.table.key
    return tuple(plan.parsers[i](value_of(plan.types[i], text)) for i, text in zip(key, texts, strict=True))
