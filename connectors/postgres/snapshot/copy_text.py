"""Rows by COPY in its text format: lines as they arrive, and what is in them."""

from __future__ import annotations

import re
import select
from collections.abc import Generator, Sequence
from typing import Final

import psycopg
from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.capture.snapshot.row_identity import Identity, KeyTexts, identity
from cdcworker.connectors.postgres.errors import CONNECTION_LOST, translate, translate_result
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.schemas.change import Row
from cdcworker.schemas.errors import CdcError
from psycopg import pq

QUERY_CANCELED: Final = b"57014"
SILENT_S_MAX: Final = 300.0
"""A server that sends nothing for so long while it copies is taken for lost. # INV-10"""


def copy_lines(connection: AdminConnection, statement: bytes) -> Generator[bytes]:
    """Each line with its line feed. Who stops early has the server stop too."""
    conn = connection.pgconn
    where = "the rows could not be read"
    try:
        result = conn.exec_(statement)
        if result.status != pq.ExecStatus.COPY_OUT:
            raise translate_result(result)
        poller = select.poll()
        poller.register(conn.socket, select.POLLIN)
        get, whole = conn.get_copy_data, False
        try:
            while True:
                size, view = get(1)
                if size > 0:
                    yield bytes(view)
                elif size == 0:
                    if not poller.poll(SILENT_S_MAX * 1000):
                        raise CdcError(CONNECTION_LOST, "the server is silent in the middle of its rows")
                    conn.consume_input()
                else:
                    whole = True
                    break
        finally:
            _finish(conn, whole=whole)
    except psycopg.Error as exc:
        raise translate(exc, {"reading": where}) from exc


def _finish(conn: pq.abc.PGconn, *, whole: bool) -> None:
    """Leave the connection ready for the next statement."""
    if conn.status != pq.ConnStatus.OK:
        return
    if not whole:
        conn.get_cancel().cancel()
        while conn.get_copy_data(0)[0] > 0:
            pass
    failed = None
    while (result := conn.get_result()) is not None:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        if result.status == pq.ExecStatus.FATAL_ERROR and not (state == QUERY_CANCELED and not whole):
            failed = failed or translate_result(result)
        if conn.status != pq.ConnStatus.OK:
            break
    if failed:
        raise failed


_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE = re.compile(rb"\\(.)", re.S)


def copy_texts(line: bytes) -> list[bytes | None]:
    """One line of COPY's text format."""
    fields = line[:-1].split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if text == b"\\N" else _ESCAPE.sub(_unescape, text) if b"\\" in text else text for text in fields]


def _unescape(match: re.Match[bytes]) -> bytes:
    return _ESCAPES.get(match.group(1), match.group(1))


def key_of_line(line: bytes, key: tuple[int, ...], parsers: Sequence[Parser]) -> tuple[Identity, KeyTexts]:
    """The key of a line, as it is looked up and as text."""
    if key == (0,) and b"\\" not in line:
        text = line[: line.find(b"\t")] if b"\t" in line else line[:-1]
        return identity((parsers[0](text),)), (text.decode(),)
    raw = copy_texts(line)
    return identity(tuple(parsers[i](raw[i] or b"") for i in key)), tuple((raw[i] or b"").decode() for i in key)


def parse_row(line: bytes, parsers: Sequence[Parser]) -> Row:
    """The line's values, by the parsers that the stream's values go through."""
    # A line without columns looks like one of an empty text.
    raw = copy_texts(line) if parsers else ()
    return tuple(None if text is None else parse(text) for text, parse in zip(raw, parsers, strict=True))
