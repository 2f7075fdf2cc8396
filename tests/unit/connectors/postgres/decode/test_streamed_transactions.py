"""Transactions that come ahead of their end, on bytes: what reaches the decoder, in which order, and what never does."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from cdcworker.connectors.capture.stream import transaction_spool as spools
from cdcworker.connectors.capture.stream.transaction_spool import NotStreamable, TransactionSpool, XidSet
from cdcworker.connectors.postgres.decode.streamed_transactions import HEADER, StreamedTransactions
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.pgoutput import PG_EPOCH_US, WireError
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

from .. import messages as m

COLUMNS = [("id", 23, True)]


def start(xid: int, first: bool = True) -> bytes:
    return m.frame(struct.pack(">cIB", b"S", xid, first))


def stop() -> bytes:
    return m.frame(b"E")


def abort(xid: int, sub: int) -> bytes:
    return m.frame(struct.pack(">cII", b"A", xid, sub))


def end(xid: int, lsn: int) -> bytes:
    return m.frame(struct.pack(">cIBQQq", b"c", xid, 0, lsn, lsn + 8, 0))


def inside(sub: int, data: bytes) -> bytes:
    """A message as it is sent within a chunk: with the id of its sub-transaction."""
    return data[: HEADER + 1] + struct.pack(">I", sub) + data[HEADER + 1 :]


def insert(value: int) -> bytes:
    return m.insert(1, str(value).encode())


class Stream:
    """Feeds a whole stream as the task does; `fed` is what reaches the decoder."""

    def __init__(self, folder: Path, bytes_max: int = 1 << 30) -> None:
        self.ahead = StreamedTransactions(TransactionSpool(str(folder), "c-0", bytes_max, CAPTURE))
        self.fed: list[bytes] = []

    def send(self, *messages: bytes) -> Stream:
        handlers = {ord("S"): self.ahead.start, ord("A"): self.ahead.abort, ord("c"): self.ahead.commit}
        for data in messages:
            if self.ahead.inside:
                self.ahead.take(data)
                continue
            handler = handlers.get(data[HEADER])
            if handler is None:
                self.feed(data)
                continue
            handler(data)
            for one in self.ahead.replay or ():
                self.feed(one)
            self.ahead.replay = None
        return self

    def feed(self, data: bytes) -> None:
        self.fed.append(data[HEADER:])
        if data[HEADER] == ord("R"):
            self.ahead.described(data)


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path)


def payloads(*messages: bytes) -> list[bytes]:
    return [data[HEADER:] for data in messages]


def test_nothing_is_fed_before_the_commit_and_then_all_of_it_as_one_transaction(stream):
    chunk = (start(7), inside(7, m.relation(1, COLUMNS)), inside(7, insert(1)), inside(8, insert(2)), stop())
    stream.send(*chunk)
    assert stream.fed == []
    stream.send(start(7, first=False), inside(7, insert(3)), stop(), end(7, 900))
    expected = (
        m.begin(900, 7, PG_EPOCH_US), m.relation(1, COLUMNS), insert(1), insert(2), insert(3), m.commit(900, 908, PG_EPOCH_US)
    )  # fmt: skip
    assert stream.fed == payloads(*expected)
    assert (len(stream.ahead.spool), stream.ahead.spool.bytes) == (0, 0)


def test_each_message_keeps_its_place_in_the_log(tmp_path):
    stream = Stream(tmp_path)
    seen = []
    stream.feed = seen.append
    stream.send(start(7), inside(7, m.frame(insert(1)[HEADER:], 0x1234)), stop(), end(7, 900))
    assert seen[1][:9] == m.frame(b"", 0x1234)[:9]


def test_aborted_sub_transactions_leave_no_trace_and_others_do_not_notice(stream):
    rows = [inside(sub, insert(sub)) for sub in (7, 8, 9, 8, 10)]
    stream.send(start(7), *rows, stop(), abort(7, 8), abort(7, 10))
    stream.send(start(7, first=False), inside(11, insert(11)), stop(), end(7, 900))
    assert stream.fed[1:-1] == payloads(insert(7), insert(9), insert(11))


def test_an_aborted_transaction_leaves_nothing_on_the_disk(stream, tmp_path):
    stream.send(start(7), inside(7, insert(1)), stop(), start(9), inside(9, insert(2)), stop(), abort(7, 7))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["9"]
    stream.ahead.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_transactions_that_overlap_are_kept_apart(stream):
    stream.send(start(7), inside(7, insert(1)), stop(), start(9), inside(9, insert(2)), stop())
    stream.send(m.begin(500), insert(5), m.commit(500))
    stream.send(start(7, first=False), inside(7, insert(3)), stop(), end(9, 600), end(7, 700))
    rows = [data for data in stream.fed if data[:1] == b"I"]
    assert rows == payloads(insert(5), insert(2), insert(1), insert(3))


def test_a_newer_description_of_a_table_outlives_an_older_one_that_is_fed_later(stream):
    old, new = m.relation(1, COLUMNS), m.relation(1, [*COLUMNS, ("v", 25, False)])
    stream.send(start(7), inside(7, old), inside(7, insert(1)), stop())
    stream.send(m.begin(500), new, m.commit(500), end(7, 700))
    described = [data for data in stream.fed if data[:1] == b"R"]
    assert described == payloads(new, old, new)
    assert stream.fed[-1][:1] == b"C"
    # The other way round the last one counts.
    stream.send(m.begin(800), old, m.commit(800), start(8), inside(8, new), stop(), end(8, 900))
    assert [data for data in stream.fed if data[:1] == b"R"][3:] == payloads(old, new)


def test_descriptions_of_two_open_transactions_count_in_the_order_in_which_they_came(stream):
    old, new = m.relation(1, COLUMNS), m.relation(1, [*COLUMNS, ("v", 25, False)])
    stream.send(start(7), inside(7, old), stop(), start(8), inside(8, new), stop(), end(8, 800), end(7, 900))
    assert [data for data in stream.fed if data[:1] == b"R"] == payloads(new, old, new)


def test_logical_messages_beside_a_rolled_back_savepoint_are_read_in_one_piece(stream):
    note = m.message("p", b"x", 5)
    stream.send(start(7), inside(7, note), inside(8, insert(1)), stop(), abort(7, 8))
    with pytest.raises(NotStreamable) as caught:
        stream.send(end(7, 900))
    assert caught.value.xid == 7
    assert stream.fed == []


def test_what_exceeds_the_bound_is_refused_and_names_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(spools, "WRITE_BYTES", 1000)
    stream = Stream(tmp_path, bytes_max=5000)
    stream.send(start(7), *[inside(7, insert(number)) for number in range(130)], stop())
    with pytest.raises(NotStreamable) as caught:
        stream.send(start(9), *[inside(9, insert(number)) for number in range(200)])
    assert caught.value.xid == 7
    assert stream.ahead.spool.bytes <= 5000


def test_a_full_disk_is_no_error_of_the_task(tmp_path):
    (tmp_path / "spool").write_text("in the way")
    stream = Stream(tmp_path)
    with pytest.raises(NotStreamable):
        stream.send(start(7), inside(7, insert(1)), stop())


def test_a_spool_that_was_cut_short_is_noticed(stream, tmp_path):
    stream.send(start(7), *[inside(7, insert(number)) for number in range(10)], stop())
    (file,) = (path for path in tmp_path.rglob("7"))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CdcError) as caught:
        stream.send(end(7, 900))
    assert caught.value.code == "postgres.spool_broken"


def test_a_new_session_removes_what_the_last_one_left(tmp_path):
    Stream(tmp_path).send(start(7), inside(7, insert(1)), stop())
    Stream(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [m.frame(b"S\0"), m.frame(b"A\0"), m.frame(b"c\0"), start(5, first=False), end(5, 9)])
def test_what_cannot_be_is_refused(stream, data):
    with pytest.raises(WireError):
        stream.send(data)


@given(sizes=st.lists(st.integers(0, 5000), max_size=30), block=st.integers(1, 300), write=st.integers(1, 3000))
def test_messages_of_any_size_come_back_as_they_went(tmp_path_factory, sizes, block, write):
    before = spools.READ_BYTES, spools.WRITE_BYTES
    spools.READ_BYTES, spools.WRITE_BYTES = block, write
    spool = TransactionSpool(str(tmp_path_factory.getbasetemp()), "any", 1 << 30, CAPTURE)
    try:
        spool.open(1)
        messages = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
        for number, message in enumerate(messages):
            spool.add(number, number.to_bytes(8, "big"), message)
        spool.write()
        found = [(int.from_bytes(position, "big"), message) for position, message in spool.messages(1)]
        assert found == list(enumerate(messages))
    finally:
        spools.READ_BYTES, spools.WRITE_BYTES = before
        spool.close()


@given(xids=st.sets(st.integers(0, 2**32 - 1)), others=st.sets(st.integers(0, 2**32 - 1)))
def test_a_set_of_ids_holds_what_was_added(xids, others):
    found = XidSet()
    for xid in xids:
        found.add(xid)
    assert bool(found) is bool(xids)
    assert {xid for xid in xids | others if xid in found} == xids
