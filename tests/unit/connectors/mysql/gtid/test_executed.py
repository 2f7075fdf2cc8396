"""Sets to which transactions are added one by one."""

from __future__ import annotations

import random
import uuid

import pytest
from cdcworker.connectors.mysql.gtid import executed as module
from cdcworker.connectors.mysql.gtid.executed import ExecutedGtids, contains
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid, MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet, Source

SERVER = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")


@pytest.mark.parametrize("kept", [1, 7, 10_000])
def test_transactions_of_mysql_are_added_in_any_order(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(module, "ADDED_MAX", kept)
    found = ExecutedGtids(GtidSet.parse(f"{SERVER}:1-5"))
    numbers = [*range(6, 40), *range(50, 60)]
    random.Random(1).shuffle(numbers)
    for number in numbers:
        found.add((Source(SERVER), number))
    found.add_run(Source(SERVER), 38, 42)
    found.add((Source(SERVER, "tag"), 1))
    assert str(found.gtids) == f"{SERVER}:1-42:50-59:tag:1"
    assert found.gtids is found.gtids


def test_transactions_of_mariadb_are_the_last_ones_of_their_domains() -> None:
    found = ExecutedGtids(MariaDbPosition.parse("1-7-4"))
    for gtid in (MariaDbGtid(1, 7, 5), MariaDbGtid(2, 7, 1), MariaDbGtid(1, 8, 6)):
        found.add(gtid)
    assert str(found.gtids) == "1-8-6,2-7-1"


def test_sets_of_two_products_hold_nothing_of_each_other() -> None:
    one, other = MariaDbPosition(), GtidSet()
    assert contains(one, one)
    assert contains(other, other)
    assert not contains(one, other)
    assert not contains(other, one)
