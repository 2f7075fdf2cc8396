"""Places of logs whose transactions stand in another order than in the log that was read before."""

from __future__ import annotations

import uuid

from cdcworker.connectors.mysql.gtid.executed import parse_gtids
from cdcworker.connectors.mysql.source.moved_positions import LogPoint, _joined
from cdcworker.connectors.mysql.source.position import NO_PLACE, FilePlace

SERVER = uuid.UUID(int=7)
PLACE = FilePlace("log.000002", 500, 9)


def point(text: str, *, is_mariadb: bool) -> LogPoint:
    return LogPoint(parse_gtids(text, is_mariadb=is_mariadb), PLACE)


def test_what_was_handed_on_stays_so_behind_a_transaction_that_is_skipped() -> None:
    before = point("0-1-10,1-1-20", is_mariadb=True)
    assert _joined(point("0-1-11,1-1-15", is_mariadb=True), before) == LogPoint(
        parse_gtids("0-1-11,1-1-20", is_mariadb=True), NO_PLACE
    )
    before = point(f"{SERVER}:1-4:9", is_mariadb=False)
    joined = _joined(point(f"{SERVER}:1-5", is_mariadb=False), before)
    assert (str(joined.gtids), joined.place) == (f"{SERVER}:1-5:9", NO_PLACE)


def test_the_place_stays_where_the_order_is_the_same() -> None:
    behind = point("0-1-11,1-1-20", is_mariadb=True)
    assert _joined(behind, point("0-1-10,1-1-20", is_mariadb=True)) is behind
