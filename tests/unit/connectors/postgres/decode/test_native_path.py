"""The native core against the Python decoder and encoder: the same records, byte for byte, and no bytes make it crash."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace

import pytest
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.postgres.decode import native_layouts as kinds
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.postgres.types.mapping import HandlingModes
from cdcworker.schemas.change import EncodedRecords
from cdcworker.schemas.errors import CdcError
from hypothesis import given, settings
from hypothesis import strategies as st

from .. import messages as m
from ..oracle import TYPMODS, Registry, decoder, description, native, needs_native, produced, relations, value_of

HEADER_BYTES = 25


@st.composite
def streams(draw):
    """Every other update leaves values out that were not sent; few change the key."""
    columns, modes, filters = draw(relations())
    row = lambda: [value_of(draw, column) for column in columns]  # noqa: E731

    def updated(old):
        kept = [new if draw(st.booleans()) else before for before, new in zip(old, row(), strict=True)]
        return kept if not draw(st.integers(0, 5)) else [
            before if column[3] else new for before, new, column in zip(old, kept, columns, strict=True)
        ]  # fmt: skip

    def partly(new):
        leave = draw(st.booleans())
        return ["u" if leave and not c[3] and draw(st.booleans()) else v for v, c in zip(new, columns, strict=True)]

    messages = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from("iiuuUUDdk"))
        old = row()
        if kind == "i":
            messages.append(m.insert(1, *old))
        elif kind == "u":
            messages.append(m.update(1, partly(old)))
        elif kind == "U":
            messages.append(m.update(1, partly(updated(old)), old, b"O"))
        elif kind == "k":
            messages.append(m.update(1, partly(row()), old, b"K"))
        else:
            messages.append(m.delete(1, old, b"O" if kind == "D" else b"K"))
    return columns, modes, filters, [m.begin(1000), description(columns), *messages, m.commit(1000)]


def outcome(
    columns, modes, filters, messages, *, fast: bool, framed: bool = False, skipped: str = "", whole: bool = False
):
    """(records, error): records up to the message that cannot be decoded, and its error."""
    registry, changes = Registry(), decoder(columns, modes, filters)
    changes.skipped, changes.completes = frozenset(skipped), whole
    feed = changes.feed
    if fast:
        assert native
        quick = native_path.NativePath(changes, registry, native)
        feed = quick.feed
    error = None
    try:
        if framed:
            feed_frames(quick, messages)
        else:
            for message in messages:
                feed(message)
    except CdcError as exc:
        error = (exc.code, exc.message, exc.where)
    if fast:
        quick.flush()
    try:
        return produced(registry, changes.out), error, changes.index
    except CdcError as exc:
        return (exc.code, exc.message), error, changes.index


def feed_frames(quick, messages) -> None:
    buffer = bytearray(b"".join(b"d" + struct.pack(">I", len(data) + 4) + data for data in messages))
    at = 0
    while at < len(buffer):
        done, _ = quick.feed_frames(buffer, at, len(buffer))
        if done == at:
            size = int.from_bytes(buffer[at + 1 : at + 5], "big")
            quick.feed(bytes(buffer[at + 5 : at + 1 + size]))
            done = at + 1 + size
        at = done


@needs_native
@given(streams())
@settings(max_examples=80, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write(stream):
    expected = outcome(*stream, fast=False)
    assert outcome(*stream, fast=True) == expected
    assert outcome(*stream, fast=True, framed=True) == expected


@needs_native
@given(streams(), st.sampled_from(["u", "c", "d", "ud", "cu"]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_the_core_leaves_out_what_the_decoder_leaves_out(stream, skipped, whole):
    """Among that a key that changes, which is no update, and rows that are to be read again."""
    expected = outcome(*stream, fast=False, skipped=skipped, whole=whole)
    assert outcome(*stream, fast=True, skipped=skipped, whole=whole) == expected
    assert outcome(*stream, fast=True, framed=True, skipped=skipped, whole=whole) == expected


@needs_native
def test_a_value_that_was_not_sent_is_named_in_a_header_that_a_client_takes():
    columns = [("id", 23, -1, True, True), ("v", 25, -1, False, False), ("n", 23, -1, False, False)]
    messages = [m.begin(1000), description(columns), m.update(1, [b"1", "u", b"2"]), m.commit(1000)]
    stream = (columns, HandlingModes(), TableFilters(), messages)
    expected = outcome(*stream, fast=False)
    ((*_, headers),) = expected[0]
    assert headers == [("cdc.unchanged", b"1")]
    assert outcome(*stream, fast=True) == expected
    assert outcome(*stream, fast=True, framed=True) == expected


SAMPLE_COLUMNS = [
    (f"c{i}", oid, TYPMODS.get(oid, [-1])[-1], i == 0, i % 3 == 0)
    for i, oid in enumerate((20, 23, 25, 1700, 1184, 1114, 1082, 1083, 16, 17, 700, 701, 2950, 114, 1007))
]
SAMPLE = [
    b"-42", b"7", "gr\u00fc\u00df".encode(), b"-123.45", b"2024-02-29 12:34:56.7+00", b"1969-12-31 23:59:59.999", b"1600-01-01",
    b"23:59:59.5", b"t", b"\\xdeadbeef", b"1.5", b"-2.5e-300", b"7b3d7a2e-0000-4000-8000-000000000000", b'{"a": 1}', b"{1,2}",
]  # fmt: skip
INTERESTING = (
    b"",
    b"-",
    b"0",
    b"n",
    b"u",
    b"\0",
    b"\xff\xff\xff\xff",
    b"9" * 30,
    b"\xc3",
    b"\xed\xa0\x80",
    b"infinity",
)


def mutated(chosen: random.Random, data: bytes, head: int = HEADER_BYTES) -> bytes:
    """A message with some of its bytes behind its `head` changed, cut out or put in."""
    out = bytearray(data)
    for _ in range(chosen.randint(1, 3)):
        if len(out) < head:
            break
        at = chosen.randrange(head, len(out) + 1)
        what = chosen.randrange(4)
        if what == 0 and at < len(out):
            out[at] = chosen.randrange(256)
        elif what == 1:
            del out[at : at + chosen.randint(1, 6)]
        elif what == 2:
            out[at:at] = chosen.choice(INTERESTING)
        else:
            del out[max(at, HEADER_BYTES + 6) :]
    return bytes(out)


def fuzzed(seed: int) -> None:
    chosen = random.Random(seed)
    rows = [m.insert(1, *SAMPLE), m.update(1, SAMPLE), m.update(1, SAMPLE, SAMPLE, b"O"), m.delete(1, SAMPLE, b"O")]
    messages = [m.begin(1000), description(SAMPLE_COLUMNS), rows[0]]
    messages += [mutated(chosen, chosen.choice(rows)) for _ in range(3)]
    stream = (SAMPLE_COLUMNS, HandlingModes(), TableFilters(), messages)
    expected = outcome(*stream, fast=False)
    assert outcome(*stream, fast=True) == expected, seed
    assert outcome(*stream, fast=True, framed=True) == expected, seed


@needs_native
def test_broken_bytes_give_what_the_decoder_gives_and_never_crash():
    for seed in range(150):
        fuzzed(seed)


@needs_native
@pytest.mark.long
def test_many_broken_bytes_give_what_the_decoder_gives_and_never_crash():
    for seed in range(1000, 1000 + 40_000):
        fuzzed(seed)


FORMS = [
    (SAMPLE_COLUMNS, HandlingModes(), TableFilters()),
    (SAMPLE_COLUMNS, HandlingModes(decimal="string", time="connect", binary="base64"), TableFilters()),
    (
        SAMPLE_COLUMNS,
        HandlingModes(decimal="double", time="nanoseconds", binary="hex"),
        TableFilters(column_exclude=(r"public\.t\.c[258]",)),
    ),
    (
        [(*column[:3], i in (1, 3, 6), False) for i, column in enumerate(SAMPLE_COLUMNS)],
        HandlingModes(),
        TableFilters(),
    ),
]
"""Of one row: each kind of value in its modes, columns that are left out, a key of several columns."""


@needs_native
@pytest.mark.parametrize(("columns", "modes", "filters"), FORMS, ids=["usual", "as text", "in part", "wide key"])
def test_a_million_broken_messages_never_crash(columns, modes, filters):
    """Broken rows of a table that the core knows: some are rows still, the others are left somewhere inside of them."""
    quick = native_path.NativePath(decoder(columns, modes, filters), Registry(), native)
    rows = [m.insert(1, *SAMPLE), m.update(1, SAMPLE), m.update(1, SAMPLE, SAMPLE, b"O"), m.delete(1, SAMPLE, b"O")]
    for data in (m.begin(1000), description(columns), *rows):
        quick.feed(data)
    core = quick._core
    assert core.ready
    assert list(core.layouts) == [1]
    assert all(core.one(data) for data in rows), "whole ones are done here"
    chosen, done, count = random.Random(1), 0, 1_000_000 // len(FORMS)
    for number in range(count):
        done += core.one(mutated(chosen, rows[number % len(rows)], HEADER_BYTES + 5))
        if number % 1000 == 0:
            core.take()
    assert count // 100 < done < count


@needs_native
def test_bytes_of_any_kind_are_left_to_the_decoder():
    core = native.Core("h", ())
    core.ready = True
    core.set_layout(1, native.Layout())
    chosen = random.Random(7)
    for _ in range(5_000):
        data = b"w" + bytes(24) + chosen.choice([b"I", b"U", b"D", b"T"]) + chosen.choice([b"\0\0\0\1", b""])
        assert core.one(data + chosen.randbytes(chosen.randrange(40))) in (True, False)
        assert core.feed(chosen.randbytes(50), 0, 50) in range(51)
    for start, end in ((-1, 5), (0, 99), (6, 5)):
        with pytest.raises(ValueError):
            core.feed(bytearray(10), start, end)


@pytest.mark.parametrize(
    ("oid", "typmod", "kind"),
    [
        (20, -1, "LONG"), (23, -1, "INT"), (21, -1, "INT"), (25, -1, "TEXT"), (16, -1, "BOOLEAN"), (17, -1, "HEX"),
        (700, -1, "FLOAT"), (701, -1, "DOUBLE"), (1082, -1, "DATE"), (1083, -1, "TIME"), (1114, -1, "TIMESTAMP"),
        (1184, -1, "ZONED"), (1700, (12 << 16 | 2) + 4, "DECIMAL"), (1700, -1, "VARIABLE"), (2950, -1, "TEXT"),
        (114, -1, "TEXT"), (1186, -1, "CALL"),
    ],
)  # fmt: skip
def test_common_types_are_native(oid, typmod, kind):
    changes = decoder([("c", oid, typmod, False, False)], HandlingModes(), TableFilters())
    changes.feed(description([("c", oid, typmod, False, False)]))
    plan = changes.plan(1)
    assert plan
    assert kinds.kind_of(plan.table.columns[0], plan.parsers[0])[0] == getattr(kinds, kind)


@needs_native
def test_records_carry_when_their_own_transaction_was_committed():
    """Of two transactions that were read together: what waits is as old as its own commit."""
    columns = [("id", 23, -1, True, True)]
    early, late = 1_700_000_000_000_000, 1_700_000_060_000_000
    changes, registry = decoder(columns, HandlingModes(), TableFilters()), Registry()
    quick = native_path.NativePath(changes, registry, native)
    first = [m.begin(1000, us=early), description(columns), m.insert(1, b"1"), m.insert(1, b"2"), m.commit(1000)]
    second = [m.begin(2000, us=late), m.insert(1, b"3"), m.commit(2000)]
    feed_frames(quick, [*first, *second])
    quick.flush()
    made = [item for item in changes.out if isinstance(item, EncodedRecords)]
    assert sum(len(item.records) for item in made) == 3
    assert {item.ts_ms for item in made} == {early // 1000, late // 1000}
    assert [item.ts_ms for item in made] == sorted(item.ts_ms for item in made)


PG_2000_US = 946_684_800_000_000
ID = [("id", 23, -1, True, True)]


def transactions(draw):
    """Messages of several transactions in all sizes, some with what the core leaves to the decoder."""
    messages, lsn = [description(ID)], 0
    for _ in range(draw(st.integers(1, 6))):
        lsn += draw(st.integers(1, 1 << 40))
        us = draw(st.sampled_from([PG_2000_US, PG_2000_US - 1, 0, -1, -1001, 1_700_000_000_123_456]))
        messages.append(m.begin(lsn, draw(st.integers(1, (1 << 32) - 1)), us))
        for _ in range(draw(st.integers(0, 3))):
            messages.append(
                draw(
                    st.sampled_from(
                        [
                            m.insert(1, b"1"),
                            m.insert(1, b"2"),
                            m.delete(1, [b"1"]),
                            m.update(1, [b"1"], [b"2"]),
                            m.origin("other", lsn),
                            m.message("p", b"x", lsn),
                            m.insert(1, b"no number"),
                            m.truncate(1),
                        ]
                    )
                )
            )
        messages.append(m.commit(lsn, lsn + 8, us))
    return messages


class Commits:
    """What a task sees at the commits that it is told of: the last one, and what has come up to it."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple] = {}

    def note(self, changes) -> bool:
        commit = changes.commit
        items = sum(len(item.records) if isinstance(item, EncodedRecords) else 1 for item in changes.out)
        self.seen[commit.commit_lsn] = (commit, changes.last_xid, items, changes.bytes, changes.in_transaction)
        return True


