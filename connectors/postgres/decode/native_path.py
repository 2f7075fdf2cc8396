"""The native path of a stream: the native core turns row messages into records, the decoder turns all others into changes.

Both see the same stream in the same order. The path counts messages with the decoder, and the records that it has
collected go into the decoder's output before anything that the decoder itself puts there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Final

from cdcworker.connectors.capture.native.compiled import CLOCK_CACHE_NS, built
from cdcworker.connectors.postgres.decode.decoder import PgoutputDecoder
from cdcworker.connectors.postgres.decode.native_layouts import layout_arguments
from cdcworker.connectors.postgres.pgoutput import HEADER, ROW_KINDS, Begin, Commit
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.schemas.avro_binary import Write
from cdcworker.schemas.change import EncodedRecords, Position
from cdcworker.schemas.encode import TAILS, UNCHANGED_HEADER
from cdcworker.schemas.record_layout import RecordLayouts, field_runs

OWN: Final = ("ts_ms", "ts_us", "ts_ns", "txId", "commit_lsn")
"""Of the source block, in its order: each transaction has others."""
BYTES_MAX: Final = 4 * 1024 * 1024
_CUTS: Final = ("sequence", "schema", "table", "lsn", "tx_index", "tx_sub")


@cache
def native() -> ModuleType | None:
    """The compiled core, where it was built."""
    return built(_load)


def _load() -> ModuleType:
    from cdcworker.connectors.postgres.decode import _core  # type: ignore[attr-defined]

    return _core  # type: ignore[no-any-return]


class _Source:
    """Encodes those fields of the source block that are the same for all rows of a transaction."""

    def __init__(self, core: Any, template: dict[str, Any]) -> None:
        self._core = core
        head, clocks, between, xid, rest, middle, tail = field_runs(SOURCE_SCHEMA["fields"], cuts=_CUTS)
        if between or middle or tail:
            raise ValueError("the source block has fields where none are expected")
        self._runs = head, clocks, xid, rest
        if tuple(name for run in self._runs for name, _ in run if name in OWN) != OWN:
            raise ValueError("the source block has other numbers than the core knows, or in another order")
        core.set_pieces(tuple(_pieces(run, template) for run in self._runs), tuple(TAILS[op] for op in ("c", "u", "d")))

    def set_in_core(self, template: dict[str, Any], sequence: bytes) -> None:
        """Gives the core the encoded source block of a transaction. The bytes that all transactions have in common are
        made once: else this would be a third of the work for a transaction of one row."""
        if template["origin"] is None:
            self._core.set_numbers(*[template[name] for name in OWN], sequence)
        else:
            parts = [b"".join([write(template[name]) for name, write in run]) for run in self._runs]
            self._core.set_source(*parts, sequence)


def _pieces(run: list[tuple[str, Write]], template: dict[str, Any]) -> tuple[bytes, ...]:
    """The bytes of a run between the longs that each transaction has of its own."""
    pieces = [b""]
    for name, write in run:
        if name in OWN:
            # In front of the number stands the branch of a union, if it is in one.
            pieces[-1] += write(0)[:-1]
            pieces.append(b"")
        else:
            pieces[-1] += write(template[name])
    return tuple(pieces)


def _go_on(changes: PgoutputDecoder) -> bool:
    """Nothing is done at a commit, and more is read behind it."""
    return True


class NativePath:
    """Decodes one stream with the native core, and with the decoder what the core leaves out. `feed` takes one message,
    `feed_frames` a buffer of frames."""

    def __init__(
        self,
        changes: PgoutputDecoder,
        shaper: RecordLayouts,
        module: ModuleType,
        bytes_max: int = BYTES_MAX,
        commit_bytes_max: int = BYTES_MAX,
        at_commit: Callable[[PgoutputDecoder], bool] = _go_on,
    ) -> None:
        """`bytes_max`: when the decoder's output has come from so many bytes, no more frames are taken; at a commit from
        `commit_bytes_max` on. `at_commit` is called behind the last of the commits that were found in a buffer, and
        returns whether more may be taken."""
        self._changes = changes
        self._bytes_max, self._commit_bytes_max = bytes_max, commit_bytes_max
        self._at_commit = at_commit
        self._shaper = shaper
        self._clock_ns = shaper.clock_ns
        self._module = module
        self._core = module.Core(UNCHANGED_HEADER, tuple(changes.skipped))
        self._source = _Source(self._core, changes.template)
        self._stage = -1
        self._layouts_version = -1
        self._clock_at = 0

    def feed(self, data: bytes) -> int:
        """Takes one XLogData message and returns its kind, as the decoder's `feed` does."""
        kind, changes, core = data[HEADER], self._changes, self._core
        if (
            kind in ROW_KINDS
            and changes.in_transaction
            and self._enter()
            and (core.one(data) or (self._bind(data) and core.one(data)))
        ):
            changes.bytes += len(data)
            return kind
        if self._stage == changes.stage:
            # The core has read rows of this transaction.
            self.flush()
        try:
            return changes.feed(data)
        finally:
            core.index = changes.index
            if changes.replanned:
                self._forget(changes.replanned)

    def feed_frames(self, buffer: bytearray, start: int, end: int) -> tuple[int, bool]:
        """Takes the frames between two offsets; returns the offset of the first one that the core has not taken, or that
        is not whole, and whether more may be taken."""
        changes, core = self._changes, self._core
        if not self._enter():
            return start, changes.bytes < self._bytes_max
        # What is to be done at each begin or each commit is done by the decoder and its caller.
        core.bounds = not changes.listeners and not any(changes.expiring)
        done: int = core.feed(buffer, start, end, self._commit_bytes_max - changes.bytes)
        if not core.turned:
            changes.bytes += done - start
            return done, changes.bytes < self._bytes_max
        go_on = True
        ended, begun = core.boundaries()
        if ended is not None:
            parts, commit, xid, at = ended
            for part in parts:
                changes.out.append(EncodedRecords(*part))
            changes.bytes += at - start
            changes.note_end(tuple.__new__(Commit, commit), xid)
            go_on, start = self._at_commit(changes), at
        if begun is not None:
            changes.note_begin(tuple.__new__(Begin, begun))
        changes.bytes += done - start
        self._stage = changes.stage
        return done, go_on and changes.bytes < self._bytes_max

    def flush(self) -> None:
        """Moves the collected records to the decoder's output, and brings its count of messages up to date."""
        made = self._core.take()
        if made is not None:
            # Before a commit and a begin: it is all of one transaction.
            records, size, largest, topic, counts = made
            ts_ms = self._changes.transaction_source["ts_ms"] or 0
            self._changes.out.append(EncodedRecords(records, size, largest, topic, counts, ts_ms))
        if self._stage == self._changes.stage:
            self._changes.index = self._core.index

    def _enter(self) -> bool:
        """Returns whether the core may decode now; it knows the transaction then."""
        changes, core = self._changes, self._core
        if changes.observer is not None or changes.skips_same:
            return False
        if changes.orders is not None or changes.transcode is not None:
            # Each event has its number in its transaction, which the decoder counts; values in binary are its own too.
            return False
        if changes.dropping and changes.drop_to and changes.in_transaction:
            return False
        if self._stage != changes.stage:
            self._follow()
        now = self._clock_ns()
        if not 0 <= now - self._clock_at < CLOCK_CACHE_NS:
            self._clock_at = now
            core.set_clock(now)
        if self._layouts_version != self._shaper.version:
            core.forget()
            self._layouts_version = self._shaper.version
        return True

    def _follow(self) -> None:
        """Tells the core where the decoder stands."""
        changes, core = self._changes, self._core
        self._stage = changes.stage
        core.resume_lsn = max(changes.resume_lsn, changes.resume_part[0] if changes.resume_part else 0)
        part, sequence = changes.part, changes.sequence_start.encode()
        if part is None:
            core.leave(sequence)
        else:
            source = changes.transaction_source
            self._source.set_in_core(source, sequence)
            core.enter(part[0], source["txId"], source["ts_ms"], part[1], changes.dropping)

    def _bind(self, data: bytes) -> bool:
        """Makes the layout for the table of this message; returns False where it has one or cannot have any."""
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
        layout = self._shaper.layout(plan.table, Position(*part, 0))
        self._layouts_version = self._shaper.version
        self._core.set_layout(oid, self._module.Layout(*layout_arguments(plan, layout, self._changes.completes)))
        return True

    def _forget(self, replanned: set[int]) -> None:
        """The layouts of these tables are made again when their next row comes."""
        for oid in replanned:
            self._core.set_layout(oid, None)
        replanned.clear()
