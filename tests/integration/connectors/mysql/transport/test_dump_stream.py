"""The stream of a real server's log: where it begins, that it goes on, what is refused, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Thread

import pymysql
import pytest
from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.binlog.gtid_events import MariaDbTransaction
from cdcworker.connectors.mysql.binlog.plain_events import HeartbeatEvent, StatementTextEvent, Xid
from cdcworker.connectors.mysql.binlog.rows import RowsEvent
from cdcworker.connectors.mysql.errors import (
    CONNECTION_LOST,
    DUMP_REFUSED,
    EVENT_TOO_LARGE,
    LOG_PURGED,
    NO_REPLICATION_RIGHT,
    OTHER_HISTORY,
)
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet
from cdcworker.connectors.mysql.transport.commands import FileStart, GtidStart, MariaDbStart, Reader
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from cdcworker.schemas.errors import CdcError

from ..logged import READER, LoggedServer, read_to_the_end

pytestmark = pytest.mark.mysql
DEADLINE_S = 60.0
WAITING = Reader(server_id=98, heartbeat_s=0.2)


@pytest.fixture
def table(logged: LoggedServer) -> LoggedServer:
    logged.ask("create database if not exists shop", "create or replace table shop.t (id int primary key, v longtext)")
    return logged


def read_until(stream: DumpStream, reader: EventReader, done: Callable[[list[object]], bool]) -> list[object]:
    """The bodies of what comes, until they are enough."""
    found: list[object] = []
    deadline = time.monotonic() + DEADLINE_S

    def take(data: bytes, _: bool) -> bool:
        found.extend(event.body for event in reader.read(data))
        return not done(found)

    while not done(found):
        assert time.monotonic() < deadline, "nothing comes"
        stream.wait(1)
        stream.receive(take)
    return found


def ids(bodies: list[object]) -> list[int]:
    return [row.after[0] for body in bodies if isinstance(body, RowsEvent) for row in body.rows if row.after]


def test_it_goes_on_behind_a_gtid_and_brings_what_is_written_meanwhile(table: LoggedServer) -> None:
    start = MariaDbStart(table.position())
    table.ask("insert into shop.t values (1, 'a')")
    with table.stream(start, WAITING) as stream:
        reader = EventReader(stream.checksum)
        assert ids(read_until(stream, reader, lambda found: bool(ids(found)))) == [1]
        table.ask("insert into shop.t values (2, 'b')")
        found = read_until(
            stream, reader, lambda found: any(isinstance(body, Xid) for body in found) and bool(ids(found))
        )
        assert ids(found) == [2]
        last = next(body for body in reversed(found) if isinstance(body, MariaDbTransaction))
    after = MariaDbStart(MariaDbPosition.of([last.gtid]))
    table.ask("insert into shop.t values (3, 'c')")

    with table.stream(after) as stream:
        reader = EventReader(stream.checksum)
        assert ids([e.body for data in read_to_the_end(stream) for e in reader.read(data)]) == [3]


def test_it_begins_at_a_place_in_a_file(table: LoggedServer) -> None:
    ((file, position, *_),) = table.ask("show master status")
    table.ask("insert into shop.t values (1, 'a')")
    with table.stream(FileStart(str(file), int(str(position)))) as stream:
        reader = EventReader(stream.checksum)
        events = [event for data in read_to_the_end(stream) for event in reader.read(data)]
        assert ids([event.body for event in events]) == [1]
        ((_, end, *_),) = table.ask("show master status")
        assert reader.place == (file, int(str(end)))


def test_an_idle_server_is_heard_by_its_heartbeats(table: LoggedServer) -> None:
    with table.stream(MariaDbStart(table.position()), WAITING) as stream:
        reader = EventReader(stream.checksum)

        def heard(found: list[object]) -> bool:
            return sum(isinstance(body, HeartbeatEvent) for body in found) >= 2

        found = read_until(stream, reader, heard)
    ((file, end, *_),) = table.ask("show master status")
    assert [body for body in found if isinstance(body, HeartbeatEvent)][-1] == HeartbeatEvent(str(file), int(str(end)))


def test_an_event_of_many_packets_is_whole(table: LoggedServer) -> None:
    size = (1 << 24) + 12_345
    (rows,) = table.rows(f"insert into t values (1, repeat('x', {size}))")
    assert rows.rows[0].after == (1, "x" * size)


def test_an_event_that_is_larger_than_is_accepted_is_refused(table: LoggedServer) -> None:
    start = MariaDbStart(table.position())
    table.ask("insert into shop.t values (1, repeat('x', 100000))")
    stream = DumpStream.start(table.connect(), READER, start, event_bytes_max=50_000)
    with closing(stream), pytest.raises(CdcError) as caught:
        read_to_the_end(stream)
    assert caught.value.code == EVENT_TOO_LARGE


def test_statements_come_only_where_they_are_asked_for(table: LoggedServer) -> None:
    quiet = Reader(97, wait=False)
    told = table.events("insert into t values (1, 'a')")
    untold = table.events("insert into t values (2, 'a')", reader=quiet)
    assert [type(event.body) for event in told].count(StatementTextEvent) == 1
    assert [type(event.body) for event in untold].count(StatementTextEvent) == 0
    assert ids([event.body for event in untold]) == [2]


@pytest.mark.parametrize("kind", ["none", "crc32"])
def test_logs_with_and_without_checksums_follow_each_other(table: LoggedServer, kind: str) -> None:
    other = {"none": "crc32", "crc32": "none"}[kind]
    try:
        found = table.events(
            f"set global binlog_checksum = {kind}",
            "insert into t values (1, 'a')",
            f"set global binlog_checksum = {other}",
            "insert into t values (2, 'b')",
            "flush binary logs",
            "insert into t values (3, 'c')",
        )
    finally:
        table.ask("set global binlog_checksum = crc32")
    assert ids([event.body for event in found]) == [1, 2, 3]


def test_a_semi_synchronous_server_waits_for_the_acknowledgement(table: LoggedServer) -> None:
    reader = Reader(96, heartbeat_s=0.2, semi_sync=True)
    table.ask("set global rpl_semi_sync_master_timeout = 60000", "set global rpl_semi_sync_master_enabled = 1")
    try:
        with table.stream(MariaDbStart(table.position()), reader) as stream:
            events = EventReader(stream.checksum)
            writer = Thread(target=table.ask, args=("insert into shop.t values (1, 'a')",))
            writer.start()
            wanted: list[tuple[str, int]] = []
            deadline = time.monotonic() + DEADLINE_S

            def take(data: bytes, ack: bool) -> bool:
                for _ in events.read(data):
                    pass
                if ack:
                    wanted.append(events.place)
                return not wanted

            while not wanted:
                assert time.monotonic() < deadline
                stream.wait(1)
                stream.receive(take)
            assert writer.is_alive()
            stream.acknowledge(*wanted[0])
            writer.join(DEADLINE_S)
            assert not writer.is_alive()
            assert int(str(table.ask("show status like 'Rpl_semi_sync_master_yes_tx'")[0][1])) >= 1
    finally:
        table.ask("set global rpl_semi_sync_master_enabled = 0")


def test_the_reader_is_seen_at_the_server_until_it_closes(table: LoggedServer) -> None:
    def registered() -> bool:
        return any(int(str(row[0])) == WAITING.server_id for row in table.ask("show slave hosts"))

    with table.stream(MariaDbStart(table.position()), WAITING):
        wait_until(registered)
    wait_until(lambda: not registered())


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_connection_that_is_killed_is_lost(table: LoggedServer) -> None:
    with table.stream(MariaDbStart(table.position()), WAITING) as stream:
        readers: list[tuple[object, ...]] = []

        def is_read() -> bool:
            readers[:] = table.ask("select id from information_schema.processlist where command = 'Binlog Dump'")
            return len(readers) == 1

        wait_until(is_read)
        ((number,),) = readers
        table.ask(f"kill {number}")
        with pytest.raises(CdcError) as caught:
            read_until(stream, EventReader(stream.checksum), lambda _: False)
    assert caught.value.code == CONNECTION_LOST


def refused_with(server: LoggedServer, start: object) -> str:
    with pytest.raises(CdcError) as caught, server.stream(start) as stream:  # type: ignore[arg-type]
        read_to_the_end(stream)
    return caught.value.code


def test_a_position_that_the_server_does_not_have_is_refused_by_its_cause(table: LoggedServer) -> None:
    last = table.position().last[3]
    assert (
        refused_with(table, MariaDbStart(MariaDbPosition.of([last._replace(sequence=last.sequence + 100)])))
        == OTHER_HISTORY
    )
    assert refused_with(table, FileStart("log.999999")) == LOG_PURGED
    ((file, *_),) = table.ask("show master status")
    assert refused_with(table, FileStart(str(file), 1 << 30)) == OTHER_HISTORY
    assert refused_with(table, GtidStart(GtidSet())) == DUMP_REFUSED


def test_a_log_that_was_purged_is_refused(table: LoggedServer) -> None:
    start = MariaDbStart(table.position())
    table.ask("insert into shop.t values (1, 'a')", "flush binary logs", "insert into shop.t values (2, 'a')")
    wait_until(lambda: purged(table))
    assert refused_with(table, start) == LOG_PURGED


def purged(server: LoggedServer) -> bool:
    """The server keeps a file until the checkpoint that follows it is written."""
    ((file, *_),) = server.ask("show master status")
    with suppress(pymysql.Error):
        server.ask(f"purge binary logs to '{file}'")
    return len(server.ask("show binary logs")) == 1


def test_a_user_without_the_right_is_refused(table: LoggedServer) -> None:
    table.ask("create or replace user poor@'%' identified by 'poor'")
    connection = pymysql.connect(host="127.0.0.1", port=table.port, user="poor", password="poor")
    with pytest.raises(CdcError) as caught:
        DumpStream.start(connection, READER, MariaDbStart(table.position()))
    assert caught.value.code == NO_REPLICATION_RIGHT
    assert "poor" not in str(caught.value)