def followed(messages, resume, *, framed: bool):
    """(records, state at the end, what was seen at each commit that was told, error)."""
    registry, changes, commits = Registry(), decoder(ID, HandlingModes(), TableFilters()), Commits()
    changes.resume(*resume)
    error, feed = None, changes.feed
    try:
        if framed:
            quick = native_path.NativePath(changes, registry, native, at_commit=commits.note)
            buffer = bytearray(b"".join(b"d" + struct.pack(">I", len(data) + 4) + data for data in messages))
            at, feed = 0, quick.feed
            while at < len(buffer):
                done, _ = quick.feed_frames(buffer, at, len(buffer))
                if done == at:
                    size = int.from_bytes(buffer[at + 1 : at + 5], "big")
                    if feed(bytes(buffer[at + 5 : at + 1 + size])) == ord("C"):
                        commits.note(changes)
                    done = at + 1 + size
                at = done
        else:
            for data in messages:
                if feed(data) == ord("C"):
                    commits.note(changes)
    except CdcError as exc:
        error = (exc.code, exc.message, exc.where)
    if framed:
        quick.flush()
    stands = (changes.part, changes.commit, changes.last_xid, changes.sequence_start, changes.in_transaction)
    return produced(registry, changes.out), stands, commits.seen, error


@needs_native
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_transactions_that_the_core_follows_are_those_that_the_decoder_follows(data):
    messages = transactions(data.draw)
    cut = data.draw(st.integers(1, len(messages)))
    lsns = [int.from_bytes(one[26:34], "big") for one in messages[:cut] if one[HEADER_BYTES : HEADER_BYTES + 1] == b"B"]
    resume = (0, None, None)
    if lsns and data.draw(st.booleans()):
        lsn = data.draw(st.sampled_from(lsns))
        resume = data.draw(st.sampled_from([(lsn, None, None), (lsn - 1, (lsn, 1), None), (lsn - 1, (lsn, 2), None)]))
    records, stands, seen, error = followed(messages[:cut], resume, framed=True)
    expected_records, expected_stands, expected_seen, expected_error = followed(messages[:cut], resume, framed=False)
    assert (records, stands, error) == (expected_records, expected_stands, expected_error)
    assert set(seen) <= set(expected_seen)
    # Frames have their own bytes around the messages that the decoder counts.
    for lsn, (commit, xid, _, _, inside) in seen.items():
        assert (commit, xid, inside) == (expected_seen[lsn][0], expected_seen[lsn][1], False)


