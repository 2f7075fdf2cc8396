"""What servers say when they do not send their log, as errors with codes. Their messages hold names of files and GTIDs, no values."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.mysql.errors import (
    CONNECTION_LOST,
    DUMP_REFUSED,
    LOG_OFF,
    LOG_PURGED,
    NO_REPLICATION_RIGHT,
    OTHER_HISTORY,
    SERVER_ID_IN_USE,
)
from cdcworker.schemas.errors import CdcError

FATAL_READING_LOG: Final = 1236
_RIGHTS: Final = frozenset({1045, 1044, 1142, 1227, 1698, 3118})
_LOST: Final = frozenset({0, 1053, 1158, 1159, 1160, 1161, 1317, 1927, 2006, 2013, 2014, 2055, 3169, 4031})
_TEXTS: Final = (
    ("could not find first log file", LOG_PURGED),
    ("purged", LOG_PURGED),
    ("could not find gtid state requested by slave in any binlog files", LOG_PURGED),
    ("which is not in the master's binlog", OTHER_HISTORY),
    ("has more gtids than the", OTHER_HISTORY),
    ("impossible position", OTHER_HISTORY),
    ("same server_uuid", SERVER_ID_IN_USE),
    ("same server_id", SERVER_ID_IN_USE),
    ("same server id", SERVER_ID_IN_USE),
    ("binary log is not open", LOG_OFF),
)
"""Parts of the messages of one error number, which tells many things, and what they mean; the first that is found counts."""
_MESSAGE_CHARACTERS_MAX: Final = 500


def refused(payload: bytes) -> CdcError:
    """Reads an error packet: the number, the SQL state after a mark, the message."""
    number = int.from_bytes(payload[1:3], "little")
    text = payload[3:].decode(errors="replace")
    return of_number(number, text[6:] if text.startswith("#") else text)


def of_number(number: object, text: str) -> CdcError:
    """Returns the error for a server's number and message."""
    if not isinstance(number, int):
        number = 0
    if number in _RIGHTS:
        return CdcError(NO_REPLICATION_RIGHT, f"the server refuses the binary log (error {number})")
    if number in _LOST:
        return CdcError(CONNECTION_LOST, f"the connection ended (error {number})")
    lower = text.lower()
    code = next((code for part, code in _TEXTS if part in lower), DUMP_REFUSED)
    if number != FATAL_READING_LOG:
        return CdcError(code, f"the server does not send its binary log (error {number})")
    shown = " ".join(text.split())[:_MESSAGE_CHARACTERS_MAX]
    return CdcError(code, f"the server says (error {number}): {shown}")
