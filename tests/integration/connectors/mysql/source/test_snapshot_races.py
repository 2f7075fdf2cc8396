"""No row of a snapshot is older than what the stream has said of its key, whatever others do at each hand-over."""

from __future__ import annotations

import pytest

from tests.contract.snapshot_races import proved, repaired

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
