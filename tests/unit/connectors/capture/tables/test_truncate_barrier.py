"""Tables that come back wait for a boundary of the log, and others that come later do not put it off."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from cdcworker.connectors.capture.tables.truncate_barrier import ServerLog, TruncateBarrier


class Server:
    """A log whose end moves on, and transactions that are open for a while. The stream is `lag` behind."""

    def __init__(self, lag: int) -> None:
        self.lsn, self.xid, self.lag = 1000, 10, lag
        self.open: dict[int, int] = {}
        """By id, when it ends."""

    def mark(self) -> tuple[int, int]:
        self.lsn, self.xid = self.lsn + 1, self.xid + 1
        return self.lsn, self.xid

    def oldest(self) -> int:
        return min((xid for xid, end in self.open.items() if end > self.lsn), default=self.xid + 1)

    def log(self) -> ServerLog:
        return ServerLog(self.mark, self.oldest, self.lsn - self.lag)

    def begin(self, size: int) -> None:
        self.xid += 1
        self.open[self.xid] = self.lsn + size


def test_what_is_found_meanwhile_waits_for_the_next_boundary():
    server, boundary = Server(lag=10), TruncateBarrier()
    assert boundary.passed({1: 100}, "", server.log()) == set()
    first = boundary.position
    server.lsn += 5
    assert boundary.passed({1: 100, 2: 101}, "", server.log()) == set()
    assert boundary.position == first
    server.lsn += 6
    assert boundary.passed({1: 100, 2: 101}, "", server.log()) == {1}
    boundary.forget()
    assert boundary.passed({2: 101}, "", server.log()) == set()
    assert boundary.position > first
    server.lsn += 11
    assert boundary.passed({2: 101}, "", server.log()) == {2}


@pytest.mark.parametrize(("found", "again"), [({1: 102}, ""), ({1: 100}, "altered"), ({3: 103}, "")])
def test_what_has_been_away_again_begins_anew(found, again):
    server, boundary = Server(lag=10), TruncateBarrier()
    boundary.passed({1: 100}, "", server.log())
    first = boundary.position
    server.lsn += 20
    assert boundary.passed(found, again, server.log()) == set()
    assert boundary.position > first


def test_of_tables_that_wait_together_one_that_has_been_away_again_leaves_them():
    server, boundary = Server(lag=10), TruncateBarrier()
    boundary.passed({1: 100, 2: 101, 3: 102}, "", server.log())
    server.lsn += 20
    assert boundary.passed({1: 100, 2: 105}, "", server.log()) == {1}


def test_open_transactions_come_before_it():
    server, boundary = Server(lag=0), TruncateBarrier()
    server.begin(50)
    assert boundary.passed({1: 100}, "", server.log()) == set()
    assert boundary.blocked
    server.begin(500)
    server.lsn += 51
    assert boundary.passed({1: 100}, "", server.log()) == set(), "the stream is not at the mark that was just written"
    assert boundary.passed({1: 100}, "", server.log()) == {1}
    assert not boundary.blocked


def drive(seed: int, passed: Callable[[TruncateBarrier, dict[int, int], Server], frozenset[int]]) -> int:
    """Tables come, and come again, at every second step, while the stream is some ten steps behind. The longest that
    one which stayed had to wait, in units of the lag."""
    chance, boundary = random.Random(seed), TruncateBarrier()
    server = Server(lag=chance.randint(50, 500))
    found: dict[int, int] = {}
    since: dict[int, tuple[int, int]] = {}
    entry, longest = 100, 0
    for _ in range(400):
        server.lsn += chance.randint(1, 100)
        if chance.random() < 0.1:
            server.begin(chance.randint(1, 100))
        if chance.random() < 0.5:
            entry += 1
            table = chance.randint(1, 30)
            found[table], since[table] = entry, (server.lsn, server.xid)
        if not found:
            continue
        done = passed(boundary, dict(found), server)
        for table in done:
            lsn, xid = since[table]
            assert boundary.position > lsn, "it was found before the boundary was set"
            assert server.lsn - server.lag >= boundary.position, "the stream has passed it"
            assert all(end <= boundary.position for mine, end in server.open.items() if mine <= xid)
            del found[table]
        if done:
            boundary.forget()
        longest = max([longest, *(server.lsn - since[table][0] for table in found)])
    return -(-longest // server.lag)


@pytest.mark.parametrize("seed", range(40))
def test_nobody_waits_for_ever_however_often_tables_come(seed):
    # Twice the lag, twice the longest transaction, and some steps.
    assert drive(seed, lambda boundary, found, server: boundary.passed(found, "", server.log())) <= 2 + 2 * 4 + 2
