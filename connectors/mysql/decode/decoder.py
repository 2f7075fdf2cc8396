"""From events of the binary log to changes with positions: transactions, keys, values that were not logged. Opens nothing itself.

`tx_index` counts the rows of a transaction as the log has them, those of all tables, whatever is captured: it is the same on each server
that has the transaction, and in each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from cdcworker.connectors.capture.snapshot.observer import RowEvent, RowObserver
from cdcworker.connectors.capture.snapshot.row_identity import differ
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.binlog import plain_events as plain
from cdcworker.connectors.mysql.binlog.event_reader import Event
from cdcworker.connectors.mysql.binlog.format_description import FormatDescription
from cdcworker.connectors.mysql.binlog.gtid_events import Gtid, MariaDbTransaction
from cdcworker.connectors.mysql.binlog.rows import UNSENT, BinlogRow, Operation, RowsEvent, UnreadRows
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.decode import statements
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.row_images import filled, lacks_values, nulled
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions, RowWriter
from cdcworker.connectors.mysql.decode.schema_changes import schema_statement
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, TablePlans
from cdcworker.connectors.mysql.decode.transaction import Transaction, gtid_of, gtid_text
from cdcworker.connectors.mysql.types import charsets
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, Op, Position, Row
from cdcworker.schemas.errors import CdcError

SYSTEM_DATABASE: Final = "mysql"
"""Statements on its tables are logged as text by servers of providers."""
_OPS: Final[Mapping[Operation, Op]] = {Operation.INSERT: "c", Operation.UPDATE: "u", Operation.DELETE: "d"}
SCHEMA_TOKENS_MAX: Final = 4096
"""Words that are looked at of a statement that may name many tables. # INV-10"""
PLANS_MAX: Final = 4096
"""# INV-10"""


class _Savepoint(NamedTuple):
    """A place in the output of a transaction, below 0 where what lies before it was handed on, and the events that were numbered."""

    at: int
    counts: Mapping[str, int]

    def behind(self, taken: int) -> _Savepoint:
        """Returns the place once so many changes have been taken."""
        return self._replace(at=self.at - taken)


