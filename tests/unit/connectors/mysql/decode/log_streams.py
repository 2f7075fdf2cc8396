"""Streams of whole transactions as packets, and what is read of them in Python: the oracle of the native path of a log."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.binlog.format_description import Checksum
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.decode import native_log, native_rows
from cdcworker.connectors.mysql.decode.captured_plans import CapturedPlans
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.connectors.mysql.decode.table_plan import TablePlanner
from cdcworker.connectors.mysql.decode.uncaptured_rows import countable
from cdcworker.connectors.mysql.gtid.executed import ExecutedGtids, parse_gtids
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.transport.packets import PacketBuffer, packets
from cdcworker.schemas.change import EncodedRecords
from cdcworker.schemas.errors import CdcError
from hypothesis import strategies as st

from tests.unit.connectors.native_records import Registry

from ..binlog import made
from .row_events import KINDS, SAMPLE, TEMPLATE, Logged, image, native, rows_event, settings_of

E = EventType
MICROS = 1_700_000_000_000_000
OTHER_ID = 11
ARTIFICIAL = 0x20


class Stream(NamedTuple):
    """A table, and events of a log in which its rows are; those of `other` are of a table that is not captured."""

    table: Logged
    events: tuple[bytes, ...]
    is_mariadb: bool


class Outcome(NamedTuple):
    """What was read: records, errors, and where the reader and the decoder stand. `commits`: at some boundaries, and at the last one, number, place,
    GTIDs and how many records were there; `in_python`: how many events were read one by one."""

    records: list[Any]
    error: Any
    standing: Any
    commits: list[Any]
    in_python: int


def checked(event: bytes) -> bytes:
    """The event with its checksum."""
    if event[4] == E.FORMAT_DESCRIPTION:
        return event
    size = struct.unpack_from("<I", event, 9)[0] + 4
    data = event[:9] + struct.pack("<I", size) + event[13:]
    return data + struct.pack("<I", zlib.crc32(data))


def placed(event: bytes, position: int) -> bytes:
    """The event with the place behind it; only its lower half is kept."""
    data = event[:13] + struct.pack("<I", position & 0xFFFF_FFFF) + event[17:]
    if event[4] == E.FORMAT_DESCRIPTION:
        return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))
    return data


def query(text: str, *, status: bytes = b"\x04\x2d\x00\x2d\x00\x2d\x00", thread: int = 7) -> bytes:
    return made.event(E.QUERY, struct.pack("<IIBHH", thread, 0, 4, 0, len(status)) + status + b"shop\0" + text.encode())


def mysql_gtid(number: int, us: int | None, *, source: bytes = b"S" * 16) -> bytes:
    """Without a time, as servers of 5.7 write it; number 0 for a transaction without a GTID."""
    body = b"\1" + source + struct.pack("<qBqq", number, 2, 1, 2)
    if us is not None:
        body += us.to_bytes(7, "little") + made.packed(300) + struct.pack("<I", 80034)
    return made.event(E.GTID if number else E.ANONYMOUS_GTID, body)


def mariadb_gtid(number: int, *, domain: int = 0, flags: int = 0x0C) -> bytes:
    group = struct.pack("<Q", 77) if flags & 2 else b"\0" * 6
    return made.event(E.MARIADB_GTID, struct.pack("<QIB", number, domain, flags) + group)


def xid() -> bytes:
    return made.event(E.XID, struct.pack("<Q", 99))


def map_of(table_id: int, columns: int, name: str = "t") -> bytes:
    return made.table_map(b"\3" * columns, b"", table_id=table_id, table=name)


def other_rows(count: int) -> list[bytes]:
    """Rows of a table that is not captured: of one number each."""
    images = b"".join(b"\0" + struct.pack("<I", n) for n in range(count))
    return [map_of(OTHER_ID, 1, "other"), made.rows(E.WRITE_ROWS, 1, b"\1", images, table_id=OTHER_ID, flags=0)]


OTHERS = (
    made.event(E.ROWS_QUERY, b"\5hello"),
    made.event(E.ANNOTATE_ROWS, b"insert"),
    made.event(E.HEARTBEAT, b"log.000001"),
    made.event(E.IGNORABLE, b"", flags=0x80),
    made.event(E.BINLOG_CHECKPOINT, struct.pack("<I", 10) + b"log.000001"),
)


@st.composite
def statements(draw: st.DrawFn, table: Logged, rows: Sequence[bytes]) -> list[bytes]:
    """Rows of a transaction behind their table maps, with what may stand around them."""
    out: list[bytes] = []
    for event in rows:
        if draw(st.integers(0, 3)) == 0:
            out.append(draw(st.sampled_from([*OTHERS, query("SAVEPOINT a")])))
        if draw(st.integers(0, 3)) == 0:
            out += other_rows(draw(st.integers(1, 3)))
        out += [map_of(9, len(table.kinds)), event[:25] + struct.pack("<H", draw(st.integers(0, 1))) + event[27:]]
    return out


@st.composite
def rows_of(draw: st.DrawFn, table: Logged, values: Sequence[bytes], *, whole: bool) -> bytes:
    """One event of one or more rows. Some change their key, which is the decoder's; where not `whole` some images lack columns."""
    every, kind = [True] * len(values), draw(st.sampled_from("cccuudCUD"))
    part = every if whole or draw(st.integers(0, 2)) else [i == 0 or i % 2 == 1 for i in range(len(values))]
    images = b""
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        old = [None if i and draw(st.integers(0, 9)) == 0 else value for i, value in enumerate(values)]
        moved = draw(st.integers(0, 9)) == 0
        new = [
            b"\x07" if moved else old[0],
            *(draw(st.sampled_from([before, value])) for before, value in zip(old[1:], values[1:], strict=True)),
        ]
        if kind.lower() != "c":
            images += image(old, part)
        if kind.lower() != "d":
            images += image(new, part)
    return rows_event(kind, table, images, part, part)


