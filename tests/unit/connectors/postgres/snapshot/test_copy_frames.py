"""Rows of COPY in the native core against the parsers and the encoder: the same records, byte for byte."""

from __future__ import annotations

import random
import re
import struct

import pytest
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.postgres.decode.native_layouts import layout_arguments
from cdcworker.connectors.postgres.decode.table_plan import source_template
from cdcworker.connectors.postgres.snapshot.copy_frames import GONE, HEAD, CopyFrames
from cdcworker.connectors.postgres.snapshot.copy_text import key_of_line
from cdcworker.connectors.postgres.snapshot.row_emitter import FrameRowEmitter, TableRowPositions, stamped
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from cdcworker.connectors.postgres.types.mapping import HandlingModes
from cdcworker.schemas.change import EncodedRecords
from cdcworker.schemas.errors import CdcError
from hypothesis import given, settings
from hypothesis import strategies as st

from ..oracle import Registry, decoder, description, native, needs_native, produced, relations, value_of

VIEW = ReadView(TransactionSnapshot.parse("10:20:12"), 500, 1_700_000_000_654_321)
SAFE_LSN = 0x1_0000_0001
ESCAPED = {b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v"}


def line_of(values) -> bytes:
    """As the server writes it."""
    texts = [b"\\N" if v is None else re.sub(rb"[\\\b\f\n\r\t\v]", lambda f: ESCAPED[f[0]], v) for v in values]
    return b"\t".join(texts) + b"\n"


def frames_of(lines, plan=None) -> CopyFrames:
    data, last = bytearray(), -1
    for line in lines:
        last = len(data)
        data += b"d" + struct.pack(">I", len(line) + 4) + line
    return CopyFrames(data, len(data), len(lines), last, True, plan)


def plan_of(columns, modes, filters):
    changes = decoder(columns, modes, filters)
    changes.feed(description(columns))
    return changes.plan(1)


def outcome(plan, frames, *, fast: bool):
    """(records or error, numbers given)."""
    registry, progress = Registry(), SnapshotProgress()
    writer = FrameRowEmitter(registry, native) if fast else None
    plan.stale.clear()
    try:
        made = stamped(frames, TableRowPositions(progress, source_template("shop", "db"), plan, VIEW, SAFE_LSN), writer)
        return produced(registry, made), progress.n, progress.rows
    except CdcError as exc:
        return exc.code, exc.message
    except (ValueError, ArithmeticError) as exc:
        return type(exc).__name__


@st.composite
def copies(draw):
    columns, modes, filters = draw(relations())
    plan = plan_of(columns, modes, filters)
    taken = [column for column, parse in zip(columns, plan.parsers, strict=True) if parse]
    rows = [[value_of(draw, column) for column in taken] for _ in range(draw(st.integers(0, 8)))]
    lines = [line_of(row) for row in rows]
    if lines and not draw(st.integers(0, 15)):
        lines[-1] = draw(st.binary(max_size=30))
    gone = {number for number in range(len(lines)) if not draw(st.integers(0, 4))}
    return plan, lines, gone


@needs_native
@given(copies())
@settings(max_examples=100, deadline=None)
def test_the_core_writes_what_the_parsers_and_the_encoder_write(copy):
    plan, lines, gone = copy
    frames = frames_of(lines, plan)
    for number, at in enumerate(list(frames.offsets())):
        if number in gone:
            frames.data[at] = GONE
    expected = outcome(plan, frames, fast=False)
    assert outcome(plan, frames, fast=True) == expected
    left = [line for number, line in enumerate(lines) if number not in gone]
    assert outcome(plan, left, fast=False) == expected


PLAIN = [("id", 23, -1, True, True), ("v", 25, -1, False, False)]


@needs_native
def test_rows_that_the_core_knows_are_all_written_by_it():
    plan = plan_of(PLAIN, HandlingModes(), TableFilters())
    lines = [line_of([b"%d" % n, text]) for n, text in enumerate((b"a", None, b"t\tn\nb\\", b"", b"\\N", b"\\"))]
    frames = frames_of(lines, plan)
    made = stamped(
        frames,
        TableRowPositions(SnapshotProgress(), source_template("p", "d"), plan, VIEW, SAFE_LSN),
        FrameRowEmitter(Registry(), native),
    )
    assert [type(item) for item in made] == [EncodedRecords]
    assert outcome(plan, frames, fast=True) == outcome(plan, frames, fast=False)
    assert outcome(plan, frames, fast=True)[1:] == (6, 6)


@needs_native
def test_records_are_counted_by_topic_whatever_the_order_of_tables():
    plan, registry, core = plan_of(PLAIN, HandlingModes(), TableFilters()), Registry(), native.Copied()
    stamp = TableRowPositions(SnapshotProgress(), source_template("p", "d"), plan, VIEW, SAFE_LSN)
    columns, key, place = layout_arguments(plan, registry.layout(plan.table, stamp.next))
    layouts = [native.Layout(columns, key, (topic, *place[1:])) for topic in ("one", "two", "one")]
    frames, around = frames_of([line_of([b"1", b"a"]), line_of([b"2", None])], plan), (b"", b"")
    for chosen in (0, 1, 1, 2, 0, 1):
        core.write(frames.data, 0, frames.end, layouts[chosen], around, 0)
    assert core.take()[4] == {"one": 6, "two": 6}
    core.write(frames.data, 0, frames.end, layouts[1], around, 0)
    assert core.take()[4] == {"two": 2}


@needs_native
def test_positions_go_on_over_rows_that_are_left_to_the_parsers():
    plan = plan_of([("id", 23, -1, True, True), ("n", 1700, -1, False, False)], HandlingModes(), TableFilters())
    frames = frames_of([line_of([b"%d" % n, v]) for n, v in enumerate((b"1.5", b"9" * 30, b"NaN", b"2"))], plan)
    made = outcome(plan, frames, fast=True)
    assert made == outcome(plan, frames, fast=False)
    assert made[1:] == (4, 4)


def test_a_key_is_looked_up_and_its_row_leaves():
    plan = plan_of(PLAIN, HandlingModes(), TableFilters())
    lines = [line_of([b"%d" % n, b"v\t%d" % n]) for n in range(5)]
    frames = frames_of(lines, plan)
    assert frames.pop((3,)) == (lines[3], ("3",))
    assert frames.pop((3,)) is None
    assert frames.pop((9,)) is None
    assert [frames.line(at) for at in frames.offsets()] == [*lines[:3], lines[4]]
    assert frames.size == sum(map(len, lines))
    frames.clear()
    assert list(frames.offsets()) == []
    assert frames.pop((1,)) is None


def test_a_key_of_several_columns_is_unescaped():
    plan = plan_of([("a", 25, -1, True, True), ("b", 23, -1, True, True)], HandlingModes(), TableFilters())
    line = line_of([b"x\ty\\", b"7"])
    assert key_of_line(line, plan.table.key, plan.taken) == (("x\ty\\", 7), ("x\ty\\", "7"))


@needs_native
def test_frames_are_walked_up_to_the_first_that_is_no_whole_row():
    data = frames_of([b"1\n", b"22\n", b"\n"]).data
    assert native.walk(data, 0, len(data)) == (len(data), 3, 15)
    for end in range(len(data)):
        assert native.walk(data, 0, end) == ((0, 0, -1) if end < 7 else (7, 1, 0) if end < 15 else (15, 2, 7))
    other = data + b"C" + struct.pack(">I", 4)
    assert native.walk(other, 0, len(other)) == (len(data), 3, 15)
    for start, end in ((-1, 5), (0, 99), (6, 5)):
        with pytest.raises(ValueError):
            native.walk(data, start, end)


def shaken(seed: int) -> None:
    chosen = random.Random(seed)
    plan = SHAKEN
    data = frames_of([line_of([b"%d" % n, b"a\\b\t", b"-1.50", b"2024-02-29 12:34:56.7+00"]) for n in range(4)]).data
    for _ in range(chosen.randint(1, 4)):
        at = chosen.randrange(len(data))
        data[at] = chosen.choice([chosen.randrange(256), 9, 10, 92, 100, 0])
    layout_of = FrameRowEmitter(Registry(), native)
    stamp = TableRowPositions(SnapshotProgress(), source_template("p", "d"), plan, VIEW, SAFE_LSN)
    layout = layout_of.layout(stamp)
    core, at = native.Copied(), 0
    while at < len(data) - HEAD:
        done, _ = core.write(data, at, len(data), layout, (b"s", b"t"), 0)
        assert at <= done <= len(data)
        at = max(done + 1, at + 1)
    core.write(chosen.randbytes(60), 0, 60, layout, (b"s", b"t"), 0)


SHAKEN = plan_of(
    [("id", 20, -1, True, True), ("v", 25, -1, False, False), ("n", 1700, (12 << 16 | 2) + 4, False, False),
     ("at", 1184, -1, False, True)], HandlingModes(), TableFilters(),
)  # fmt: skip


@needs_native
def test_broken_frames_never_crash_the_core():
    for seed in range(300):
        shaken(seed)


@needs_native
@pytest.mark.long
def test_a_hundred_thousand_broken_buffers_never_crash_the_core():
    for seed in range(1000, 101_000):
        shaken(seed)
