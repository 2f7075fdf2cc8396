"""What a reader says to the server, byte by byte after the protocol's description."""

from __future__ import annotations

import struct

import pytest
from cdcworker.connectors.mysql.errors import (
    CONNECTION_LOST,
    DUMP_REFUSED,
    LOG_PURGED,
    NO_REPLICATION_RIGHT,
    OTHER_HISTORY,
    SERVER_ID_IN_USE,
)
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet
from cdcworker.connectors.mysql.transport.commands import (
    FileStart,
    GtidStart,
    MariaDbStart,
    Reader,
    acknowledgement,
    dump,
    register,
    session_statements,
)
from cdcworker.connectors.mysql.transport.refusals import refused

READER = Reader(4_000_000_000, wait=False, statements=True)
SET = GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")


def test_the_reader_is_registered_without_a_host_or_a_password() -> None:
    assert register(READER) == b"\x15" + struct.pack("<I", 4_000_000_000) + bytes(13)


def test_a_dump_begins_at_a_place_in_a_file() -> None:
    assert (
        dump(READER, FileStart("log.000007", 1234))
        == b"\x12" + struct.pack("<IHI", 1234, 3, 4_000_000_000) + b"log.000007"
    )
    assert dump(Reader(1), FileStart()) == b"\x12" + struct.pack("<IHI", 4, 0, 1)


def test_a_dump_begins_after_a_set_of_gtids() -> None:
    data = SET.encode()
    assert dump(READER, GtidStart(SET)) == b"\x1e" + struct.pack("<HIIQI", 5, 4_000_000_000, 0, 4, len(data)) + data


def test_a_dump_of_mariadb_begins_where_the_session_says() -> None:
    start = MariaDbStart(MariaDbPosition.parse("0-1-5"))
    assert dump(Reader(1), start) == b"\x12" + struct.pack("<IHI", 4, 0, 1)
    said = session_statements(Reader(1, uuid="it's", semi_sync=True), start, is_mariadb=True)
    assert f"SET @slave_connect_state = CONVERT(X'{b'0-1-5'.hex()}' USING utf8mb4)" in said
    assert "SET @mariadb_slave_capability = 4" in said
    assert "SET @master_heartbeat_period = 10000000000" in said
    assert not any("it's" in statement for statement in said)


def test_mysql_is_told_by_both_names() -> None:
    said = session_statements(Reader(1, heartbeat_s=0.5), GtidStart(SET), is_mariadb=False)
    assert {"SET @master_heartbeat_period = 500000000", "SET @source_heartbeat_period = 500000000"} <= set(said)
    assert not any("mariadb" in statement or "slave_connect_state" in statement for statement in said)


def test_an_acknowledgement_names_the_place() -> None:
    assert acknowledgement("log.7", 900) == b"\xef" + struct.pack("<Q", 900) + b"log.7"


@pytest.mark.parametrize("number", [0, -1, 1 << 32])
def test_a_server_id_that_cannot_be_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="server id"):
        Reader(number)


@pytest.mark.parametrize(
    ("number", "text", "code"),
    [
        (1236, "Could not find first log file name in binary log index file", LOG_PURGED),
        (1236, "Cannot replicate because the source purged required binary logs.", LOG_PURGED),
        (1236, "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the master has purged binary logs containing GTIDs", LOG_PURGED),
        (1236, "Client requested source to start replication from impossible position", OTHER_HISTORY),
        (1236, "Slave has more GTIDs than the master has, using the master's SERVER_UUID.", OTHER_HISTORY),
        (1236, "Error: connecting slave requested to start from GTID 0-1-9, which is not in the master's binlog", OTHER_HISTORY),
        (1236, "A replica with the same server_uuid/server_id as this replica has connected to the source", SERVER_ID_IN_USE),
        (1236, "bogus data in log event", DUMP_REFUSED),
        (1227, "Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s)", NO_REPLICATION_RIGHT),
        (1053, "Server shutdown in progress", CONNECTION_LOST),
        (9999, "anything", DUMP_REFUSED),
    ],
)  # fmt: skip
def test_what_the_server_says_has_a_code(number: int, text: str, code: str) -> None:
    error = refused(b"\xff" + struct.pack("<H", number) + b"#HY000" + text.encode())
    assert error.code == code
    assert str(number) in error.message
    assert ("anything" in error.message) is False
