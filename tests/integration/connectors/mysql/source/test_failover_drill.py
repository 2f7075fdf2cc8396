"""A drill of failovers between real servers: readers of the topics have every row once and in order, whichever server is read and
whatever its log looks like, or the task halts with the code of what is lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.schemas.errors import CdcError

from ..crash_stage import replicate, wait_for_replica
from ..logged import LoggedServer, find_programs
from .reading import Reading
from .test_task import table, values

pytestmark = pytest.mark.mysql
MakeReading = Callable[..., Reading]
LOGGING = {"log-slave-updates": "1", "skip-slave-start": "", "innodb-flush-log-at-trx-commit": "1"}


class Pair:
    """A primary and its replica, which logs what it applies; `swap` lets them change places."""

    def __init__(self, folder: Path) -> None:
        programs = find_programs()
        assert programs is not None
        self.primary = LoggedServer(programs, folder / "first", {**LOGGING, "server-id": "21"})
        self.replica = LoggedServer(programs, folder / "second", {**LOGGING, "server-id": "22"})
        self.is_spoiled = False
        """Whether what a test did to the log leaves the replica behind for good."""

    def start(self) -> None:
        self.primary.start()
        self.replica.start()
        replicate(self.primary, self.replica)
        self.primary.ask("create database shop")
        table(self.primary, rows=0)

    def swap(self, *begins_anew: str) -> None:
        """The primary dies; its replica takes its place, and it comes back as the replica of that. `begins_anew`: statements by which the
        log of the new primary begins."""
        wait_for_replica(self.primary, self.replica)
        self.primary.kill()
        self.replica.ask("stop slave", "reset slave all", *begins_anew)
        self.primary, self.replica = self.replica, self.primary
        self.replica.start()
        self.replica.ask("set global gtid_slave_pos = @@gtid_binlog_pos")
        replicate(self.primary, self.replica)

    def remove(self) -> None:
        self.primary.remove()
        self.replica.remove()


class Pairs:
    """The pair that tests share, until one spoils it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._pair: Pair | None = None

    def take(self) -> Pair:
        if self._pair is None:
            self._made += 1
            self._pair = Pair(self._folder / f"failover{self._made}")
            self._pair.start()
        return self._pair

    def drop(self) -> None:
        if self._pair is not None:
            self._pair.remove()
        self._pair = None


@pytest.fixture(scope="module")
def pairs(devstack_dir: Path) -> Iterator[Pairs]:
    made = Pairs(devstack_dir)
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def pair(pairs: Pairs) -> Iterator[Pair]:
    made = pairs.take()
    yield made
    if made.is_spoiled:
        pairs.drop()


def at(one: Reading, server: LoggedServer) -> Reading:
    """Has it read another server."""
    one.config |= {"database.port": str(server.port), "database.password": server.password}
    return one


def refused(one: Reading) -> CdcError:
    with pytest.raises(CdcError) as caught:
        one.start().until(lambda: False)
    one.kill()
    return caught.value


def begun(pair: Pair, reading: MakeReading, **config: str) -> Reading:
    """A task that has read all of the primary."""
    one = reading(pair.primary, **config).start()
    one.until_loaded()
    return one


def rows_of(server: LoggedServer) -> dict[object, tuple[object, ...]]:
    return {row[0]: row for row in server.ask("select * from shop.t")}


def caught_up(one: Reading, server: LoggedServer) -> None:
    end = server.position()
    one.until(lambda: one.position and MariaDbPosition.parse(one.position["gtids"]).contains(end) and one.loaded())
    assert one.state("t") == rows_of(server)
    assert all(first < second for first, second in pairwise(one.places()))


def test_three_failovers_leave_every_row_once_and_in_order(pair: Pair, reading: MakeReading) -> None:
    one = begun(pair, reading)
    for turn in range(3):
        first = 100 * turn
        pair.primary.ask(
            *(f"insert into shop.t values {values(first + n)}" for n in range(5)),
            # The new server's files have other numbers than those of the one before.
            *(("flush binary logs",) * (turn + 1)),
            f"insert into shop.t values {values(first + 5)}",
            f"update shop.t set v = 'again' where id = {first}",
            f"delete from shop.t where id = {first + 1}",
        )
        if turn % 2:
            # It dies amid what it has not handed on.
            one.poll()
        else:
            caught_up(one, pair.primary)
        one.kill()
        pair.swap()
        pair.primary.ask(f"insert into shop.t values {values(first + 50)}")
        at(one, pair.primary).start()
        caught_up(one, pair.primary)
    inserted = [row[0] for op, row in one.rows("t") if op == "c"]
    assert len(inserted) == len(set(inserted)) == 3 * 7


