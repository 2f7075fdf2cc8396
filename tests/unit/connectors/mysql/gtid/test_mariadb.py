"""MariaDB's positions: the last transaction of each domain."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.errors import GTID_INVALID
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid, MariaDbPosition
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

GTIDS = st.builds(MariaDbGtid, st.integers(0, 3), st.integers(1, 3), st.integers(1, 20))
POSITIONS = st.lists(GTIDS, max_size=6).map(MariaDbPosition.of)


@given(POSITIONS, POSITIONS, GTIDS)
def test_positions_are_compared_by_domain(left: MariaDbPosition, right: MariaDbPosition, gtid: MariaDbGtid) -> None:
    both = left.union(right)
    assert both.contains(left)
    assert both.contains(right)
    assert both.holds(gtid) == (left.holds(gtid) or right.holds(gtid))
    assert left.contains(right) == (not right.subtract(left))
    assert left.contains(right.subtract(right))
    assert left.union(right.subtract(left)).contains(right)
    assert MariaDbPosition.parse(str(left)) == left


def test_the_last_transaction_of_a_domain_counts_whoever_wrote_it() -> None:
    position = MariaDbPosition.parse(" 0-1-100, 0-2-101,5-1-7\n")
    assert str(position) == "0-2-101,5-1-7"
    assert position.holds(MariaDbGtid(0, 1, 100))
    assert not position.holds(MariaDbGtid(0, 1, 102))
    assert not position.holds(MariaDbGtid(1, 1, 1))
    assert str(position.subtract(MariaDbPosition.parse("0-9-500"))) == "5-1-7"
    assert not MariaDbPosition.parse("")


@pytest.mark.parametrize(
    "text", ["x", "1-2", "1-2-3-4", "1-2-x", "4294967296-1-1", "0-1-18446744073709551616", "0--1", "0-²-1"]
)
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(CdcError) as caught:
        MariaDbPosition.parse(text)
    assert caught.value.code == GTID_INVALID
