"""Large transactions, which the server sends ahead of their end: nothing of them is handed on before they commit.

Chunks of open transactions (stream start to stream stop) go to the spool as they come. At the commit the transaction
is fed to the decoder as if it had been sent then: begin, its messages without those of aborted sub-transactions, commit.
So numbering, filters and snapshots see no difference.

The server names a message's sub-transaction, except for logical messages: a transaction with such and with rolled-back
savepoints is read again in one piece.

A table's description counts from the moment at which it was sent, inside a chunk for that transaction only. At the
commit the server takes it as known, unless a newer one was sent meanwhile: that one is then fed again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping

from cdcworker.connectors.capture.stream.transaction_spool import NotStreamable, SpooledTransaction, TransactionSpool
from cdcworker.connectors.postgres.pgoutput import HEADER, WireError
from cdcworker.schemas.failpoints import hit

START, STOP, ABORT, COMMIT = ord("S"), ord("E"), ord("A"), ord("c")
RELATION, ORIGIN, MESSAGE = ord("R"), ord("O"), ord("M")
TURNS = frozenset((START, COMMIT))
"""Messages after which the next bytes are read in another way."""
CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that go to the spool in one go: the caller has other things to do as well."""

_CLOCKS = bytes(16)
"""The second LSN and the clock of a message's header: nobody looks at them."""
_START = struct.Struct(">IB")
_COMMIT = struct.Struct(">IBQQq")
_ABORT = struct.Struct(">II")


class StreamedTransactions:
    """`inside`: a chunk is under way. `replay`: what is to be fed before the stream goes on."""

    def __init__(self, spool: TransactionSpool) -> None:
        self.spool = spool
        self.inside = False
        self.replay: Iterator[bytes] | None = None
        self.turned = False
        self._xid = 0
        self._kept = 0
        self._arrivals = 0
        self._described: dict[int, tuple[int, bytes]] = {}
        """(arrival, message) of descriptions that came while a transaction was held."""

    @property
    def handlers(self) -> Mapping[int, Callable[[bytes], None]]:
        """Returns what a decoder does with the messages between chunks, by their kind."""
        return {START: self.start, ABORT: self.abort, COMMIT: self.commit}

    @property
    def open_xid(self) -> int:
        """Returns the id of the transaction whose chunk is being received."""
        return self._xid if self.inside else 0

    # -- between chunks -----------------------------------------------------------------------------------------------

    def start(self, data: bytes) -> None:
        if len(data) != HEADER + 6:
            raise WireError("stream start: wrong length")
        xid, is_first = _START.unpack_from(data, HEADER + 1)
        if is_first:
            self.spool.drop(xid)
        elif self.spool.get(xid) is None:
            raise WireError("stream start: a chunk of an unknown transaction")
        self.spool.open(xid)
        self._xid = xid
        self.inside = True

    def abort(self, data: bytes) -> None:
        """A transaction or one of its sub-transactions has ended without effect."""
        if len(data) < HEADER + 9:
            raise WireError("stream abort: wrong length")
        xid, sub = _ABORT.unpack_from(data, HEADER + 1)
        if xid == sub:
            self._forget(xid)
            return
        held = self.spool.get(xid)
        if held is not None:
            held.aborted.add(sub)

    def commit(self, data: bytes) -> None:
        if len(data) != HEADER + 30:
            raise WireError("stream commit: wrong length")
        xid, flags, lsn, end, us = _COMMIT.unpack_from(data, HEADER + 1)
        held = self.spool.get(xid)
        if held is None:
            raise WireError("stream commit: of an unknown transaction")
        if held.has_notes and held.aborted:
            raise NotStreamable("logical messages beside rolled-back savepoints", xid)
        head = data[:HEADER]
        begin = head + struct.pack(">cQqI", b"B", lsn, us, xid)
        self.replay = self._replay(xid, begin, head + struct.pack(">cBQQq", b"C", flags, lsn, end, us))

    def described(self, data: bytes) -> None:
        """A table was described outside of chunks."""
        if self.replay is None and len(self.spool):
            self._arrivals += 1
            self._described[_oid(data)] = (self._arrivals, data)

    def _replay(self, xid: int, begin: bytes, commit: bytes) -> Iterator[bytes]:
        yield begin
        last: dict[int, bytes] = {}
        for position, message in self.spool.messages(xid):
            data = b"".join((b"w", position, _CLOCKS, message))
            if data[HEADER] == RELATION:
                last[_oid(data)] = data
            yield data
        held = self.spool.get(xid)
        assert held
        arrivals = {oid: arrival for sub, oid, arrival in held.relations if sub not in held.aborted}
        for oid, data in last.items():
            newer = self._described.get(oid)
            if newer and newer[0] > arrivals[oid]:
                yield newer[1]
            else:
                self._described[oid] = (arrivals[oid], data)
        self._forget(xid)
        hit("postgres.replayed")
        yield commit

    def _forget(self, xid: int) -> None:
        self.spool.drop(xid)
        if not len(self.spool):
            self._described.clear()

    # -- inside a chunk -----------------------------------------------------------------------------------------------

    def take(self, data: bytes) -> bool:
        """A message of a chunk, to the spool. False: enough for now, or the chunk has ended (`turned`)."""
        kind = data[HEADER]
        if kind == STOP:
            self.spool.write()
            hit("postgres.chunk_kept")
            self.inside = False
            self.turned = True
            return False
        if kind == ORIGIN:
            self.spool.add(self._xid, data[1:9], data[HEADER:])
        else:
            sub = int.from_bytes(data[HEADER + 1 : HEADER + 5], "big")
            self.spool.add(sub, data[1:9], data[HEADER : HEADER + 1] + data[HEADER + 5 :])
            if kind == MESSAGE and sub == self._xid:
                self._held().has_notes = True
            elif kind == RELATION:
                self._arrivals += 1
                self._held().relations.append(
                    (sub, int.from_bytes(data[HEADER + 5 : HEADER + 9], "big"), self._arrivals)
                )
        self._kept += len(data)
        if self._kept < CHUNK_BYTES_MAX:
            return True
        self._kept = 0
        return False

    def _held(self) -> SpooledTransaction:
        held = self.spool.get(self._xid)
        assert held
        return held

    def close(self) -> None:
        self.inside, self.turned, self.replay = False, False, None
        self._described.clear()
        self.spool.close()


def _oid(data: bytes) -> int:
    if len(data) < HEADER + 5:
        raise WireError("relation: cut short")
    return int.from_bytes(data[HEADER + 1 : HEADER + 5], "big")
