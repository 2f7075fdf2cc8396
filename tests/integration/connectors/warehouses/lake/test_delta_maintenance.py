"""Delta tables whose owner is killed before, in and after the commits of their maintenance: no row is lost, none is doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from tests.contract import warehouses as contract
from tests.integration.connectors.warehouses.parquet import killed_writer as script
from tests.unit.connectors.warehouses.lake.delta_files.file_lake import opened

from . import killed_delta_maintenance

POINTS = ("files_written", "before_commit", "after_commit", "before_removal")
DRIVER_S_MAX = 120
LAST = (1000, 0)
"""The epoch of a reader that comes after all writers."""


def driven(place, epoch, point=""):
    """Runs a driver to its end, and returns how it ended."""
    points = {"CDC_FAILPOINTS": f"maintenance.{point}=kill"} if point else {}
    command = [sys.executable, "-m", killed_delta_maintenance.__name__, place, str(epoch)]
    return subprocess.run(command, env={**os.environ, **points}, timeout=DRIVER_S_MAX).returncode


def require_whole(place):
    reader = opened(place, LAST)
    reader.claim(script.TOPICS)
    first, other = script.TOPICS
    assert contract.rows(reader, "id", "n", topic=first) == sorted(script.wanted(), key=repr)
    assert contract.rows(reader, "id", topic=other) == [(number,) for number in range(script.STEPS)]
    ends = {(record["topic"], 0): record["offset"] + 1 for record in script.records().records}
    assert dict(reader.ledger()) == ends
    return reader


def test_owners_that_are_killed_at_every_step_of_maintenance_leave_each_row_once(tmp_path):
    for epoch, point in enumerate(POINTS, 1):
        assert driven(str(tmp_path), epoch, point) == -signal.SIGKILL, point
    assert driven(str(tmp_path), len(POINTS) + 1) == 0
    reader = require_whole(tmp_path)
    # What those that were killed had written is gone, but for what the last run has removed from the table.
    for topic in script.TOPICS:
        place = reader._places[topic]
        live = reader._tables.size(place).files
        there = len(list(tmp_path.joinpath(*place).glob("*.parquet")))
        assert live <= 2
        assert there == live


@pytest.mark.s3
@pytest.mark.parametrize("points", [("before_commit", "after_commit"), pytest.param(POINTS, marks=pytest.mark.long)])
def test_owners_that_are_killed_leave_each_row_once_in_a_bucket(s3, points):
    prefix = uuid.uuid4().hex
    place = f"{s3.endpoint},{prefix}"
    for epoch, point in enumerate(points, 1):
        assert driven(place, epoch, point) == -signal.SIGKILL, point
    assert driven(place, len(points) + 1) == 0
    require_whole(s3.files(prefix))
