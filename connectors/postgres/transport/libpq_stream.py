"""The replication connection: COPY_BOTH through psycopg.pq, feedback under a lock, a thread that keeps it alive."""

from __future__ import annotations

import logging
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from cdcworker.connectors.postgres.errors import (
    CONNECTION_LOST,
    QUERY,
    UNREACHABLE,
    translate,
    translate_result,
    translate_text,
)
from cdcworker.connectors.postgres.pgoutput import PG_EPOCH_US, format_lsn, parse_lsn
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread
from psycopg import pq

log = logging.getLogger(__name__)

_KEEPALIVE = struct.Struct(">cQqB")
STATUS = struct.Struct(">cQQQqc")
Take = Callable[[bytes], bool]
Rows = Callable[[bytearray, int, int], tuple[int, bool]]
"""A buffer of frames between two offsets: the offset of the first one that is left, and whether to go on."""
FEEDBACK_S_MAX = 10.0
"""Well below a third of wal_sender_timeout's default of 60 s; a smaller time-out makes it smaller."""
CLOSE_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """What IDENTIFY_SYSTEM says."""

    system_id: str
    timeline: int
    flush_lsn: int


def quote(name: str) -> str:
    """An identifier of the replication grammar and of publication_names."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class ReplicationStream:
    """One walsender. `receive` belongs to one thread; feedback may come from another.

    `confirmed` is the only LSN that the server is told is flushed: it is set by `confirm`, never by reading. # INV-1
    """

    def __init__(self, conninfo: str, feedback_s: float = FEEDBACK_S_MAX) -> None:
        self._lock = threading.Lock()
        self._conn = pq.PGconn.connect(conninfo.encode())
        if self._conn.status != pq.ConnStatus.OK:
            message = self._conn.error_message.decode(errors="replace")
            self._conn.finish()
            error = translate_text(message)
            raise CdcError(UNREACHABLE, error.message) if error.code == CONNECTION_LOST else error
        self._poller = select.poll()
        self._poller.register(self._conn.socket, select.POLLIN)
        self._feedback_s = feedback_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_feedback = 0.0
        self._write: Callable[[bytes], None] = self._put_copy_data
        self._status_head = b""
        """What is written in front of a status update."""
        self.confirmed = 0
        self.received = 0
        """Everything before it has been received, as the server is told with the next status."""
        self.keepalive_lsn = 0
        """Everything before it has been decoded and received."""

    # -- commands ---------------------------------------------------------------------------------------------------

    def command(self, statement: str) -> list[list[str | None]]:
        """A replication command with a result; before `start` only."""
        result = self._conn.exec_(statement.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise translate_result(result)
        return [
            [None if (v := result.get_value(row, col)) is None else v.decode() for col in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    def identify(self) -> SystemIdentity:
        system_id, timeline, flush, _ = self.command("IDENTIFY_SYSTEM")[0]
        assert system_id
        assert timeline
        assert flush
        return SystemIdentity(system_id, int(timeline), parse_lsn(flush))

    def timeline_history(self, timeline: int) -> str:
        """The history file of a timeline above 1: lines of `parent, switch LSN, reason`."""
        rows = self.command(f"TIMELINE_HISTORY {timeline:d}")
        return rows[0][1] or ""

    def start(
        self,
        slot: str,
        lsn: int,
        publication: str,
        *,
        ahead: bool = False,
        binary: bool = False,
        confirmed: int | None = None,
    ) -> None:
        """Stream `slot` from `lsn`; the server goes back no further than what was confirmed, which is all before `lsn`
        unless `confirmed` says otherwise. `ahead`: large transactions are sent before they end;
        `binary`: values come as their types send them."""
        options = (
            f"proto_version '{2 if ahead else 1}', publication_names {literal(quote(publication))}, messages 'true'"
        )
        if ahead:
            options += ", streaming 'on'"
        if binary:
            options += ", binary 'true'"
        statement = f"START_REPLICATION SLOT {quote(slot)} LOGICAL {format_lsn(lsn)} ({options})"
        self._begin(statement, {"slot": slot, "lsn": format_lsn(lsn)})
        self.confirmed = lsn if confirmed is None else confirmed
        self.received = lsn
        self._thread = SupervisedThread(self._keep_alive, name="replication-feedback")
        self._thread.start()

    def _begin(self, statement: str, where: dict[str, str | int]) -> None:
        result = self._conn.exec_(statement.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise translate_result(result, where)

    # -- reading ----------------------------------------------------------------------------------------------------

    def receive(self, take: Take, rows: Rows | None = None) -> bool:
        """Hand every message that has arrived to `take` (the payload and its header, from the LSN on) until it says
        stop (False). True when the stream ran dry. `rows` may be offered what has arrived in one piece instead."""
        try:
            with self._lock:
                return self._drain(take, rows)
        except psycopg.Error as exc:
            raise self._lost(exc) from exc

    def watch(self, descriptor: int) -> None:
        """`wait` ends too when this can be read from."""
        self._poller.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait for bytes; True when there may be a message."""
        if seconds > 0 and not self._poller.poll(seconds * 1000):
            return False
        try:
            with self._lock:
                self._conn.consume_input()
        except psycopg.Error as exc:
            raise self._lost(exc) from exc
        return True

    def _drain(self, take: Take, rows: Rows | None) -> bool:
        get = self._conn.get_copy_data
        refilled = False
        while True:
            size, view = get(1)
            if size > 0:
                data = bytes(view)
                if data[0] == 119:
                    refilled = False
                    if not take(data):
                        return False
                elif data[0] == 107:
                    self._take_keepalive(data)
            elif size == 0:
                if refilled:
                    return True
                self._conn.consume_input()
                refilled = True
            else:
                raise self._ended()

    def _take_keepalive(self, data: bytes) -> None:
        _, lsn, _, wanted = _KEEPALIVE.unpack(data)
        self.keepalive_lsn = max(self.keepalive_lsn, lsn)
        self.received = max(self.received, lsn)
        if wanted:
            self._send_status()

    def _ended(self) -> CdcError:
        result = self._conn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return translate_result(result)
        return CdcError(CONNECTION_LOST, "the server ended the replication stream")

    def _lost(self, exc: psycopg.Error) -> CdcError:
        """libpq's reading error; what the server said before it hung up is the better message."""
        error = translate(exc)
        return error if error.code != QUERY else CdcError(CONNECTION_LOST, error.message)

    # -- feedback ---------------------------------------------------------------------------------------------------

    def confirm(self, lsn: int) -> None:
        """Tell the server that everything before `lsn` is durable in Kafka. # INV-1"""
        if lsn <= self.confirmed:
            return
        self.confirmed = lsn
        try:
            with self._lock:
                self._send_status()
        except psycopg.Error as exc:
            raise self._lost(exc) from exc

    def status(self, *, reply: bool = False) -> None:
        try:
            with self._lock:
                self._send_status(reply=reply)
        except psycopg.Error as exc:
            raise self._lost(exc) from exc

    def _send_status(self, *, reply: bool = False) -> None:
        now = time.time_ns() // 1000 - PG_EPOCH_US
        done = self.confirmed
        message = STATUS.pack(b"r", max(self.received, done), done, done, now, b"\1" if reply else b"\0")
        self._write(self._status_head + message)
        self._last_feedback = time.monotonic()

    def _put_copy_data(self, message: bytes) -> None:
        self._conn.put_copy_data(message)
        self._conn.flush()

    def _keep_alive(self) -> None:
        """Feedback while nobody reads: a slow Kafka commit must not look to the server like a dead client."""
        while not self._stop.wait(self._feedback_s / 4):
            if time.monotonic() - self._last_feedback < self._feedback_s:
                continue
            try:
                self.status()
            except CdcError as exc:
                log.debug("feedback error=%s", exc)
                return

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(CLOSE_S_MAX)
        try:
            self._conn.finish()
        except psycopg.Error as exc:
            log.debug("close error=%s", exc)