@st.composite
def logs(draw: st.DrawFn, *, whole: bool = True) -> Stream:
    """A log of either server, whose transactions lie close together or far apart in time, in files of any size."""
    is_mariadb, chosen = (
        draw(st.booleans()),
        [0, *draw(st.lists(st.integers(1, len(KINDS) - 1), max_size=4, unique=True))],
    )
    table = Logged(tuple(KINDS[i] for i in chosen), tuple(i != 0 for i in chosen), (0,))
    values = [SAMPLE[i] for i in chosen]
    out = [made.event(E.ROTATE, struct.pack("<Q", 4) + b"log.000001", flags=ARTIFICIAL), made.format_description()]
    number, us = 0, MICROS
    for _ in range(draw(st.integers(1, 6))):
        number += draw(st.sampled_from([1, 1, 1, 2]))
        us += draw(st.sampled_from([0, 0, 1, 999, 50_000]))
        out += draw(beginnings(number, us, is_mariadb=is_mariadb))
        if is_standalone(out[-1]):
            out.append(query("create table shop.more (id int)"))
            continue
        rows = draw(st.lists(rows_of(table, values, whole=whole), min_size=1, max_size=3))
        out += draw(statements(table, rows))
        out.append(draw(st.sampled_from([xid(), xid(), xid(), xid(), query("COMMIT"), query("ROLLBACK")])))
        if draw(st.integers(0, 9)) == 0:
            out += [made.event(E.ROTATE, struct.pack("<Q", 4) + b"log.000002"), made.format_description()]
    if draw(st.integers(0, 3)) == 0:
        # The last transaction goes on.
        del out[-1 - draw(st.integers(0, 1)) :]
    return Stream(table, tuple(_with_places(draw, out)), is_mariadb)


@st.composite
def beginnings(draw: st.DrawFn, number: int, us: int, *, is_mariadb: bool) -> list[bytes]:
    if is_mariadb:
        domain, flags = draw(st.sampled_from([0, 0, 0, 4])), draw(st.sampled_from([0x0C, 0x0C, 0x0C, 2, 1]))
        return [mariadb_gtid(number, domain=domain, flags=flags)]
    return [
        mysql_gtid(number * draw(st.sampled_from([1, 1, 1, 0])), draw(st.sampled_from([us, us, None]))),
        query("BEGIN", thread=draw(st.integers(0, 9))),
    ]


def is_standalone(event: bytes) -> bool:
    return event[4] == E.MARIADB_GTID and bool(event[19 + 12] & 1)


def _with_places(draw: st.DrawFn, events: Sequence[bytes]) -> list[bytes]:
    """Some files are larger than the places in headers can say."""
    position, out, tells = draw(st.sampled_from([4, (1 << 32) - 300])), [], draw(st.booleans())
    for event in events:
        if event[4] == E.ROTATE:
            position = position if event[17] & ARTIFICIAL else 4
            out.append(event[:19] + struct.pack("<Q", position) + event[27:])
            continue
        if event[4] == E.HEARTBEAT:
            out.append(event)
            continue
        position += len(event)
        ends = event[4] in (E.XID, E.QUERY, E.FORMAT_DESCRIPTION)
        out.append(placed(event, position if tells or ends else 0))
    return out