@needs_native
def test_whole_transactions_need_no_message_through_the_decoder(monkeypatch):
    """And the caller is told of the last commit with what came up to it, not with what came behind."""
    changes, registry, commits = decoder(ID, HandlingModes(), TableFilters()), Registry(), Commits()
    quick = native_path.NativePath(changes, registry, native, at_commit=commits.note)
    for data in (m.begin(10), description(ID), m.insert(1, b"1"), m.commit(10)):
        quick.feed(data)
    changes.out.clear()
    changes.bytes = 0
    monkeypatch.setattr(changes, "feed", None)
    first = [m.begin(20, 8), m.insert(1, b"2"), m.commit(20), m.begin(25, 9), m.commit(25)]
    second = [m.begin(30, 11), m.insert(1, b"3"), m.insert(1, b"4")]
    feed_frames(quick, [*first, *second])
    assert {lsn: (xid, items, size) for lsn, (_, xid, items, size, _) in commits.seen.items()} == {
        25: (9, 1, sum(len(data) + 5 for data in first))
    }
    assert (changes.in_transaction, changes.last_xid) == (True, 11)
    quick.flush()
    assert changes.part == (30, 2)
    assert [len(item.records) for item in changes.out if isinstance(item, EncodedRecords)] == [1, 2]
    feed_frames(quick, [m.commit(30)])
    assert (changes.part, changes.commit.commit_lsn, changes.in_transaction) == (None, 30, False)