class BinlogDecoder:
    """The decoder of one stream. `out` collects changes; the caller takes them and looks at `transaction`."""

    def __init__(
        self,
        tables: TablePlans,
        template: JsonObject,
        numbers: CommitNumbers,
        options: DecoderOptions | None = None,
    ) -> None:
        self._tables = tables
        self._template = template
        self._numbers = numbers
        self._options = options or DecoderOptions()
        self._plans: dict[int, tuple[TableMap, TablePlan | None]] = {}
        self.replanned = 0
        """How often the plans were forgotten."""
        self._savepoints: dict[str, _Savepoint] = {}
        self._drop_to = 0
        self._resumed = ""
        self._begun_at = _Savepoint(0, {})
        self.transaction: Transaction | None = None
        """The one that is being read; None between two."""
        self.ended: Transaction | None = None
        """The last one that was read to its end."""
        self.index = 0
        """Rows of it that have been read."""
        self.out: list[Change | EncodedRecords] = []
        self.incomplete: list[tuple[TablePlan, BinlogRow]] = []
        """Rows that were handed on without values that were not logged: where no reader has them, under a new key, or where whole rows
        are wanted. The caller takes them."""
        self.observer: RowObserver | None = None
        self.listeners: dict[str, Callable[[TablePlan, Row], None]] = {}
        """Of new rows, by the full names of tables."""
        self.writer: RowWriter | None = None
        self._handlers: Mapping[type, Callable[[Event, Any], None]] = {
            RowsEvent: self._on_rows,
            UnreadRows: self._on_unread_rows,
            Gtid: self._on_gtid,
            MariaDbTransaction: self._on_gtid,
            plain.Query: self._on_query,
            plain.Xid: lambda _, body: self._end(),
            plain.XaPrepare: self._on_xa_prepare,
            plain.StatementTextEvent: self._on_statement_text,
            plain.Incident: self._on_incident,
            FormatDescription: self._on_file,
        }

    def resume(self, rows: int, identity: str = "") -> None:
        """Called before the stream starts: so many rows of the first transaction were handed on by an earlier run. `identity` is its
        GTID, where it has one."""
        self._drop_to, self._resumed = rows, identity

    def observe(self, observer: RowObserver | None) -> None:
        """Shows every event to this observer from now on; to none with None."""
        self.observer = observer

    def write_natively(self, writer: RowWriter) -> None:
        """Has rows written as records by this writer from now on, those that it can write."""
        self.writer = writer

    def take(self, upto: int | None = None) -> list[Change | EncodedRecords]:
        """Takes what has been read, also amid a transaction; of that the first `upto` changes, where that is said."""
        upto = len(self.out) if upto is None else upto
        taken, self.out = self.out[:upto], self.out[upto:]
        self._begun_at = self._begun_at.behind(len(taken))
        self._savepoints = {name: at.behind(len(taken)) for name, at in self._savepoints.items()}
        return taken

    def order_counts(self) -> dict[str, int] | None:
        """Returns how many events of the transaction were handed on, by data collection; None where they are not numbered."""
        return dict(self._options.transactions.counts) if self._options.transactions else None

    def feed(self, event: Event) -> None:
        """Reads one event. Raises CdcError with its place."""
        handler = self._handlers.get(type(event.body))
        if handler is not None:
            handler(event, event.body)

    # -- another reader ---------------------------------------------------------------------------------------------

    @property
    def leaves_events(self) -> bool:
        """Tells whether nobody looks at events but who writes their rows, and who notes here what begins and ends meanwhile."""
        options = self._options
        if self.observer is not None or self._drop_to or options.transactions is not None:
            return False
        return not (options.skips_same or options.shows_query)

    @property
    def skipped(self) -> frozenset[str]:
        """Letters of operations that are left out."""
        return self._options.skipped

    @property
    def template(self) -> JsonObject:
        """The `source` block as each change begins with it."""
        return self._template

    def note_begin(self, transaction: Transaction) -> None:
        """A transaction has begun, of which `out` has nothing yet."""
        self.transaction = transaction
        self.index = 0
        self._savepoints.clear()
        self._begun_at = self._savepoint()

    def note_end(self, transaction: Transaction) -> None:
        """This transaction was the last one that ended; what `out` is to have of it is there."""
        self.ended, self.transaction = transaction, None

    # -- transactions -----------------------------------------------------------------------------------------------

    def _on_gtid(self, event: Event, found: Gtid | MariaDbTransaction) -> None:
        if self.transaction is not None:
            raise self._error(event, e.MALFORMED_EVENT, "a transaction begins amid another")
        if isinstance(found, MariaDbTransaction):
            if found.is_prepared_xa:
                raise self._error(event, e.XA_PREPARED, f"transaction {found.gtid} is prepared by XA")
            transaction = self._begin(event, 0, gtid_text(found))
            # MariaDB logs no BEGIN.
            transaction.is_group = not found.is_standalone
        else:
            transaction = self._begin(event, found.times.immediate_commit_us, gtid_text(found))
        transaction.own = gtid_of(found)

    def _begin(self, event: Event, commit_us: int, gtid: str) -> Transaction:
        if self._drop_to and self._resumed and gtid != self._resumed:
            text = f"transaction {self._resumed} was handed on in part, and the server has another one in its place"
            raise self._error(event, e.OTHER_HISTORY, text)
        commit_us = commit_us or event.header.timestamp * 1_000_000
        number = self._numbers.next(commit_us)
        begun = self.transaction = Transaction(number, commit_us, event.header.server_id, gtid)
        self.index = 0
        self._savepoints.clear()
        orders = self._options.transactions
        if orders:
            orders.begin(begun.identity, commit_us // 1000, resumed=self._drop_to > 0)
        self._begun_at = self._savepoint()
        if self.observer:
            self.observer.began(begun.identity)
        return begun

    def _end(self) -> None:
        transaction = self.transaction
        if transaction is None:
            return
        if self._options.transactions:
            self._options.transactions.end(Position(transaction.number, self.index, 0), self.out)
        self.ended, self.transaction = transaction, None
        self._drop_to = 0

    def _on_xa_prepare(self, event: Event, body: plain.XaPrepare) -> None:
        if not body.is_one_phase:
            raise self._error(event, e.XA_PREPARED, "a transaction is prepared by XA")
        self._end()

    def _on_incident(self, event: Event, _: plain.Incident) -> None:
        raise self._error(event, e.LOG_INCIDENT, "the server has logged an incident")

    def _on_file(self, event: Event, _: FormatDescription) -> None:
        """A file begins, and transactions end in the file that they begin in: the server died while it wrote this one, which never was
        committed."""
        if self.transaction is not None:
            self._go_back(event, self._begun_at)
            self.transaction = None

    def _on_statement_text(self, _: Event, body: plain.StatementTextEvent) -> None:
        if self.transaction is not None and self._options.shows_query:
            self.transaction.query = body.statement.decode(errors="replace")

    # -- statements -------------------------------------------------------------------------------------------------

    def _on_query(self, event: Event, body: plain.Query) -> None:
        found = statements.without_settings(statements.words(_text(body)))
        first = statements.keyword(found)
        # Where a server has no GTIDs, the statement begins what it is in.
        transaction = self.transaction or self._begin(event, 0, "")
        transaction.thread = body.thread_id
        if first == "BEGIN":
            transaction.is_group = True
        elif first == "COMMIT":
            self._end()
        elif first == "ROLLBACK":
            self._on_rollback(event, found)
        elif first == "XA":
            self._on_xa(event, transaction, statements.keyword(found, 1))
        elif first == "SAVEPOINT":
            self._savepoints[_name_of(found, 1)] = self._savepoint()
        else:
            self._on_statement(event, found, body)
            if not transaction.is_group:
                self._end()

    def _on_xa(self, event: Event, transaction: Transaction, word: str) -> None:
        """MySQL logs the words of an XA transaction around its rows; the event that prepares or commits it comes behind them."""
        if word in ("START", "BEGIN"):
            transaction.is_group = True
        elif word == "COMMIT":
            # Its rows were logged when it was prepared.
            raise self._error(event, e.XA_PREPARED, "a transaction that was prepared by XA is committed")
        elif word == "ROLLBACK":
            self._end()

    def _on_statement(self, event: Event, found: list[str], body: plain.Query) -> None:
        changed = statements.changed_rows_of(found, body.schema)
        if changed is not None:
            if changed[0] == SYSTEM_DATABASE:
                return
            where = {"table": ".".join(changed)} if changed[1] else {}
            text = "a statement that changes rows is logged as text"
            raise CdcError(e.STATEMENT_LOGGED, text, where={**self._where(event), **where})
        truncated = statements.truncated(found, body.schema)
        if truncated is None:
            # It may have changed any table.
            self._plans.clear()
            self.replanned += 1
            self._tables.altered()
            self._tell_of(event, body)
            return
        index, self.index = self.index, self.index + 1
        plan = self._tables.named(*truncated)
        if plan is not None and index >= self._drop_to and self._keeps(plan, RowEvent("t", b"")):
            self._emit(plan, "t", self._source(event, plan.table.path, 0), (index, 0))

    def _tell_of(self, event: Event, body: plain.Query) -> None:
        """Hands on a statement about captured tables, where that is wanted."""
        told, text = self._options.schema_changes, _text(body)
        words = statements.without_settings(statements.words(text, SCHEMA_TOKENS_MAX))
        statement = schema_statement(words, body.schema)
        if statement is None:
            return
        index, self.index = self.index, self.index + 1
        if told is None or index < self._drop_to:
            return
        assert self.transaction is not None
        source = {**self._source(event, (statement.database, ""), 0), "tx_index": index, "tx_sub": 0}
        change = told.change(statement, text, Position(self.transaction.number, index, 0), source)
        if change is not None:
            self.out.append(change)

    def _savepoint(self) -> _Savepoint:
        """Returns the place of the transaction that may be gone back to."""
        # Rows that an earlier run has handed on are not in the output.
        at = -1 if self.index < self._drop_to else len(self.out)
        return _Savepoint(at, self.order_counts() or {})

    def _on_rollback(self, event: Event, found: list[str]) -> None:
        """What was logged before is undone, but for what was handed on already."""
        behind = 2 if statements.keyword(found, 1) == "WORK" else 1
        is_partial = statements.keyword(found, behind) == "TO"
        to: _Savepoint | None = self._begun_at
        if is_partial:
            to = self._savepoints.get(
                _name_of(found, behind + (2 if statements.keyword(found, behind + 1) == "SAVEPOINT" else 1))
            )
        if to is None:
            raise self._error(
                event, e.MALFORMED_EVENT, "a transaction is rolled back to a savepoint that it does not have"
            )
        self._go_back(event, to)
        if not is_partial:
            self._end()

    def _go_back(self, event: Event, to: _Savepoint) -> None:
        if to.at < 0:
            raise self._error(event, e.ROLLED_BACK, "a transaction is rolled back of which a part was handed on")
        del self.out[to.at :]
        if self._options.transactions:
            self._options.transactions.go_back(to.counts)
        if self.observer:
            self.observer.undone()

    # -- rows -------------------------------------------------------------------------------------------------------

    def _on_rows(self, event: Event, rows: RowsEvent) -> None:
        if rows.table is None or not rows.rows:
            return
        plan, first = self._plan_in(event, rows.table), self.index
        self.index += len(rows.rows)
        if plan is None or self.index <= self._drop_to:
            return
        op = _OPS[rows.operation]
        for at, row in enumerate(rows.rows):
            if first + at >= self._drop_to:
                self._change(plan, op, row, self._source(event, plan.table.path, at), first + at)

    def _on_unread_rows(self, event: Event, rows: UnreadRows) -> None:
        """Leaves to the writer what it can write, and reads the others one by one."""
        plan, op = self._plan_in(event, rows.table), _OPS[rows.head.operation]
        first, at, end = self.index, rows.head.rows_at, len(rows.data)
        source = None if plan is None else self._source(event, plan.table.path, 0)
        writer = self.writer if self._leaves(plan, op) and at < end else None
        if writer is None or not writer.begin(plan, rows, source):
            self._on_rows(event, rows.read())
            return
        while at < end:
            at, written = writer.write(at, self.index - first, self.index)
            self.index += written
            if (made := writer.take()) is not None:
                self.out.append(made)
            if at < end:
                row, at = rows.row(at)
                index, self.index = self.index, self.index + 1
                if plan is not None:
                    self._change(plan, op, row, self._source(event, plan.table.path, index - first), index)

    def _leaves(self, plan: TablePlan | None, op: Op) -> bool:
        """Returns whether nobody looks at rows of this operation but who writes them."""
        if self.observer is not None or self.index < self._drop_to:
            return False
        options = self._options
        if options.transactions is not None or options.skips_same or op in options.skipped:
            return False
        return plan is None or op != "c" or plan.name not in self.listeners

    def _plan_in(self, event: Event, table: TableMap) -> TablePlan | None:
        if self.transaction is None:
            raise self._error(event, e.MALFORMED_EVENT, "rows outside of a transaction")
        return self.plan(table)

    def plan(self, table: TableMap) -> TablePlan | None:
        """Returns the plan of a table as the log describes it; None when it is not captured."""
        known = self._plans.get(id(table))
        if known is not None and known[0] is table:
            return known[1]
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        plan = self._tables.plan(table)
        self._plans[id(table)] = table, plan
        if plan is not None and self.observer is not None:
            self.observer.reshaped(plan)
        return plan

    def _change(self, plan: TablePlan, op: Op, row: BinlogRow, source: JsonObject, index: int) -> None:
        try:
            before = None if row.before is None else plan.row(row.before)
            after = None if row.after is None else plan.row(row.after)
        except (ValueError, ArithmeticError, TypeError) as exc:
            # Their texts may quote the value.
            text = f"a value cannot be handed on ({type(exc).__name__})"
            raise CdcError(e.VALUE, text, where={"table": plan.name, "position": source["pos"]}) from None
        after, unchanged = filled(before, after)
        if not plan.has_key(before, unchanged):
            text = "a row was logged without a column of its key"
            raise CdcError(e.ROW_IMAGE, text, where={"table": plan.name, "position": source["pos"]})
        moved = before is not None and after is not None and differ(before, after, plan.out.key)
        is_partial = bool(unchanged) and lacks_values(plan, op, row, unchanged)
        if plan.name in self.listeners and op == "c" and after is not None:
            self.listeners[plan.name](plan, after)
        if self.observer or self._options.skipped or self._options.skips_same:
            event = RowEvent(op, row)
            event.before, event.after, event.unchanged = nulled(before), after, unchanged
            event.key_changed = moved and before is not None and differ(before, after or (), plan.table.key)
            event.same = op == "u" and before == after
            event.is_partial = is_partial
            if not self._keeps(plan, event, moved=moved):
                return
        if is_partial or (unchanged and plan.table.key and (moved or self._options.completes)):
            self.incomplete.append((plan, row))
        if moved and before is not None and after is not None:
            self._move(plan, source, index, (before, after, unchanged))
            return
        # Only a whole row is one to who reads what was there before.
        shown = nulled(before) if op == "d" or (before is not None and UNSENT not in before) else None
        self._emit(plan, op, source, (index, 0), shown, after, unchanged)

    def _move(self, plan: TablePlan, source: JsonObject, index: int, rows: tuple[Row, Row, tuple[int, ...]]) -> None:
        """An update of the key: a delete under the key before, and a create under the new one."""
        before, after, unchanged = rows
        key, skipped = plan.out.key, self._options.skipped
        if "d" not in skipped:
            gone = self._emit(plan, "d", source, (index, 0), nulled(before))
            gone.other_key = tuple(after[i] for i in key)
        if "c" not in skipped:
            made = self._emit(plan, "c", {**source, "tx_sub": 1}, (index, 1), None, after, unchanged)
            made.other_key = tuple(before[i] for i in key)

    def _keeps(self, plan: TablePlan, event: RowEvent, *, moved: bool = False) -> bool:
        # A reader of a row that has another key now would keep it under the one before.
        event.emitted = (event.op not in self._options.skipped or moved) and not (
            event.same and self._options.skips_same
        )
        return (self.observer is None or self.observer.event(plan, event)) and event.emitted

    def _source(self, event: Event, path: tuple[str, ...], row: int) -> JsonObject:
        transaction = self.transaction
        assert transaction is not None
        return {
            **self._template,
            "ts_ms": transaction.commit_us // 1000,
            "ts_us": transaction.commit_us,
            "ts_ns": transaction.commit_us * 1000,
            "db": path[0],
            "table": path[1],
            "server_id": transaction.server_id,
            "gtid": transaction.gtid or None,
            "file": event.place.file,
            "pos": event.place.position,
            "row": row,
            "thread": transaction.thread,
            "query": transaction.query,
            "commit_lsn": transaction.number,
        }

    def _emit(
        self,
        plan: TablePlan,
        op: Op,
        source: JsonObject,
        place: tuple[int, int],
        before: Row | None = None,
        after: Row | None = None,
        unchanged: tuple[int, ...] = (),
    ) -> Change:
        assert self.transaction is not None
        index, part = place
        position = Position(self.transaction.number, index, part)
        source = {**source, "tx_index": index, "tx_sub": part}
        change = Change(op, plan.out, position, source, before, after, unchanged)
        if self._options.transactions:
            self._options.transactions.place(change, self.out)
        self.out.append(change)
        return change

    # -- errors -----------------------------------------------------------------------------------------------------

    def _error(self, event: Event, code: str, text: str) -> CdcError:
        return CdcError(code, text, where=self._where(event))

    def _where(self, event: Event) -> dict[str, str | int]:
        return {"file": event.place.file, "position": event.place.position}


def _text(body: plain.Query) -> str:
    """Returns the statement's text; words that matter here are ASCII in every character set of a client."""
    try:
        charset = charsets.charset_of(body.collation) if body.collation else None
        return charset.decode(body.statement) if charset else body.statement.decode(errors="replace")
    except (e.UndecodableError, e.UnknownTypeError):
        return body.statement.decode(errors="replace")


def _name_of(found: list[str], at: int) -> str:
    """Returns the name of a savepoint, in which upper and lower case are the same."""
    return found[at].removeprefix("`").casefold() if at < len(found) else ""
