"""The native path of a whole stream: the core takes the common events of transactions out of packets, and the reader and the decoder in
Python all others.

Both see the same stream in the same order. What the core has read goes into the decoder's output, and the reader, the decoder and the
numbers of commits stand behind it, before anything is read in Python.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Protocol

from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.native_rows import NativeRows
from cdcworker.connectors.mysql.decode.transaction import Transaction
from cdcworker.connectors.mysql.errors import UnknownTypeError
from cdcworker.connectors.mysql.gtid.executed import ExecutedGtids
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid
from cdcworker.connectors.mysql.gtid.mysql import Source
from cdcworker.connectors.mysql.types import charsets
from cdcworker.schemas.avro_binary import write_string
from cdcworker.schemas.change import EncodedRecords, JsonObject
from cdcworker.schemas.record_layout import field_runs

_CUTS: Final = (
    *("ts_ms", "db", "ts_us", "ts_ns", "table", "server_id", "gtid", "file", "pos", "row", "thread", "query"),
    *("commit_lsn", "tx_index", "tx_sub"),
)
_COMMON: Final = 3
"""How many runs between these have fields, which all records have in common."""
_NO_THREAD: Final = -1
_NO_LAYOUTS: Final = (-1, -1, -1)


class Packets(Protocol):
    """Packets that have arrived."""

    @property
    def waiting(self) -> tuple[bytearray, int, int] | None:
        """The buffer that holds them, and the offsets of the first one and behind the last; None where they are no whole ones."""

    @property
    def sequence(self) -> int:
        """The number of the packet before them; -1 for none."""

    def passed(self, at: int, sequence: int) -> None:
        """Those up to this offset are done with; the last one has that number."""


@dataclass
class StreamParts:
    """What reads a stream in Python, and stands where the core stands whenever it reads."""

    events: EventReader
    decoder: BinlogDecoder
    numbers: CommitNumbers
    executed: ExecutedGtids


class NativeLog:
    """Reads one stream with the native core. `at_commit` is called behind the last of the commits that were met in a buffer, when
    everything up to it is in the decoder's output."""

    def __init__(
        self,
        parts: StreamParts,
        rows: NativeRows,
        core: Any,
        at_commit: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._rows = rows
        self._core = core
        self._at_commit = at_commit
        self._set_tails: Mapping[str, bytes] = {}
        self._reads = -1
        """How many events had been read in Python when the core stood last where the decoder stands."""
        self._layouts = _NO_LAYOUTS
        """What the layouts that the core knows were made of."""

    def feed(self, packets: Packets, room: int) -> tuple[int, bool]:
        """Reads packets until there is one that is Python's, or is not whole, or `room` bytes have been read or written. Returns how many
        bytes were, whichever are more, and whether more may be. Raises CdcError."""
        waiting = packets.waiting
        if waiting is None or not self._enter():
            return 0, True
        core, (buffer, start, end) = self._core, waiting
        core.sequence = packets.sequence
        at = core.feed(buffer, start, end, room)
        while core.wanted is not None and self._bind(core.wanted):
            at = core.feed(buffer, at, end, room - (at - start))
        if at == start:
            return 0, True
        packets.passed(at, core.sequence)
        size = max(at - start, core.made)
        return size, self._hand_on()

    def _enter(self) -> bool:
        """Returns whether the core may read now; it stands where the decoder stands then."""
        parts = self._parts
        if not parts.decoder.leaves_events or not parts.events.has_usual_ids:
            return False
        layouts = (parts.decoder.replanned, parts.events.tables.files, self._rows.version)
        if layouts != self._layouts:
            self._core.forget()
            self._layouts, self._reads = layouts, -1
        if self._reads != parts.events.reads and not self._follow():
            return False
        tails = self._rows.tails.now()
        if tails is not self._set_tails:
            self._core.set_tails(*(tails[op] for op in "cud"))
            self._set_tails = tails
        return True

    def _follow(self) -> bool:
        """Tells the core where the reader and the decoder stand. Returns whether it can go on from there."""
        events, decoder, core = self._parts.events, self._parts.decoder, self._core
        begun, place = decoder.transaction, events.place
        told = None
        if begun is not None:
            thread = _NO_THREAD if begun.thread is None else begun.thread
            told = begun.number, begun.commit_us, begun.server_id, begun.gtid, thread, begun.is_group
        if not core.enter(self._parts.numbers.last, decoder.index, told):
            return False
        core.checksums = events.has_checksums
        core.stand(place.position, write_string(place.file), events.tables.current)
        self._reads = events.reads
        return True

    def _bind(self, raw: bytes) -> bool:
        """Makes the layout of the table whose map this is known; returns whether it has one."""
        events, decoder, core = self._parts.events, self._parts.decoder, self._core
        self._stand(core.position)
        table = events.tables.read_from(raw)
        assert table is not None
        plan = decoder.plan(table)
        layout = self._rows.layout(table, plan, core.last)
        names = (b"", b"") if plan is None else tuple(map(write_string, plan.table.path))
        core.know(raw, layout, *names, plan is not None and plan.name in decoder.listeners)
        # Schemas that were registered for it leave those of the others as they are.
        self._layouts = (*self._layouts[:2], self._rows.version)
        return layout is not None

    def _stand(self, position: int) -> None:
        """Has the reader stand where the core stands."""
        events, core = self._parts.events, self._core
        events.pass_to(position)
        if core.turned:
            events.tables.go_on(core.tables())

    def _hand_on(self) -> bool:
        """Moves what was read to the decoder's output, and has the reader and the decoder stand behind it."""
        events, decoder, core = self._parts.events, self._parts.decoder, self._core
        done, passed, ended, begun, rest = core.taken()
        decoder.out.extend(EncodedRecords(*part) for part in done)
        self._parts.numbers.last = core.last
        for own in passed:
            self._pass(own)
        goes_on = True
        if ended is not None:
            decoder.note_end(self._last(ended))
            events.pass_to(ended[4])
            goes_on = self._at_commit()
        if begun is not None:
            decoder.note_begin(_transaction(begun[:4], begun[4]))
        if rest is not None:
            decoder.out.append(EncodedRecords(*rest))
        self._stand(core.position)
        decoder.index = core.index
        if decoder.transaction is not None:
            thread, decoder.transaction.is_group = core.state()
            decoder.transaction.thread = None if thread == _NO_THREAD else thread
        return goes_on

    def _last(self, ended: tuple[Any, ...]) -> Transaction:
        """Returns the last transaction that ended. Its GTID has been passed on, if it began in the core."""
        *what, _, began_here = ended
        entered = self._parts.decoder.transaction
        if not began_here:
            assert entered is not None
            return entered
        if entered is not None and entered.own is not None:
            self._parts.executed.add(entered.own)
        return _transaction(what, None)

    def _pass(self, own: tuple[Any, ...]) -> None:
        executed = self._parts.executed
        if isinstance(own[0], bytes):
            executed.add_run(Source(uuid.UUID(bytes=own[0]), ""), own[1], own[2])
        else:
            executed.add(MariaDbGtid(*own))


def make_native_log(
    parts: StreamParts,
    rows: NativeRows,
    module: ModuleType,
    schema: Mapping[str, Any],
    at_commit: Callable[[], bool],
) -> NativeLog:
    """Makes the native path of a stream. `schema`: that of the `source` block."""
    decoder = parts.decoder
    core = module.LogCore(tuple(decoder.skipped), _is_plain)
    core.set_pieces(_pieces(schema, decoder.template))
    return NativeLog(parts, rows, core, at_commit)


def _pieces(schema: Mapping[str, Any], template: JsonObject) -> tuple[bytes, ...]:
    runs = field_runs(schema["fields"], cuts=_CUTS)
    if any(runs[_COMMON:]):
        raise ValueError("the source block has fields where none are expected")
    return tuple(b"".join([write(template[name]) for name, write in run]) for run in runs[:_COMMON])


def _transaction(what: Any, own: tuple[Any, ...] | None) -> Transaction:
    found = Transaction(*what)
    if own is not None:
        is_mysql = isinstance(own[0], bytes)
        found.own = (Source(uuid.UUID(bytes=own[0]), ""), own[2]) if is_mysql else MariaDbGtid(*own)
    return found


def _is_plain(collation: int) -> bool:
    """Returns whether a word of ASCII letters is the same bytes in the character set of a collation, as far as it is known."""
    try:
        return charsets.charset_of(collation).unit == 1
    except UnknownTypeError:
        return True