def test_a_transaction_that_was_handed_on_in_part_goes_on_at_the_other_server(
    pair: Pair, reading: MakeReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdcworker.connectors.capture.stream import limits

    monkeypatch.setattr(limits, "BATCH_CHANGES_MAX", 50)
    pair.primary.ask("delete from shop.t")
    one = begun(pair, reading)
    wait_for_replica(pair.primary, pair.replica)
    pair.primary.ask(
        "begin", *(f"insert into shop.t values {values(*range(n, n + 20))}" for n in range(2000, 2400, 20)), "commit"
    )
    one.until(lambda: one.part)
    one.store_part()
    one.kill()
    given = len(one.rows("t"))
    pair.swap()
    at(one, pair.primary).start()
    caught_up(one, pair.primary)
    inserted = [row[0] for op, row in one.rows("t") if op == "c"]
    assert 0 < given < 400
    assert inserted == list(range(2000, 2400))


def test_a_file_that_was_purged_and_a_number_that_begins_again_are_no_loss_where_all_was_read(
    pair: Pair, reading: MakeReading
) -> None:
    one = begun(pair, reading)
    pair.primary.ask(f"insert into shop.t values {values(3000)}")
    caught_up(one, pair.primary)
    one.kill()
    # The log of the new server begins again, and its file numbers with it; its GTIDs go on.
    pair.swap("reset master", f"set global gtid_binlog_state = '{pair.primary.position()}'")
    assert pair.primary.ask("show binary logs")[0][0] == "log.000001"
    pair.primary.ask(f"insert into shop.t values {values(3001)}")
    at(one, pair.primary).start()
    caught_up(one, pair.primary)
    assert one.rows("t")[-1] == ("c", (3001, "v3001"))


def test_a_server_that_lacks_what_was_read_halts_and_so_does_one_with_an_errant_transaction(
    pair: Pair, reading: MakeReading
) -> None:
    pair.is_spoiled = True
    one = begun(pair, reading)
    wait_for_replica(pair.primary, pair.replica)
    pair.replica.ask("stop slave")
    pair.primary.ask(f"insert into shop.t values {values(4000)}")
    caught_up(one, pair.primary)
    one.kill()
    old = pair.primary
    # It takes the place of its primary without the last transaction, and writes another one with the same number.
    pair.replica.ask("reset slave all", f"insert into shop.t values {values(4001)}")
    before = one.position
    error = refused(at(one, pair.replica))
    assert (error.code, error.retriable) == (e.OTHER_HISTORY, False)
    assert one.position == before
    at(one, old).start()
    caught_up(one, old)
    one.kill()


@pytest.mark.long
def test_a_copy_that_was_put_back_is_not_read_on(devstack_dir: Path, reading: MakeReading) -> None:
    programs = find_programs()
    assert programs is not None
    server = LoggedServer(programs, devstack_dir / "put-back", {"server-id": "23"})
    try:
        server.start()
        server.ask("create database shop")
        table(server)
        server.stop()
        shutil.copytree(server.directory / "data", devstack_dir / "copy")
        server.start()
        one = reading(server).start()
        one.until_loaded()
        server.ask(f"insert into shop.t values {values(10, 11)}")
        one.until(lambda: len(one.rows("t")) == 5)
        one.kill()
        server.stop()
        shutil.rmtree(server.directory / "data")
        shutil.copytree(devstack_dir / "copy", server.directory / "data")
        server.start()
        assert refused(one).code == e.LOG_RESET
        # Also once it has as many transactions again, which are others.
        server.ask(*(f"insert into shop.t values {values(n)}" for n in range(20, 30)))
        assert refused(one).code == e.LOG_RESET
        one.config["position.lost.policy"] = "resnapshot"
        one.start()
        caught_up(one, server)
    finally:
        server.remove()


def last_file(server: LoggedServer) -> Path:
    return max(path for path in (server.directory / "data").glob("log.*") if path.suffix[1:].isdecimal())


def ends_of_events(data: bytes, at: int) -> list[int]:
    """Returns where the events of a file end that begin at this place or behind it."""
    found = []
    while at < len(data):
        at += int.from_bytes(data[at + 9 : at + 13], "little")
        found.append(at)
    return found


def died_amid_a_transaction(pair: Pair, *, amid_an_event: bool) -> None:
    """Leaves the log as a server does that dies while it writes a transaction to it. What was not read begins in the same file."""
    pair.is_spoiled, server = True, pair.primary
    ((_, since, *_),) = server.ask(f"insert into shop.t values {values(4999)}", "show master status")
    server.ask(f"insert into shop.t values {values(*range(5000, 8000))}")
    server.kill()
    path = last_file(server)
    data = path.read_bytes()
    ends = ends_of_events(data, int(str(since)))
    path.write_bytes(data[: ends[len(ends) // 2] - (1 if amid_an_event else 0)])
    server.start()
    server.ask(f"insert into shop.t values {values(8500)}")


def test_a_transaction_whose_end_the_log_lacks_was_never_committed(pair: Pair, reading: MakeReading) -> None:
    one = begun(pair, reading)
    count = len(one.rows("t"))
    one.kill()
    died_amid_a_transaction(pair, amid_an_event=False)
    one.start().until(lambda: len(one.rows("t")) > count + 1)
    assert one.rows("t")[count:] == [("c", (4999, "v4999")), ("c", (8500, "v8500"))]
    one.again()
    pair.primary.ask(f"insert into shop.t values {values(8501)}")
    one.until(lambda: len(one.rows("t")) == count + 3)
    assert all(first < second for first, second in pairwise(one.places()))


def test_a_file_that_ends_amid_an_event_is_refused_by_the_server(pair: Pair, reading: MakeReading) -> None:
    pair.primary.ask("delete from shop.t")
    one = begun(pair, reading)
    one.kill()
    died_amid_a_transaction(pair, amid_an_event=True)
    with pytest.raises(CdcError) as caught:
        one.start().until(lambda: False)
    assert caught.value.code == e.DUMP_REFUSED