@needs_native
def test_a_batch_ends_at_the_commit_from_which_on_it_has_enough():
    changes, registry, commits = decoder(ID, HandlingModes(), TableFilters()), Registry(), Commits()
    one = lambda lsn: [m.begin(lsn), m.insert(1, b"1"), m.commit(lsn)]  # noqa: E731
    size = sum(len(data) + 5 for data in one(1))
    quick = native_path.NativePath(changes, registry, native, 1 << 20, 2 * size, commits.note)
    for data in (m.begin(1), description(ID), m.insert(1, b"1"), m.commit(1)):
        quick.feed(data)
    changes.out, changes.bytes = [], 0
    buffer = bytearray(b"".join(b"d" + struct.pack(">I", len(d) + 4) + d for lsn in range(2, 9) for d in one(lsn)))
    assert quick.feed_frames(buffer, 0, len(buffer))[0] == 2 * size
    assert changes.commit.commit_lsn == 3


@needs_native
@pytest.mark.parametrize("why", ["listeners", "expiring", "observer"])
def test_who_must_be_told_of_each_commit_or_begin_is_told_by_the_decoder(why):
    changes, registry, commits = decoder(ID, HandlingModes(), TableFilters()), Registry(), Commits()
    kept: dict[int, int] = {}
    changes.expiring = (kept,)
    quick = native_path.NativePath(changes, registry, native, at_commit=commits.note)
    for data in (m.begin(1), description(ID), m.insert(1, b"1"), m.commit(1)):
        quick.feed(data)
    if why == "listeners":
        changes.listen(99, lambda plan, row: None)
    elif why == "expiring":
        kept[1] = 50
    else:
        changes.observe(SimpleNamespace(began=lambda xid: None, event=lambda plan, event: True))
    buffer = bytearray(b"".join(b"d" + struct.pack(">I", len(d) + 4) + d for d in (m.begin(2), m.insert(1, b"1"))))
    assert quick.feed_frames(buffer, 0, len(buffer))[0] == 0
    assert not commits.seen
