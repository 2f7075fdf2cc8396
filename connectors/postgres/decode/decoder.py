"""From pgoutput messages to changes with positions: transactions, keys, unsent values. Opens nothing itself.

`tx_index` counts the data messages of a transaction (insert, update, delete, truncate, logical message) as the server
sends them, before any filter. RELATION and TYPE are not counted: they come once per session, not once per replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcworker.connectors.capture.snapshot.observer import RowEvent, RowObserver
from cdcworker.connectors.capture.snapshot.row_identity import differ
from cdcworker.connectors.capture.stream.transaction_metadata import TransactionMetadata
from cdcworker.connectors.postgres import pgoutput
from cdcworker.connectors.postgres.decode.row_listener import NoListener, RowListener
from cdcworker.connectors.postgres.decode.table_plan import MESSAGE_TABLE, MISFIT, TableDecodePlan
from cdcworker.connectors.postgres.errors import DECODE, SCHEMA_LOOKUP
from cdcworker.connectors.postgres.pgoutput import (
    HAD_NULL,
    HAD_UNCHANGED,
    HEADER,
    OWN_PREFIX,
    Begin,
    Commit,
    LogicalMessage,
    Relation,
    format_lsn,
)
from cdcworker.connectors.postgres.transport.server_encoding import unreadable
from cdcworker.schemas.change import Change, EncodedRecords, Op, Position, Row, Table
from cdcworker.schemas.errors import CdcError

ROWS = {ord("I"): "c", ord("U"): "u", ord("D"): "d"}
"""Messages of rows, with their operations."""

_NEW_TUPLE = ord("N")
"""Stands in an update without an old tuple, which the server sends where the key has changed, or always."""

Resolve = Callable[[Relation], TableDecodePlan | None]
"""The plan of a relation, None when the table is not captured."""


def _all(name: str) -> bool:
    """Every message and every origin is handed on."""
    return True


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """What a decoder hands on and how. `skipped`: letters of operations that are left out; `skips_same`: so are updates
    that change none of the captured columns; `marked_lsn`: commit of the last own message that was read before."""

    skipped: frozenset[str] = frozenset()
    skips_same: bool = False
    want_message: Callable[[str], bool] = _all
    want_origin: Callable[[str], bool] = _all
    transactions: TransactionMetadata | None = None
    transcode: Callable[[TableDecodePlan, bytes], bytes] | None = None
    """Turns a message of a stream in binary into one with its values as text."""
    marked_lsn: int = 0
    completes: bool = False
    """A row that was handed on without a value that was not sent is read again, whether or not its key changed."""
    messages: Table = MESSAGE_TABLE
    """The shape of logical messages; `content` makes its content."""
    content: Callable[[bytes], bytes | str] = bytes
    handlers: Mapping[int, Callable[[bytes], None]] = field(default_factory=dict)
    """Of further kinds of messages."""


class PgoutputDecoder:
    """The decoder of one stream. `out` collects changes; the caller takes them and looks at `in_transaction`."""

    def __init__(
        self,
        resolve: Resolve,
        template: dict[str, Any],
        options: DecoderOptions | None = None,
        listener: RowListener | None = None,
    ) -> None:
        options, listener = options or DecoderOptions(), listener or NoListener()
        self._resolve = resolve
        self.template = template
        self.skipped = options.skipped
        self._plans: dict[int, TableDecodePlan | None] = {}
        self._sources: dict[int, dict[str, Any]] = {}
        self.transaction_source = template
        self._begin: Begin | None = None
        self.in_transaction = False
        self._renewing = self.dropping = False
        # `stage` grows whenever a transaction begins, ends, gets an origin, or is not dropped any more, and with `resume`.
        self.drop_to = self.index = self.stage = 0
        self.replanned: set[int] = set()  # tables with another plan, until whoever has layouts of theirs has seen it
        self.moved = listener.moved
        self.expired = listener.expired
        self.expiring = listener.expiring
        self.sequence_start = '[null,"'
        """Debezium's `sequence` up to the event's own LSN: it begins with the last commit that was read."""
        self.observer: RowObserver | None = None
        self.orders = options.transactions
        self.skips_same, self.completes = options.skips_same, options.completes
        self.listeners: dict[
            int, Callable[[TableDecodePlan, Row], None]
        ] = {}  # of new rows, by OID, until their commit
        self.transcode = options.transcode
        self.want_message = options.want_message
        self.want_origin = options.want_origin
        self.resume_lsn = 0  # transactions that committed at or before it have been handed on by an earlier run
        self.resume_part: tuple[int, int] | None = None  # commit LSN of one of which so many messages have been
        self.out: list[Change | EncodedRecords] = []
        self.bytes = 0  # of the messages that were read since the caller took the output
        self.commit: Commit | None = None  # the last one that was read
        self.message_lsn = 0  # position of the last non-transactional message
        self.marked_lsn = options.marked_lsn  # commit of the last transaction with a message of our own
        self._mark = 0  # as that, of one whose commit has not come yet
        self.last_xid = 0
        self._messages, self._content = options.messages, options.content
        self._handlers = {**self._own_handlers(), **options.handlers}

    def _own_handlers(self) -> dict[int, Callable[[bytes], None]]:
        """Returns what is done with each kind of message, by its byte."""
        return {
            ord("B"): self._on_begin,
            ord("C"): self._on_commit,
            ord("I"): self._on_insert,
            ord("U"): self._on_update,
            ord("D"): self._on_delete,
            ord("T"): self._on_truncate,
            ord("R"): self._on_relation,
            ord("O"): self._on_origin,
            ord("M"): self._on_message,
            ord("Y"): lambda data: None,
        }

    @property
    def part(self) -> tuple[int, int] | None:
        """The commit LSN of the transaction under way and how many of its messages have been read."""
        return (self._begin.final_lsn, self.index) if self._begin else None

    def plan(self, oid: int) -> TableDecodePlan | None:
        return self._plans.get(oid)

    def resume(self, lsn: int, part: tuple[int, int] | None, counts: Mapping[str, int] | None) -> None:
        """Called before the stream starts. Transactions that committed at or before `lsn` were handed on by an earlier
        run, and of one that commits behind it so many messages as `part` says, with these events by table."""
        self.resume_lsn, self.resume_part = lsn, part
        self.stage += 1
        if self.orders:
            self.orders.resume(counts)

    def observe(self, observer: RowObserver | None) -> None:
        """Shows every event to this observer from now on; to none with None."""
        self.observer = observer

    def listen(self, oid: int, listener: Callable[[TableDecodePlan, Row], None]) -> None:
        """Gives each new row of this table to the listener, before the commit of its transaction."""
        self.listeners[oid] = listener

    def read_text(self) -> None:
        """The stream that starts next has its values as text."""
        self.transcode = None

    def take_until(self, boundary: int, size: int) -> list[Change | EncodedRecords]:
        """Returns the output up to a boundary, which was made of so many bytes; the rest stays."""
        taken, self.out = self.out[:boundary], self.out[boundary:]
        self.bytes -= size
        return taken

    def knows(self, oid: int) -> bool:
        return oid in self._plans

    def feed(self, data: bytes) -> int:
        """One XLogData message; returns its kind (the byte). CdcError with the LSN when it cannot be decoded."""
        kind = data[HEADER]
        self.bytes += len(data)
        try:
            self._handlers[kind](data)
        except pgoutput.WireError as exc:
            raise CdcError(DECODE, f"message {chr(kind)!r}: {exc}", where=self._where(data)) from exc
        except (IndexError, KeyError) as exc:
            # Their texts quote what was looked for, which may be a value.
            raise CdcError(DECODE, f"message {chr(kind)!r}: {type(exc).__name__}", where=self._where(data)) from exc
        except (ValueError, ArithmeticError) as exc:
            raise unreadable(exc, self._where(data)) from exc
        return kind

    def _where(self, data: bytes) -> dict[str, str | int]:
        where: dict[str, str | int] = {"lsn": format_lsn(int.from_bytes(data[1:9], "big"))}
        plan = self._plans.get(int.from_bytes(data[HEADER + 1 : HEADER + 5], "big"))
        if plan:
            where["table"] = ".".join(plan.table.path)
        return where

    # -- transactions -----------------------------------------------------------------------------------------------

    def _on_begin(self, data: bytes) -> None:
        begin = pgoutput.read_begin(data[HEADER:])
        self.note_begin(begin)
        part = self.resume_part
        self.drop_to = part[1] if part and part[0] == begin.final_lsn else 0
        self.dropping = begin.final_lsn <= self.resume_lsn or self.drop_to > 0
        if self.orders:
            self.orders.begin(f"{begin.xid}:{begin.final_lsn}", begin.commit_us // 1000, resumed=self.drop_to > 0)
        if self.observer:
            self.observer.began(begin.xid)
        for oid in self.expired(begin.final_lsn):
            plan = self._plans.get(oid)
            if plan is not None:
                self._put_in_force(self._resolve(plan.relation), plan.relation)

    def _on_commit(self, data: bytes) -> None:
        commit = pgoutput.read_commit(data[HEADER:])
        if self._begin is None or self._begin.final_lsn != commit.commit_lsn:
            raise pgoutput.WireError("commit without its begin")
        if self.orders:
            self.orders.end(Position(commit.commit_lsn, self.index, 0), self.out)
        self.note_end(commit, self._begin.xid)

    def note_begin(self, begin: Begin) -> None:
        """The messages that follow are of this transaction, of which nothing is dropped."""
        self._begin, self.in_transaction = begin, True
        self.stage += 1
        self.last_xid = begin.xid
        self.index = self.drop_to = 0
        self.dropping = False
        self._sources.clear()
        self.transaction_source = {
            **self.template,
            "ts_ms": begin.commit_us // 1000,
            "ts_us": begin.commit_us,
            "ts_ns": begin.commit_us * 1000,
            "txId": begin.xid,
            "commit_lsn": begin.final_lsn,
        }

    def note_end(self, commit: Commit, xid: int) -> None:
        """This transaction has been read to its end, here or by whoever reads beside the decoder."""
        self.commit, self.last_xid = commit, xid
        self.sequence_start = f'["{commit.commit_lsn}","'
        self.marked_lsn = max(self.marked_lsn, self._mark)
        self._begin, self.in_transaction = None, False
        self.stage += 1

    def _on_origin(self, data: bytes) -> None:
        origin = pgoutput.read_origin(data[HEADER:])
        self.transaction_source = {**self.transaction_source, "origin": origin.name, "origin_lsn": origin.lsn}
        if not self.want_origin(origin.name):
            self.dropping, self.drop_to = True, 0
        self.stage += 1
        self._sources.clear()

    def _on_relation(self, data: bytes) -> None:
        relation = pgoutput.read_relation(data[HEADER:])
        plan = self._resolve(relation)
        old = self._plans.get(relation.oid)
        if plan and old and plan.table == old.table and plan.relation == old.relation:
            return
        self._put_in_force(plan, relation)

    def _put_in_force(self, plan: TableDecodePlan | None, relation: Relation) -> None:
        self._plans[relation.oid] = plan
        self._sources.pop(relation.oid, None)
        self.replanned.add(relation.oid)
        if plan and self.observer:
            self.observer.reshaped(plan)

    # -- rows -------------------------------------------------------------------------------------------------------

    def _dropped(self) -> bool:
        """Returns whether the message that was counted last has been handed on by an earlier run."""
        if self.dropping and 0 < self.drop_to < self.index:
            self.dropping = False
            self.stage += 1
        return self.dropping

    def _open(self, data: bytes) -> tuple[TableDecodePlan | None, bytes]:
        """Count the message and find its plan, None when it is not to be handed on; with its values as text."""
        if self._begin is None:
            raise pgoutput.WireError("a change outside a transaction")
        self.index += 1
        oid = int.from_bytes(data[26:30], "big")
        try:
            plan = self._plans[oid]
        except KeyError:
            raise CdcError(SCHEMA_LOOKUP, f"relation {oid} is not described", where=self._where(data)) from None
        dropped = self.dropping and self._dropped() and not self._is_told_again(oid, data)
        if dropped or plan is None or (self.skipped and self._unseen(oid, data)):
            return None, data
        return plan, self.transcode(plan, data) if self.transcode and not self._renewing else data

    def _is_told_again(self, oid: int, data: bytes) -> bool:
        """What listeners knew of a transaction that was handed on in part has ended with the run before."""
        return self.drop_to > 0 and oid in self.listeners and ROWS[data[HEADER]] == "c"

    def _unseen(self, oid: int, data: bytes) -> bool:
        """A row that nobody looks at need not be readable."""
        op = ROWS[data[HEADER]]
        may_move = op == "u" and data[30] != _NEW_TUPLE
        return op in self.skipped and not may_move and self.observer is None and oid not in self.listeners

    def _read(self, plan: TableDecodePlan, data: bytes, p: int) -> tuple[list[Any], int, int]:
        read = pgoutput.read_values if plan.whole else pgoutput.read_some_values
        return read(data, p, plan.parsers)  # type: ignore[arg-type]

    def _renewed(self, plan: TableDecodePlan, data: bytes) -> bool:
        """A value that its type did not have when the plan was made: the message is read again with a new plan, once.
        What is unknown to the catalog too (it is ahead of the stream) is taken as it is, but for a composite's fields."""
        if self._renewing and MISFIT in plan.stale:
            raise ValueError("a composite has other fields than its type")
        plan.stale.clear()
        if self._renewing:
            return False
        self._put_in_force(self._resolve(plan.relation), plan.relation)
        self.index -= 1
        self._renewing = True
        try:
            self._handlers[data[HEADER]](data)
        finally:
            self._renewing = False
        return True

    def _new_row(self, plan: TableDecodePlan, data: bytes, p: int) -> tuple[list[Any], int, TableDecodePlan]:
        """The new tuple at the end of a message; a null where the catalog allows none makes the column optional."""
        values, end, flags = self._read(plan, data, p)
        if end != len(data):
            raise pgoutput.WireError("tuple: bytes left over or missing")
        if flags & HAD_NULL and plan.required:
            nulls = [i for i in plan.required if values[i] is None]
            if nulls:
                plan = plan.relaxed(nulls)
                self._plans[plan.relation.oid] = plan
                self.replanned.add(plan.relation.oid)
        return values, flags, plan

    def _on_insert(self, data: bytes) -> None:
        plan, data = self._open(data)
        if plan is None:
            return
        values, _, plan = self._new_row(plan, data, 31)
        if plan.stale and self._renewed(plan, data):
            return
        after = tuple(values)
        if plan.relation.oid in self.listeners:
            self.listeners[plan.relation.oid](plan, after)
            if self.dropping:
                return
        if self.observer or self.skipped:
            event = RowEvent("c", data)
            event.after = after
            if not self._keep(plan, event):
                return
        self._emit(plan, "c", data, None, after)

    def _on_update(self, data: bytes) -> None:
        plan, data = self._open(data)
        if plan is None:
            return
        old: list[Any] | None = None
        kind, p = data[30], 31
        if kind in (75, 79):
            old, p, _ = self._read(plan, data, p)
            p += 1
        values, flags, plan = self._new_row(plan, data, p)
        if plan.stale and self._renewed(plan, data):
            return
        unchanged: tuple[int, ...] = ()
        if flags & HAD_UNCHANGED:
            unchanged = pgoutput.fill_unsent(values, old, plan.table.key if kind == 75 else range(len(values)))
        after = tuple(values)
        before = tuple(old) if old is not None and kind == 79 else None
        moved = old is not None and differ(old, after, plan.out.key)
        if self.observer or self.skipped or self.skips_same:
            event = RowEvent("u", data)
            event.before = tuple(old) if old is not None else None
            event.after, event.unchanged = after, unchanged
            event.key_changed = old is not None and differ(old, after, plan.table.key)
            event.same = before == after
            if not self._keep(plan, event, moved):
                return
        if moved and old is not None:
            self._emit_key_change(plan, data, tuple(old), after, unchanged)
        else:
            self._emit(plan, "u", data, before, after, unchanged)
            if unchanged and self.completes and plan.table.key:
                self.moved(plan, data)

    def _on_delete(self, data: bytes) -> None:
        plan, data = self._open(data)
        if plan is None:
            return
        values, end, _ = self._read(plan, data, 31)
        if end != len(data):
            raise pgoutput.WireError("tuple: bytes left over or missing")
        if plan.stale and self._renewed(plan, data):
            return
        before = tuple(values)
        if self.observer or self.skipped:
            event = RowEvent("d", data)
            event.before = before
            if not self._keep(plan, event):
                return
        self._emit(plan, "d", data, before, None)

    def _on_truncate(self, data: bytes) -> None:
        truncate = pgoutput.read_truncate(data[HEADER:])
        if self._begin is None:
            raise pgoutput.WireError("a truncate outside a transaction")
        self.index += 1
        if self._dropped():
            return
        for sub, oid in enumerate(truncate.oids):
            plan = self._plans.get(oid)
            if plan and self._keep(plan, RowEvent("t", data)):
                self._emit(plan, "t", data, None, None, sub=sub)

    def _keep(self, plan: TableDecodePlan, event: RowEvent, moved: bool = False) -> bool:
        # A reader of a row that has another key now would keep it under the one before.
        event.emitted = (event.op not in self.skipped or moved) and not (event.same and self.skips_same)
        return (self.observer is None or self.observer.event(plan, event)) and event.emitted

    def _emit(
        self,
        plan: TableDecodePlan,
        op: Op,
        data: bytes,
        before: Row | None,
        after: Row | None,
        unchanged: tuple[int, ...] = (),
        sub: int = 0,
    ) -> Change:
        assert self._begin
        oid = plan.relation.oid
        base = self._sources.get(oid)
        if base is None:
            base = self._sources[oid] = {
                **self.transaction_source,
                "schema": plan.table.path[0],
                "table": plan.table.path[1],
            }
        lsn = int.from_bytes(data[1:9], "big")
        index = self.index - 1
        source = base.copy()
        source["sequence"] = f'{self.sequence_start}{lsn}"]'
        source["lsn"] = lsn
        source["tx_index"] = index
        source["tx_sub"] = sub
        position = Position(self._begin.final_lsn, index, sub)
        change = Change(op, plan.out, position, source, before, after, unchanged)
        if self.orders:
            self.orders.place(change, self.out)
        self.out.append(change)
        return change

    def _emit_key_change(
        self, plan: TableDecodePlan, data: bytes, old: Row, after: Row, unchanged: tuple[int, ...]
    ) -> None:
        key = plan.out.key
        if "d" not in self.skipped:
            self._emit(plan, "d", data, old, None).other_key = tuple(after[i] for i in key)
        if "c" in self.skipped:
            return
        self._emit(plan, "c", data, None, after, unchanged, sub=1).other_key = tuple(old[i] for i in key)
        if unchanged:
            self.moved(plan, data)

    # -- logical messages -------------------------------------------------------------------------------------------

    def _on_message(self, data: bytes) -> None:
        message = pgoutput.read_message(data[HEADER:])
        if message.transactional:
            self.index += 1
            dropped = self._dropped()
            position = Position(self._begin.final_lsn if self._begin else message.lsn, self.index - 1, 0)
            if message.prefix == OWN_PREFIX:
                self._mark = position.commit
        else:
            # Its LSN is its end, where the next record begins, which may be a commit: one less is its own.
            self.message_lsn = at = message.lsn - 1
            dropped = at <= self.resume_lsn
            position = Position(at, 0, 0)
        if not dropped and message.prefix != OWN_PREFIX and self.want_message(message.prefix):
            self._emit_message(message, position)

    def _emit_message(self, message: LogicalMessage, position: Position) -> None:
        base = self.transaction_source if message.transactional else self.template
        at = {"lsn": message.lsn, "commit_lsn": position.commit, "tx_index": position.event}
        source = {**base, "schema": "", "table": "", **at, "ts_ms": base["ts_ms"] or 0}
        content = self._content(message.content)
        change = Change("m", self._messages, position, source, None, (message.prefix, content))
        if self.orders and message.transactional:
            self.orders.place(change, self.out)
        self.out.append(change)
