"""The rule by which rows leave a chunk, against every order of commits, visibility and delivery that there can be."""

from __future__ import annotations

from types import SimpleNamespace

from cdcworker.connectors.capture.snapshot.chunk_window import ChunkWindow, KeyEvent
from cdcworker.connectors.capture.snapshot.progress import KeyRange, SnapshotLoad, TableLoad
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from hypothesis import given, settings
from hypothesis import strategies as st

KEYS = range(5)
NAMES = ("id",)
XID = 100


@st.composite
def histories(draw):
    """Rows at first, then transactions in the order of their commits; each knows what it did to which key."""
    base = draw(st.dictionaries(st.sampled_from(KEYS), st.just("base"), max_size=5))
    state, transactions = dict(base), []
    for number in range(draw(st.integers(0, 7))):
        events = []
        for step in range(draw(st.integers(1, 3))):
            kind, key, other = draw(st.sampled_from("pdmt")), draw(st.sampled_from(KEYS)), draw(st.sampled_from(KEYS))
            value = f"{number}.{step}"
            if kind == "p":
                state[key] = value
                events.append(("put", None, key, value))
            elif kind == "d" and key in state:
                del state[key]
                events.append(("delete", key, None, None))
            elif kind == "m" and key in state and other not in state:
                state[other] = state.pop(key)
                events.append(("move", key, other, state[other]))
            elif kind == "t" and number % 3 == 0:
                state.clear()
                events.append(("truncate", None, None, None))
        transactions.append(events)
    return base, transactions


def applied(rows, events):
    for kind, old, new, value in events:
        if kind == "truncate":
            rows.clear()
        if old is not None:
            rows.pop(old, None)
        if new is not None:
            rows[new] = value
    return rows


def concerned(events):
    if any(kind == "truncate" for kind, *_ in events):
        return set(KEYS)
    return {key for _, old, new, _ in events for key in (old, new) if key is not None}


def visible_set(draw, transactions, opened, ended):
    """Those delivered before the opening, and of the others any that does not depend on one that is left out: a commit
    may be in the log, and delivered, before it is visible."""
    seen, hidden = set(range(opened)), set()
    for number in range(opened, ended):
        keys = concerned(transactions[number])
        if not hidden & keys and draw(st.booleans()):
            seen.add(number)
        else:
            hidden |= keys
    return seen


def handed_on(history, data, asked=KEYS):
    """A window of the `asked` keys over a part of the history: transactions that were delivered before its boundary, rows that
    are left of its chunk, keys of which it has no row."""
    base, transactions = history
    opened = data.draw(st.integers(0, len(transactions)), "delivered before the opening")
    ended = data.draw(st.integers(opened, len(transactions)), "delivered before the boundary")
    read = data.draw(st.integers(opened, ended), "delivered before the rows were there")
    seen = visible_set(data.draw, transactions, opened, ended)
    rows = dict(base)
    for number in sorted(seen):
        applied(rows, transactions[number])
    running = frozenset(XID + number for number in range(ended) if number not in seen)
    snap = TransactionSnapshot(min(running, default=XID + ended), XID + ended, running)
    chunk = SimpleNamespace(
        view=SimpleNamespace(snap=snap), plan=None, key_names=NAMES, size=0,
        rows={(key,): (value, (str(key),)) for key, value in rows.items() if key in asked},
        absent={(key,): (str(key),) for key in asked if key not in rows},
    )  # fmt: skip
    window = ChunkWindow(SnapshotLoad("l", "start"), TableLoad(1, "s", "t"), KeyRange())
    for number in range(opened, ended):
        if number == read:
            window.read(chunk)
        window.began(XID + number)
        for kind, old, new, _ in transactions[number]:
            identities = [None if key is None else (key,) for key in (old, new)]
            window.touched(KeyEvent(XID + number, NAMES, kind == "truncate", *identities, False, True))
    if read == ended:
        window.read(chunk)
    assert not window.void
    rows = {key: value for (key,), (value, _) in chunk.rows.items()}
    return transactions[:ended], rows, [key for (key,) in chunk.absent]


@settings(max_examples=200, deadline=None)
@given(history=histories(), data=st.data())
def test_what_is_left_of_a_chunk_and_the_stream_together_are_the_table(history, data):
    delivered, rows, _ = handed_on(history, data)
    consumer: dict = {}
    wanted = dict(history[0])
    for events in delivered:
        applied(consumer, events)
        applied(wanted, events)
    assert {**consumer, **rows} == wanted


@settings(max_examples=300, deadline=None)
@given(history=histories(), data=st.data())
def test_a_reader_with_any_rows_has_those_of_the_table_under_the_keys_that_were_repaired(history, data):
    asked = data.draw(st.sets(st.sampled_from(KEYS)), "keys that are repaired")
    delivered, rows, absent = handed_on(history, data, asked)
    # Missing, surplus and other rows, in whatever way they came about.
    reader = data.draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["base", "other"])), "rows of the reader")
    wanted = dict(history[0])
    for events in delivered:
        applied(reader, events)
        applied(wanted, events)
    reader.update(rows)
    for key in absent:
        reader.pop(key, None)
    assert {key: reader.get(key) for key in asked} == {key: wanted.get(key) for key in asked}


def test_a_key_without_a_row_that_a_skipped_operation_touched_is_read_again():
    snap = TransactionSnapshot(XID, XID, frozenset())
    chunk = SimpleNamespace(
        view=SimpleNamespace(snap=snap),
        plan=None,
        key_names=NAMES,
        size=0,
        rows={},
        absent={(1,): ("1",), (2,): ("2",)},
    )
    window = ChunkWindow(SnapshotLoad("l", "request"), TableLoad(1, "s", "t"), None)
    window.read(chunk)
    window.began(XID)
    window.touched(KeyEvent(XID, NAMES, False, None, (1,), False, emitted=False))
    assert (window.again, list(chunk.absent)) == ([["1"]], [(2,)])


def window_of(*, reads):
    """A window before an event of a newer transaction; `reads`: its rows have come already."""
    window = ChunkWindow(SnapshotLoad("l", "start"), TableLoad(1, "s", "t"), KeyRange())
    if reads:
        snap = TransactionSnapshot(XID, XID, frozenset({XID}))
        view = SimpleNamespace(snap=snap)
        window.read(
            SimpleNamespace(view=view, plan=None, key_names=NAMES, size=0, rows={(1,): ("v", ("1",))}, absent={})
        )
    return window


def test_a_row_that_left_a_chunk_for_an_event_that_was_undone_is_read_again():
    for window in (window_of(reads=False), window_of(reads=True)):
        window.began(XID)
        window.touched(KeyEvent(XID, NAMES, False, (1,), (1,), False, emitted=True))
        window.undone()
        assert window.void


def test_what_a_chunk_sees_is_not_read_again_for_a_transaction_that_is_undone():
    window = window_of(reads=True)
    window.began(XID - 1)
    window.undone()
    assert not window.void
