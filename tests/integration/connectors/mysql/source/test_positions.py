"""Positions that a server does not have any more, or never had: each halts with its code, or follows its policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import parse
from cdcworker.connectors.mysql.source.position import StoredPosition
from cdcworker.connectors.mysql.source.position_checks import verify
from cdcworker.schemas.errors import CdcError

from ..logged import LoggedServer, find_programs
from .reading import Reading
from .test_task import table, values

pytestmark = [pytest.mark.mysql, pytest.mark.sampled(2, "positions")]
MakeReading = Callable[..., Reading]
MakeServer = Callable[..., LoggedServer]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def servers(devstack_dir: Path) -> Iterator[MakeServer]:
    """Makes servers whose logs tests may spoil; one of the same settings is made once."""
    programs = find_programs()
    assert programs is not None
    made: dict[str, LoggedServer] = {}

    def make(name: str, **settings: str) -> LoggedServer:
        if name not in made:
            options = {option.replace("_", "-"): value for option, value in settings.items()}
            made[name] = LoggedServer(programs, devstack_dir / f"mariadb-{name}", options)
            made[name].start()
        return made[name]

    yield make
    for server in made.values():
        server.remove()


@pytest.fixture
def loaded(servers: MakeServer, reading: MakeReading) -> tuple[LoggedServer, Reading]:
    """A server and a task that has read all of it and was stopped."""
    server = servers("spoiled")
    server.ask("drop database if exists shop", "create database shop")
    table(server)
    one = reading(server).start()
    one.until_loaded()
    one.stop()
    return server, one


def refused(one: Reading) -> CdcError:
    """What the task halts with, at its start or later; a check of the position from outside says the same."""
    assert one.position is not None
    with pytest.raises(CdcError) as caught:
        one.start().until(lambda: False)
    one.stop()
    with pytest.raises(CdcError) as outside:
        verify(parse(one.config), StoredPosition.from_json(one.position))
    assert outside.value.code == caught.value.code
    return caught.value


def purge(server: LoggedServer) -> None:
    server.ask(
        f"insert into shop.t values {values(50)}", "flush binary logs", f"insert into shop.t values {values(51)}"
    )
    ((file, *_),) = server.ask("show master status")
    server.purge_to(str(file))


def test_a_log_that_was_purged(loaded: tuple[LoggedServer, Reading]) -> None:
    server, one = loaded
    purge(server)
    assert refused(one).code == e.LOG_PURGED
    one.config["position.lost.policy"] = "resnapshot"
    before = one.places()[-1]
    one.start().until(lambda: len(one.state("t")) == 5 and not one.progress.get("loads"))
    assert one.state("t") == {n: (n, f"v{n}") for n in (0, 1, 2, 50, 51)}
    assert [op for op, _ in one.rows("t")] == ["r"] * 3 + ["t"] + ["r"] * 5
    assert one.places() == sorted(set(one.places()))
    assert one.places()[3].commit > before.commit


def test_log_that_was_read_may_be_purged(loaded: tuple[LoggedServer, Reading]) -> None:
    server, one = loaded
    server.ask("flush binary logs")
    ((file, *_),) = server.ask("show master status")
    server.purge_to(str(file))
    server.ask(f"insert into shop.t values {values(9)}")
    one.start().until(lambda: len(one.changes) == 4)


@pytest.mark.parametrize("grown", [False, True], ids=["empty", "grown past the position"])
def test_a_log_that_was_reset(loaded: tuple[LoggedServer, Reading], grown: bool) -> None:
    server, one = loaded
    assert one.position is not None
    made = one.position["made"]
    # Files are told apart by the second in which they were begun.
    deadline = time.monotonic() + DEADLINE_S
    while int(str(server.ask("select unix_timestamp()")[0][0])) <= made:
        assert time.monotonic() < deadline
    server.ask("reset master")
    if grown:
        server.ask(*(f"insert into shop.t values {values(n)}" for n in range(100, 130)))
    assert refused(one).code == e.LOG_RESET
    one.config["position.lost.policy"] = "resnapshot"
    one.start().until(
        lambda: one.changes[-1].op == "r" and ("t", None) in one.rows("t") and not one.progress.get("loads")
    )
    assert one.state("t") == {row[0]: row for row in server.ask("select * from shop.t")}


@pytest.mark.parametrize("empty", [True, False], ids=["without transactions", "with transactions of its own"])
def test_a_server_of_another_history(loaded: tuple[LoggedServer, Reading], servers: MakeServer, empty: bool) -> None:
    _, one = loaded
    other = servers("other", server_id="8")
    other.ask("reset master", "drop database if exists shop", "create database shop")
    if not empty:
        table(other, rows=0)
        other.ask(*(f"insert into shop.t values {values(n)}" for n in range(30)))
    one.config |= {"database.port": str(other.port), "database.password": other.password}
    # Nothing is read again from a server that was named by mistake.
    one.config["position.lost.policy"] = "resnapshot"
    assert refused(one).code == e.OTHER_HISTORY


def test_a_position_of_the_other_product(loaded: tuple[LoggedServer, Reading]) -> None:
    _, one = loaded
    assert one.position is not None
    one.position |= {"product": "mysql", "gtids": ""}
    assert refused(one).code == e.OTHER_SERVER


def test_a_place_in_files_holds_on_its_server_only(loaded: tuple[LoggedServer, Reading]) -> None:
    _, one = loaded
    assert one.position is not None
    position = dict(one.position)
    one.position |= {"gtids": None, "server": "another one"}
    assert refused(one).code == e.OTHER_SERVER
    one.position = {**position, "gtids": None, "pos": 1_000_000_000}
    if one.position["server"]:
        assert refused(one).code == e.LOG_RESET


def test_a_replica_takes_the_place_of_its_primary(servers: MakeServer, reading: MakeReading) -> None:
    primary = servers("primary")
    replica = servers("replica", server_id="8", log_slave_updates="1", gtid_domain_id="3")
    replica.ask(
        f"change master to master_host='127.0.0.1', master_port={primary.port}, master_user='cdc',"
        f" master_password='{primary.password}', master_use_gtid=slave_pos, master_ssl=0, master_ssl_verify_server_cert=0",
        "start slave",
    )
    primary.ask("create database shop")
    table(primary)
    one = reading(primary).start()
    one.until_loaded()
    until_same(primary, replica)
    replica.ask("stop slave")
    primary.ask(f"insert into shop.t values {values(3)}")
    one.until(lambda: len(one.changes) == 4)
    one.stop()
    before = dict(one.config)
    one.config |= {"database.port": str(replica.port), "database.password": replica.password}
    # What comes late is waited for.
    error = refused(one)
    assert (error.code, error.retriable) == (e.REPLICA_BEHIND, True)
    one.config = before
    replica.ask("start slave")
    primary.ask("flush binary logs", f"insert into shop.t values {values(4)}")
    until_same(primary, replica)
    primary.kill()
    replica.ask("stop slave", f"insert into shop.t values {values(5)}")
    one.config |= {"database.port": str(replica.port), "database.password": replica.password}
    one.start().until(lambda: len(one.changes) == 6)
    assert one.rows("t") == [("r", (n, f"v{n}")) for n in range(3)] + [("c", (n, f"v{n}")) for n in (3, 4, 5)]
    assert one.places() == sorted(set(one.places()))
    # The place in the files is the new server's.
    one.again()
    replica.ask(f"insert into shop.t values {values(6)}")
    one.until(lambda: len(one.changes) == 7)


def until_same(primary: LoggedServer, replica: LoggedServer) -> None:
    wanted: Any = primary.position()
    deadline = time.monotonic() + DEADLINE_S
    while not replica.position().contains(wanted):
        assert time.monotonic() < deadline, replica.ask("show slave status")
