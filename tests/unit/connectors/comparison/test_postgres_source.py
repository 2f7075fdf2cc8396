"""The source's side of a comparison: which position it has reached."""

from __future__ import annotations

from cdcworker.connectors.postgres.doctor.compared_source import PAGE, settled


def test_a_position_behind_a_page_head_is_the_page():
    assert settled(5 * PAGE + 24) == 5 * PAGE == settled(5 * PAGE)
    assert settled(5 * PAGE + 48) == 5 * PAGE + 48
