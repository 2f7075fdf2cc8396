"""The native path of whole transactions against the reader and the decoder in Python: the same records, places, numbers and GTIDs."""

from __future__ import annotations

import dataclasses
import zlib

import pytest
from cdcworker.connectors.mysql.binlog.format_description import Checksum
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.connectors.mysql.errors import CHECKSUM
from hypothesis import given, settings
from hypothesis import strategies as st

from ..binlog import made
from ..binlog.test_mysql_events import TAGGED, tagged, varlen
from . import log_streams as logs
from .log_streams import Stream, outcome
from .row_events import MODES, SAMPLE, SAMPLE_TABLE, image, native, needs_native, rows_event

pytestmark = needs_native
PIECES = st.sampled_from([7, 60, 61, 500, 1 << 16, 1 << 20])
ROOMS = st.sampled_from([1, 200, 1 << 22])


def check(stream: Stream, modes, cut, room, **more):
    """Boundaries that the native path tells of are some of those that the decoder tells of, and the last of them."""
    found = outcome(stream, modes, fast=True, cut=cut, room=room, **more)
    expected = outcome(stream, modes, fast=False, rows=True, **more)
    assert (found.records, found.error, found.standing) == (expected.records, expected.error, expected.standing)
    assert found.commits[-1:] == expected.commits[-1:]
    assert [commit for commit in expected.commits if commit in found.commits] == found.commits
    if expected.error is None:
        assert outcome(stream, modes, fast=False, **more)[:4] == expected[:4]


def with_checksums(stream: Stream) -> Stream:
    """The log of a server that writes checksums, as nearly all do."""
    made_with = made.format_description(checksum=Checksum.CRC32)
    events = [
        made_with if event[4] == EventType.FORMAT_DESCRIPTION else logs.checked(event) for event in stream.events[1:]
    ]
    return stream._replace(events=(stream.events[0], *events))


@given(logs.logs(), PIECES, ROOMS)
@settings(max_examples=40, deadline=None)
def test_the_core_reads_what_the_decoder_reads(stream, cut, room):
    check(stream, {}, cut, room)


@given(logs.logs(whole=False), PIECES, ROOMS)
@settings(max_examples=25, deadline=None)
def test_the_core_reads_what_the_decoder_reads_of_a_log_with_checksums_whose_images_lack_columns(stream, cut, room):
    check(with_checksums(stream), {}, cut, room)


@given(
    logs.logs(),
    st.sampled_from(["", "u", "c", "d", "ud"]),
    st.fixed_dictionaries(
        {}, optional={"skips_same": st.just(True), "completes": st.just(True), "shows_query": st.just(True)}
    ),
)
@settings(max_examples=20, deadline=None)
def test_the_core_leaves_out_what_the_decoder_leaves_out(stream, skipped, more):
    check(stream, {}, 1 << 16, 1 << 22, options=dataclasses.replace(DecoderOptions(frozenset(skipped)), **more))


