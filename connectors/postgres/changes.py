"""From pgoutput messages to changes with positions: transactions, keys, unsent values. Opens nothing itself.

`tx_index` counts the data messages of a transaction (insert, update, delete, truncate, logical message) as the server
sends them, before any filter. RELATION and TYPE are not counted: they come once per session, not once per replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cdcworker.connectors.postgres import wire
from cdcworker.connectors.postgres.encoding import unreadable
from cdcworker.connectors.postgres.errors import DECODE, SCHEMA_LOOKUP
from cdcworker.connectors.postgres.events import Event, Observer
from cdcworker.connectors.postgres.orders import Orders
from cdcworker.connectors.postgres.relations import MESSAGE_TABLE, MISFIT, Plan
from cdcworker.connectors.postgres.window import differ
from cdcworker.connectors.postgres.wire import HAD_NULL, HAD_UNCHANGED, Begin, Commit, Message, Relation, format_lsn
from cdcworker.schemas.change import Change, Op, Position, Ready, Row
from cdcworker.schemas.errors import CdcError

HEADER = 25
"""Bytes of XLogData before the payload: `w`, two LSNs and a clock."""

OWN_PREFIX = "cdcworker"
"""Prefix of the logical messages that this source writes itself; they are not handed on."""

ROWS = {ord("I"): "c", ord("U"): "u", ord("D"): "d"}
"""Messages of rows, with their operations."""

Resolve = Callable[[Relation], Plan | None]
"""The plan of a relation, None when the table is not captured."""


class Changes:
    """The decoder of one stream. `out` collects changes; the caller takes them and looks at `in_transaction`."""

    def __init__(self, resolve: Resolve, template: dict[str, Any], skipped: frozenset[str] = frozenset()) -> None:
        self._resolve = resolve
        self._template = template
        self.skipped = skipped
        self._plans: dict[int, Plan | None] = {}
        self._sources: dict[int, dict[str, Any]] = {}
        self.transaction_source = template
        self._begin: Begin | None = None
        self._renewing = self.dropping = False
        # `stage` grows whenever a transaction begins, ends, gets an origin, or is not dropped any more.
        self.drop_to = self.index = self.stage = 0
        self.replanned: Callable[[int], None] = lambda oid: None
        # Told of each row that was handed on under a new key without a value that was not sent.
        self.moved: Callable[[Plan, bytes], None] = lambda plan, data: None
        self.expired: Callable[[int], Iterable[int]] = lambda lsn: ()  # tables to be planned anew as of a commit
        self._last_commit: int | None = None
        self.observer: Observer | None = None
        self.orders: Orders | None = None
        self.skips_same = False  # updates that change none of the captured columns
        self.listeners: dict[int, Callable[[Plan, Row], None]] = {}  # of new rows, by OID, until their commit
        self.transcode: Callable[[Plan, bytes], bytes] | None = None  # to values in text, of a stream in binary
        self.want_message: Callable[[str], bool] = lambda prefix: True
        self.want_origin: Callable[[str], bool] = lambda name: True
        self.resume_lsn = 0  # transactions that committed at or before it have been handed on by an earlier run
        self.resume_part: tuple[int, int] | None = None  # commit LSN of one of which so many messages have been
        self.out: list[Change | Ready] = []
        self.commit: Commit | None = None  # the last one that was read
        self.message_lsn = 0  # position of the last non-transactional message
        self.marked_lsn = 0  # commit of the last transaction with a message of our own
        self._mark = 0  # as that, of one whose commit has not come yet
        self.last_xid = 0
        self._handlers: dict[int, Callable[[bytes], None]] = {
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
    def in_transaction(self) -> bool:
        return self._begin is not None

    @property
    def part(self) -> tuple[int, int] | None:
        """The commit LSN of the transaction under way and how many of its messages have been read."""
        return (self._begin.final_lsn, self.index) if self._begin else None

    @property
    def sequence_start(self) -> str:
        """Debezium's `sequence` up to the event's own LSN."""
        return f'["{self._last_commit}","' if self._last_commit else '[null,"'

    def plan(self, oid: int) -> Plan | None:
        return self._plans.get(oid)

    def handle(self, kind: int, handler: Callable[[bytes], None]) -> None:
        """Messages of this kind go to `handler`."""
        self._handlers[kind] = handler

    def knows(self, oid: int) -> bool:
        return oid in self._plans

    def feed(self, data: bytes) -> int:
        """One XLogData message; returns its kind (the byte). CdcError with the LSN when it cannot be decoded."""
        kind = data[HEADER]
        try:
            self._handlers[kind](data)
        except (wire.WireError, IndexError, KeyError) as exc:
            raise CdcError(DECODE, f"message {chr(kind)!r}: {exc}", where=self._where(data)) from exc
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
        begin = wire.read_begin(data[HEADER:])
        self._begin = begin
        self.stage += 1
        self.last_xid = begin.xid
        self.index = 0
        self._sources.clear()
        part = self.resume_part
        self.drop_to = part[1] if part and part[0] == begin.final_lsn else 0
        self.dropping = begin.final_lsn <= self.resume_lsn or self.drop_to > 0
        self.transaction_source = {
            **self._template,
            "ts_ms": begin.commit_us // 1000,
            "ts_us": begin.commit_us,
            "ts_ns": begin.commit_us * 1000,
            "txId": begin.xid,
            "commit_lsn": begin.final_lsn,
        }
        if self.orders:
            self.orders.begin(begin, resumed=self.drop_to > 0)
        if self.observer:
            self.observer.began(begin.xid)
        for plan in filter(None, map(self._plans.get, self.expired(begin.final_lsn))):
            self._put_in_force(self._resolve(plan.relation), plan.relation)

    def _on_commit(self, data: bytes) -> None:
        commit = wire.read_commit(data[HEADER:])
        if self._begin is None or self._begin.final_lsn != commit.commit_lsn:
            raise wire.WireError("commit without its begin")
        if self.orders:
            self.orders.end(Position(commit.commit_lsn, self.index, 0), self.out)
        self.commit = commit
        self._last_commit = commit.commit_lsn
        self.marked_lsn = max(self.marked_lsn, self._mark)
        self._begin = None
        self.stage += 1

    def _on_origin(self, data: bytes) -> None:
        origin = wire.read_origin(data[HEADER:])
        self.transaction_source = {**self.transaction_source, "origin": origin.name, "origin_lsn": origin.lsn}
        if not self.want_origin(origin.name):
            self.dropping, self.drop_to = True, 0
        self.stage += 1
        self._sources.clear()

    def _on_relation(self, data: bytes) -> None:
        relation = wire.read_relation(data[HEADER:])
        plan = self._resolve(relation)
        old = self._plans.get(relation.oid)
        if plan and old and plan.table == old.table and plan.relation == old.relation:
            return
        self._put_in_force(plan, relation)

    def _put_in_force(self, plan: Plan | None, relation: Relation) -> None:
        self._plans[relation.oid] = plan
        self._sources.pop(relation.oid, None)
        self.replanned(relation.oid)
        if plan and self.observer:
            self.observer.reshaped(plan)

    # -- rows -------------------------------------------------------------------------------------------------------

    def _dropped(self) -> bool:
        """Whether the message that was counted last has been handed on by an earlier run."""
        if self.dropping and 0 < self.drop_to < self.index:
            self.dropping = False
            self.stage += 1
        return self.dropping

    def _open(self, data: bytes) -> tuple[Plan | None, bytes]:
        """Count the message and find its plan, None when it is not to be handed on; with its values as text."""
        if self._begin is None:
            raise wire.WireError("a change outside a transaction")
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
        return ROWS[data[HEADER]] in self.skipped and self.observer is None and oid not in self.listeners

    def _read(self, plan: Plan, data: bytes, p: int) -> tuple[list[Any], int, int]:
        read = wire.read_values if plan.whole else wire.read_some_values
        return read(data, p, plan.parsers)  # type: ignore[arg-type]

    def _renewed(self, plan: Plan, data: bytes) -> bool:
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

    def _new_row(self, plan: Plan, data: bytes, p: int) -> tuple[list[Any], int, Plan]:
        """The new tuple at the end of a message; a null where the catalog allows none makes the column optional."""
        values, end, flags = self._read(plan, data, p)
        if end != len(data):
            raise wire.WireError("tuple: bytes left over or missing")
        if flags & HAD_NULL and plan.required:
            nulls = [i for i in plan.required if values[i] is None]
            if nulls:
                plan = plan.relaxed(nulls)
                self._plans[plan.relation.oid] = plan
                self.replanned(plan.relation.oid)
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
            event = Event("c", data)
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
            unchanged = wire.fill_unsent(values, old, plan.table.key if kind == 75 else range(len(values)))
        after = tuple(values)
        before = tuple(old) if old is not None and kind == 79 else None
        if self.observer or self.skipped or self.skips_same:
            event = Event("u", data)
            event.before = tuple(old) if old is not None else None
            event.after, event.unchanged = after, unchanged
            event.key_changed = old is not None and differ(old, after, plan.table.key)
            event.same = before == after
            if not self._keep(plan, event):
                return
        if old is not None and differ(old, after, plan.out.key):
            self._emit_key_change(plan, data, tuple(old), after, unchanged)
        else:
            self._emit(plan, "u", data, before, after, unchanged)

    def _on_delete(self, data: bytes) -> None:
        plan, data = self._open(data)
        if plan is None:
            return
        values, end, _ = self._read(plan, data, 31)
        if end != len(data):
            raise wire.WireError("tuple: bytes left over or missing")
        if plan.stale and self._renewed(plan, data):
            return
        before = tuple(values)
        if self.observer or self.skipped:
            event = Event("d", data)
            event.before = before
            if not self._keep(plan, event):
                return
        self._emit(plan, "d", data, before, None)

    def _on_truncate(self, data: bytes) -> None:
        truncate = wire.read_truncate(data[HEADER:])
        if self._begin is None:
            raise wire.WireError("a truncate outside a transaction")
        self.index += 1
        if self._dropped():
            return
        for sub, oid in enumerate(truncate.oids):
            plan = self._plans.get(oid)
            if plan and self._keep(plan, Event("t", data)):
                self._emit(plan, "t", data, None, None, sub=sub)

    def _keep(self, plan: Plan, event: Event) -> bool:
        event.emitted = event.op not in self.skipped and not (event.same and self.skips_same)
        return (self.observer is None or self.observer.event(plan, event)) and event.emitted

    def _emit(
        self,
        plan: Plan,
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

    def _emit_key_change(self, plan: Plan, data: bytes, old: Row, after: Row, unchanged: tuple[int, ...]) -> None:
        key = plan.out.key
        self._emit(plan, "d", data, old, None).other_key = tuple(after[i] for i in key)
        self._emit(plan, "c", data, None, after, unchanged, sub=1).other_key = tuple(old[i] for i in key)
        if unchanged:
            self.moved(plan, data)

    # -- logical messages -------------------------------------------------------------------------------------------

    def _on_message(self, data: bytes) -> None:
        message = wire.read_message(data[HEADER:])
        if message.transactional:
            self.index += 1
            dropped = self._dropped()
            position = Position(self._begin.final_lsn if self._begin else message.lsn, self.index - 1, 0)
            if message.prefix == OWN_PREFIX:
                self._mark = position.commit_lsn
        else:
            # Its LSN is its end, where the next record begins, which may be a commit: one less is its own.
            self.message_lsn = at = message.lsn - 1
            dropped = at <= self.resume_lsn
            position = Position(at, 0, 0)
        if not dropped and message.prefix != OWN_PREFIX and self.want_message(message.prefix):
            self._emit_message(message, position)

    def _emit_message(self, message: Message, position: Position) -> None:
        base = self.transaction_source if message.transactional else self._template
        at = {"lsn": message.lsn, "commit_lsn": position.commit_lsn, "tx_index": position.tx_index}
        source = {**base, "schema": "", "table": "", **at, "ts_ms": base["ts_ms"] or 0}
        change = Change("m", MESSAGE_TABLE, position, source, None, (message.prefix, message.content))
        if self.orders and message.transactional:
            self.orders.place(change, self.out)
        self.out.append(change)