class Driven:
    """A reader and a decoder as a task has them, that read packets by the native path or without it."""

    def __init__(
        self, stream: Stream, config: dict[str, str], options: DecoderOptions, *, fast: bool, rows: bool
    ) -> None:
        settings, schema = settings_of(tuple(config.items())), source_schema("mysql")
        catalog = TableCatalog(stream.table.catalog, is_mariadb=False)
        plans = CapturedPlans(TablePlanner(settings, schema, catalog.table), catalog)
        events = EventReader(Checksum.OFF, lambda found: stream.table.map if found.table == "t" else countable(found))
        numbers = CommitNumbers(MICROS - 5)
        self.registry, self.records, self.commits, self.in_python = Registry(), list[Any](), list[Any](), 0
        executed = ExecutedGtids(parse_gtids("", is_mariadb=stream.is_mariadb))
        decoder = BinlogDecoder(plans, TEMPLATE, numbers, options)
        self.parts = native_log.StreamParts(events, decoder, numbers, executed)
        self.sizes = list[int]()
        """What each turn of the native path has taken of its room."""
        self.log: native_log.NativeLog | None = None
        if fast or rows:
            assert native is not None
            events.leaves_rows = True
            decoder.writer = writer = native_rows.NativeRows(self.registry, native, schema)
            if fast:
                self.log = native_log.make_native_log(self.parts, writer, native, schema, self.at_commit)

    def at_commit(self) -> bool:
        parts, ended = self.parts, self.parts.decoder.ended
        assert ended is not None
        parts.decoder.ended = None
        if ended.own is not None:
            parts.executed.add(ended.own)
        self.take()
        told = ended.number, ended.commit_us, ended.server_id, ended.gtid
        self.commits.append((told, parts.events.place, str(parts.executed.gtids), len(self.records)))
        return True

    def take(self) -> None:
        taken = self.parts.decoder.take()
        for item in taken:
            assert not isinstance(item, EncodedRecords) or item == counted(item)
        self.records += self.registry.produced(taken)

    def read(self, buffer: PacketBuffer, room: int) -> None:
        """Reads all whole packets; at most so many bytes at once by the native path."""
        while True:
            while self.log is not None and (size := self.log.feed(buffer, room)[0]):
                self.sizes.append(size)
            payload = buffer.next()
            if payload is None:
                return
            self.in_python += 1
            for event in self.parts.events.read(payload[1:]):
                self.parts.decoder.feed(event)
                if self.parts.decoder.ended is not None:
                    self.at_commit()

    @property
    def standing(self) -> Any:
        events, decoder = self.parts.events, self.parts.decoder
        begun = decoder.transaction
        told = begun and (
            begun.number,
            begun.commit_us,
            begun.server_id,
            begun.gtid,
            begun.own,
            begun.is_group,
            begun.thread,
        )
        found = told, decoder.index if begun else None, len(decoder.incomplete)
        return found, events.place, self.parts.numbers.last, str(self.parts.executed.gtids), events.tables.current


def counted(item: EncodedRecords) -> EncodedRecords:
    """The same records, with what is said of them counted anew."""
    sizes = [len(record[1] or b"") + len(record[2] or b"") for record in item.records]
    counts: dict[str, int] = {}
    for topic, *_ in item.records:
        counts[topic] = counts.get(topic, 0) + 1
    largest = max(sizes)
    topics = {record[0] for record, size in zip(item.records, sizes, strict=True) if size == largest}
    topic = item.largest_topic if item.largest_topic in topics else ""
    return EncodedRecords(item.records, sum(sizes), largest, topic, counts, item.ts_ms)


def outcome(
    stream: Stream,
    config: dict[str, str] | None = None,
    options: DecoderOptions | None = None,
    *,
    fast: bool,
    rows: bool = False,
    cut: int = 1 << 16,
    room: int = 1 << 22,
) -> Outcome:
    """Reads a stream whose bytes arrive in pieces of `cut`. `rows`: rows are the native core's, where events are not."""
    driven, error = Driven(stream, config or {}, options or DecoderOptions(), fast=fast, rows=rows), None
    try:
        arrive(driven, stream, cut, room)
    except CdcError as exc:
        error = (exc.code, exc.message, dict(exc.where))
    driven.take()
    return Outcome(driven.records, error, driven.standing, driven.commits, driven.in_python)


def arrive(driven: Driven, stream: Stream, cut: int, room: int) -> None:
    """The bytes of a stream arrive in pieces."""
    buffer, data = PacketBuffer(), b"".join(packets(b"\0" + event, i) for i, event in enumerate(stream.events))
    for at in range(0, len(data), cut):
        piece = data[at : at + cut]
        with buffer.room() as space:
            space[: len(piece)] = piece
        buffer.filled(len(piece))
        driven.read(buffer, room)
