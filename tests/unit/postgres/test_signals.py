"""Rows of the signal table: heard once each, however their transaction is cut, and what each kind of them does."""

from __future__ import annotations

import pytest
from cdcworker.connectors.postgres import lane
from cdcworker.connectors.postgres.config import Filters
from cdcworker.connectors.postgres.types import Modes

from . import messages as m
from .oracle import Registry, decoder, description, native, needs_native

COLUMNS = [("id", 25, -1, True, True), ("type", 25, -1, False, True), ("data", 25, -1, False, False)]
OTHERS = [("id", 23, True), ("v", 25, False)]
ORIGIN = m.frame(b"O" + (5).to_bytes(8, "big") + b"elsewhere\0")


def signal(identity: bytes) -> bytes:
    return m.insert(1, identity, b"log", b"{}")


MESSAGES = [
    m.begin(1000), ORIGIN, m.relation(2, OTHERS, name="u"), description(COLUMNS),
    signal(b"a"), m.insert(2, b"1", b"x"), m.update(1, [b"a", b"log", b"changed"]), signal(b"b"),
    m.insert(2, b"2", b"x"), m.delete(1, [b"a", None, None]), signal(b"c"), m.commit(1000),
]  # fmt: skip
ROWS = 7
WAYS = [pytest.param(False, id="python"), pytest.param(True, id="native", marks=needs_native)]


def heard(*, fast: bool, resume_lsn: int = 0, part: tuple[int, int] | None = None, wanted: bool = True):
    """(ids that the listener was told of, messages that were handed on)."""
    found: list = []
    changes = decoder(COLUMNS, Modes(), Filters())
    changes.listeners[1] = lambda plan, row: found.append(row[0])
    changes.resume_lsn, changes.resume_part, changes.want_origin = resume_lsn, part, lambda name: wanted
    feed = changes.feed
    if fast:
        assert native
        quick = lane.Lane(changes, Registry(), native)
        feed = quick.feed
    for data in MESSAGES:
        feed(data)
    if fast:
        quick.flush()
    handed = sum(len(item.records) if hasattr(item, "records") else 1 for item in changes.out)
    return found, handed


@pytest.mark.parametrize("fast", WAYS)
@pytest.mark.parametrize("done", range(1, ROWS + 1))
def test_who_resumes_inside_a_transaction_hears_all_its_signals_and_hands_on_the_rest(fast, done):
    assert heard(fast=fast) == (["a", "b", "c"], ROWS)
    assert heard(fast=fast, part=(1000, done)) == (["a", "b", "c"], ROWS - done)


@pytest.mark.parametrize("fast", WAYS)
@pytest.mark.parametrize("resumed", [{"resume_lsn": 1000}, {"wanted": False}, {"wanted": False, "part": (1000, 2)}])
def test_of_what_is_dropped_as_a_whole_nothing_is_heard(fast, resumed):
    assert heard(fast=fast, **resumed) == ([], 0)
