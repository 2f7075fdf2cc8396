"""No row of a snapshot is older than what the stream has said of its key, whatever others do at each hand-over."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.snapshot_races import SMALL, materialise, proved, repaired
from tests.waiting import pause

from ..logged import LoggedServer
from .mariadb_database import MariaDbDatabase

pytestmark = pytest.mark.mysql
IMAGES = ("FULL", "NOBLOB", "MINIMAL")
"""What the log holds of rows: all, or what was changed of large values, or what was changed."""


def database_of(shop: LoggedServer, seed: int) -> MariaDbDatabase:
    return MariaDbDatabase(shop, IMAGES[seed % 3], natively=seed % 2 == 0)


@pytest.mark.parametrize("seed", range(3))
def test_no_row_is_stale_whatever_is_changed_at_each_hand_over(shop: LoggedServer, seed: int) -> None:
    proved(database_of(shop, seed), seed)


@pytest.mark.parametrize("seed", [2])
def test_a_spoilt_reader_is_right_whatever_is_changed_at_each_hand_over(shop: LoggedServer, seed: int) -> None:
    repaired(database_of(shop, seed), seed)


def test_a_transaction_that_is_logged_and_not_visible_yet_is_not_missed(shop: LoggedServer) -> None:
    """A server that waits for a replica before it commits has sent the transaction by then, and reads do not see it."""
    database = database_of(shop, 0)
    database.run("create table t(id int primary key, v varchar(40))", "insert into t values (1, 'old')")
    before = shop.position()
    shop.ask(
        *(
            f"set global rpl_semi_sync_master_{name}"
            for name in ("wait_point = 'AFTER_SYNC'", "timeout = 3000", "enabled = 1")
        )
    )
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(shop.ask, "update shop.t set v = 'new' where id = 1")
            began = time.monotonic()
            while shop.position() == before:
                assert time.monotonic() < began + 30
                pause(began, 0.01)
            one = database.task(**SMALL).start()
            one.until(one.loaded)
            waiting.result()
    finally:
        shop.ask("set global rpl_semi_sync_master_enabled = 0")
    database.catch_up(one)
    one.kill()
    (row,) = materialise(one.log)[database.path("t")].values()
    assert row["v"] == "new"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("hundred", range(4))
def test_no_row_is_stale_in_many_seeded_runs(shop: LoggedServer, hundred: int) -> None:
    """240 of them, two of three with logs that lack what was not changed."""
    for seed in range(1000 + 100 * hundred, 1060 + 100 * hundred):
        shop.ask("drop database shop", "create database shop")
        proved(database_of(shop, seed), seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_spoilt_reader_is_right_in_many_seeded_runs(shop: LoggedServer) -> None:
    for seed in range(2000, 2080):
        shop.ask("drop database shop", "create database shop")
        repaired(database_of(shop, seed), seed)
