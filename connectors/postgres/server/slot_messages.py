"""The messages that a slot holds for its next reader: looked at, and not confirmed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import CONNECTION_LOST
from cdcworker.connectors.postgres.pgoutput import HEADER, OWN_PREFIX, Begin, read_begin
from cdcworker.connectors.postgres.server.slot import when_released
from cdcworker.connectors.postgres.server.slot_lag import reaches, written_lsn
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.connection import APPLICATION
from cdcworker.connectors.postgres.transport.libpq_stream import FEEDBACK_S_MAX, ReplicationStream, SystemIdentity
from cdcworker.connectors.postgres.transport.socket_stream import connect_stream
from cdcworker.schemas.errors import CdcError

DATA: Final = frozenset(b"IUDTM")
"""Kinds of messages that a transaction counts, by their bytes."""
READ_S_MAX: Final = 45.0
_HELD_MAX: Final = 1_000
_BEGIN, _COMMIT, _MESSAGE = ord("B"), ord("C"), ord("M")
_PREFIX_AT: Final = 10
"""Where the prefix of a logical message stands, behind its kind, flags and LSN."""
_OWN: Final = OWN_PREFIX.encode() + b"\0"


class SlotMessage(NamedTuple):
    """A message that a transaction counts: its LSN, its kind (the byte), and how many there are up to it in the transaction that
    `begin` tells of, `marks` of them of our own. A COMMIT comes with the numbers of the last one."""

    begin: Begin
    lsn: int
    kind: int
    number: int
    marks: int

    @property
    def is_commit(self) -> bool:
        return self.kind == _COMMIT


class SlotReader:
    """Reads what a slot holds from an LSN on, up to where the log ends now."""

    def __init__(self, settings: PostgresSettings, catalog: AdminConnection, stream: ReplicationStream) -> None:
        self._settings, self._stream = settings, stream
        self._end = written_lsn(catalog)
        self._held: list[bytes] = []
        self.identity: SystemIdentity = stream.identify()

    def messages(self, lsn: int) -> Iterator[SlotMessage]:
        """Yields the messages of all transactions that commit at or behind `lsn`, those of each together. Raises CdcError, also
        where the slot is read by somebody else."""
        # Nothing is confirmed: who reads next finds the same.
        self._stream.start(self._settings.slot, lsn, self._settings.publication, confirmed=0)
        begin, number, marks = Begin(0, 0, 0), 0, 0
        for data in self._read(lsn):
            kind, at = data[HEADER], int.from_bytes(data[1:9], "big")
            if kind == _BEGIN:
                begin, number, marks = read_begin(data[HEADER:]), 0, 0
            elif kind == _COMMIT or (kind in DATA and begin.final_lsn):
                number += kind != _COMMIT
                marks += kind == _MESSAGE and data.startswith(_OWN, HEADER + _PREFIX_AT)
                yield SlotMessage(begin, at, kind, number, marks)
            if kind == _COMMIT:
                begin = Begin(0, 0, 0)

    def _read(self, lsn: int) -> Iterator[bytes]:
        stream, deadline, asked = self._stream, time.monotonic() + READ_S_MAX, False
        passed = lsn
        while True:
            dry = stream.receive(self._take)
            for data in self._held:
                if data[HEADER] == _COMMIT:
                    passed = max(passed, int.from_bytes(data[1:9], "big"))
                yield data
            self._held.clear()
            if reaches(max(passed, stream.keepalive_lsn), self._end):
                return
            if time.monotonic() > deadline:
                raise CdcError(CONNECTION_LOST, "the server does not send what the slot holds")
            if dry:
                if not asked:
                    stream.status(reply=True)
                asked = not asked
                stream.wait(0.1)

    def _take(self, data: bytes) -> bool:
        self._held.append(data)
        return len(self._held) < _HELD_MAX


@contextmanager
def slot_reader(settings: PostgresSettings, catalog: AdminConnection) -> Iterator[SlotReader]:
    """Opens a connection of its own for reading the slot, once a reader that has just ended has released it. Raises CdcError."""
    when_released(catalog, settings.slot)
    with closing(connect_stream(settings, catalog, f"{APPLICATION}:position", FEEDBACK_S_MAX)) as stream:
        yield SlotReader(settings, catalog, stream)