@given(logs.logs(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_broken_event_is_refused_as_the_reader_refuses_it_and_nothing_else_is(stream, data):
    check(broken(stream, data), {}, 1 << 16, 1 << 22)


@pytest.mark.long
@given(logs.logs(), logs.logs(whole=False), MODES, PIECES, ROOMS, st.data())
@settings(max_examples=4_000, deadline=None)
def test_the_core_reads_what_the_decoder_reads_of_many_logs(stream, partly, modes, cut, room, data):
    check(stream, modes, cut, room)
    check(with_checksums(partly), {}, cut, room)
    check(broken(stream, data), {}, cut, room)


def broken(stream: Stream, data) -> Stream:
    """One event of the log is another one: a byte in its head or behind it, or what is cut off."""
    number = data.draw(st.integers(1, len(stream.events) - 1))
    event = bytearray(stream.events[number])
    at = data.draw(st.integers(0, len(event) - 1))
    if data.draw(st.booleans()):
        event[at] = data.draw(st.integers(0, 255))
    else:
        del event[max(at, 19) :]
        event[9:13] = len(event).to_bytes(4, "little")
    return stream._replace(events=(*stream.events[:number], bytes(event), *stream.events[number + 1 :]))


def one_row(transactions: int, *, is_mariadb: bool) -> Stream:
    every = [True] * len(SAMPLE)
    event = rows_event("c", SAMPLE_TABLE, image(SAMPLE, every), every, every)
    event = event[:25] + b"\1\0" + event[27:]
    out = [made.event(EventType.ROTATE, b"\4" + bytes(7) + b"log.000001", flags=0x20), made.format_description()]
    for number in range(1, transactions + 1):
        begin = (
            [logs.mariadb_gtid(number)]
            if is_mariadb
            else [logs.mysql_gtid(number, logs.MICROS + number), logs.query("BEGIN")]
        )
        out += [*begin, logs.map_of(9, len(SAMPLE)), event, logs.xid()]
    return Stream(SAMPLE_TABLE, tuple(out), is_mariadb)


@pytest.mark.parametrize("is_mariadb", [False, True])
def test_common_transactions_are_read_natively(is_mariadb):
    """But for the head of the file, the first table map and what stands in front of it."""
    stream = one_row(300, is_mariadb=is_mariadb)
    found, expected = outcome(stream, fast=True), outcome(stream, fast=False)
    assert found[:3] == expected[:3]
    assert len(found.records) == 300
    assert found.in_python == 3


def test_a_turn_ends_when_its_room_is_taken_by_what_was_written():
    """Rows of the log are shorter than their records."""
    stream = one_row(100, is_mariadb=True)
    driven = logs.Driven(stream, {}, DecoderOptions(), fast=True, rows=True)
    logs.arrive(driven, stream, 1 << 20, 10_000)
    largest = max(len(value) + len(key) for _, value, key, *_ in driven.records)
    assert len(driven.records) == 100
    assert len(driven.sizes) > 5
    assert max(driven.sizes) < 10_000 + largest


def beginning(stream: Stream, begin: bytes) -> Stream:
    """The log with this event where one of its transactions has its GTID."""
    return stream._replace(events=tuple(begin if event[4] == EventType.GTID else event for event in stream.events))


def test_rows_of_a_transaction_with_the_longest_tag_are_read_natively():
    tag = (3, varlen(32) + b"b" * 32)
    stream = beginning(one_row(1, is_mariadb=False), tagged([*TAGGED[:3], tag, *TAGGED[4:]]))
    found, expected = outcome(stream, fast=True), outcome(stream, fast=False)
    assert found[:4] == expected[:4]
    assert found.in_python == 4


@pytest.mark.parametrize("us", [8_000_000_000_000_001, (1 << 55) - 1])
def test_a_transaction_from_a_time_that_the_core_does_not_know_is_the_decoders(us):
    stream = beginning(one_row(1, is_mariadb=False), logs.mysql_gtid(3, us))
    found, expected = outcome(stream, fast=True), outcome(stream, fast=False)
    assert found[:4] == expected[:4]


def test_a_wrong_checksum_is_refused_with_its_place():
    stream = with_checksums(one_row(5, is_mariadb=True))
    bad = bytearray(stream.events[-2])
    bad[-1] ^= 1
    stream = stream._replace(events=(*stream.events[:-2], bytes(bad), stream.events[-1]))
    found, expected = outcome(stream, fast=True), outcome(stream, fast=False)
    assert found.error == expected.error
    assert found.error[0] == CHECKSUM
    assert len(found.records) == 4


@given(st.binary(max_size=300))
def test_the_checksum_is_that_of_zlib(data):
    assert native.checksum(data) == zlib.crc32(data)


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (0, 6), (3, 2)])
def test_offsets_outside_the_buffer_are_refused(start, end):
    with pytest.raises(ValueError):
        native.LogCore().feed(bytearray(5), start, end, 100)
