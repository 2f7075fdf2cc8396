"""When positions are stored and watermarks told without changes."""

from __future__ import annotations

from cdcworker.connectors.capture.stream.limits import WATERMARK_S
from cdcworker.connectors.capture.stream.position_pace import PositionPace

INTERVAL_S = 10.0


def test_a_place_that_has_moved_is_stored_after_the_interval_and_not_again():
    pace = PositionPace(INTERVAL_S)
    pace.begin("a", 100.0)
    assert not pace.is_due("b", 0, 100.0 + INTERVAL_S / 2)
    assert not pace.is_due("a", 0, 100.0 + INTERVAL_S)
    assert pace.is_due("b", 0, 100.0 + INTERVAL_S)
    pace.store("b", 0, 100.0 + INTERVAL_S)
    assert not pace.is_due("b", 0, 1000.0)


def test_each_step_of_the_snapshot_is_stored_at_once():
    pace = PositionPace(INTERVAL_S)
    pace.begin("a", 100.0)
    assert pace.is_due("a", 1, 100.0)
    pace.store("a", 1, 100.0)
    assert not pace.is_due("a", 1, 100.0)


def test_a_watermark_is_told_no_more_often_than_its_interval_and_not_beside_a_position():
    pace = PositionPace(INTERVAL_S)
    assert pace.tells(100.0)
    assert not pace.tells(100.0 + WATERMARK_S / 2)
    pace.store("a", 0, 100.0 + WATERMARK_S)
    assert not pace.tells(100.0 + WATERMARK_S)
    assert pace.tells(100.0 + 2 * WATERMARK_S)
