"""The doctor's table over a real server: what is planted is found by its check, and what the check proposes mends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cdcworker.connectors.api.abilities import Examined
from cdcworker.connectors.checks import CheckResult, Repair
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

from ..logged import LoggedServer, find_programs
from .reading import Reading, config_of
from .test_task import table, values

pytestmark = [pytest.mark.mysql, pytest.mark.sampled(2, "checks")]
ADMINISTRATOR = "mariadb://cdc:{}@127.0.0.1:{}/?ssl-mode=DISABLED"


def results(server: LoggedServer, name: str, position: JsonObject | None = None, **config: str) -> list[CheckResult]:
    """What one check finds."""
    connector = MySqlSource(config_of(server, **config))
    assert isinstance(connector, Examined)
    positions = {} if position is None else {0: position}
    return [item.result for item in connector.examine(positions, deep=True) if item.check.name == name]


def one_result(server: LoggedServer, name: str, position: JsonObject | None = None, **config: str) -> CheckResult:
    (found,) = results(server, name, position, **config)
    return found


def mended(server: LoggedServer, fix: Repair | None) -> None:
    """Runs a fix as the administrator."""
    assert fix is not None
    connector = MySqlSource(config_of(server, database__user="nobody"))
    connector.repair(fix, ADMINISTRATOR.format(server.password, server.port))


@contextmanager
def set_to(server: LoggedServer, **variables: int) -> Iterator[None]:
    before = {name: server.ask(f"select @@global.{name}")[0][0] for name in variables}
    server.ask(*(f"set global {name} = {value}" for name, value in variables.items()))
    try:
        yield
    finally:
        server.ask(*(f"set global {name} = {value}" for name, value in before.items()))


def test_every_check_has_a_result_and_each_that_is_not_well_a_key(shop: LoggedServer) -> None:
    table(shop)
    connector = MySqlSource(config_of(shop))
    found = list(connector.examine({}, deep=True))
    assert {item.check.name for item in found} == {item.name for item in MySqlSource.checks()}
    assert [item.check.name for item in found if item.result.status == "error"] == []
    assert all(item.result.key for item in found if item.result.status != "ok")


def test_a_log_that_grows_for_ever(shop: LoggedServer) -> None:
    with set_to(shop, binlog_expire_logs_seconds=0):
        found = one_result(shop, "log.size")
        assert found.status == "warning"
        mended(shop, found.fix)
        assert one_result(shop, "log.size").status == "ok"


def test_a_log_that_may_be_lost_by_a_crash(shop: LoggedServer) -> None:
    with set_to(shop, sync_binlog=0):
        found = one_result(shop, "log.sync")
        assert found.status == "note"
        mended(shop, found.fix)
        assert one_result(shop, "log.sync").status == "ok"


def test_what_a_repair_may_not_do_is_told_without_the_password(shop: LoggedServer) -> None:
    with pytest.raises(CdcError) as caught:
        mended(shop, Repair(("set global no_such_variable = 1",)))
    assert caught.value.code == e.SERVER
    connector = MySqlSource(config_of(shop))
    with pytest.raises(CdcError) as caught:
        connector.repair(Repair(("select 1",)), "mariadb://cdc:hunter2@127.0.0.1:x/")
    assert (caught.value.code, "hunter2" in str(caught.value)) == ("config.invalid", False)


@pytest.mark.parametrize(
    ("name", "statements", "status", "told"),
    [
        ("tables.key", ["create table shop.k (a int, unique (a))"], "note", "shop.k"),
        ("tables.engine", ["create table shop.m (a int primary key) engine=MyISAM"], "note", "shop.m"),
        (
            "tables.cascades",
            [
                "create table shop.p (a int primary key)",
                "create table shop.c (a int primary key, foreign key (a) references shop.p (a) on delete cascade)",
            ],
            "warning",
            "shop.c",
        ),
    ],
)
def test_what_the_log_does_not_hold_of_a_table(
    shop: LoggedServer, name: str, statements: list[str], status: str, told: str
) -> None:
    table(shop)
    assert one_result(shop, name).status == "ok"
    shop.ask(*statements)
    found = one_result(shop, name)
    assert found.status == status
    assert told in found.message
    assert "shop.t" not in found.message


def test_a_position_is_found_and_one_that_was_purged_is_not(
    shop: LoggedServer, reading: Callable[..., Reading]
) -> None:
    table(shop)
    one = reading(shop).start()
    one.until_loaded()
    one.stop()
    assert one.position is not None
    assert one_result(shop, "position.found").measured == "no position is stored"
    found = one_result(shop, "position.found", one.position)
    assert (found.status, one.position["gtids"] in found.measured) == ("ok", True)
    ahead = dict(one.position, gtids="3-7-999999999", file="log.999999")
    assert one_result(shop, "position.found", ahead).code == e.LOG_RESET
    assert one_result(shop, "position.found", {"v": 99}).code == e.POSITION_INVALID


def test_an_outage_that_is_longer_than_the_log_is_kept(shop: LoggedServer, reading: Callable[..., Reading]) -> None:
    table(shop)
    one = reading(shop).start()
    one.until_loaded()
    one.stop()
    assert one.position is not None
    long_ago = dict(one.position, ts_ms=round(time.time() * 1000) - 3_600_000)
    with set_to(shop, binlog_expire_logs_seconds=1800):
        assert one_result(shop, "position.kept", long_ago).measured == "everything has been read"
        shop.ask(f"insert into shop.t values {values(9)}")
        found = one_result(shop, "position.kept", long_ago)
        assert (found.status, found.code) == ("error", e.LOG_EXPIRY)
        mended(shop, found.fix)
        assert one_result(shop, "position.kept", long_ago).status == "warning"


@pytest.fixture(scope="module")
def replica(devstack_dir: Path) -> Iterator[LoggedServer]:
    """A server that is to be a replica: it does not log what it replicates, and leaves a database out of its log."""
    programs = find_programs()
    assert programs is not None
    options = {"server-id": "8", "log-slave-updates": "0", "binlog-ignore-db": "shop", "gtid-domain-id": "9"}
    server = LoggedServer(programs, devstack_dir / "mariadb-late", options)
    server.start()
    try:
        yield server
    finally:
        server.remove()


def test_a_replica_that_does_not_log_what_it_replicates(shop: LoggedServer, replica: LoggedServer) -> None:
    table(shop)
    assert one_result(replica, "replica.updates").measured == "not a replica"
    replica.ask("create database if not exists shop", "create or replace table shop.t (id int primary key)")
    found = one_result(replica, "log.filters")
    assert (found.status, "shop" in found.message) == ("error", True)
    replica.ask(
        f"change master to master_host='127.0.0.1', master_port={shop.port}, master_user='cdc',"
        f" master_password='{shop.password}', master_use_gtid=slave_pos, master_ssl=0, master_ssl_verify_server_cert=0",
        f"set global gtid_slave_pos = '{shop.position()}'",
        "start slave",
    )
    assert one_result(replica, "replica.updates").status == "error"
    # The primary sees it, and refuses a source that would have its id.
    shop.ask("create table shop.seen (id int primary key)")
    until_same_applied(shop, replica)
    assert one_result(shop, "replica.readers").status == "ok"
    taken = one_result(shop, "replica.readers", database__server__id="8")
    assert (taken.status, taken.code) == ("error", e.SERVER_ID_IN_USE)
    replica.ask("stop slave sql_thread")
    stopped = one_result(replica, "replica.lag")
    assert (stopped.status, "SQL thread" in stopped.message) == ("error", True)
    replica.ask("start slave")
    assert one_result(replica, "replica.lag").status in ("ok", "warning")


def until_same_applied(primary: LoggedServer, replica: LoggedServer) -> None:
    """Waits until the replica has applied what its primary has."""
    replica.ask(f"select master_gtid_wait('{primary.position()}', 60)")
