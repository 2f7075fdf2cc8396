"""The native core against the Python decoder and encoder: the same records, byte for byte, and no bytes make it crash."""

from __future__ import annotations

import random
import struct

import pytest
from cdcworker.connectors.postgres import kinds, lane
from cdcworker.connectors.postgres.config import Filters
from cdcworker.connectors.postgres.types import Modes
from cdcworker.schemas.change import Ready
from cdcworker.schemas.errors import CdcError
from hypothesis import given, settings
from hypothesis import strategies as st

from . import messages as m
from .oracle import TYPMODS, Registry, decoder, description, native, needs_native, produced, relations, value_of

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


def outcome(columns, modes, filters, messages, *, fast: bool, framed: bool = False):
    """(records, error): records up to the message that cannot be decoded, and its error."""
    registry, changes = Registry(), decoder(columns, modes, filters)
    feed = changes.feed
    if fast:
        assert native
        quick = lane.Lane(changes, registry, native)
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
        done = quick.feed_frames(buffer, at, len(buffer))
        if done == at:
            size = int.from_bytes(buffer[at + 1 : at + 5], "big")
            quick.feed(bytes(buffer[at + 5 : at + 1 + size]))
            done = at + 1 + size
        at = done


@needs_native
@given(streams())
@settings(max_examples=150, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write(stream):
    expected = outcome(*stream, fast=False)
    assert outcome(*stream, fast=True) == expected
    assert outcome(*stream, fast=True, framed=True) == expected


@needs_native
def test_a_value_that_was_not_sent_is_named_in_a_header_that_a_client_takes():
    columns = [("id", 23, -1, True, True), ("v", 25, -1, False, False), ("n", 23, -1, False, False)]
    messages = [m.begin(1000), description(columns), m.update(1, [b"1", "u", b"2"]), m.commit(1000)]
    stream = (columns, Modes(), Filters(), messages)
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
    stream = (SAMPLE_COLUMNS, Modes(), Filters(), messages)
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
    (SAMPLE_COLUMNS, Modes(), Filters()),
    (SAMPLE_COLUMNS, Modes(decimal="string", time="connect", binary="base64"), Filters()),
    (
        SAMPLE_COLUMNS,
        Modes(decimal="double", time="nanoseconds", binary="hex"),
        Filters(column_exclude=(r"public\.t\.c[258]",)),
    ),
    ([(*column[:3], i in (1, 3, 6), False) for i, column in enumerate(SAMPLE_COLUMNS)], Modes(), Filters()),
]
"""Of one row: each kind of value in its modes, columns that are left out, a key of several columns."""


@needs_native
@pytest.mark.parametrize(("columns", "modes", "filters"), FORMS, ids=["usual", "as text", "in part", "wide key"])
def test_a_million_broken_messages_never_crash(columns, modes, filters):
    """Broken rows of a table that the core knows: some are rows still, the others are left somewhere inside of them."""
    quick = lane.Lane(decoder(columns, modes, filters), Registry(), native)
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
    changes = decoder([("c", oid, typmod, False, False)], Modes(), Filters())
    changes.feed(description([("c", oid, typmod, False, False)]))
    plan = changes.plan(1)
    assert plan
    assert kinds.kind_of(plan.table.columns[0], plan.parsers[0])[0] == getattr(kinds, kind)


@needs_native
def test_records_carry_when_their_own_transaction_was_committed():
    """Of two transactions that were read together: what waits is as old as its own commit."""
    columns = [("id", 23, -1, True, True)]
    early, late = 1_700_000_000_000_000, 1_700_000_060_000_000
    changes, registry = decoder(columns, Modes(), Filters()), Registry()
    quick = lane.Lane(changes, registry, native)
    first = [m.begin(1000, us=early), description(columns), m.insert(1, b"1"), m.insert(1, b"2"), m.commit(1000)]
    second = [m.begin(2000, us=late), m.insert(1, b"3"), m.commit(2000)]
    feed_frames(quick, [*first, *second])
    quick.flush()
    made = [item for item in changes.out if isinstance(item, Ready)]
    assert sum(len(item.records) for item in made) == 3
    assert {item.ts_ms for item in made} == {early // 1000, late // 1000}
    assert [item.ts_ms for item in made] == sorted(item.ts_ms for item in made)
