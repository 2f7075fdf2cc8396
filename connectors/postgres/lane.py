"""The fast lane: row messages that the native core can do become records at once, all others changes as ever.

Both see the same stream in the same order. The lane counts messages with the decoder, and what it has collected goes
into the decoder's output before anything that the decoder itself puts there.
"""

from __future__ import annotations

import logging
from functools import cache
from operator import itemgetter
from types import ModuleType
from typing import Any, Final

from cdcworker.connectors.postgres.changes import HEADER, ROWS, Changes
from cdcworker.connectors.postgres.kinds import layout_arguments
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.schemas.binary import Write
from cdcworker.schemas.change import Position, Ready
from cdcworker.schemas.encode import UNCHANGED_HEADER
from cdcworker.schemas.shape import Shaper, field_runs

log = logging.getLogger(__name__)

_OWN: Final = frozenset({"ts_ms", "ts_us", "ts_ns", "txId", "commit_lsn"})
"""Of the source block: each transaction has others."""
_CUTS: Final = ("sequence", "schema", "table", "lsn", "tx_index", "tx_sub")


@cache
def native() -> ModuleType | None:
    """The compiled core, where it was built."""
    try:
        from cdcworker.connectors.postgres import _core  # type: ignore[attr-defined]
    except ImportError:
        log.warning("the native core was not built: rows are decoded in Python, several times slower")
        return None
    return _core  # type: ignore[no-any-return]


class _Source:
    """Writes the runs of fields of the source block that a transaction decides."""

    def __init__(self, core: Any) -> None:
        self._core = core
        head, clocks, between, xid, rest, middle, tail = field_runs(SOURCE_SCHEMA["fields"], cuts=_CUTS)
        if between or middle or tail:
            raise ValueError("the source block has fields where none are expected")
        self._runs = head, clocks, xid, rest
        names = [name for run in self._runs for name, _ in run if name in _OWN]
        self._numbers = itemgetter(*names)
        self._pieces: tuple[tuple[bytes, ...], ...] = ()

    def hand_on(self, template: dict[str, Any], sequence: bytes) -> None:
        """To the core. Of a transaction of one row this would be a third of the work, if it were not for what all
        transactions have in common."""
        if template["origin"] is not None:
            parts = [b"".join([write(template[name]) for name, write in run]) for run in self._runs]
            self._core.set_source(*parts, sequence)
            return
        if not self._pieces:
            self._pieces = tuple(_pieces(run, template) for run in self._runs)
        self._core.set_numbers(self._pieces, self._numbers(template), sequence)


def _pieces(run: list[tuple[str, Write]], template: dict[str, Any]) -> tuple[bytes, ...]:
    """The bytes of a run between the longs that each transaction has of its own."""
    pieces = [b""]
    for name, write in run:
        if name in _OWN:
            # In front of the number stands the branch of a union, if it is in one.
            pieces[-1] += write(0)[:-1]
            pieces.append(b"")
        else:
            pieces[-1] += write(template[name])
    return tuple(pieces)


class Lane:
    """Feeds one decoder. `feed` takes messages one by one, `feed_frames` a buffer of them."""

    def __init__(self, changes: Changes, shaper: Shaper, module: ModuleType) -> None:
        self._changes = changes
        self._shaper = shaper
        self._module = module
        self._core = module.Core(UNCHANGED_HEADER, tuple(changes.skipped))
        self._source = _Source(self._core)
        self._stage = -1
        self._turns = -1
        changes.replanned = self._forget
        self.begin()

    def begin(self) -> None:
        """Before the messages of one read: what is made from now on carries the present time."""
        self._core.set_tails(self._shaper.tails())

    def feed(self, data: bytes) -> int:
        """One message, as the decoder's `feed`."""
        kind = data[HEADER]
        if kind in ROWS and self._enter() and (self._core.one(data) or (self._bind(data) and self._core.one(data))):
            return kind
        return self._by_decoder(data)

    def feed_frames(self, buffer: bytearray, start: int, end: int) -> int:
        """Frames from `start` on: the offset of the first one that is not a row done here."""
        return self._core.feed(buffer, start, end) if self._enter() else start

    def flush(self) -> None:
        """Whatever has been collected stands in the decoder's output, and the decoder has the count."""
        made = self._core.take()
        if made is not None:
            # Before a commit and a begin: it is all of one transaction.
            records, size, largest, topic, counts = made
            ts_ms = self._changes.transaction_source["ts_ms"] or 0
            self._changes.out.append(Ready(records, size, largest, topic, counts, ts_ms))
        if self._stage == self._changes.stage:
            self._changes.index = self._core.index

    def _by_decoder(self, data: bytes) -> int:
        self.flush()
        try:
            return self._changes.feed(data)
        finally:
            self._core.index = self._changes.index

    def _enter(self) -> bool:
        """Whether rows may be done here now; the core knows the transaction then."""
        changes, core = self._changes, self._core
        if changes.observer is not None or changes.skips_same or not changes.in_transaction:
            return False
        if changes.orders is not None or changes.transcode is not None:
            # Each event has its number in its transaction, which the decoder counts; values in binary are its own too.
            return False
        if changes.dropping and changes.drop_to:
            return False
        if self._stage != changes.stage:
            self._stage = changes.stage
            self._source.hand_on(changes.transaction_source, changes.sequence_start.encode())
            core.index, core.dropping, core.ready = changes.index, changes.dropping, True
        if self._turns != self._shaper.turns:
            core.forget()
            self._turns = self._shaper.turns
        return True

    def _bind(self, data: bytes) -> bool:
        """A layout for the table of this message, if it has none yet."""
        oid = int.from_bytes(data[HEADER + 1 : HEADER + 5], "big")
        if oid in self._core.layouts or oid in self._changes.listeners or not self._changes.knows(oid):
            return False
        plan = self._changes.plan(oid)
        if plan is None:
            self._core.set_layout(oid, self._module.Layout())
            return True
        if plan.handed is not None:
            return False
        self.flush()
        part = self._changes.part
        assert part
        shape = self._shaper.shape(plan.table, Position(*part, 0))
        self._turns = self._shaper.turns
        self._core.set_layout(oid, self._module.Layout(*layout_arguments(plan, shape)))
        return True

    def _forget(self, oid: int) -> None:
        self._core.set_layout(oid, None)
